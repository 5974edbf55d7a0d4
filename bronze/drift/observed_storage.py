"""From one look at a table's storage to the next, while the stream is somewhere behind both. Pure.

The stream names columns without attnum. `bronze.pgoutput.relation_versions` tells which ones a message means
from the newest shape that the stream knows and from the catalog. The catalog may be ahead of the message
by any number of statements, and by any number of looks. So two looks in a row do not tell all that may have
been mistaken: a column that one look saw gone, and another of its name that the next one saw new, could be
taken for each other in a change from before both.

What tells it is a look of whose time, and before, the stream has read everything, compared with the newest
one. `ObservedStorage` keeps both. The newest becomes the earlier one when two things are true of a later
look:

* Before it asked the catalog, the stream had read all changes from before the newest. So each was told apart
  by a catalog no newer than that later look's.
* That look found nothing in doubt since the earlier one.

The stream's newest shape must not be older than the earlier look, either: it would have columns that both
looks know nothing of. A table that nobody writes to is announced by no message. So where columns changed, the
look's own shape is recorded (`ObservedStorage.may_have_versions`, `bronze.reader.changed_tables`).

Both are durable together (`bronze.store.catalog_log`), so a process that ends loses none. Its successor may
compare with an older look than was needed, which may cost a snapshot and no value.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from deltasmelt.bronze.drift.storage import Storage, columns_in_doubt, why_again
from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclass(frozen=True, slots=True)
class ObservedStorage:
    """What looks at the catalog saw of a table.

    Attributes:
        storage: by the newest look that differed from those before it.
        lsn: end of the log after that look.
        read: by the newest look from before which every change has been read, and found to be clear; None
            where that is `storage`.
    """

    storage: Storage
    lsn: Lsn = ZERO
    read: Storage | None = None

    def why_again(self, now: Storage, carried: Collection[int] = ()) -> str | None:
        """Why rows may have changed without an event, or may have been mistaken, until a later look.

        Args:
            now: the later look.
            carried: attnums of new columns whose default is in bronze.
        """
        why = why_again(self.storage, now, carried)
        return why if why is not None or self.read is None else columns_in_doubt(self.read, now)

    def may_have_versions(self, now: Storage, lsn: Lsn, frontier: Lsn) -> bool:
        """Check whether the stream may still bring other shapes from before a later look.

        Args:
            now: the later look.
            lsn: as `then`.
            frontier: as `then`.
        """
        before = self.storage.columns
        return frontier + 1 < lsn and (
            before.keys() != now.columns.keys()
            or any(column.is_written(now.columns[attnum]) for attnum, column in before.items())
        )

    def saw_before(self, partition: int, commit_lsn: Lsn) -> bool:
        """Check whether a look had seen a partition, by OID, before a transaction that is being read.

        A transaction before the copy that recorded `storage` (its `lsn` is zero) is in that copy.
        """
        if partition in self.storage.parts and commit_lsn >= self.lsn:
            return True
        return self.read is not None and partition in self.read.parts

    def settled(self, partition: int, commit_lsn: Lsn) -> bool:
        """Check whether a look decided on a partition that a transaction named (`bronze.drift.streamed`).

        The stream keeps the partition on record before the transaction counts as read. So a look from before
        which every change had been read had the record, and found nothing in doubt.
        """
        read = self.storage if self.read is None else self.read
        return partition in read.parts or self.saw_before(partition, commit_lsn)

    def then(self, now: Storage, lsn: Lsn, frontier: Lsn) -> ObservedStorage:
        """With a later look, after which the table is not read again.

        Args:
            now: the later look.
            lsn: end of the log after it.
            frontier: every change up to and including it had been read before that look began. What was
                committed before the end of the log has its commit record before it, so that the byte before
                the end is as good (`bronze.stream.session`: a keepalive).
        """
        if frontier + 1 >= lsn:
            return ObservedStorage(now, self.lsn if now == self.storage else lsn)
        read = None if frontier + 1 >= self.lsn else self.read
        if now == self.storage:
            return ObservedStorage(now, self.lsn, read)
        return ObservedStorage(now, lsn, self.storage if read is None else read)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Whether a look would move `read`, since the stream came from one place to another."""
        return self.read is not None and before + 1 < self.lsn <= frontier + 1

    def to_json(self) -> str:
        """Compact JSON; equal values give equal text."""
        read = {} if self.read is None else {"read": self.read.to_dict()}
        plain = {**self.storage.to_dict(), "lsn": int(self.lsn), **read}
        return json.dumps(plain, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of `to_json`."""
        plain: dict[str, Any] = json.loads(text)
        read = plain.get("read")
        return cls(
            Storage.from_dict(plain),
            Lsn(plain.get("lsn", ZERO)),
            None if read is None else Storage.from_dict(read),
        )
