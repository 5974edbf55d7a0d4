"""Recognise partitions in the stream: pgoutput announces a partition right after the partition's root. Pure.

With ``publish_via_partition_root`` the changes of a partition name the root, and no change names the
partition. But pgoutput also sends the partition's Relation message, in the order root, partition, change. The
pair precedes the partition's first change in a session, and the first change after each invalidation of the
partition. So the stream names every partition with a change, at the latest with the change.

A partition is returned with the Commit of its transaction, and so before the position can pass the
transaction. By then the decoder knows the transaction's other changes under the root: `StreamedPart.inserts`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from deltasmelt.bronze.drift.streamed import StreamedPart
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.framing import DELETE, HEADER, INSERT, TRUNCATE, TYPE, UPDATE

if TYPE_CHECKING:
    from deltasmelt.bronze.pgoutput.framing import Frames
    from deltasmelt.bronze.pgoutput.messages import AnnouncedRelation
    from deltasmelt.bronze.pgoutput.transactions import Transactions
    from deltasmelt.bronze.shapes import Relation

_ROW_CHANGES: Final = np.zeros(256, np.bool_)
_ROW_CHANGES[[INSERT, UPDATE, DELETE]] = True


class _Pair(NamedTuple):
    root: Relation
    partition: AnnouncedRelation


class _Open(NamedTuple):
    """A partition whose transaction is open; `first` is its first message in the current slice."""

    root: int
    part: StreamedPart
    first: int


class PartitionAnnouncements:
    """Pairs of Relation messages, slice by slice; a pair may begin in one slice and end in the next."""

    def __init__(self) -> None:
        self._root: Relation | None = None
        self._root_at = -1
        self._pairs: list[tuple[int, _Pair]] = []
        self._open: list[_Open] = []

    def follows(self, frames: Frames, message: int, announced: AnnouncedRelation) -> Relation | None:
        """Note a Relation message, before `leads` is called for its shape.

        Returns:
            The root if the message names a partition; also if a slice ends before the next message decides.
        """
        root, between = self._root, frames.types[self._root_at + 1 : message]
        self._root, self._root_at = None, message
        if root is None or not (between == TYPE).all():
            return None
        self._pairs.append((message, _Pair(root, announced)))
        ends = message + 1 == len(frames)
        return root if ends or _is_change_of(frames, message + 1, root.relation_id) else None

    def leads(self, version: Relation) -> None:
        """Note the shape of a selected table, announced by the last Relation message."""
        self._root = version

    def of_slice(self, frames: Frames, transactions: Transactions) -> list[StreamedPart]:
        """Return the named partitions of the transactions whose Commit lies in this slice."""
        waiting = []
        for message, pair in self._pairs:
            if message + 1 == len(frames):
                waiting.append((-1, pair))
            # Two consecutive Relation messages are a pair if the next message is a row change of the first
            # relation. Tables truncated together are also announced consecutively, but a Truncate message
            # follows.
            elif _is_change_of(frames, message + 1, pair.root.relation_id):
                self._open.append(_named(pair, message + 1, transactions))
        self._pairs = waiting
        if not (frames.types[self._root_at + 1 :] == TYPE).all():
            self._root = None
        self._root_at = -1
        return self._close(frames, transactions) if self._open else []

    def _close(self, frames: Frames, transactions: Transactions) -> list[StreamedPart]:
        rows = _Rows(frames, {entry.root for entry in self._open})
        closed: list[StreamedPart] = []
        still_open: list[_Open] = []
        for opened in self._open:
            number = transactions.number[opened.first]
            last = int(np.searchsorted(transactions.number, number, side="right"))
            inserts, before = rows.inserts(opened.root, opened.first, last), opened.part.inserts
            inserts_so_far = None if inserts is None or before is None else before + inserts
            part = replace(opened.part, inserts=inserts_so_far)
            if transactions.closed[number]:
                closed.append(part)
            else:
                still_open.append(_Open(opened.root, part, 0))
        self._open = still_open
        return closed


class _Rows:
    """Positions of some roots' changes in a slice, computed once for all partitions named in the slice."""

    def __init__(self, frames: Frames, roots: set[int]) -> None:
        changes = np.flatnonzero(_ROW_CHANGES[frames.types])
        relation = frames.uint32(frames.at[changes] + HEADER + 1)
        inserted = frames.types[changes] == INSERT
        truncates = np.flatnonzero(frames.types == TRUNCATE)
        self._inserts = {root: changes[(relation == root) & inserted] for root in roots}
        self._others = {
            root: np.sort(np.append(truncates, changes[(relation == root) & ~inserted])) for root in roots
        }

    def inserts(self, root: int, first: int, last: int) -> int | None:
        """Return the number of rows inserted between two messages; None if other changes lie in between."""
        places = np.searchsorted(self._others[root], (first, last))
        count = np.searchsorted(self._inserts[root], (first, last))
        return int(count[1] - count[0]) if places[0] == places[1] else None


def _named(pair: _Pair, change: int, transactions: Transactions) -> _Open:
    root, partition, number = pair.root, pair.partition, transactions.number[change]
    full = root.partitioned and root.replica_identity == "f"
    part = StreamedPart(
        root.table,
        partition.relation_id,
        Lsn(transactions.commit_lsn[number]),
        int(transactions.xid[number]),
        logs_less=full and partition.replica_identity != "f",
    )
    return _Open(root.relation_id, part, change)


def _is_change_of(frames: Frames, message: int, relation_id: int) -> bool:
    changes = _ROW_CHANGES[frames.types[message]]
    return bool(changes and frames.uint32(frames.at[[message]] + HEADER + 1)[0] == relation_id)
