"""The expected form of every reader's values, and the readers of this project's own environment.

`tests.readers.matrix` imports this module in a separate environment, so the module imports no deltasmelt
code.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

Rows = list[dict[str, Any]]

_PER_MICROSECOND: Final = {"s": (1_000_000, 1), "ms": (1_000, 1), "us": (1, 1), "ns": (1, 1_000)}
"""Factor and divisor that convert a timestamp of each unit to microseconds."""


def plain_rows(table: pa.Table, key: str = "id") -> Rows:
    """Return rows in the order of a key, with each value in a lossless JSON form.

    Equivalent types get equal forms under every reader's type names. A timestamp becomes a text with the
    number of microseconds, so no reader's range of years limits the comparison.
    """
    columns = {name: plain(table[name]) for name in table.column_names}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    return sorted(rows, key=lambda row: row[key])


def plain(values: Any) -> list[Any]:
    """Return the values of an Arrow array, chunked or not, in the form of `plain_rows`."""
    if isinstance(values, pa.ChunkedArray):
        return [value for chunk in values.chunks for value in plain(chunk)]
    if isinstance(values.type, pa.BaseExtensionType):
        return plain(values.storage)
    if pa.types.is_dictionary(values.type):
        return plain(values.dictionary_decode())
    return _nested(values) if pa.types.is_nested(values.type) else _flat(values)


def _nested(values: Any) -> list[Any]:
    if pa.types.is_struct(values.type):
        names, validity = [field.name for field in values.type], values.is_valid().to_pylist()
        fields = zip(*(plain(inner) for inner in values.flatten()), strict=True)
        rows = [dict(zip(names, row, strict=True)) for row in fields]
        return [row if valid else None for row, valid in zip(rows, validity, strict=True)]
    inner = _pairs if pa.types.is_map(values.type) else plain
    return [None if offsets.values is None else inner(offsets.values) for offsets in values]


def _pairs(entries: Any) -> list[Any]:
    """Return a map as a sorted list of keys and values: readers without maps return lists in any order."""
    return sorted(_nested(entries), key=lambda pair: str(pair["key"]))


def _flat(values: Any) -> list[Any]:
    kind = values.type
    if pa.types.is_timestamp(kind):
        return [
            None if number is None else _moment(number, kind)
            for number in values.cast(pa.int64()).to_pylist()
        ]
    if pa.types.is_date(kind):
        days = values.cast(pa.date32()).cast(pa.int32()).to_pylist()
        return [None if day is None else f"day {day}" for day in days]
    return [_scalar(item) for item in values.to_pylist()]


def _moment(number: int, kind: pa.DataType) -> str:
    times, parts = _PER_MICROSECOND[kind.unit]
    whole, remainder = divmod(number * times, parts)
    zone = "local" if kind.tz is None else "UTC" if kind.tz in {"UTC", "Etc/UTC", "+00:00"} else kind.tz
    return f"{whole}{f' and {remainder} ns' if remainder else ''} us {zone}"


def _scalar(value: Any) -> Any:
    if isinstance(value, bytes):
        return f"bytes {value.hex()}"
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else repr(value)
    return value if value is None or isinstance(value, (bool, int)) else str(value)


def differences(rows: Rows, expected: Rows) -> list[str]:
    """Return the differences between a reader and Spark in words: rows, columns, values."""
    if len(rows) != len(expected):
        return [f"{len(rows)} of {len(expected)} rows"]
    wrong: dict[str, str] = {}
    for ours, theirs in zip(rows, expected, strict=True):
        for name in ours.keys() | theirs.keys():
            if ours.get(name, "no such column") != theirs.get(name, "no such column"):
                wrong.setdefault(name, f"{name}: {ours.get(name)!r} for {theirs.get(name)!r}")
    return sorted(wrong.values())


def by_datafusion(path: str, since: int | None = None) -> pa.Table:
    """Read with delta-rs and its own query engine.

    Args:
        since: return only rows whose column ``at`` is later, in microseconds; None: all rows.
    """
    query = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path))
    condition = "" if since is None else f" WHERE at > to_timestamp_micros({since})"
    return pa.table(query.execute(f"SELECT * FROM t{condition}").read_all())


def by_arrow(path: str, since: int | None = None) -> pa.Table:
    """Read with delta-rs into pyarrow, as pandas does; a filter uses the statistics first."""
    dataset = deltalake.DeltaTable(path).to_pyarrow_dataset()
    return dataset.to_table(filter=None if since is None else pc.field("at") > _at(since))


def by_files(path: str, since: int | None = None) -> pa.Table:
    """Read the files with pyarrow; without deletion vectors the files are the table."""
    files = deltalake.DeltaTable(path).file_uris()
    table = pa.concat_tables(pq.read_table(file) for file in files)
    return table if since is None else table.filter(pc.field("at") > _at(since))


def _at(since: int) -> pa.Scalar:
    return pa.scalar(since, pa.timestamp("us", "UTC"))


def microseconds(text: str) -> int:
    """Return the microseconds from 1970 to an ISO 8601 timestamp in UTC."""
    since_1970 = datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since_1970.days * 86_400 + since_1970.seconds) * 1_000_000 + since_1970.microseconds


def compared(reader: Callable[..., pa.Table], path: str, expected: Rows, moments: Sequence[int]) -> list[str]:
    """Return a reader's differences for all rows, then for the rows after each timestamp."""
    problems = differences(plain_rows(reader(path)), expected)
    for since in moments:
        later = [row["id"] for row in expected if row["at"] is not None and int(row["at"].split()[0]) > since]
        ids = sorted(plain(reader(path, since)["id"]))
        if ids != later:
            problems.append(f"at > {since}: {len(ids)} of {len(later)} rows")
    return problems
