"""Decode pgoutput messages into Arrow rows of `bronze.changes`, without a Python object per cell or row.

The decoder does no I/O except the catalog lookup passed in. A batch is decoded in slices of a few megabytes.

Invariants, however the messages are cut into batches:

* **Order.** Protocol 1 sends whole transactions in commit order. The decoder refuses any other sequence
  (`bronze.pgoutput.transactions`). `commit_lsn` is the final LSN of Begin; Commit must repeat the same LSN.
* **`seq` has no holes** over the rows in the output: unselected tables and deltasmelt's own heartbeats take
  no number. The counter of an open transaction outlives the batch.
* **Shapes change in the middle of a batch**: the last Relation message before a row defines the row's columns
  (`_announce`).
* **No change of a known table is dropped silently.** An unforeseen error in one table's shape affects this
  table alone (`_announce`).
* **Rules come before everything else**: names, types and cells of a table pass the rules here
  (`bronze.rules`), so no other part of the reader gets an excluded or a clear value.
* **Malformed input is refused** with the LSN, before any row of the slice is returned. Afterwards the decoder
  is unusable.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-logical-replication.html and
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput import framing
from deltasmelt.bronze.pgoutput.earlier_changes import EarlierChanges
from deltasmelt.bronze.pgoutput.framing import HEADER, Block, malformed, slices
from deltasmelt.bronze.pgoutput.layouts import NO_RELATION, AnnouncedLayouts, TupleLayout, only_used
from deltasmelt.bronze.pgoutput.messages import (
    AnnouncedColumn,
    AnnouncedRelation,
    AnnouncedType,
    LogicalMessage,
    parse_message,
    parse_relation,
    parse_truncate,
    parse_type,
)
from deltasmelt.bronze.pgoutput.partitions import PartitionAnnouncements
from deltasmelt.bronze.pgoutput.relation_versions import ShapeVersions
from deltasmelt.bronze.pgoutput.rows import IS_CHANGE, SliceRows, assemble
from deltasmelt.bronze.pgoutput.transactions import Commit, OpenTransaction, Transactions
from deltasmelt.bronze.postgres.heartbeat import HEARTBEAT_PREFIX
from deltasmelt.bronze.rules import TEXT_OID, RuleLostError, TableRules, ruled_partition
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, OP_INSERT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from deltasmelt.bronze.drift.streamed import StreamedPart
    from deltasmelt.bronze.pgoutput.framing import Frames, Positions
    from deltasmelt.bronze.shapes import Relation

__all__ = ["Commit", "Decoded", "StreamDecoder"]

# Slices bound the memory beyond input and output, fit the processor's cache and hold all offsets in int32.
_SLICE_BYTES: Final = 4 << 20
_NEVER: Final = 2**63 - 1
_RARE: Final = np.zeros(256, np.bool_)
_RARE[[framing.RELATION, framing.TYPE, framing.TRUNCATE, framing.MESSAGE]] = True


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded content of one batch of messages."""

    # Rows of `bronze.changes`, in order. The last row of a transaction that is still open is held back.
    changes: pa.Table
    # Shape versions announced in this batch, in order. Unchanged versions are included, because a snapshot
    # may have recorded another shape in between.
    relations: list[Relation]
    # how many of `changes`, from the first, belong to transactions whose Commit was seen
    complete_rows: int
    # the newest transaction that ended in this batch, also if it has no rows; None without any
    last_commit: Commit | None
    # whether a transaction is open at the end of the batch
    in_transaction: bool
    # partitions named by transactions whose Commit was seen
    partitions: list[StreamedPart] = field(default_factory=list)
    # known relations, by oid, whose changes from this commit LSN on are missing from `changes`
    left_out: list[tuple[int, Lsn]] = field(default_factory=list)

    @property
    def partial(self) -> list[tuple[TableName, Lsn]]:
        """Tables with REPLICA IDENTITY FULL and a partition with partial old rows; with the first LSN."""
        return [(part.table, part.commit_lsn) for part in self.partitions if part.logs_less]


