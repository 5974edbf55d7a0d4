"""The workload of silver's benchmarks, without a server: in bronze's form, as JSON, and as typed rows.

The rows are those of `bulk.sql`. Each change is written in three forms: into `bronze.changes`, as by the
reader; as a connector's JSON text (Debezium's envelope without schema: `before`, `after`, `source`, `op`,
`ts_ms`) for the template; as flat rows of the target's types for the tuned template.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction, write_deltalake

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType
from deltasmelt.bronze.store.contract import CHANGES, CHANGES_SCHEMA
from deltasmelt.bronze.store.marks import CONFIRM_APP, STREAM_APP
from deltasmelt.bronze.store.text_lists import list_array
from tests.silver.histories import START, BronzeWriter, relation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deltasmelt.bronze.shapes import Relation

_FILE_ROWS: Final = 131_072
_CHUNK: Final = 500_000
_WAL_OF_A_TRANSACTION: Final = 50_000


def base(name: str, typmod: int = -1) -> PgType:
    return PgType("base", name, typmod=typmod)


COLUMNS: Final = [
    ("id", base("int8")), ("customer_id", base("int8")), ("status", base("text")),
    ("total", base("numeric", (12 << 16 | 2) + 4)), ("placed_at", base("timestamptz")),
    ("note", base("text")),
    ("tags", PgType("array", "_text", element=base("text"))), ("qty", base("int4")),
    ("price", base("float8")), ("uid", base("uuid")),
]  # fmt: skip
NAMES: Final = [name for name, _ in COLUMNS]
TYPED: Final = (
    "id BIGINT, customer_id BIGINT, status STRING, total DECIMAL(12,2), placed_at TIMESTAMP, note STRING, "
    "tags ARRAY<STRING>, qty INT, price DOUBLE, uid STRING"
)
"""The columns with Spark's types."""
_ARROW: Final = {
    "id": pa.int64(), "customer_id": pa.int64(), "status": pa.string(), "total": pa.decimal128(12, 2),
    "note": pa.string(), "qty": pa.int32(), "price": pa.float64(), "uid": pa.string(),
}  # fmt: skip


def orders(name: str, relation_id: int) -> Relation:
    return relation(name, COLUMNS, ["id"], relation_id=relation_id)


def text(values: Any) -> pa.StringArray:
    return pa.array(values).cast(pa.string())


def words(*parts: Any) -> pa.StringArray:
    return pc.binary_join_element_wise(
        *(pa.scalar(part) if isinstance(part, str) else part for part in parts), ""
    )


def repeated(value: str | None, count: int) -> pa.StringArray:
    return pa.array([value] * count, pa.string())


def order_columns(ids: Any, status: str | None = None, raised: int = 0) -> list[pa.StringArray]:
    """Return PostgreSQL's text of each column, for rows with these ids."""
    count, key = len(ids), text(ids)
    states = pa.array(np.array(["new", "paid", "shipped", "done"])[ids % 4])
    return [
        key, text(1 + ids % 200_000), states if status is None else repeated(status, count),
        text(np.round((ids % 1000) * 1.37 + raised, 2)), repeated("2026-11-21 14:00:00.123456+00", count),
        words("note for order ", key), words("{a,b", text(ids % 10), "}"), text(ids % 7),
        text(np.round(ids * 0.123, 3)), words(text(10_000_000 + ids), "-1111-2222-3333-444455556666"),
    ]  # fmt: skip


def interleave(columns: Sequence[pa.StringArray]) -> pa.ListArray:
    """Convert columns of text to rows of text."""
    rows, width = len(columns[0]), len(columns)
    order = (np.arange(rows)[:, None] + np.arange(width) * rows).ravel()
    return list_array(np.arange(rows + 1) * width, pa.concat_arrays(columns).take(pa.array(order)))


