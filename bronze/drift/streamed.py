"""Partitions that the stream names, compared with what looks at the catalog saw of them. Pure.

A partition's rows come under the name of its root. Two things befall such rows without an event and without
a difference between two looks:

* **The partition came and went between two looks**: created and filled, then dropped or detached.
* **One transaction created the partition, filled the partition and truncated the partition.** TRUNCATE
  keeps the file that its own transaction made, so the file looks untouched (`bronze.drift.storage`).

The stream names each partition before the partition's first change (`bronze.pgoutput.partitions`). So the
reader keeps each named partition that no look had seen before the partition's transaction, with that
transaction's commit LSN and xid. A later look decides:

* The partition is not in the tree any more: the rows went without an event.
* The row in pg_inherits was written by the transaction that filled the partition, or by one of its
  subtransactions: TRUNCATE in place is possible. A subtransaction's xid is greater than its transaction's,
  and the catalog does not tell to which transaction a subtransaction belonged. So every xid that is not
  smaller counts. What refutes the doubt is a partition that still has as many rows of that transaction as the
  stream brought (`bronze.drift.streamed_queries`).

**Why no named partition is missed.** The record is durable before the position moves past the transaction
(`bronze.stream.session`), so a crash repeats the record or keeps the record. A look reads the records before
the look asks the catalog. So a partition that the look has on record had been created by then, and its
absence proves that the partition is gone. After a record the stream asks for a look, and a run with a target
does not end before that look.

**Why a record ends.** A snapshot after the transaction holds what is left of the partition's rows, and the
look of that copy knows the partition (`bronze.snapshot.snapshot`). Without doubt the partition is part of the
newest look, and a later loss is a difference between two looks
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
"""Transaction numbers wrap: of two, the later one is less than half of all numbers ahead."""


@dataclass(frozen=True, slots=True)
class StreamedPart:
    """A partition that a transaction changed.

    Attributes:
        table: name of the partition's root.
        oid: pg_class.oid of the partition.
        commit_lsn: of the transaction.
        xid: number of the transaction; a subtransaction's is greater.
        inserts: rows that the transaction inserted under the root from the partition's first row on; None
            where the transaction also updated, deleted or truncated.
        logs_less: the root logs old rows in full, and the partition does not (`bronze.catalog.keys`).
    """

    table: TableName
    oid: int
    commit_lsn: Lsn
    xid: int
    inserts: int | None = 0
    logs_less: bool = False


class Named(NamedTuple):
    """The transaction with which the stream named a partition, as `StreamedPart` has it."""

    commit_lsn: Lsn
    xid: int
    inserts: int | None = None

    def may_have_made(self, part: Part) -> bool:
        """Check whether the transaction may have created a partition, itself or in a subtransaction."""
        return (part.attached - self.xid) % (2 * _HALF) < _HALF


@dataclass(frozen=True, slots=True)
class StreamedParts:
    """Partitions of one root that the stream named before a look had seen them, by OID.

    Attributes:
        whole: those that proved to have all rows that were streamed; not part of the record.
    """

    named: Mapping[int, Named] = field(default_factory=dict)
    whole: frozenset[int] = frozenset()

    def with_part(self, part: StreamedPart) -> Self:
        """Return these and one more; the first transaction that named a partition counts."""
        new = Named(part.commit_lsn, part.xid, part.inserts)
        return type(self)({part.oid: new, **self.named})

    def without(self, settled: Callable[[int, Lsn], bool]) -> Self:
        """Return those that are not settled, by OID and commit LSN."""
        left = {oid: one for oid, one in self.named.items() if not settled(oid, one.commit_lsn)}
        return type(self)(left)

    def after(self, snapshot: Lsn) -> Self:
        """Return those that a snapshot does not settle."""
        return self.without(lambda _, commit_lsn: commit_lsn <= snapshot)

    def with_whole(self, proved: Collection[int]) -> Self:
        """Return these, and which ones proved to be whole."""
        return replace(self, whole=frozenset(proved))

    def made_and_filled(self, now: Storage) -> dict[int, Named]:
        """Return those that one transaction may have created and filled, by OID, as a look saw them."""
        return {
            oid: named
            for oid, named in self.named.items()
            if oid in now.parts and named.may_have_made(now.parts[oid])
        }

    def why_again(self, now: Storage, snapshot: Lsn) -> str | None:
        """Return why rows of a partition may have gone without an event; None where none can have.

        Args:
            now: a look that began after these were on record.
            snapshot: LSN of the table's newest snapshot.
        """
        later = self.after(snapshot).named.keys()
        if later - now.parts.keys():
            return "a partition came with rows and was detached or dropped"
        for oid in self.made_and_filled(now).keys() & later - self.whole:
            name = now.parts[oid].name
            return (
                f"one transaction created and filled partition {name}, and may have truncated the partition"
            )
        return None

    def to_json(self) -> str:
        """Return compact JSON; equal values give equal text."""
        plain = {str(oid): [int(one.commit_lsn), one.xid, one.inserts] for oid, one in self.named.items()}
        return json.dumps(plain, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the inverse of `to_json`."""
        plain: dict[str, tuple[int, int, int | None]] = json.loads(text)
        return cls({int(oid): Named(Lsn(lsn), xid, inserts) for oid, (lsn, xid, inserts) in plain.items()})
