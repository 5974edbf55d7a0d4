"""One half of a status, the server's or the lake's; a separate thread reads each half.

A server or a store that swallows a request delays every later request. So the status reads both halves in
parallel, and each half has an error and a time limit of its own. Nothing can end a read without an answer.
Later polls wait for the old read for a moment, and begin no second read meanwhile. A late answer is as old as
the poll that began the read: the poll drops the answer and reads the half again. An exception outside
`Exception`, such as a panic of `deltalake`, would end the thread in silence, and counts as a failure.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.figures import estimate_text
from deltasmelt.pipelines.terminal.failures import foreign_text

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE: Final = 60.0
"""Seconds for an answer, where earlier answers were quick."""
AGAIN: Final = 5.0
"""Seconds to wait for the answer of a read that an earlier poll began."""
_LONGEST: Final = 300.0
_TIMES: Final = 3.0
"""A slow half may take this many times as long as the last read."""

_T = TypeVar("_T")
_LOGGER = logging.getLogger("deltasmelt.monitor")


class Half(Generic[_T]):
    """Reads one half repeatedly.

    Args:
        code: error code for a half without an answer.
        patience: seconds to wait for an answer.
        threaded: use a thread; without a thread, the caller's thread reads without a limit.
    """

    def __init__(
        self,
        name: str,
        read: Callable[[], _T],
        *,
        code: str,
        patience: float = PATIENCE,
        again: float = AGAIN,
        threaded: bool = True,
    ) -> None:
        self._name = name
        self._read = read
        self._code = code
        self._patience = patience
        self._again = again
        self._threaded = threaded
        self._thread: threading.Thread | None = None
        self._start_time = self._took = 0.0
        self._late = False
        self._logged = ""
        self._value: _T | None = None
        self._error: Exception | None = None
        # reason why the newest poll has no answer; None after an answer
        self.failure: Exception | None = None

    def begin(self) -> None:
        """Begin to read, unless the read of an earlier poll is still under way."""
        self._late = self._thread is not None and self._thread.is_alive()
        if self._threaded and not self._late:
            self._start()

    def answer(self) -> tuple[_T | None, Exception | None]:
        """Return the half as read by this poll, or the reason for a missing answer."""
        if not self._threaded:
            self._work()
        elif not self._answered():
            self.failure = TransientError(
                f"{self._name} has not answered for {estimate_text(time.monotonic() - self._start_time)}",
                code=self._code,
                remedy=f"check {self._name}, and the network in between; the read is retried",
            )
            return None, self.failure
        self.failure = self._error
        return self._value, self.failure

    def _answered(self) -> bool:
        if self._late:
            if not self._ended(self._again):
                return False
            self._late = False
            self._start()
        return self._ended(max(self._patience, min(_TIMES * self._took, _LONGEST)))

    def _ended(self, seconds: float) -> bool:
        assert self._thread is not None  # noqa: S101 - begun
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _start(self) -> None:
        self._start_time = time.monotonic()
        self._thread = threading.Thread(target=self._work, name=f"read {self._name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        start = time.monotonic()
        self._value = self._error = None
        try:
            self._value = self._read()
        except BaseException as error:
            if not isinstance(error, SmeltError) and repr(error) != self._logged:
                self._logged = repr(error)
                _LOGGER.exception("%s could not be read", self._name)
            if isinstance(error, Exception):
                self._error = error
            elif self._threaded:
                self._error = RuntimeError(f"{type(error).__name__}: {error}")
            else:  # the caller is interrupted
                raise
        self._took = time.monotonic() - start


def words(error: Exception) -> str:
    """Return an error of a half as text."""
    return str(error) if isinstance(error, SmeltError) else foreign_text(error)