class Changes:
    """One transaction with changes of one kind to one table."""

    def __init__(
        self, shape: Relation, op: str, ids: Any, *, status: str | None = None, raised: int = 0
    ) -> None:
        self.shape, self.op, self.ids, self.status, self.raised = shape, op, ids, status, raised

    def bronze(self, lsn: int) -> Iterator[pa.Table]:
        """Return rows of `bronze.changes` in parts of one file each."""
        first = 0
        for start in range(0, len(self.ids), _CHUNK):
            rows = self._rows(lsn, self.ids[start : start + _CHUNK], first)
            first += len(rows)
            for offset in range(0, len(rows), _FILE_ROWS):
                yield rows.slice(offset, _FILE_ROWS)

    def _rows(self, lsn: int, ids: Any, first: int) -> pa.Table:
        count, deleted = len(ids), self.op == "delete"
        if deleted:
            values = interleave([text(ids), *[repeated(None, count)] * (len(COLUMNS) - 1)])
        else:
            values = interleave(order_columns(ids, self.status, self.raised))
        none = pa.nulls(count, pa.list_(pa.string()))
        time_ = pa.array([START] * count, pa.timestamp("us", tz="UTC"))
        columns = {
            "commit_lsn": pa.array(np.full(count, lsn)), "seq": pa.array(np.arange(first, first + count)),
            "lsn": pa.array(np.full(count, lsn)), "xid": pa.array(np.full(count, lsn)), "commit_ts": time_,
            "op": repeated(self.op, count), "table_schema": repeated("public", count),
            "table_name": repeated(self.shape.table.name, count),
            "columns": pa.array([NAMES], pa.list_(pa.string())).take(pa.array([0] * count)),
            "relation_id": pa.array(np.full(count, self.shape.relation_id)),
            "new": none if deleted else values, "old": values if deleted else none,
            "old_is_key": pa.array([deleted] * count), "unchanged": none,
            "end_of_tx": pa.array(np.arange(count) == count - 1), "ingested_at": time_,
        }  # fmt: skip
        return pa.table(columns).select(CHANGES_SCHEMA.names).cast(CHANGES_SCHEMA)

    def json(self, lsn: int) -> pa.Table:
        """Return a column of JSON texts, one record per change; `source.lsn` gives their order."""
        count = len(self.ids)
        place = text(np.int64(lsn) * 10_000_000 + np.arange(count))
        letter = {"insert": "c", "update": "u", "delete": "d"}[self.op]
        tail = words(
            ',"source":{"version":"3.0.0.Final","connector":"postgresql","name":"bench",'
            '"ts_ms":1795269600000,"snapshot":"false","db":"bench","sequence":"[null,\\"',
            place,
            f'\\"]","schema":"public","table":"{self.shape.table.name}","txId":{lsn},"lsn":',
            place,
            f',"xmin":null}},"transaction":null,"op":"{letter}","ts_ms":1795269600123}}',
        )
        if self.op == "delete":
            records = words('{"before":{"id":', text(self.ids), '},"after":null', tail)
        else:
            row = dict(zip(NAMES, order_columns(self.ids, self.status, self.raised), strict=True))
            row["tags"] = words('["a","b', text(self.ids % 10), '"]')
            after: list[Any] = []
            for name, cells in row.items():
                plain = name in {"id", "customer_id", "tags", "qty", "price"}
                moment = name == "placed_at"
                cells = repeated("2026-11-21T14:00:00.123456Z", count) if moment else cells  # noqa: PLW2901
                after += [f'{"," if after else ""}"{name}":', cells if plain else words('"', cells, '"')]
            records = words('{"before":null,"after":{', *after, "}", tail)
        return pa.table({"value": records})

    def typed(self, lsn: int) -> pa.Table:
        """Return rows in the target's types, with ``op`` and ``lsn``; a deleted row has only its key."""
        count, letter = len(self.ids), {"insert": "c", "update": "u", "delete": "d"}[self.op]
        place = np.int64(lsn) * 10_000_000 + np.arange(count)
        row = dict(zip(NAMES, order_columns(self.ids, self.status, self.raised), strict=True))
        cells: dict[str, Any] = {name: row[name].cast(kind) for name, kind in _ARROW.items() if name in row}
        placed_at = pa.scalar(START, pa.timestamp("us", tz="UTC"))
        cells["placed_at"] = pa.array([placed_at.as_py()] * count, placed_at.type)
        cells["tags"] = pa.array(
            [["a", f"b{digit}"] for digit in (self.ids % 10).tolist()], pa.list_(pa.string())
        )
        if self.op == "delete":
            cells = {
                name: cell if name == "id" else pa.nulls(count, cell.type) for name, cell in cells.items()
            }
        return pa.table(
            {"op": repeated(letter, count), "lsn": pa.array(place)} | {n: cells[n] for n in NAMES}
        )


class Work:
    """A folder with deltasmelt's lake and optionally batches for the templates; writes changes to both."""

    def __init__(self, folder: Path, shapes: Sequence[Relation], *, templates: bool = False) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.lake = Lake(path=str(folder / "lake"))
        self._batches = folder / "batches" if templates else None
        self._batch = 0
        self._lsn = 10
        bronze = BronzeWriter(self.lake)
        bronze.relations(shapes)
        for shape in shapes:
            bronze.snapshot(shape, 10, [])
        bronze.commit(10)

    def write(self, *changes: Changes) -> str:
        """Write one transaction per kind of change, all in one window; return the folder of the batch."""
        self._batch += 1
        folder = "" if self._batches is None else str(self._batches / str(self._batch))
        for change in changes:
            self._lsn += _WAL_OF_A_TRANSACTION + 100 * len(change.ids)
            last = change is changes[-1]
            self._append(change.bronze(self._lsn), [] if not last else self._marks())
            if folder:
                batch = f"{folder}/{change.shape.table.name}"
                for ids in np.array_split(change.ids, -(-len(change.ids) // _CHUNK)):
                    part = Changes(change.shape, change.op, ids, status=change.status, raised=change.raised)
                    write_deltalake(f"{batch}/json", part.json(self._lsn), mode="append")
                    write_deltalake(f"{batch}/typed", part.typed(self._lsn), mode="append")
        return folder

    def take(self, shape: Relation, ids: Any) -> None:
        """Write a complete snapshot of a table with these rows."""
        self._lsn += _WAL_OF_A_TRANSACTION
        self._append(Changes(shape, "snapshot", ids).bronze(self._lsn), [])
        bronze = BronzeWriter(self.lake)
        bronze.snapshot(shape, self._lsn, [])  # its end, and the mark
        self._lsn += 1
        bronze.commit(self._lsn)

    def _marks(self) -> list[Transaction]:
        return [Transaction(STREAM_APP, self._lsn), Transaction(CONFIRM_APP, self._lsn + 1)]

    def _append(self, parts: Iterator[pa.Table], marks: list[Transaction]) -> None:
        """Write the parts of a transaction; the last part carries the marks."""
        waiting = next(parts)
        for part in parts:
            write_deltalake(self.lake.uri("bronze", CHANGES), waiting, mode="append")
            waiting = part
        write_deltalake(
            self.lake.uri("bronze", CHANGES),
            waiting,
            mode="append",
            commit_properties=CommitProperties(app_transactions=marks) if marks else None,
        )
