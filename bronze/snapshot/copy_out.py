"""COPY … TO STDOUT as blocks of whole rows, in bounded memory.

The server sends one row per message. Rows are collected to blocks of some megabytes and each block is parsed
at once (`bronze.snapshot.copy_text`). So no row is ever split, however large it is. The format is COPY's own
text: to print CSV costs the server a quarter more.

libpq's input buffer, 16 KiB at first, is made to hold a batch (`enlarge_buffer`), so that what came while a
block was parsed is read at once.

Both ways into bronze print a value by its type's output function under the same pinned settings. So a
snapshot and the stream say the same text for the same value.

PostgreSQL docs: https://www.postgresql.org/docs/current/sql-copy.html and
https://www.postgresql.org/docs/current/protocol-flow.html (COPY Operations).
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg import pq

from bronze.doors import Door, through
from bronze.errors import TransientError
from bronze.postgres.conninfo import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from bronze.config.sections import SourceSettings
    from bronze.postgres.connection import SourceConnection

BLOCK_BYTES: Final = 4 * 1024 * 1024
_INPUT_BUFFER: Final = 1024 * 1024

EXPORTER_ENDED: Final = (
    psycopg.errors.ObjectNotInPrerequisiteState,
    psycopg.errors.InvalidParameterValue,
    psycopg.errors.UndefinedObject,
)
"""What servers of different versions say of a snapshot whose exporter has ended."""


class CopyCancelledError(Exception):
    """The caller asked to stop in the middle of a COPY."""


def snapshot_gone(said: str | None, source: SourceSettings) -> TransientError:
    """Return the error of an exported snapshot that cannot be imported any more.

    Args:
        said: the server's words.
        source: where.
    """
    return TransientError(
        f"the exported snapshot is gone, for the session that held it has ended: {said}",
        code="snapshot-gone",
        where=address_of(source),
        remedy="nothing; tables that are not complete are copied again under a new snapshot",
    )


def copy_statement(query: str) -> str:
    """COPY of a query's rows in the form that `bronze.snapshot.copy_text` reads."""
    return f"COPY ({query}) TO STDOUT"


def enlarge_buffer(connection: SourceConnection) -> None:
    """Make libpq's input buffer hold a batch; it grows to the largest message and keeps that size."""
    connection.command(f"SELECT repeat(' ', {_INPUT_BUFFER})")


def copy_blocks(
    connection: SourceConnection,
    query: str,
    cancelled: Callable[[], bool],
    *,
    poll_seconds: float,
    block_bytes: int = BLOCK_BYTES,
) -> Iterator[bytearray]:
    """Run COPY and yield blocks of whole rows.

    Args:
        connection: idle.
        query: whose rows.
        cancelled: asked whenever no row is there.
        poll_seconds: at the longest until it is asked again.
        block_bytes: about the size of a block.

    Raises:
        psycopg.Error: the server refused or broke off.
        CopyCancelledError: `cancelled` said so; the connection is of no further use.
    """
    pgconn = connection.pgconn
    where = str(pgconn.backend_pid)
    result = connection.command(copy_statement(query), Door.COPY_OUT)
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    # Copied at once: rows kept one by one cost three times as much, most of it in the garbage collector.
    block = bytearray()
    get = pgconn.get_copy_data
    ready = select.poll()
    ready.register(pgconn.socket, select.POLLIN)
    while True:
        count, data = get(1)
        if count > 0:
            block += data
            if len(block) >= block_bytes:
                yield block
                block = bytearray()
        elif count == 0:
            if cancelled():
                raise CopyCancelledError
            ready.poll(1000 * poll_seconds)
            through(Door.COPY_OUT, where, pgconn.consume_input)
        else:
            break
    if block:
        yield block
    _finish(connection)


def _finish(connection: SourceConnection) -> None:
    """Read the command's results to their end.

    Raises:
        psycopg.Error: the COPY failed on the way.
    """
    for result in connection.rest():
        if result.status != pq.ExecStatus.COMMAND_OK:
            raise psycopg.errors.error_from_result(result)
