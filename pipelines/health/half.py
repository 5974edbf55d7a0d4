"""One half of a look at a pipeline: the server's or the lake's, each in a thread of its own.

A server or a store that swallows a request would hold up whatever is asked after it. So each half is read
beside the other, has its own error, and is waited for during a limited time only. A read without an answer
goes on, since nothing can end it; later looks wait for that read a moment, and begin no second one meanwhile.
Its late answer is as old as the look that began it, so it is dropped, and the half is read anew.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from bronze.errors import SmeltError, TransientError
from pipelines.terminal.failures import foreign_text

if TYPE_CHECKING:
    from collections.abc import Callable

PATIENCE: Final = 60.0
"""Seconds for an answer, where earlier answers did not take long."""
AGAIN: Final = 5.0
"""Seconds for an answer that an earlier look waited for in vain."""
_LONGEST: Final = 300.0
_TIMES: Final = 3.0
"""A half that answers slowly may take this many times as long as it last took."""

_T = TypeVar("_T")
_LOGGER = logging.getLogger("deltasmelt.monitor")


class Half(Generic[_T]):
    """Reads one half again and again.

    Args:
        name: of the half, for messages.
        read: reads the half.
        code: of the error where the half does not answer.
        patience: seconds for an answer.
        again: seconds for an answer that an earlier look waited for.
        threaded: read in a thread; else, without a limit, in the caller's, for what is bound to that thread.

    Attributes:
        failure: why the newest look has no answer; None where it has one.
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
        self._begun = self._took = 0.0
        self._late = False
        self._logged = ""
        self._value: _T | None = None
        self._error: Exception | None = None
        self.failure: Exception | None = None

    def begin(self) -> None:
        """Begin to read, unless the read of an earlier look is still under way."""
        self._late = self._thread is not None and self._thread.is_alive()
        if self._threaded and not self._late:
            self._start()

    def answer(self) -> tuple[_T | None, Exception | None]:
        """Return what this look read, or why it has read nothing."""
        if not self._threaded:
            self._work()
        elif not self._answered():
            self.failure = TransientError(
                f"{self._name} has not answered for {time.monotonic() - self._begun:.0f} s",
                code=self._code,
                remedy="check the network between this machine and it; it is asked again",
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
        self._begun = time.monotonic()
        self._thread = threading.Thread(target=self._work, name=f"look at {self._name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        begun = time.monotonic()
        self._value = self._error = None
        try:
            self._value = self._read()
        except Exception as error:
            if not isinstance(error, SmeltError) and repr(error) != self._logged:
                self._logged = repr(error)
                _LOGGER.exception("%s could not be looked at", self._name)
            self._error = error
        self._took = time.monotonic() - begun


def words(error: Exception) -> str:
    """Return an error of a half as text."""
    return str(error) if isinstance(error, SmeltError) else foreign_text(error)
