"""Build rows of `bronze.changes` from the messages of a slice: walk the tuples, compute the rest by column.

Wire formats (https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html), each after
the relation's oid::

    Insert   I  N new
    Update   U  N new  |  K identity N new  |  O old row N new
    Delete   D  K identity  |  O old row
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from deltasmelt.bronze.pgoutput.framing import DELETE, HEADER, INSERT, MESSAGE, TRUNCATE, UPDATE
from deltasmelt.bronze.pgoutput.layouts import NO_RELATION, name_lists, unchanged_lists
from deltasmelt.bronze.pgoutput.tuples import texts, walk
from deltasmelt.bronze.rules import is_kept, protect
from deltasmelt.bronze.store.contract import (
    CHANGES_SCHEMA,
    OP_DELETE,
    OP_INSERT,
    OP_MESSAGE,
    OP_TRUNCATE,
    OP_UPDATE,
)
from deltasmelt.bronze.store.text_lists import TEXT_LIST, list_array

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deltasmelt.bronze.pgoutput.framing import Frames, Positions
    from deltasmelt.bronze.pgoutput.layouts import TupleLayout
    from deltasmelt.bronze.pgoutput.transactions import Transactions
    from deltasmelt.bronze.pgoutput.tuples import Tuples

IS_CHANGE: Final = np.zeros(256, np.bool_)
"""Whether a message type carries tuples, by type byte."""
IS_CHANGE[[INSERT, UPDATE, DELETE]] = True

_NEW, _KEY, _OLD = b"NKO"
_TUPLE_TAGS: Final = np.zeros((256, 256), np.bool_)
_TUPLE_TAGS[INSERT, _NEW] = True
_TUPLE_TAGS[UPDATE, [_NEW, _KEY, _OLD]] = True
_TUPLE_TAGS[DELETE, [_KEY, _OLD]] = True

_OPS: Final = {
    INSERT: OP_INSERT,
    UPDATE: OP_UPDATE,
    DELETE: OP_DELETE,
    TRUNCATE: OP_TRUNCATE,
    MESSAGE: OP_MESSAGE,
}
_OP_NAMES: Final = pa.array(_OPS.values(), pa.string())
_OP_OF_TYPE: Final = np.zeros(256, np.int8)
_OP_OF_TYPE[list(_OPS)] = range(len(_OPS))


@dataclass(frozen=True, slots=True)
class SliceRows:
    """The rows to build from a slice, in order."""

    # index of each row's message; a Truncate of several relations has several rows
    message: Positions
    # oid of each row's relation, or NO_RELATION
    relation_id: Positions
    layouts: list[TupleLayout]
    # index in `layouts` of each row
    layout: Positions


def assemble(
    frames: Frames, transactions: Transactions, rows: SliceRows, next_seq: int, ingested_at: int
) -> pa.RecordBatch:
    """Return the rows in the schema of `bronze.changes`.

    Args:
        next_seq: `seq` of the first row that belongs to the transaction open before the slice.
        ingested_at: time of decoding in microseconds since 1970.

    Raises:
        DefiniteError: a message violates pgoutput's format.
    """
    count = len(rows.message)
    if count == 0:
        return pa.RecordBatch.from_pylist([], CHANGES_SCHEMA)
    number = transactions.number[rows.message]
    real = None if transactions.timed.all() else ~transactions.timed[number]
    no_table = rows.relation_id == NO_RELATION
    tables = [layout.table for layout in rows.layouts]
    by_layout = pa.array(rows.layout)
    tuples = _tuples(frames, rows)
    columns = {
        "commit_lsn": pa.array(transactions.commit_lsn[number]),
        "seq": pa.array(_seq(number, next_seq)),
        "lsn": pa.array(frames.lsn[rows.message]),
        "xid": pa.array(transactions.xid[number], mask=real),
        "commit_ts": pa.array(transactions.commit_ts[number], _type("commit_ts"), mask=real),
        "op": _OP_NAMES.take(pa.array(_OP_OF_TYPE[frames.types[rows.message]])),
        "table_schema": pa.array([table and table.schema for table in tables], pa.string()).take(by_layout),
        "table_name": pa.array([table and table.name for table in tables], pa.string()).take(by_layout),
        "relation_id": pa.array(rows.relation_id, mask=no_table if no_table.any() else None),
        "columns": name_lists(rows.layouts, rows.layout),
        "end_of_tx": pa.array(np.append(number[1:] != number[:-1], transactions.closed[number[-1]])),
        "ingested_at": pa.array(np.full(count, ingested_at), _type("ingested_at")),
        **tuples,
    }
    return pa.RecordBatch.from_arrays([columns[name] for name in CHANGES_SCHEMA.names], schema=CHANGES_SCHEMA)


def _type(column: str) -> pa.DataType:
    return CHANGES_SCHEMA.field(column).type


def _seq(number: Positions, next_seq: int) -> Positions:
    """Return each row's position inside its transaction; transaction 0 continues from `next_seq`."""
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    base = first.copy()
    if number[0] == 0:
        base[0] -= next_seq
    return np.arange(len(number)) - np.repeat(base, np.diff(np.append(first, len(number))))