@dataclass(slots=True)
class _Batch:
    """The decoded part of a batch in progress."""

    parts: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    complete_rows: int = 0
    last_commit: Commit | None = None
    relations: list[Relation] = field(default_factory=list)
    partitions: list[StreamedPart] = field(default_factory=list)
    left_out: list[tuple[int, Lsn]] = field(default_factory=list)

    def add(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self.parts.append(rows)
            self.rows += rows.num_rows


class StreamDecoder:
    """A decoder of one replication stream, batch by batch. Each new connection needs a new decoder.

    Args:
        describe: returns the relation of an oid from the current catalog, or None if the relation was
            dropped. Called for each Relation message of a selected table, with the commit LSN of its
            transaction.
        selected: checks whether bronze keeps the changes of a table.
        knows: checks whether any shape of a relation is recorded, so that its name may once have been
            selected.
        recorded: returns the recorded version of a relation, by oid, that holds at an LSN.
        rules: returns the rules of a relation, by oid, under a table name.
        names: returns the recorded names of a relation's columns, by attnum, also of excluded columns.
        reads_after: by table, an LSN up to which changes are dropped: a snapshot after this LSN replaces the
            changes, which the server sent by former rules (`bronze.reader.session_decoder`).
        renamed: checks whether a relation, by oid, is a table with rules under another name than the given.
        hides: checks whether a partition, by oid and name, or a table above it has or had rules.
        unreadable: called when an unforeseen error makes the decoder drop changes of a table, before any row
            of their transaction is returned. Gets the table, the commit LSN and the error; for later changes
            of the table, for rows that lack values, and for changes that `reads_after` drops, no error.
            Without `unreadable` the decoder raises the error.
    """

    def __init__(
        self,
        describe: Callable[[int, Lsn], Relation | None],
        selected: Callable[[TableName], bool],
        known: Iterable[Relation] = (),
        *,
        knows: Callable[[int], bool] = lambda _: False,
        recorded: Callable[[int, Lsn], Relation | None] = lambda *_: None,
        rules: Callable[[int, TableName], TableRules] = lambda *_: TableRules(),
        names: Callable[[int, TableName], Mapping[int, str]] = lambda *_: {},
        reads_after: Mapping[TableName, Lsn] | None = None,
        renamed: Callable[[int, TableName], bool] = lambda *_: False,
        hides: Callable[[int, TableName], bool] = lambda *_: False,
        unreadable: Callable[[TableName, Lsn, Exception | None], None] | None = None,
    ) -> None:
        self._describe = describe
        self._renamed = renamed
        self._has_rules = hides
        self._rules = rules
        self._reads_after = reads_after or {}
        self._unreadable = unreadable
        self._left_out: dict[int, TableName] = {}
        self._roots_refused: dict[int, str] = {}
        self._selected = selected
        self._knows = knows
        # `recorded` also returns versions recorded meanwhile: a concurrent snapshot knows the table from
        # before the catalog changed.
        self._versions = ShapeVersions(describe, known, recorded, names)
        self._layouts = AnnouncedLayouts()
        self._partitions = PartitionAnnouncements()
        self._open: OpenTransaction | None = None
        self._last_lsn = 0
        self._next_seq = 0
        self._last_change = 0
        self._held: pa.RecordBatch | None = None

    def feed(self, messages: Sequence[bytes | memoryview]) -> Decoded:
        """Call `feed_blocks` for single messages, each from its ``w`` on."""
        return self.feed_blocks([Block.of(messages)])

    def feed_blocks(self, blocks: Iterable[Block]) -> Decoded:
        """Decode XLogData messages that follow the messages of the previous call.

        Memory: the output and some 50 MB. For rows of text the output is about as large as the input. For
        wide tables full of NULLs the output is many times larger, because bronze repeats the column names in
        each row. So callers feed a few megabytes at a time and check `changes.nbytes`.

        Args:
            blocks: messages, each from its ``w`` on: start, end, clock (25 bytes in all), then the pgoutput
                message.

        Raises:
            DefiniteError: ``stream-malformed``; no row of the batch is returned.
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
            partitions=batch.partitions,
            left_out=batch.left_out,
        )

    def _feed_slice(self, frames: Frames, batch: _Batch) -> None:
        transactions = Transactions(frames, self._open, self._last_lsn)
        rows = self._rows(frames, transactions, batch)
        batch.partitions += self._partitions.of_slice(frames, transactions)
        changes = assemble(frames, transactions, rows, self._next_seq, ingested_at=time.time_ns() // 1000)
        if changes["unchanged"].null_count < changes.num_rows:
            self._report_incomplete(changes)
        self._open = transactions.still_open
        if self._open is not None:
            quick = bool(IS_CHANGE[frames.types[-1]])
            self._last_change = (
                int(frames.lsn[-1]) if quick else self._earlier(frames, transactions, len(frames)).last
            )
        self._last_lsn = max(self._last_lsn, int(transactions.commit_lsn[-1]))
        self._give_out(changes, transactions.number[rows.message], transactions, batch)

    def _give_out(
        self, changes: pa.RecordBatch, number: Positions, transactions: Transactions, batch: _Batch
    ) -> None:
        """Settle the row held back before; add the slice's rows, except an open transaction's last."""
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
        # `end_of_tx` of the last row is known only after the next row or the Commit, so the row is held back.
        if of_open:
            # Copy the row, so that the slice's buffers are freed.
            self._held = changes.take(pa.array([changes.num_rows - 1]))
            changes = changes.slice(0, changes.num_rows - 1)
        batch.add(changes)

    def _rows(self, frames: Frames, transactions: Transactions, batch: _Batch) -> SliceRows:
        """Return the selected rows of the slice; process Relation and Type messages on the way."""
        counts = IS_CHANGE[frames.types].astype(np.int64)
        announced: dict[int, list[tuple[int, TupleLayout]]] = {}
        truncated: dict[int, list[int]] = {}
        written: dict[int, TupleLayout] = {}
        left_out = dict(self._left_out)
        for message in np.flatnonzero(_RARE[frames.types]).tolist():
            commit_lsn = Lsn(transactions.commit_lsn[transactions.number[message]])
            match _parse(int(frames.types[message]), frames.body(message), commit_lsn):
                case AnnouncedType() as type_:
                    self._versions.note_type(type_)
                case AnnouncedRelation() as relation:
                    begun = self._begin_layouts(frames, transactions, message, relation, batch)
                    _add(announced, message, begun)
                case LogicalMessage() as logical if logical.prefix != HEARTBEAT_PREFIX:
                    written[message] = TupleLayout.of(None, (logical.prefix, logical.content))
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
        # A layout that is not selected keeps no change; other layouts keep changes after an LSN, mostly zero.
        after = [self._keeps_after(layout) for layout in layouts]
        after_of_row = np.array(after, np.int64)[layout_of_row]
        keep = frames.lsn[message_of_row] > after_of_row
        if not keep.all():
            commits = np.asarray(transactions.commit_lsn)[transactions.number[message_of_row]]
            self._report_late(layouts, layout_of_row, ~keep & (commits > after_of_row), commits)
            # A table that becomes readable again within the slice is reported too, for its rows before that
            # point.
            left_out |= self._left_out
            if left_out:
                self._report_left_out(left_out, relation_id[~keep], transactions, message_of_row[~keep])
            message_of_row, relation_id = message_of_row[keep], relation_id[keep]
            layout_of_row = layout_of_row[keep]
        return SliceRows(message_of_row, relation_id, *only_used(layouts, layout_of_row))

    def _begin_layouts(
        self,
        frames: Frames,
        transactions: Transactions,
        message: int,
        relation: AnnouncedRelation,
        batch: _Batch,
    ) -> Iterator[tuple[int, TupleLayout]]:
        """Yield the layouts that a Relation message begins, by oid: its own, and a refused root's."""
        commit_lsn = Lsn(transactions.commit_lsn[transactions.number[message]])
        # A partition is announced right after its root; only this order names the partition.
        root = self._partitions.follows(frames, message, relation)
        earlier = self._earlier(frames, transactions, message)
        yield relation.relation_id, self._announce(relation, commit_lsn, earlier, batch)
        if root is not None and self._hides(root, relation):
            yield root.relation_id, self._refuse(root, relation, commit_lsn)

    def _keeps_after(self, layout: TupleLayout) -> int:
        """Return the LSN after which changes of a layout are kept."""
        if not layout.selected:
            return _NEVER
        return -1 if layout.table is None else self._reads_after.get(layout.table, -1)

    def _earlier(self, frames: Frames, transactions: Transactions, message: int) -> EarlierChanges:
        return EarlierChanges(frames, transactions, message, self._last_change)

    def _announce(
        self, announced: AnnouncedRelation, commit_lsn: Lsn, earlier: EarlierChanges, batch: _Batch
    ) -> TupleLayout:
        """Return the layout of the rows after a Relation message; add the new shape version to the batch.

        The last Relation message before a row defines the row, which must have as many columns.

        **An unforeseen error** while the decoder builds the version is reported with the table (`unreadable`)
        before any row of the batch is returned. Each later batch with changes of the table is reported too:
        the decoder drops these changes until a new session.
        """
        names = [column.name for column in announced.columns]
        relation_id, table, version = announced.relation_id, announced.table, None
        gate = None
        self._left_out.pop(relation_id, None)
        try:
            kept_as = self._kept_as(relation_id, announced.table, commit_lsn)
            if kept_as is not None:
                table = kept_as
                rules = self._rules(relation_id, table)
                ruled = replace(announced, table=table, columns=_ruled(announced.columns, rules))
                version = self._versions.begin(ruled, commit_lsn, earlier, rules)
                gate = rules.gate(names)
        except SmeltError:
            raise
        except Exception as error:
            if self._unreadable is None:
                raise
            self._left_out[relation_id] = table
            self._unreadable(table, commit_lsn, error)
        if version is None:
            if self._knows(relation_id):  # under any name
                # The table may get its former name back before the next catalog poll. PostgreSQL announces a
                # table again before the first change after each rename, and in each session; TRUNCATE counts
                # as a change. So this report precedes every change under the unselected name.
                batch.left_out.append((relation_id, commit_lsn))
            return TupleLayout.of(table, names, selected=False)
        batch.relations.append(version)
        self._partitions.leads(version)
        return TupleLayout.of(version.table, names, gate=gate)

    def _hides(self, root: Relation, partition: AnnouncedRelation) -> bool:
        """Check whether a partition or its ancestor has or lost rules, and the root has no entry."""
        try:
            without_entry = self._rules(root.relation_id, root.table) == TableRules()
        except RuleLostError:  # a poll has just reported the root
            return True
        return without_entry and self._has_rules(partition.relation_id, partition.table)

    def _refuse(self, root: Relation, partition: AnnouncedRelation, commit_lsn: Lsn) -> TupleLayout:
        """Leave a root out for the rest of the session: its rows do not name their partition."""
        error = RuleLostError(ruled_partition(partition.table))
        self._roots_refused[root.relation_id] = str(error)
        if self._unreadable is None:
            raise error
        self._left_out[root.relation_id] = root.table
        self._unreadable(root.table, commit_lsn, error)
        return TupleLayout.of(root.table, [column.name for column in root.columns], selected=False)

    def _report_incomplete(self, changes: pa.RecordBatch) -> None:
        """Report each table with an inserted row that lacks values.

        A row that enters a row filter by an UPDATE arrives as an insert, and PostgreSQL does not send its
        unchanged out-of-line values. No earlier change has them, so only a snapshot does.
        """
        lacks = pc.and_(pc.equal(changes["op"], OP_INSERT), pc.is_valid(changes["unchanged"]))
        newest: dict[TableName, int] = {}
        names = ("table_schema", "table_name", "commit_lsn")
        for row in changes.select(names).filter(lacks).to_pylist():
            newest[TableName(row["table_schema"], row["table_name"])] = row["commit_lsn"]
        for table, commit_lsn in newest.items():
            if self._unreadable is not None:
                self._unreadable(table, Lsn(commit_lsn), None)

    def _report_late(
        self,
        layouts: Sequence[TupleLayout],
        layout_of_row: Positions,
        late: NDArray[np.bool_],
        commits: Positions,
    ) -> None:
        """Report each table with a dropped change whose transaction commits after `reads_after`.

        If a snapshot is older than this commit, the caller requests a newer snapshot.
        """
        for layout in np.unique(layout_of_row[late]).tolist():
            table = layouts[layout].table
            if table is not None and self._unreadable is not None:
                newest = commits[late & (layout_of_row == layout)].max()
                self._unreadable(table, Lsn(newest), None)

    def _report_left_out(
        self,
        left_out: Mapping[int, TableName],
        relation_id: Positions,
        transactions: Transactions,
        message: Positions,
    ) -> None:
        """Report each table with an unreadable shape together with the newest commit of its dropped rows."""
        for relation, table in left_out.items():
            rows = message[relation_id == relation]
            if len(rows) and self._unreadable is not None:
                commit_lsn = Lsn(transactions.commit_lsn[transactions.number[rows[-1]]])
                self._unreadable(table, commit_lsn, None)

    def _kept_as(self, relation_id: int, table: TableName, commit_lsn: Lsn) -> TableName | None:
        """Return the name under which bronze keeps a relation's changes; None without one."""
        if (reason := self._roots_refused.get(relation_id)) is not None:
            # A new error each time: an error that is raised again has the frames of all earlier times.
            raise RuleLostError(reason)
        renamed = self._renamed(relation_id, table)
        if not renamed and self._selected(table):
            return table
        # A table may bear an unselected name only inside one transaction. Its changes are kept if its current
        # name is selected. A table with rules has the rules of its current name.
        catalog = self._describe(relation_id, commit_lsn) if renamed or self._knows(relation_id) else None
        return catalog.table if catalog is not None and self._selected(catalog.table) else None


def _add(
    announced: dict[int, list[tuple[int, TupleLayout]]],
    message: int,
    layouts: Iterable[tuple[int, TupleLayout]],
) -> None:
    for relation_id, layout in layouts:
        announced.setdefault(relation_id, []).append((message, layout))


def _ruled(columns: Sequence[AnnouncedColumn], rules: TableRules) -> tuple[AnnouncedColumn, ...]:
    """Return the columns as the lake knows them (`TableRules.shape`)."""
    actions = ((column, rules.action(column.name)) for column in columns)
    return tuple(
        column if action is None else replace(column, type_oid=TEXT_OID, typmod=-1)
        for column, action in actions
        if action != "exclude"
    )


def _parse(
    type_: int, body: bytes, commit_lsn: Lsn
) -> AnnouncedType | AnnouncedRelation | LogicalMessage | list[int]:
    """Parse one rare message; return the relations of a Truncate."""
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
