"""Build rows of `bronze.changes` from the cells of a snapshot."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from deltasmelt.bronze.store.contract import OP_SNAPSHOT, OP_SNAPSHOT_END, ROWS_SCHEMA
from deltasmelt.bronze.store.text_lists import TEXT_LIST, list_array

if TYPE_CHECKING:
    from datetime import datetime

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation


SEQ_OF_CHUNK: Final = 1 << 32
"""A chunk's first row has the chunk's number times this as `seq`, so chunks need no common counter."""


class SnapshotRows:
    """A builder of the rows of one table's snapshot."""

    def __init__(self, relation: Relation, lsn: Lsn, taken_at: datetime) -> None:
        self._relation = relation
        self._lsn = lsn
        self._taken_at = taken_at
        self._names = pa.array([column.name for column in relation.columns], pa.string())
        self._lists = pa.nulls(0, ROWS_SCHEMA.field("columns").type)

    def rows(self, cells: pa.StringArray, first_seq: int) -> pa.Table:
        """Return the rows of a block.

        Args:
            cells: values row after row, in the relation's order; for a table without columns one empty cell
                per row.

        Raises:
            ValueError: the cells do not fill whole rows of the relation.
        """
        width = len(self._names)
        count, remainder = divmod(len(cells), width or 1)
        if remainder:
            raise ValueError(f"{len(cells)} values do not fill rows of {width} columns")
        return self._table(OP_SNAPSHOT, list_array(np.arange(count + 1) * width, cells), first_seq)

    def end(self, seq: int) -> pa.Table:
        """Return the row that closes the snapshot."""
        return self._table(OP_SNAPSHOT_END, pa.nulls(1, TEXT_LIST), seq)

    def _table(self, op: str, new: pa.ListArray, first_seq: int) -> pa.Table:
        count = len(new)
        closing = op == OP_SNAPSHOT_END
        columns: dict[str, Any] = {
            "commit_lsn": int(self._lsn),
            "seq": pa.array(np.arange(first_seq, first_seq + count)),
            "lsn": int(self._lsn),
            "xid": None,
            "commit_ts": self._taken_at,
            "op": _repeated(op, count),
            "table_schema": _repeated(self._relation.table.schema, count),
            "table_name": _repeated(self._relation.table.name, count),
            "relation_id": self._relation.relation_id,
            "columns": self._name_lists(count),
            "new": new,
            "old": None,
            "old_is_key": None,
            "unchanged": None,
            "end_of_tx": closing,
            "ingested_at": pa.scalar(time.time_ns() // 1000, pa.timestamp("us", tz="UTC")),
        }
        return pa.Table.from_arrays(
            [_column(columns[field.name], field.type, count) for field in ROWS_SCHEMA],
            schema=ROWS_SCHEMA,
        )

    def _name_lists(self, count: int) -> pa.ListArray:
        """Return the column names for each row: a slice of cached lists, because blocks are similar."""
        if len(self._lists) < count:
            width = len(self._names)
            room = count + count // 8
            order = pa.array(np.tile(np.arange(width, dtype=np.int32), room))
            names = pa.DictionaryArray.from_arrays(order, self._names)
            ends = pa.py_buffer(np.arange(room + 1, dtype=np.int32) * width)
            kind = ROWS_SCHEMA.field("columns").type
            self._lists = pa.ListArray.from_buffers(kind, room, [None, ends], children=[names])
        return self._lists.slice(0, count)


def _repeated(text: str, count: int) -> pa.DictionaryArray:
    return pa.DictionaryArray.from_arrays(pa.array(np.zeros(count, np.int32)), pa.array([text]))


def _column(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """Return an array unchanged; repeat a single value for all rows."""
    if isinstance(value, pa.Array):
        return value
    if value is None:
        return pa.nulls(count, kind)
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, kind)
    return pa.repeat(scalar, count)
