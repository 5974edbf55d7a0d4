"""Whether a silent replication connection is dead, seen from outside: what its walsender waits for.

A walsender that has something to decode may be silent for as long as that takes (up to version 15 it does not
even answer while it skips a large transaction). It is then running, or waits for a disk or a lock. One that
waits for more log, or for our side of the connection to take data, would have answered: it was asked for a
sign of life long before anybody looks here. Its silence is the line's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.errors import SmeltError
from bronze.server import connect, translated

if TYPE_CHECKING:
    from bronze.settings import SourceSettings


def walsender_is_idle(source: SourceSettings, backend_pid: int) -> bool:
    """Whether the walsender waits for log or for us, or is gone; also where the server cannot be asked.

    Asked over a connection of its own: an older one may share the fate of the silent line.
    """
    try:
        with connect(source) as connection, translated(source):
            row = connection.execute(
                "SELECT wait_event FROM pg_stat_activity WHERE pid = %s", [backend_pid]
            ).fetchone()
    except SmeltError:
        return True  # whatever keeps us out is told by the attempt to start the stream again
    return row is None or str(row[0]).startswith("WalSender")
