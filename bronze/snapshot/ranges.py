"""One range of a table read to rows, wherever that is done: by a worker of the reader, or by an executor.

Both have a session that sees the snapshot and has locked what it reads (`bronze.snapshot.locks`). So the rows
of a range are the same wherever it is read, and however often.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.postgres.connection import within
from deltasmelt.bronze.postgres.error_translation import table_error
from deltasmelt.bronze.postgres.liveness import CopyLine
from deltasmelt.bronze.postgres.lock_holders import END_HOLDER
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
"""Errors of a table or schema that got another name; a new round knows it by that."""


class UnreadableRowsError(Exception):
    """What COPY sent is not rows of the table; the message says how."""


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
    """Rows of a range, block after block, each with the bytes of text that it came as.

    Args:
        connection: in a transaction that sees the snapshot and has locked what is read.
        source: to look at a line that is silent.
        relation: shape of the table.
        chunk: the range.
        rows: makes them.
        condition: SQL that they must meet; empty: all.
        cancelled: asked whenever nothing comes.

    Raises:
        psycopg.Error: the server refused or broke off; the savepoint ``chunk`` is there then.
        TransientError: ``connection-lost``: the line stands still.
        UnreadableRowsError: what came is no rows. COPY is still under way, so the connection is of no further
            use.
        CopyCancelledError: `cancelled` said so; likewise.
    """
    timing = source.timing
    seq = chunk.number * SEQ_OF_CHUNK
    with within(timing.copy_command, connection):
        connection.execute("SAVEPOINT chunk")
    line = CopyLine(source, connection)

    def asked() -> bool:
        line.nothing_came()
        return cancelled()

    query = chunk.query(relation, condition)
    for block in copy_blocks(connection, query, asked, poll_seconds=timing.copy_poll):
        try:
            table = rows.rows(cells_of(block), seq)
        except Exception as error:
            raise UnreadableRowsError(f"{type(error).__name__}: {error}") from error
        seq += table.num_rows
        yield table, len(block)
        line.something_came()
    let_go(connection, timing.copy_command)


def let_go(connection: SourceConnection, seconds: float) -> None:
    """Go back to before a range. Back, not on: so the locks of the indexes are let go."""
    with within(seconds, connection):
        connection.execute("ROLLBACK TO SAVEPOINT chunk; RELEASE SAVEPOINT chunk")


def error_of_table(table: TableName, error: psycopg.Error, source: SourceSettings) -> TableError:
    """A definite error as one of the table whose range was read.

    Raises:
        psycopg.Error: of `RENAMED`.
        SmeltError: it concerns more than the table.
    """
    if isinstance(error, RENAMED):
        raise error
    if isinstance(error, (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected)):
        return TableError(
            table,
            "the table, a partition or an index of it was locked by another session when it was copied",
            code="table-locked",
            remedy="nothing to do: it is resnapshotted automatically when the lock is gone",
        )
    return table_error(table, error, source)


def locked_by(table: TableName, holder: str) -> TableError:
    """The error of a table that others lock so that it cannot be copied yet."""
    return TableError(
        table,
        f"the table cannot be copied yet: it is locked by {holder}",
        code="table-locked",
        remedy=f"nothing to do: it is resnapshotted automatically when the lock is gone; {END_HOLDER}",
    )


def gone(table: TableName) -> TableError:
    """The error of a table that the snapshot does not show under its name."""
    return TableError(
        table,
        "the table was dropped or renamed before it could be copied",
        code="table-gone",
        remedy="nothing to do if that was meant; the next start selects tables by their present names",
    )


def lost(table: TableName, what: object) -> TableError:
    """The error of a table that changed while it was copied (`bronze.snapshot.locks.LeafLostError`)."""
    return TableError(
        table,
        f"{what} while the table was copied",
        code="table-changed",
        remedy="nothing to do: it is resnapshotted automatically",
    )


def interrupted_again(table: TableName, failure: TransientError) -> TableError:
    """The error of a table whose copy, and no other's, ended twice in a row for a reason that heals."""
    return TableError(
        table,
        f"the copy of the table failed twice in a row: {failure.message}",
        code="copy-failed",
        remedy=f"{failure.remedy or 'read the log of the server'}; the table is resnapshotted automatically, "
        "ever more rarely while this lasts",
    )


def unreadable(table: TableName, what: object) -> TableError:
    """The error of a table whose rows cannot be read (`UnreadableRowsError`)."""
    return TableError(
        table,
        f"a row of the copy cannot be read: {what}",
        code="copy-failed",
        remedy="the log of the reader has the whole error, which is a defect of deltasmelt; the table is "
        "resnapshotted automatically, or left out with source.exclude",
    )
