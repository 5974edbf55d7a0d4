"""Doors: the named places through which what bronze does to lake and server leaves the process.

Each effect is a call of `perform`, with the door's name, the place it concerns and the effect itself:

* on the lake: a file made, written, closed, flushed, removed; a table opened, made, looked at again,
  committed to, cleaned;
* on the source: a connection made, a statement run on it, rows of a COPY received;
* on the replication connection: a command, the stream started, a look at what has come, feedback sent.

Nothing else in bronze calls the storage or the server, but to cancel or end what is given up.

So whoever stands at the doors sees all that happens, in order, and can make any one of it fail. Tests do:
each effect fails once, before and after it came about (`tests/bronze/faults.py`,
`tests/bronze/enumerated.py`). Without a guard a door is one comparison; effects are of megabytes or of
milliseconds, never of one message.

A guard calls the effect and returns its answer, or raises instead of it or after it. Raising after it is the
case that is forgotten most: the store did what it was asked to, and its answer was lost.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")


class Effect(StrEnum):
    """What is done to the lake, and to the source.

    At a door of the source the place is the backend's process id; before there is one, the application's
    name. Feedback has the confirmed LSN after it.
    """

    OPEN_PART = "open part"
    WRITE_PART = "write part"
    CLOSE_PART = "close part"
    FLUSH = "flush"
    DELETE_FILE = "delete file"
    READ_FILE = "read file"
    LIST_FILES = "list files"
    OPEN_TABLE = "open table"
    CREATE_TABLE = "create table"
    REFRESH = "refresh"
    COMMIT = "commit"
    CHECKPOINT = "checkpoint"
    CLEAN = "clean"
    CONNECT = "connect"
    STATEMENT = "statement"
    COPY_OUT = "copy out"
    REPLICATION_COMMAND = "replication command"
    EXPORT_SNAPSHOT = "export snapshot"
    START_STREAM = "start stream"
    RECEIVE = "receive"
    FEEDBACK = "feedback"


class Guard(Protocol):
    """Stands at all doors."""

    def __call__(self, door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        """Let an effect happen, or not; returns what it returns."""


_guards: list[Guard] = []


def perform(door: Effect, where: str, effect: Callable[[], _T]) -> _T:
    """Have an effect on the lake or the source.

    Args:
        door: what kind.
        where: file or table; backend.
        effect: does it.
    """
    if not _guards:
        return effect()
    result: _T = _guards[-1](door, where, effect)
    return result


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Put a guard at all doors of this process, for a block."""
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)
