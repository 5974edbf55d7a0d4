"""From one catalog poll of a table's storage to the next, with the stream behind both. Pure.

The stream names columns without attnum. `bronze.pgoutput.relation_versions` assigns the columns of a message
by the stream's newest shape and by the catalog. The catalog may be ahead of the message by any number of
statements and polls. Two consecutive polls therefore do not reveal every possible mistake. Suppose that one
poll saw a column removed, and the next poll saw a new column with the removed column's name. In a change from
before both polls, the reader could confuse the two columns.

A correct comparison needs an earlier poll: the stream has read all changes up to that poll. `ObservedStorage`
keeps this earlier poll and the newest poll. The newest poll becomes the earlier poll once a later poll
fulfils two conditions:

* Before the later poll read the catalog, the stream had read all changes from before the newest poll. The
  catalog that assigned the columns of each such change was therefore no newer than the later poll.
* The later poll found nothing in doubt since the earlier poll.

In addition, the stream's newest shape must not be older than the earlier poll, or the shape would have
columns that both polls lack. For a table without writes no message announces a shape. If columns changed, the
reader therefore records the poll's own shape (`ObservedStorage.may_have_versions`,
`bronze.reader.changed_tables`).

Both polls are durable together (`bronze.store.catalog_log`), so a killed process loses neither. The next
process may compare with an older poll than necessary. This may cost a snapshot, but never a value.
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
    """The results of catalog polls of a table."""

    # result of the newest poll that differed from the polls before
    storage: Storage
    # end of the log after that poll
    lsn: Lsn = ZERO
    # result of the newest poll before which the stream has read every change, without doubt; None if equal to
    # `storage`
    read: Storage | None = None

    def why_again(self, now: Storage, carried: Collection[int] = ()) -> str | None:
        """Return why rows may have changed without an event, or may have been confused, until a later poll.

        `carried` has the attnums of new columns whose default is in bronze.
        """
        reason = why_again(self.storage, now, carried)
        return reason if reason is not None or self.read is None else columns_in_doubt(self.read, now)

    def may_have_versions(self, now: Storage, lsn: Lsn, frontier: Lsn) -> bool:
        """Check whether the stream may still bring other shapes from before a later poll.

        The arguments have the meaning of `then`'s.
        """
        columns = self.storage.columns
        return frontier + 1 < lsn and (
            columns.keys() != now.columns.keys()
            or any(column.is_written(now.columns[attnum]) for attnum, column in columns.items())
        )

    def saw_before(self, partition: int, commit_lsn: Lsn) -> bool:
        """Check whether a poll had seen a partition, by OID, before the transaction that is being read."""
        # A transaction before the copy that recorded `storage` (then `lsn` is zero) is in the copy.
        if partition in self.storage.parts and commit_lsn >= self.lsn:
            return True
        return self.read is not None and partition in self.read.parts

    def settled(self, partition: int, commit_lsn: Lsn) -> bool:
        """Check whether a poll decided on a partition that a transaction named (`bronze.drift.streamed`)."""
        # The stream records the partition before the transaction counts as read. A poll before which every
        # change had been read therefore had the record, and found nothing in doubt.
        read = self.storage if self.read is None else self.read
        return partition in read.parts or self.saw_before(partition, commit_lsn)

    def then(self, now: Storage, lsn: Lsn, frontier: Lsn) -> ObservedStorage:
        """Return the state after a later poll that requires no new snapshot.

        Args:
            lsn: end of the log after the later poll.
            frontier: the stream had read every change up to and including this position before the poll
                began.
        """
        # A change committed before the log's end has its commit record before the end, so the byte before the
        # end suffices (`bronze.stream.session`: a keepalive).
        if frontier + 1 >= lsn:
            return ObservedStorage(now, self.lsn if now == self.storage else lsn)
        read = None if frontier + 1 >= self.lsn else self.read
        if now == self.storage:
            return ObservedStorage(now, self.lsn, read)
        return ObservedStorage(now, lsn, self.storage if read is None else read)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Check whether a poll would move `read`, now that the stream went from `before` to `frontier`."""
        return self.read is not None and before + 1 < self.lsn <= frontier + 1

    def to_json(self) -> str:
        """Return compact JSON; equal values give equal text."""
        read = {} if self.read is None else {"read": self.read.to_dict()}
        plain = {**self.storage.to_dict(), "lsn": int(self.lsn), **read}
        return json.dumps(plain, separators=(",", ":"), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the value from `to_json`'s text."""
        plain: dict[str, Any] = json.loads(text)
        plain_read = plain.get("read")
        return cls(
            Storage.from_dict(plain),
            Lsn(plain.get("lsn", ZERO)),
            None if plain_read is None else Storage.from_dict(plain_read),
        )
