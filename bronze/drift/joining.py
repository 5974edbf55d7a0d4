"""Tables new in the publication, under a server that may forget to stream them. Pure.

**The defect.** PostgreSQL before 14.18, 15.13, 16.9 and 17.5 loses changes here. A transaction T has written
a table and is open when ALTER PUBLICATION … ADD TABLE commits. The walsender decodes T with the catalog that
T saw, in which the table is not published, and caches this result. The walsender then silently skips the
changes of later transactions in the table, until an event invalidates the cache.

**The way around the defect.** A new session of the stream has no such cache. But the new session must not
decode T again, and no change that the old session skipped may count as read. The reader therefore proceeds in
four steps:

1. The reader sees the table as a member. X is the next transaction number afterwards, so T has a smaller
   number.
2. No transaction before X still runs. E is the end of the log then, so T's commit lies before E.
3. A session begins at a position C, at or after E. The session skips T, whose commit lies before C. Each
   transaction that the session decodes began to write after the table had become a member.
4. The snapshot is taken, at an LSN S greater than C. This or a later session decodes all changes after S. The
   snapshot contains all changes that older sessions skipped.

**A row filter** is forgotten in the same way: the walsender goes on with the former filter, or with none. So
a table with a new filter is not carried before step 3 (`bronze.reader.carried_tables`).

`Joining` explains the cost of a failure between two steps.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltasmelt.bronze.identifiers import TableName

MENDED: Final = {14: 18, 15: 13, 16: 9, 17: 5}
"""The first minor version that does not forget, by major version; all other major versions never forgot.

The fix distributes other transactions' invalidations to the transactions that are being decoded:
https://www.postgresql.org/docs/release/17.5/.
"""


def may_forget(version: int) -> bool:
    """Check whether a server of this version (e.g. 160014) may skip changes of a table that joined."""
    major, minor = divmod(version, 10000)
    return minor < MENDED.get(major, 0)


@dataclass(slots=True)
class _Member:
    """A table at the moment when a poll first saw the table in the publication."""

    # fingerprint of the membership (`bronze.drift.membership`)
    fingerprint: int
    # X of the module's head
    next_xid: int
    # E of the module's head; None while a transaction before X runs
    over_at: Lsn | None = None


class Joining:
    """Tables that joined: which may be copied now, and the position from which a new session serves the rest.

    Step 2 may last as long as a session leaves a transaction open; a message names the session
    (`bronze.postgres.blockers`). If the process is killed or a session fails between two steps, the next poll
    sees all tables for the first time again. The only cost is another wait. A table whose membership changes
    again (`bronze.drift.membership`) gets a gap and begins at step 1.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[TableName, _Member] = {}
        self._session = ZERO

    def record_poll(
        self, fingerprints: Mapping[TableName, int], oldest_xid: int, next_xid: int, end: Lsn
    ) -> None:
        """Record a poll of the publication.

        Args:
            fingerprints: fingerprint of each table's membership.
            oldest_xid: number of the oldest running transaction, read after the fingerprints.
            next_xid: number of the next transaction, read together with `oldest_xid`.
            end: end of the log, read after the transaction numbers.
        """
        with self._lock:
            # A table that is gone, or no member now, begins at step 1 if it returns.
            self._members = {table: one for table, one in self._members.items() if table in fingerprints}
            for table, fingerprint in fingerprints.items():
                member = self._members.get(table)
                if member is None or member.fingerprint != fingerprint:
                    member = self._members[table] = _Member(fingerprint, next_xid)
                if member.over_at is None and oldest_xid >= member.next_xid:
                    member.over_at = end

    def forget(self) -> None:
        """Remove all records, because the server never forgets."""
        with self._lock:
            self._members.clear()

    def session(self, begins: Lsn) -> None:
        """Record the position at which a session of the stream began."""
        with self._lock:
            self._session = begins

    def may_copy(self, table: TableName) -> bool:
        """Check whether the stream's session carries all changes of a table from now on."""
        with self._lock:
            member = self._members.get(table)
            return member is None or self._follows(member)

    def held_up(self, tables: Iterable[TableName]) -> list[TableName]:
        """Return the tables that wait for transactions from before the tables joined (step 2)."""
        with self._lock:
            members = {table: self._members[table] for table in tables if table in self._members}
        return sorted(table for table, member in members.items() if member.over_at is None)

    def start_position(self, tables: Iterable[TableName]) -> Lsn | None:
        """Return the least start position of a session for all tables past step 2; None without tables."""
        with self._lock:
            members = [self._members[table] for table in tables if table in self._members]
            positions = [
                member.over_at
                for member in members
                if member.over_at is not None and not self._follows(member)
            ]
        return max(positions, default=None)

    def _follows(self, member: _Member) -> bool:
        return member.over_at is not None and member.over_at <= self._session
