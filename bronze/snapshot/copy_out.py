r"""Run COPY … TO STDOUT and parse its output into cells, in bounded memory and without an object per cell.

**Blocks.** The server sends one row per message. Rows are collected into blocks of some megabytes, and each
block is parsed at once. So no row is ever split, however large the row is.

**Equal texts.** A snapshot and the stream print a value by the type's output function under equal pinned
settings. So both give the same text for a value.

**Text format** (https://www.postgresql.org/docs/current/sql-copy.html, "Text Format"). A tab ends each value
except a row's last; a line feed ends the last value. Neither byte appears inside a value, because the server
writes ``\t`` and ``\n`` instead, and doubles a backslash. NULL is ``\N``, a text that no value has.

PostgreSQL docs: https://www.postgresql.org/docs/current/sql-copy.html and
https://www.postgresql.org/docs/current/protocol-flow.html (COPY Operations).
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
"""Bytes compared at a time, so that the compared bytes stay in the processor's cache."""
_MEANING: Final = np.arange(256, dtype=np.uint8)
"""Replacement of the byte after an escaping backslash."""
_MEANING[list(b"bfnrtv")] = list(b"\b\f\n\r\t\v")


def cells_of(block: bytearray) -> pa.StringArray:
    """Return the values of whole rows, row after row, with NULLs.

    Args:
        block: whole rows in UTF-8, below 2 GiB (a row of COPY has 1 GiB at most). Modified in place.

    Raises:
        pa.ArrowInvalid: the block is not UTF-8.
        IndexError: the block ends inside an escape.
    """
    # Values end at ASCII bytes and lose only ASCII bytes, so one check of the block proves all values valid
    # UTF-8.
    offsets = pa.array([0, len(block)], pa.int32()).buffers()[1]
    pa.StringArray.from_buffers(1, offsets, pa.py_buffer(block)).validate(full=True)
    text = np.frombuffer(block, np.uint8)
    # The positions of all tabs and line feeds are the ends of all cells in row order, exactly as bronze
    # stores a row's values. The text in between is the value, except for escapes.
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
    """Return the ends of all values, and the number of backslashes."""
    ends, backslashes = [], 0
    for start in range(0, len(text), _SLICE_BYTES):
        part = text[start : start + _SLICE_BYTES]
        # Tab and line feed are neighbours: one subtraction and one comparison for both.
        ends.append((np.flatnonzero((part - _TAB) <= _LINE_FEED - _TAB) + start).astype(np.int32))
        backslashes += int(np.count_nonzero(part == _BACKSLASH))
    return np.concatenate(ends) if ends else np.empty(0, np.int32), backslashes


def _nulls(text: NDArray[np.uint8], ends: NDArray[np.int32]) -> NDArray[np.int64]:
    r"""Return the indexes of the cells equal to ``\N``, ascending."""
    of_two = np.flatnonzero(np.diff(ends, prepend=np.int32(-1)) == len(rb"\N") + 1)
    start = ends[of_two] - 2
    null: NDArray[np.int64] = of_two[(text[start] == _BACKSLASH) & (text[start + 1] == _N)]
    return null


def _without_escapes(
    text: NDArray[np.uint8], bounds: NDArray[np.int32]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Replace each escape by its byte; return the new text and the bounds of its cells."""
    # An escape precedes its byte, and the byte before a run of backslashes is no escape. So position alone
    # decides: the first, third, fifth … backslash of a run is an escape.
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
"""Errors of different server versions for a snapshot whose exporter has ended."""


class CopyCancelledError(Exception):
    """The caller cancelled a running COPY."""


def snapshot_gone(message: str | None, source: SourceSettings) -> TransientError:
    """Return the error of an exported snapshot that can no longer be imported.

    Args:
        message: message that the server sent for the failed import.
    """
    return TransientError(
        f"the session that exported the snapshot has ended, so the snapshot no longer exists: {message}",
        code="snapshot-gone",
        where=address_of(source),
        remedy="nothing to do: the reader copies incomplete tables again under a new snapshot",
    )


def copy_statement(query: str) -> str:
    """Return the COPY of a query's rows in the format that `cells_of` parses."""
    # CSV costs the server a quarter more than COPY's own text.
    return f"COPY ({query}) TO STDOUT"


def enlarge_buffer(connection: SourceConnection) -> None:
    """Grow libpq's input buffer, 16 KiB at first, to a batch; the buffer keeps the largest size."""
    # A large buffer lets libpq read at once all input that arrived while a block was parsed.
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
        cancelled: called whenever no row is available.
        poll_seconds: longest wait between two calls of `cancelled`.

    Raises:
        psycopg.Error: the server refused or aborted the COPY.
        CopyCancelledError: `cancelled` returned True; the connection is unusable afterwards.
    """
    pgconn = connection.pgconn
    backend = str(pgconn.backend_pid)
    result = connection.command(copy_statement(query), Effect.COPY_OUT)
    if result.status != pq.ExecStatus.COPY_OUT:
        raise psycopg.errors.error_from_result(result)
    # Copy each row at once: single row objects cost three times as much, mostly in the garbage collector.
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
            perform(Effect.COPY_OUT, backend, pgconn.consume_input)
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
