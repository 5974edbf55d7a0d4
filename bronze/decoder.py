"""pgoutput messages in, Arrow out: the rows of `bronze.changes`, without a Python object per cell or per row.

Pure: no I/O but the catalog lookup it is given. What makes its output right, however the messages are cut
into batches:

* **Order.** pgoutput of protocol 1 sends whole transactions in commit order; any other sequence is refused
  (`bronze.transactions`). `commit_lsn` is Begin's final LSN, which Commit must repeat.
* **`seq` has no holes** over the rows that are kept: tables that are not selected and our own heartbeats
  take no number. The counter of an open transaction outlives the batch.
* **`end_of_tx`** is known only when the next row or the Commit is seen, so the last row of an open
  transaction is held back until then.
* **Shapes change in the middle of a batch.** Each row is read by the last Relation message before it, and
  must have as many columns.
* **Malformed input is refused**, with the LSN, before anything of its slice is given out; the decoder is
  then of no further use.

A batch is decoded in slices of a few megabytes. That bounds the memory beside input and output, keeps the
work in the processor's cache and every offset within int32.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from bronze import framing
from bronze.announced import relation_version, same_shape
from bronze.changes import CHANGES, SliceRows, assemble
from bronze.framing import HEADER, Block, malformed, slices
from bronze.layouts import NO_RELATION, AnnouncedLayouts, Layout, only_used
from bronze.lsn import Lsn
from bronze.messages import (
    AnnouncedRelation,
    AnnouncedType,
    LogicalMessage,
    parse_message,
    parse_relation,
    parse_truncate,
    parse_type,
)
from bronze.tables import CHANGES_SCHEMA
from bronze.transactions import Commit, OpenTransaction, Transactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from bronze.framing import Frames, Positions
    from bronze.identifiers import TableName
    from bronze.shapes import Relation

__all__ = ["HEARTBEAT_PREFIX", "Commit", "Decoded", "StreamDecoder"]

HEARTBEAT_PREFIX: Final = "deltasmelt"
"""Prefix of our own logical decoding messages: they move the stream forward and leave no row."""

_SLICE_BYTES: Final = 4 << 20
_RARE: Final = np.zeros(256, np.bool_)
_RARE[[framing.RELATION, framing.TYPE, framing.TRUNCATE, framing.MESSAGE]] = True


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a batch of messages says.

    Attributes:
        changes: rows of `bronze.changes`, in order. The last row of a transaction that is still open is held
            back.
        relations: shape versions that begin in this batch, in order.
        complete_rows: how many of `changes`, from the first, belong to transactions whose Commit was seen.
        last_commit: the newest transaction that ended in this batch, also one without rows; None where none
            did.
        in_transaction: a transaction is open at the end of the batch.
    """

    changes: pa.Table
    relations: list[Relation]
    complete_rows: int
    last_commit: Commit | None
    in_transaction: bool


@dataclass(slots=True)
class _Batch:
    """What was decoded so far of one batch."""

    parts: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    complete_rows: int = 0
    last_commit: Commit | None = None
    relations: list[Relation] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self.parts.append(rows)
            self.rows += rows.num_rows


