"""Requests for snapshots that lie beyond the server's own log: another server's LSNs, moved back.

A release that did not compare the servers let a shell with the DSN of another server set such a mark. Until
the log comes that far, each snapshot lies before the mark, so the table is copied at every look and joins no
cut (`bronze.store.gaps`).
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from deltasmelt.bronze.postgres.connection import connect, log_end, translated, until_stopped, within

if TYPE_CHECKING:
    import threading
    from collections.abc import Sequence

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.store.table_marks import TableMarks

_LOGGER = logging.getLogger("deltasmelt.reader")


def settled_requests(
    marks: TableMarks, source: SourceSettings, tables: Sequence[TableName], end: Lsn, stop: threading.Event
) -> dict[TableName, Lsn]:
    """Return the resnapshot marks of tables; move a mark beyond the server's log back to its end.

    Args:
        marks: of bronze.
        source: whose log.
        tables: which tables.
        end: of the log before the marks are read; only where a mark lies beyond it is the server asked again.
        stop: gives it up.

    Raises:
        SmeltError: the server cannot be asked, the lake not be written.
    """
    requests = marks.requests(tables)
    if all(lsn <= end for lsn in requests.values()):
        return requests
    with (
        connect(source) as connection,
        translated(source),
        within(source.timing.look_answer, connection),
        until_stopped(stop, connection),
    ):
        end = log_end(connection)
    for table in marks.move_back(requests, end):
        _LOGGER.warning(
            "%s: the request for a snapshot after %s lies beyond this server's log, which ends at %s: it is "
            "another server's, and counts as a request as of now",
            table,
            requests[table],
            end,
        )
    return marks.requests(tables)
