"""Check by timelines that the server's history is the history that bronze followed.

Each promotion of a standby, and each recovery to a point in time, begins a new timeline at some LSN. Both
histories are equal up to this LSN; beyond, equal LSNs mean different changes. A promoted standby with all of
bronze's changes (a failover slot of PostgreSQL 17 guarantees this) is simply followed. A standby that lagged
behind, or a server restored to an older state, lacks changes that bronze holds. LSNs alone do not show the
difference once the server's log has grown past bronze's end.

Bronze records its timeline as a mark (`TIMELINE_APP`) on `bronze.changes`. If the server's timeline differs,
the server's own history file names the LSN at which the server left bronze's timeline.

PostgreSQL docs: https://www.postgresql.org/docs/current/continuous-archiving.html (Timelines).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.replication import ReplicationConnection
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.marks import SERVER_START_APP, TIMELINE_APP

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.postgres.connection import ServerIdentity
    from deltasmelt.bronze.store.position import Position

_LINE: Final = re.compile(r"^\s*(\d+)\s+([0-9A-Fa-f]+/[0-9A-Fa-f]+)", re.MULTILINE)


def check_timeline(
    source: SourceSettings, uri: str, timeline: int, position: Position, *, application_name: str
) -> None:
    """Check that the server's history has all changes that bronze holds.

    Raises:
        DefiniteError: ``server-behind``: the histories parted before bronze's end.
        DeltaError, OSError: the lake cannot be read.
    """
    recorded = delta.open_existing(uri).transaction_version(TIMELINE_APP)
    if recorded is not None and recorded != timeline:
        parted = parting(_history(source, timeline, application_name), recorded)
        if parted is None or parted < position.confirm:
            raise _parted(source, recorded, timeline, parted, position)


def is_followed(uri: str, server: ServerIdentity) -> bool:
    """Check whether bronze has followed this server since the server's start."""
    changes = delta.open_existing(uri)
    return all(changes.transaction_version(mark.app_id) == mark.version for mark in _marks(server))


def record_server(uri: str, server: ServerIdentity) -> None:
    """Record durably which server bronze follows now.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    commit_marks(delta.open_existing(uri), _marks(server))


def _marks(server: ServerIdentity) -> list[Transaction]:
    return [Transaction(TIMELINE_APP, server.timeline), Transaction(SERVER_START_APP, server.started)]


def parting(history: str, timeline: int) -> Lsn | None:
    """Return the LSN at which a history left a timeline; None if the history never was on it. Pure.

    Args:
        history: a timeline's history file: lines of parent timeline, LSN, reason.
    """
    points = {int(number): Lsn.parse(lsn) for number, lsn in _LINE.findall(history)}
    return points.get(timeline)


def _history(source: SourceSettings, timeline: int, application_name: str) -> str:
    if timeline == 1:  # the first timeline has no history
        return ""
    asking = ReplicationConnection(source, application_name=application_name)
    try:
        return asking.query(f"TIMELINE_HISTORY {timeline}")[0][1] or ""
    finally:
        asking.close()


def _parted(
    source: SourceSettings, known: int, timeline: int, parted: Lsn | None, position: Position
) -> DefiniteError:
    status = "was never on" if parted is None else f"left at {parted}"
    lacking = (
        ""
        if parted is None
        else (f"; the server lacks the changes of bronze from {parted} to {position.confirm}")
    )
    return DefiniteError(
        f"the server is on timeline {timeline}, which {status} bronze's timeline {known}{lacking}: a "
        "standby that lagged behind was promoted, or the server was restored to an older state",
        code="server-behind",
        where=address_of(source),
        remedy="if this is the right server now: `smelt snapshot FILE --all` resnapshots every table, "
        "deletes included, and continues from there",
    )
