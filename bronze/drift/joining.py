"""Tables that have joined the publication, under a server that may forget to stream them. Pure.

**The defect.** PostgreSQL before 14.18, 15.13, 16.9 and 17.5 loses changes here. A transaction T has written
a table and is open when ALTER PUBLICATION … ADD TABLE commits. The walsender decodes T with the catalog as T
saw it, by which the table is not published, and keeps that answer. What later transactions change in the
table is then passed over, silently, until something makes the walsender ask again.

**The way round it.** A new session of the stream has forgotten the answer. But it must not meet T again, and
nothing that the old one passed over may be counted on. So, in this order:

1. The table is seen as a member. X is the next transaction number after that, so T's is smaller.
2. No transaction before X is still running. E is the end of the log then: T has its commit before E.
3. A session begins at a position C, at or after E. It skips T, whose commit it does not send. Each
   transaction that it decodes began to write after the table had become a member.
4. The snapshot is taken, at an LSN S, which is greater than C. All that is changed after S is decoded by that
   session, or by a later one. What the older ones passed over is in the snapshot.

`Joining` says what a failure in between costs.
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
"""The first minor version that does not forget, by major version; those not named never did.

The fix makes other transactions' invalidations known to those that are being decoded:
https://www.postgresql.org/docs/release/17.5/.
"""


def may_forget(version: int) -> bool:
    """Whether a server of this version (160014, say) may pass over changes of a table that has joined."""
    major, minor = divmod(version, 10000)
    return minor < MENDED.get(major, 0)


@dataclass(slots=True)
class _Member:
    """A table as it was seen in the publication.

    Attributes:
        fingerprint: how it is carried (`bronze.drift.membership`).
        next_xid: X.
        over_at: E; None while a transaction before X runs.
    """

    fingerprint: int
    next_xid: int
    over_at: Lsn | None = None


class Joining:
    """Which tables may be copied now, and where a new session has to begin for the others.

    Step 2 may take as long as somebody leaves a transaction open; that session is named
    (`bronze.postgres.blockers`). Where a process dies or a session fails in between, everything is seen for
    the first time again, which only waits once more. A table whose membership changes again
    (`bronze.drift.membership`) has its gap and begins at step 1.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._members: dict[TableName, _Member] = {}
        self._session = ZERO

    def seen(self, fingerprints: Mapping[TableName, int], oldest_xid: int, next_xid: int, end: Lsn) -> None:
        """Note a look at the publication.

        Args:
            fingerprints: how each table is carried.
            oldest_xid: of the transactions that run; read after the fingerprints.
            next_xid: read with it.
            end: of the log; read after both.
        """
        with self._lock:
            for table, fingerprint in fingerprints.items():
                member = self._members.get(table)
                if member is None or member.fingerprint != fingerprint:
                    member = self._members[table] = _Member(fingerprint, next_xid)
                if member.over_at is None and oldest_xid >= member.next_xid:
                    member.over_at = end

    def forget(self) -> None:
        """The server does not need any of this."""
        with self._lock:
            self._members.clear()

    def session(self, begins: Lsn) -> None:
        """A session of the stream began at this position."""
        with self._lock:
            self._session = begins

    def may_copy(self, table: TableName) -> bool:
        """Whether the stream's session tells all that is changed in a table from now on."""
        with self._lock:
            member = self._members.get(table)
            return member is None or self._follows(member)

    def held_up(self, tables: Iterable[TableName]) -> list[TableName]:
        """Those of these tables that wait for transactions from before they joined (step 2)."""
        with self._lock:
            members = {table: self._members[table] for table in tables if table in self._members}
        return sorted(table for table, member in members.items() if member.over_at is None)

    def wanted(self, tables: Iterable[TableName]) -> Lsn | None:
        """At or after which position a new session has to begin, for those of these tables that can go on."""
        with self._lock:
            members = [self._members[table] for table in tables if table in self._members]
            positions = [one.over_at for one in members if one.over_at is not None and not self._follows(one)]
        return max(positions, default=None)

    def _follows(self, member: _Member) -> bool:
        return member.over_at is not None and member.over_at <= self._session
