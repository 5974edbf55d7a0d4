"""Effects: every call that bronze makes to the lake's storage or to the server passes `perform`.

Bronze calls the storage and the server nowhere else, except to cancel or end a call that bronze gives up. A
guard therefore sees all effects in order and can make each of them fail. Tests let each effect fail once,
before and after the call (`tests/bronze/faults.py`, `tests/bronze/enumerated.py`). An error after the effect
is the case that code forgets most: the store did its work, and the answer was lost.
"""

from __future__ import annotations

from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_T = TypeVar("_T")


class Effect(StrEnum):
    """The kinds of effects on the lake and on the source.

    The place of an effect on the source is the backend's process id; before the connection exists, the
    application's name. The place of `FEEDBACK` also names the confirmed LSN.
    """

    # on the lake
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
    # on the source
    CONNECT = "connect"
    STATEMENT = "statement"
    COPY_OUT = "copy out"
    # on the replication connection
    REPLICATION_COMMAND = "replication command"
    EXPORT_SNAPSHOT = "export snapshot"
    START_STREAM = "start stream"
    RECEIVE = "receive"
    FEEDBACK = "feedback"


class Guard(Protocol):
    """A function that runs every effect of the process."""

    def __call__(self, kind: Effect, where: str, effect: Callable[[], Any], /) -> Any:
        """Run an effect and return its result, or raise instead of the effect or after the effect."""


_guards: list[Guard] = []


def perform(kind: Effect, where: str, effect: Callable[[], _T]) -> _T:
    """Run an effect on a file, table or backend (`where`), through the process's guard if any."""
    # Without a guard an effect costs one comparison; an effect takes megabytes or milliseconds and is never a
    # single message.
    if not _guards:
        return effect()
    result: _T = _guards[-1](kind, where, effect)
    return result


@contextmanager
def guarded(guard: Guard) -> Iterator[None]:
    """Let a guard run all effects of this process during a block."""
    _guards.append(guard)
    try:
        yield
    finally:
        _guards.remove(guard)
