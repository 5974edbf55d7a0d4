"""Read one range of a table into rows, on a worker of the reader or on an executor.

Both have a session that sees the snapshot and has locked the leaf to read (`bronze.snapshot.locks`). So every
read of a range returns equal rows, on any machine and at any attempt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import psycopg

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.postgres.blockers import REMEDY
from deltasmelt.bronze.postgres.connection import within
from deltasmelt.bronze.postgres.error_translation import table_error
from deltasmelt.bronze.postgres.liveness import CopyLine
from deltasmelt.bronze.postgres.lock_holders import END_HOLDER
from deltasmelt.bronze.rules import protect
from deltasmelt.bronze.snapshot.copy_out import cells_of, copy_blocks
from deltasmelt.bronze.snapshot.rows import SEQ_OF_CHUNK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.errors import TransientError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.postgres.connection import SourceConnection
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.snapshot.chunks import Chunk
    from deltasmelt.bronze.snapshot.rows import SnapshotRows

RENAMED = (psycopg.errors.UndefinedTable, psycopg.errors.InvalidSchemaName)
"""Errors of a renamed table or schema; a new round uses the new name."""


class UnreadableRowsError(Exception):
    """COPY sent bytes that are not rows of the table; the message gives the reason."""


def rows_of_range(
    connection: SourceConnection,
    source: SourceSettings,
    relation: Relation,
    chunk: Chunk,
    rows: SnapshotRows,
    *,
    condition: str = "",
    cancelled: Callable[[], bool] = lambda: False,
) -> Iterator[tuple[pa.Table, int]]:
    """Yield the rows of a range, block after block, each block with the bytes of its text.

    Args:
        connection: connection in a transaction that sees the snapshot and has locked the leaf.
        source: settings for the check of a silent connection.
        condition: SQL condition on the rows; empty: all rows.
        cancelled: called whenever no input is available.

    Raises:
        psycopg.Error: the server refused or aborted the COPY; the savepoint ``chunk`` then exists.
        TransientError: ``connection-lost``: the connection is dead.
        UnreadableRowsError: the input is no rows. COPY is still running, so the connection is unusable.
        CopyCancelledError: `cancelled` returned True; the connection is unusable as well.
    """
    timing = source.timing
    seq = chunk.number * SEQ_OF_CHUNK
    with within(timing.copy_command, connection):
        connection.execute("SAVEPOINT chunk")
    line = CopyLine(source, connection)

    def is_cancelled() -> bool:
        line.nothing_came()
        return cancelled()

    query = chunk.query(relation, condition)
    gate = source.rules.table(relation.table).gate([column.name for column in relation.columns])
    for block in copy_blocks(connection, query, is_cancelled, poll_seconds=timing.copy_poll):
        try:
            cells = cells_of(block)
            if gate is not None:
                cells = protect(cells, np.tile(gate.codes, len(cells) // len(gate.codes)), gate.key)
            table = rows.rows(cells, seq)
        except Exception as error:
            raise UnreadableRowsError(f"{type(error).__name__}: {error}") from error
        seq += table.num_rows
        yield table, len(block)
        line.something_came()
    let_go(connection, timing.copy_command)


def let_go(connection: SourceConnection, seconds: float) -> None:
    """Roll back to the savepoint before a range, which also releases the locks of the indexes."""
    with within(seconds, connection):
        connection.execute("ROLLBACK TO SAVEPOINT chunk; RELEASE SAVEPOINT chunk")


def error_of_table(table: TableName, error: psycopg.Error, source: SourceSettings) -> TableError:
    """Convert a definite error into an error of the table whose range was read.

    Raises:
        psycopg.Error: an error of `RENAMED`.
        SmeltError: the error concerns more than the table.
    """
    if isinstance(error, RENAMED):
        raise error
    if isinstance(error, (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)):
        return TableError(
            table,
            "another session locked the table, a partition or an index of the table during the copy",
            code="table-locked",
            remedy="nothing to do: the reader resnapshots the table automatically after the lock is released",
        )
    return table_error(table, error, source)


def locked_by(table: TableName, holder: str) -> TableError:
    """Return the error of a table that cannot be copied yet because other sessions lock the table."""
    return TableError(
        table,
        f"the table cannot be copied yet: it is locked by {holder}",
        code="table-locked",
        remedy="nothing to do: the reader resnapshots the table automatically after the lock is released; "
        f"{END_HOLDER}",
    )


def held_up_by(table: TableName, blockers: str) -> TableError:
    """Return the error of a table whose copy gave up the wait for other transactions (`blockers`)."""
    return TableError(
        table,
        f"the table cannot be copied yet: other transactions must end first: {blockers}",
        code="table-locked",
        remedy=REMEDY,
    )


def dropped_error(table: TableName) -> TableError:
    """Return the error of a table that the snapshot lacks under its name."""
    return TableError(
        table,
        "the table was dropped or renamed before it could be copied",
        code="table-gone",
        remedy="nothing to do if this was intended; the next start selects tables by their present names",
    )


def lost(table: TableName, error: object) -> TableError:
    """Return the error of a table that changed during its copy (`bronze.snapshot.locks.LeafLostError`)."""
    return TableError(
        table,
        f"{error} while the table was copied",
        code="table-changed",
        remedy="nothing to do: the reader resnapshots the table automatically",
    )


def interrupted_again(table: TableName, failure: TransientError) -> TableError:
    """Return the error of a table whose copy alone failed twice in a row for a transient reason."""
    return TableError(
        table,
        f"the copy of the table failed twice in a row: {failure.message}",
        code="copy-failed",
        remedy=f"{failure.remedy or 'read the log of the server'}; the reader retries automatically, with "
        "growing pauses",
    )


def unreadable(table: TableName, error: object) -> TableError:
    """Return the error of a table whose rows cannot be parsed (`UnreadableRowsError`)."""
    return TableError(
        table,
        f"a row of the copy cannot be read: {error}",
        code="copy-failed",
        remedy="the error is a defect of deltasmelt; report the error with the reader's log. The reader "
        "resnapshots the table automatically; to stop this, leave the table out with source.exclude",
    )
