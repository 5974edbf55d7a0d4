"""Effects one after another on a thread of their own, where the first failure is the last effect.

A commit speaks for the writes before it: it names their files and moves the position past their rows. So it
must not run after one of them failed, nor may anything that was handed over meanwhile. The thread refuses
every task after a failure, each with that failure as the cause; a new session begins with a new thread.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class RefusedError(RuntimeError):
    """A task was not run, because one before it failed."""


class InOrder:
    """Runs tasks in order until one fails.

    Args:
        name: of the thread.
        pending: tasks that may wait; who hands over one more waits with it.
    """

    def __init__(self, name: str, *, pending: int) -> None:
        self._pending = pending
        self._thread = ThreadPoolExecutor(1, name)
        self._tasks: deque[Future[None]] = deque()
        self._failure: BaseException | None = None

    def submit(self, task: Callable[[], None]) -> None:
        """Hand over a task.

        Raises:
            BaseException: the failure of an earlier one; the task is not run then.
        """
        while len(self._tasks) >= self._pending:
            self._tasks.popleft().result()
        self._tasks.append(self._thread.submit(self._run, task))

    def raise_failure(self) -> None:
        """Raise the failure of a task that is over."""
        while self._tasks and self._tasks[0].done():
            self._tasks.popleft().result()

    def finish(self) -> None:
        """Wait for all tasks; raises as `submit`."""
        while self._tasks:
            self._tasks.popleft().result()

    def close(self) -> None:
        """End the thread after its present task."""
        self._thread.shutdown(wait=True, cancel_futures=True)

    def _run(self, task: Callable[[], None]) -> None:
        if self._failure is not None:
            raise RefusedError("a task before it failed") from self._failure
        try:
            task()
        except BaseException as error:
            self._failure = error
            raise
