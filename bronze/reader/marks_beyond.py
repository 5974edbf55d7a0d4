"""Move requests for snapshots beyond the server's log, set with another server's LSN, back to the log's end.

A release without a comparison of servers let a shell with the DSN of another server set such a mark. Until
the log reaches the mark, each snapshot lies before the mark. So each poll copies the table again, and no cut
contains the table (`bronze.store.gaps`).
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
) -> tuple[dict[TableName, Lsn], list[TableName]]:
    """Move marks beyond the server's log back to its end; return the resnapshot marks and the moved tables.

    A running session still drops the changes up to the former mark of a table with rules.

    Args:
        end: end of the log before the marks are read; read again only if a mark lies beyond.

    Raises:
        SmeltError: the server does not answer, or the lake cannot be written.
    """
    newest = marks.newest_marks(tables)
    if all(lsn <= end for lsn in newest.values()):
        return marks.requests(tables), []
    with (
        connect(source) as connection,
        translated(source),
        within(source.timing.poll_answer, connection),
        until_stopped(stop, connection),
    ):
        end = log_end(connection)
    moved = marks.move_back(newest, end)
    for table in moved:
        _LOGGER.warning(
            "%s: the requested snapshot after %s is beyond the end of this server's log, %s; the request "
            "came from another server, or the server lost the end of its log; it now counts from the present "
            "position",
            table,
            newest[table],
            end,
        )
    return marks.requests(tables), moved