def _tuples(frames: Frames, rows: SliceRows) -> dict[str, pa.Array]:
    """Return `new`, `old`, `old_is_key` and `unchanged` of the rows."""
    count = len(rows.message)
    type_ = frames.types[rows.message]
    start = frames.at[rows.message] + HEADER
    tag = frames.data[start + 5]
    changed = IS_CHANGE[type_]
    for row in np.flatnonzero(changed & ~_TUPLE_TAGS[type_, tag])[:1].tolist():
        frames.malformed(
            int(rows.message[row]), f"a {chr(type_[row])!r} message begins with {chr(tag[row])!r}"
        )
    has_old = changed & (tag != _NEW)
    position = start + 6

    old_rows = np.flatnonzero(has_old)
    old = _walk(frames, rows, old_rows, position[old_rows])
    position[old_rows] = old.after + 1
    has_new = changed & (type_ != DELETE)
    with_both = has_old & has_new
    for row in np.flatnonzero(with_both & (frames.data[position - 1] != _NEW))[:1].tolist():
        frames.malformed(int(rows.message[row]), "the new tuple after the old tuple is missing")
    new_rows = np.flatnonzero(has_new)
    new = _walk(frames, rows, new_rows, position[new_rows])

    end = position - 1
    end[new_rows] = new.after
    for row in np.flatnonzero(changed & (end != frames.at[rows.message + 1]))[:1].tolist():
        frames.malformed(int(rows.message[row]), "the message continues after its tuples")
    for cell in old.unchanged[:1].tolist():
        row = old_rows[int(np.searchsorted(np.cumsum(old.widths), cell, side="right"))]
        frames.malformed(int(rows.message[row]), "an old tuple contains a value that was not sent")

    new_cells, old_cells = (
        _protected(rows, chosen, tuples, texts(frames, tuples))
        for chosen, tuples in ((new_rows, new), (old_rows, old))
    )
    return {
        "new": _lists(count, new_rows, new_cells),
        "old": _lists(count, old_rows, old_cells),
        "old_is_key": _old_is_key(tag, has_old),
        "unchanged": _unchanged(rows, new_rows, new_cells),
    }


def _walk(frames: Frames, rows: SliceRows, chosen: Positions, positions: Positions) -> Tuples:
    """Walk the tuples of some rows and compare their widths with the layouts."""
    message = rows.message[chosen]
    tuples = walk(frames, message, positions)
    announced = np.array([layout.sent for layout in rows.layouts])[rows.layout[chosen]]
    for row in np.flatnonzero(tuples.widths != announced)[:1].tolist():
        columns = f"a tuple has {tuples.widths[row]} columns, the server announced {announced[row]}"
        frames.malformed(int(message[row]), columns)
    return tuples


@dataclass(frozen=True, slots=True)
class _Cells:
    """The cells of some tuples as the lake may hold them."""

    # number of cells of each tuple
    widths: Positions
    values: pa.StringArray
    # indexes of the cells that were not sent because an out-of-line value did not change, ascending
    unchanged: Positions


def _protected(rows: SliceRows, chosen: Positions, tuples: Tuples, cells: pa.StringArray) -> _Cells:
    """Apply the rules of the rows' tables to the cells (`bronze.rules`)."""
    gates = [layout.gate for layout in rows.layouts]
    key = next((gate.key for gate in gates if gate is not None), None)
    if key is None or len(cells) == 0:
        return _Cells(tuples.widths, cells, tuples.unchanged)
    by_layout = [
        np.zeros(layout.sent, np.int8) if gate is None else gate.codes
        for layout, gate in zip(rows.layouts, gates, strict=True)
    ]
    first = np.cumsum([0, *map(len, by_layout)])[:-1]
    tuple_of_cell = np.repeat(np.arange(len(chosen)), tuples.widths)
    start = np.cumsum(tuples.widths) - tuples.widths
    column = np.arange(len(cells)) - start[tuple_of_cell]
    codes = np.concatenate(by_layout)[first[rows.layout[chosen]][tuple_of_cell] + column]
    kept = is_kept(codes)
    place = np.cumsum(kept) - 1
    return _Cells(
        np.bincount(tuple_of_cell[kept], minlength=len(chosen)),
        protect(cells, codes, key),
        place[tuples.unchanged[kept[tuples.unchanged]]],
    )


def _lists(count: int, chosen: Positions, cells: _Cells) -> pa.ListArray:
    """Return the tuples as lists; NULL for rows without a tuple."""
    if len(chosen) == 0:
        return pa.nulls(count, TEXT_LIST)
    widths = np.zeros(count + 1, np.int64)
    widths[chosen + 1] = cells.widths
    valid = np.zeros(count, np.bool_)
    valid[chosen] = True
    return list_array(np.cumsum(widths), cells.values, valid)


def _old_is_key(tag: NDArray[np.uint8], has_old: NDArray[np.bool_]) -> pa.BooleanArray:
    if not has_old.any():
        return pa.nulls(len(tag), pa.bool_())
    return pa.array(tag == _KEY, mask=~has_old)


def _unchanged(rows: SliceRows, new_rows: Positions, new: _Cells) -> pa.ListArray:
    count = len(rows.message)
    if len(new.unchanged) == 0:
        return pa.nulls(count, TEXT_LIST)
    offsets = np.zeros(count + 1, np.int64)
    offsets[new_rows + 1] = new.widths
    return unchanged_lists(rows.layouts, rows.layout, np.cumsum(offsets), new.unchanged)
