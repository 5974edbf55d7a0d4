"""The rows of a statement in their output format: table, JSON lines, CSV, Parquet.

Spark turns values into text, in the session's time zone (UTC), so no machine's own zone appears. A table has
a limited number of rows. JSON and CSV have all rows, fetched partition by partition: each partition of a
sorted or joined result, which has few, must fit into memory. Spark alone writes Parquet of any size.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from rich.cells import cell_len

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.spark_errors import spark_errors
from deltasmelt.pipelines.terminal.arguments import RowFormat
from deltasmelt.pipelines.terminal.jvm_errors import root_message, spark_message
from deltasmelt.pipelines.terminal.visible import visible
from deltasmelt.silver.sql import JSON_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pyspark.sql import DataFrame

_TO_QUOTE: Final = re.compile(r'[",\r\n]|^\s|\s$')
_GAP: Final = 1
"""Blanks between the columns of a table on a terminal."""


def csv_line(values: Iterable[str | None]) -> str:
    """Return a record in the form of RFC 4180, with its line end (CR LF)."""
    return ",".join(map(_csv_field, values)) + "\r\n"


def _csv_field(value: str | None) -> str:
    if value is None:
        return ""
    # NULL is empty between two commas, an empty text is `""`; so both values stay distinct.
    if value and not _TO_QUOTE.search(value):
        return value
    return '"' + value.replace('"', '""') + '"'


def fits(columns: Sequence[str], rows: Iterable[Sequence[str | None]], width: int) -> bool:
    """Check whether a table's longest values fit side by side on a terminal."""
    longest = [cell_len(name) for name in columns]
    for row in rows:
        for index, value in enumerate(row):
            text = "NULL" if value is None else value
            longest[index] = max(longest[index], *map(cell_len, text.split("\n")))
    return sum(longest) + _GAP * (len(longest) - 1) <= width


def one_value_a_line(columns: Sequence[str], rows: Iterable[Sequence[str | None]]) -> Iterator[str]:
    """Return rows as visible lines of a name and its value, each row under its number."""
    columns = list(map(visible, columns))
    width = max((cell_len(name) for name in columns), default=0)
    for number, row in enumerate(rows, start=1):
        yield f"-[ row {number} ]".ljust(width + 12, "-")
        for name, value in zip(columns, row, strict=True):
            first, *further_lines = visible("NULL" if value is None else value).split("\n")
            yield f"{name}{' ' * (width - cell_len(name))} | {first}".rstrip()
            yield from (f"{' ' * width} | {line}".rstrip() for line in further_lines)


_NUMBER: Final = re.compile("(decimal|int|bigint|smallint|tinyint|double|float)(?!erval)")
_NESTED: Final = ("struct", "array", "map")


@dataclass(frozen=True, slots=True)
class FirstRows:
    """The first rows of a result, as text.

    `columns` may repeat, `numbers` are the numeric columns, and None in `rows` is NULL. `more` states that
    the result has more rows.
    """

    columns: tuple[str, ...]
    numbers: tuple[str, ...]
    rows: tuple[tuple[str | None, ...], ...]
    more: bool


def first_rows(frame: DataFrame, limit: int) -> FirstRows:
    """Return at most `limit` rows, as text."""
    with running():
        rows = _text_frame(frame).limit(limit + 1).collect()
    numbers = (name for name, type_name in frame.dtypes if _NUMBER.match(type_name))
    cells = tuple(tuple(row) for row in rows[:limit])
    return FirstRows(tuple(frame.columns), tuple(numbers), cells, more=len(rows) > limit)


def json_lines(frame: DataFrame) -> Iterator[str]:
    """Yield all rows, each as one JSON object and a line end.

    Raises:
        DefiniteError: the statement fails at runtime, or names of columns repeat.
    """
    from pyspark.sql import functions as f  # noqa: PLC0415 - Spark is up by now

    if repeated := sorted({name for name in frame.columns if frame.columns.count(name) > 1}):
        raise DefiniteError(
            f"several columns have the name {', '.join(repeated)}; JSON would keep only the last",
            code="sql",
            where="SQL",
            remedy="rename the columns with AS",
        )
    with running():
        for row in frame.select(f.to_json(f.struct(f.col("*")), JSON_OPTIONS)).toLocalIterator():
            yield f"{row[0]}\n"


def csv_lines(frame: DataFrame) -> Iterator[str]:
    """Yield the names of the columns, then all rows, as records of CSV."""
    yield csv_line(frame.columns)
    with running():
        for row in _text_frame(frame).toLocalIterator():
            yield csv_line(row)


STREAMED: Final[dict[RowFormat, Callable[[DataFrame], Iterator[str]]]] = {
    RowFormat.JSON: json_lines,
    RowFormat.CSV: csv_lines,
}
"""Line formats with all rows."""


@contextmanager
def running() -> Iterator[None]:
    """Raise Spark's errors of a running statement as one `DefiniteError`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415

    try:
        yield
    except PySparkException as error:
        raise DefiniteError(spark_message(error), code="sql", where="SQL") from None
    except spark_errors() as error:  # of rows that are streamed: pyspark leaves it as it is
        raise DefiniteError(root_message(error), code="sql", where="SQL") from None


def _text_frame(frame: DataFrame) -> DataFrame:
    from pyspark.sql import functions as f  # noqa: PLC0415

    types = [type_name for _, type_name in frame.dtypes]
    positions = [f"_{index}" for index in range(len(types))]  # names may repeat, or hold dots
    plain = frame.toDF(*positions)
    columns: list[Any] = [
        f.to_json(position, JSON_OPTIONS)
        if type_name.startswith(_NESTED)
        else f.base64(position)
        if type_name == "binary"
        else f.col(position).cast("string")
        for position, type_name in zip(positions, types, strict=True)
    ]
    return plain.select(*(column.alias(name) for column, name in zip(columns, positions, strict=True)))
