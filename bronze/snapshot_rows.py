"""Columns of a snapshot to rows of `bronze.changes`. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from bronze.rows import TEXT_LIST, interleave_pieces, list_array
from bronze.tables import CHANGES_SCHEMA, OP_SNAPSHOT, OP_SNAPSHOT_END

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from datetime import datetime

    from bronze.lsn import Lsn
    from bronze.shapes import Relation

SEQ_OF_CHUNK: Final = 1 << 32
"""`seq` of a chunk's first row is its number times this, so that chunks need no common counter."""


class SnapshotRows:
    """Builds the rows of one table's snapshot.

    Args:
        relation: shape of the table.
        lsn: S, which every row carries.
        taken_at: the server's clock when the snapshot was taken.
    """

    def __init__(self, relation: Relation, lsn: Lsn, taken_at: datetime) -> None:
        self._relation = relation
        self._lsn = lsn
        self._taken_at = taken_at
        self._names = pa.array([column.name for column in relation.columns], pa.string())
        self._lists = pa.nulls(0, TEXT_LIST)

    def rows(self, columns: Sequence[pa.StringArray], first_seq: int) -> Iterator[pa.Table]:
        """The rows of a block; several tables where the block holds more text than one array can.

        Args:
            columns: values of each column of the relation, in its order.
            first_seq: of the block's first row.
        """
        for new in interleave_pieces(columns):
            yield self._table(OP_SNAPSHOT, new, first_seq)
            first_seq += len(new)

    def end(self, seq: int) -> pa.Table:
        """The row that closes the snapshot."""
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
            "op": op,
            "table_schema": self._relation.table.schema,
            "table_name": self._relation.table.name,
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
            [_column(columns[field.name], field.type, count) for field in CHANGES_SCHEMA],
            schema=CHANGES_SCHEMA,
        )

    def _name_lists(self, count: int) -> pa.ListArray:
        """The same names for each row; blocks have about as many rows, so they are made once and sliced."""
        if len(self._lists) < count:
            width = len(self._names)
            room = count + count // 8
            names = self._names.take(pa.array(np.tile(np.arange(width), room)))
            self._lists = list_array(np.arange(room + 1, dtype=np.int64) * width, names)
        return self._lists.slice(0, count)


def _column(value: Any, kind: pa.DataType, count: int) -> pa.Array:
    """An array as it is; a single value as often as there are rows."""
    if isinstance(value, pa.Array):
        return value
    if value is None:
        return pa.nulls(count, kind)
    scalar = value if isinstance(value, pa.Scalar) else pa.scalar(value, kind)
    return pa.repeat(scalar, count)