class StreamDecoder:
    """Decodes one replication stream, batch by batch. A new connection needs a new decoder.

    Args:
        describe: the relation of an oid as the catalog has it now, or None where it is gone; called for each
            Relation message of a selected table, with the commit LSN of its transaction.
        selected: whether changes of a table are kept.
        known: shape versions recorded before; one that is announced again unchanged is not given out again.
    """

    def __init__(
        self,
        describe: Callable[[int, Lsn], Relation | None],
        selected: Callable[[TableName], bool],
        known: Iterable[Relation] = (),
    ) -> None:
        self._describe = describe
        self._selected = selected
        self._versions = {
            version.relation_id: version for version in sorted(known, key=lambda one: one.from_lsn)
        }
        self._layouts = AnnouncedLayouts()
        self._types: dict[int, AnnouncedType] = {}
        self._open: OpenTransaction | None = None
        self._last_lsn = 0
        self._next_seq = 0
        self._held: pa.RecordBatch | None = None

    def feed(self, messages: Sequence[bytes | memoryview]) -> Decoded:
        """`feed_blocks` for messages one by one, each from its ``w`` on."""
        return self.feed_blocks([Block.of(messages)])

    def feed_blocks(self, blocks: Iterable[Block]) -> Decoded:
        """Decode XLogData messages that follow those fed before.

        Memory: the output, and some 50 MB beside it. For rows of text the output is about as large as the
        input; for wide tables full of NULLs it is many times that, because bronze repeats the column names
        with each row. So feed a few megabytes at a time, and look at `changes.nbytes`.

        Args:
            blocks: of messages, each from its ``w`` on: start, end, clock (25 bytes in all), then what
                pgoutput says.

        Raises:
            DefiniteError: ``stream-malformed``; nothing of the batch is given out.
        """
        batch = _Batch()
        for frames in slices(blocks, _SLICE_BYTES):
            self._feed_slice(frames, batch)
        return Decoded(
            changes=pa.Table.from_batches(batch.parts, CHANGES_SCHEMA),
            relations=batch.relations,
            complete_rows=batch.complete_rows,
            last_commit=batch.last_commit,
            in_transaction=self._open is not None,
        )

    def _feed_slice(self, frames: Frames, batch: _Batch) -> None:
        transactions = Transactions(frames, self._open, self._last_lsn)
        rows = self._rows(frames, transactions, batch)
        changes = assemble(frames, transactions, rows, self._next_seq, ingested_at=time.time_ns() // 1000)
        self._open = transactions.still_open
        self._last_lsn = max(self._last_lsn, int(transactions.commit_lsn[-1]))
        self._give_out(changes, transactions.number[rows.message], transactions, batch)

    def _give_out(
        self, changes: pa.RecordBatch, number: Positions, transactions: Transactions, batch: _Batch
    ) -> None:
        """Settle the row held back before; add the slice's rows but for the last of an open transaction."""
        if self._held is not None and (transactions.closed[0] or (len(number) and number[0] == 0)):
            followed = bool(len(number)) and number[0] == 0
            batch.add(self._held if followed else _with_end_of_tx(self._held))
            self._held = None
        complete = batch.rows + int(np.count_nonzero(transactions.closed[number]))
        if transactions.last_commit is not None:
            batch.last_commit = transactions.last_commit
            batch.complete_rows = complete
        last_number = len(transactions.commit_lsn) - 1
        of_open = int(np.count_nonzero(number == last_number)) if transactions.still_open else 0
        self._next_seq = of_open + (self._next_seq if last_number == 0 else 0)
        if of_open:
            # A copy, which keeps no buffer of the slice.
            self._held = changes.take(pa.array([changes.num_rows - 1]))
            changes = changes.slice(0, changes.num_rows - 1)
        batch.add(changes)

    def _rows(self, frames: Frames, transactions: Transactions, batch: _Batch) -> SliceRows:
        """The kept rows of the slice and their layouts; takes in Relation and Type messages on the way."""
        counts = CHANGES[frames.types].astype(np.int64)
        announced: dict[int, list[tuple[int, Layout]]] = {}
        truncated: dict[int, list[int]] = {}
        written: dict[int, Layout] = {}
        for message in np.flatnonzero(_RARE[frames.types]).tolist():
            commit_lsn = Lsn(transactions.commit_lsn[transactions.number[message]])
            match _parse(int(frames.types[message]), frames.body(message), commit_lsn):
                case AnnouncedType() as type_:
                    self._types[type_.oid] = type_
                case AnnouncedRelation() as relation:
                    layout = self._announce(relation, commit_lsn, batch)
                    announced.setdefault(relation.relation_id, []).append((message, layout))
                case LogicalMessage() as logical if logical.prefix != HEARTBEAT_PREFIX:
                    written[message] = Layout.of(None, (logical.prefix, logical.content))
                    counts[message] = 1
                case list() as relations:
                    truncated[message] = relations
                    counts[message] = len(relations)

        message_of_row = np.repeat(np.arange(len(frames)), counts)
        relation_id = frames.uint32(frames.at[message_of_row] + HEADER + 1)
        first_row = np.cumsum(counts) - counts
        for message, relations in truncated.items():
            relation_id[first_row[message] : first_row[message] + len(relations)] = relations
        for message in written:
            relation_id[first_row[message]] = NO_RELATION
        layouts, layout_of_row = self._layouts.of_rows(
            frames, message_of_row, relation_id, announced, list(written.values())
        )
        keep = np.array([one.selected for one in layouts], np.bool_)[layout_of_row]
        if not keep.all():
            message_of_row, relation_id = message_of_row[keep], relation_id[keep]
            layout_of_row = layout_of_row[keep]
        return SliceRows(message_of_row, relation_id, *only_used(layouts, layout_of_row))

    def _announce(self, announced: AnnouncedRelation, commit_lsn: Lsn, batch: _Batch) -> Layout:
        selected = self._selected(announced.table)
        if selected:
            one = announced.relation_id
            known = self._versions.get(one)
            catalog = self._describe(one, commit_lsn)
            version = relation_version(announced, commit_lsn, catalog=catalog, known=known, types=self._types)
            if known is None or not same_shape(version, known):
                self._versions[one] = version
                batch.relations.append(version)
        return Layout.of(announced.table, [column.name for column in announced.columns], selected=selected)


def _parse(
    type_: int, body: bytes, commit_lsn: Lsn
) -> AnnouncedType | AnnouncedRelation | LogicalMessage | list[int]:
    """One of the rare messages; of Truncate its relations."""
    try:
        match type_:
            case framing.TYPE:
                return parse_type(body)
            case framing.RELATION:
                return parse_relation(body)
            case framing.TRUNCATE:
                return parse_truncate(body)
            case _:
                return parse_message(body)
    except ValueError as error:
        malformed(f"a {chr(type_)!r} message: {error}", commit_lsn)


def _with_end_of_tx(row: pa.RecordBatch) -> pa.RecordBatch:
    return row.set_column(
        CHANGES_SCHEMA.get_field_index("end_of_tx"), CHANGES_SCHEMA.field("end_of_tx"), pa.array([True])
    )
