r"""COPY … TO STDOUT as blocks of whole rows, in bounded memory.

The server sends one row per message. Rows are collected to blocks of some megabytes and each block is parsed
at once (`bronze.snapshot.copy_out`). So no row is ever split, however large it is. The format is COPY's own
text: to print CSV costs the server a quarter more.

libpq's input buffer, 16 KiB at first, is made to hold a batch (`enlarge_buffer`), so that what came while a
block was parsed is read at once.

Both ways into bronze print a value by its type's output function under the same pinned settings. So a
snapshot and the stream say the same text for the same value.

PostgreSQL docs: https://www.postgresql.org/docs/current/sql-copy.html and
https://www.postgresql.org/docs/current/protocol-flow.html (COPY Operations).

COPY's text format to cells of text, without an object per cell. Pure.

Format (https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"): a tab ends each value but a
row's last, a line feed that one. Both never stand inside a value, for the server writes them there as ``\t``
and ``\n``, and a backslash as two. NULL is ``\N``, which no value prints as. So the places of all tabs and
line feeds are the ends of all cells in row order, just as bronze keeps a row's values. The text between them
is the value but where it has backslashes.

In a run of backslashes the first, third, fifth … are escapes, for each stands before the byte that it speaks
of, and what comes before the run is none. So position alone decides, and numpy takes them out, in blocks that
have any besides NULLs.

A PostgreSQL sends valid UTF-8; that is looked at nevertheless, for the whole block at once. Values end at
bytes of ASCII and lose bytes of ASCII alone, so each of them is valid where the block is.
"""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Final

import numpy as np
import psycopg
import pyarrow as pa
from psycopg import pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.store.text_lists import cells_between

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.postgres.connection import SourceConnection

_TAB, _LINE_FEED, _BACKSLASH, _N = b"\t\n\\N"
_SLICE_BYTES: Final = 256 * 1024
"""ObservedStorage through at a time, so that what is compared stays in the processor's cache."""
_MEANING: Final = np.arange(256, dtype=np.uint8)
"""What stands for the byte after an escaping backslash."""
_MEANING[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


def cells_of(block: bytearray) -> pa.StringArray:
    """The values of whole rows, row after row, NULLs kept.

    Args:
        block: whole rows, UTF-8; its bytes are changed. Below 2 GiB, as a row of COPY is (1 GiB at most).

    Raises:
        pa.ArrowInvalid: it is no UTF-8.
        IndexError: it ends in the middle of an escape.
    """
    whole = pa.array([0, len(block)], pa.int32()).buffers()[1]
    pa.StringArray.from_buffers(1, whole, pa.py_buffer(block)).validate(full=True)
    text = np.frombuffer(block, np.uint8)
    ends, backslashes = _places(text)
    bounds = np.empty((len(ends), 2), np.int32)
    bounds[1:, 0] = ends[:-1] + 1
    bounds[:1, 0] = 0
    bounds[:, 1] = ends
    null = None
    if backslashes:
        null = _nulls(text, ends)
        if backslashes > len(null):
            text, bounds = _without_escapes(text, bounds)
        bounds[null, 1] = bounds[null, 0]
    return cells_between(bounds, text, null)


def _places(text: NDArray[np.uint8]) -> tuple[NDArray[np.int32], int]:
    """Where values end, and how many backslashes there are."""
    ends, backslashes = [], 0
    for start in range(0, len(text), _SLICE_BYTES):
        part = text[start : start + _SLICE_BYTES]
        # Tab and line feed are neighbours: one subtraction and one comparison for both.
        ends.append((np.flatnonzero((part - _TAB) <= _LINE_FEED - _TAB) + start).astype(np.int32))
        backslashes += int(np.count_nonzero(part == _BACKSLASH))
    return np.concatenate(ends) if ends else np.empty(0, np.int32), backslashes


def _nulls(text: NDArray[np.uint8], ends: NDArray[np.int32]) -> NDArray[np.int64]:
    r"""Which cells are ``\N``, ascending."""
    of_two = np.flatnonzero(np.diff(ends, prepend=np.int32(-1)) == len(rb"\N") + 1)
    start = ends[of_two] - 2
    null: NDArray[np.int64] = of_two[(text[start] == _BACKSLASH) & (text[start + 1] == _N)]
    return null


def _without_escapes(
    text: NDArray[np.uint8], bounds: NDArray[np.int32]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """The text with each escape replaced by what it stands for, and the bounds of its cells."""
    at = np.flatnonzero(text == _BACKSLASH)
    opens = np.append(True, np.diff(at) != 1)
    in_run = np.arange(len(at)) - np.flatnonzero(opens)[np.cumsum(opens) - 1]
    escapes = at[in_run % 2 == 0]
    text[escapes + 1] = _MEANING[text[escapes + 1]]
    keep = np.ones(len(text), np.bool_)
    keep[escapes] = False
    shift = np.searchsorted(escapes, bounds.ravel()).reshape(bounds.shape).astype(np.int32)
    return text[keep], bounds - shift


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
    """COPY of a query's rows in the form that `bronze.snapshot.copy_out` reads."""
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
    result = connection.command(copy_statement(query), Effect.COPY_OUT)
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
            perform(Effect.COPY_OUT, where, pgconn.consume_input)
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
