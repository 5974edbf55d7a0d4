"""Partitions that the stream names, compared with the results of catalog polls. Pure.

The stream carries a partition's rows under the root's name. Two events affect such rows without an event in
the log and without a difference between two polls:

* **The partition came and went between two polls**: created and filled, then dropped or detached.
* **One transaction created the partition, filled the partition and truncated the partition.** TRUNCATE keeps
  a file of the same transaction, so the file seems untouched (`bronze.drift.storage`).

The stream names each partition before the partition's first change (`bronze.pgoutput.partitions`). If no poll
had seen a named partition before the partition's transaction, the reader records the partition, with the
transaction's commit LSN and xid. A later poll decides:

* The partition is no longer in the tree: the rows went without an event.
* The transaction that filled the partition, or a subtransaction, wrote the row in pg_inherits: TRUNCATE in
  place is possible.

**Why the reader misses no named partition.** The record is durable before the position moves past the
transaction (`bronze.stream.session`), so a crash repeats the record or keeps the record. A poll reads the
records before the catalog. A recorded partition had therefore been created before the poll read the catalog,
and a missing partition is proved to be gone. After a record the stream requests a poll, and a run with a
target does not end before this poll.

**Why a record ends.** A snapshot after the transaction contains the partition's remaining rows, and the poll
of the copy knows the partition (`bronze.snapshot.snapshot`). Without doubt the partition is part of the
newest poll, and a later loss is a difference between two polls
(`bronze.drift.observed_storage.ObservedStorage.settled`).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from deltasmelt.bronze.lsn import Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from deltasmelt.bronze.drift.storage import Part, Storage
    from deltasmelt.bronze.identifiers import TableName

_HALF: Final = 2**31
"""Transaction numbers wrap: the later of two numbers is less than half of all numbers ahead."""


@dataclass(frozen=True, slots=True)
class StreamedPart:
    """A partition that a transaction changed."""

    # name of the partition's root
    table: TableName
    # pg_class.oid of the partition
    oid: int
    commit_lsn: Lsn
    # number of the transaction; the number of a subtransaction is greater
    xid: int
    # rows that the transaction inserted under the root since the partition's first row; None if the
    # transaction also updated, deleted or truncated
    inserts: int | None = 0
    # whether the root logs old rows in full, and the partition does not (`bronze.catalog.keys`)
    logs_less: bool = False


class Named(NamedTuple):
    """The transaction in which the stream named a partition, with the fields of `StreamedPart`."""

    commit_lsn: Lsn
    xid: int
    inserts: int | None = None

    def may_have_made(self, part: Part) -> bool:
        """Check whether the transaction, or a subtransaction, may have created a partition."""
        # A subtransaction's xid is greater than the transaction's, and the catalog does not record the parent
        # transaction. Every xid that is not smaller therefore counts.
        return (part.attached - self.xid) % (2 * _HALF) < _HALF


@dataclass(frozen=True, slots=True)
class StreamedParts:
    """Partitions of one root that the stream named before a poll had seen them, by OID."""

    named: Mapping[int, Named] = field(default_factory=dict)
    # partitions that are proved to have all streamed rows; not part of the record
    whole: frozenset[int] = frozenset()

    def with_part(self, part: StreamedPart) -> Self:
        """Return the partitions and `part`; the first transaction that named a partition counts."""
        new = Named(part.commit_lsn, part.xid, part.inserts)
        return type(self)({part.oid: new, **self.named})

    def without(self, settled: Callable[[int, Lsn], bool]) -> Self:
        """Return the partitions that are not settled, by OID and commit LSN."""
        unsettled = {oid: part for oid, part in self.named.items() if not settled(oid, part.commit_lsn)}
        return type(self)(unsettled)

    def after(self, snapshot: Lsn) -> Self:
        """Return the partitions that a snapshot does not settle."""
        return self.without(lambda _, commit_lsn: commit_lsn <= snapshot)

    def with_whole(self, proved: Collection[int]) -> Self:
        """Return the partitions, with the OIDs that are proved to be whole."""
        return replace(self, whole=frozenset(proved))

    def made_and_filled(self, now: Storage) -> dict[int, Named]:
        """Return the partitions of a poll that one transaction may have created and filled, by OID."""
        return {
            oid: named
            for oid, named in self.named.items()
            if oid in now.parts and named.may_have_made(now.parts[oid])
        }

    def why_again(self, now: Storage, snapshot: Lsn) -> str | None:
        """Return why rows of a partition may have gone without an event; None if impossible.

        Args:
            now: result of a poll that began after these partitions were recorded.
            snapshot: LSN of the table's newest snapshot.
        """
        later = self.after(snapshot).named.keys()
        if later - now.parts.keys():
            return "a partition was created or attached, got rows, and was then detached or dropped"
        # A partition in `whole` still has as many rows of the transaction as the stream brought
        # (`bronze.drift.streamed_queries`), which refutes the doubt.
        for oid in self.made_and_filled(now).keys() & later - self.whole:
            name = now.parts[oid].name
            return (
                f"one transaction created and filled partition {name}, and may have truncated the partition"
            )
        return None

    def to_json(self) -> str:
        """Return compact JSON; equal values give equal text."""
        plain = {str(oid): [int(part.commit_lsn), part.xid, part.inserts] for oid, part in self.named.items()}
        return json.dumps(plain, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the value from `to_json`'s text."""
        plain: dict[str, tuple[int, int, int | None]] = json.loads(text)
        return cls({int(oid): Named(Lsn(lsn), xid, inserts) for oid, (lsn, xid, inserts) in plain.items()})
