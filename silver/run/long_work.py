"""Long work of a table, which goes on while cycles pass: the copy of a large table holds no other table.

A cycle waits for a window of millions of changes for some seconds. If the window is not folded by then, and
there are other tables, the cycle records its cut without the table. Until the work has ended, no cycle looks
at the table or names it in a cut. The next cycle after the end takes the result: the run, or the failure,
which counts as if that cycle had met it. The cycle then carries the table on from its mark, and the table is
in the cut again.

Why that is right, at each point:

* **What the work reads** is a pinned version of `bronze.changes` itself. Rows that a cycle keeps for small
  windows (`silver.run.bronze_window`) are replaced by the next cycle; a window of this size is never kept.
* **What the work writes** is its own table and history alone, and cycles leave both alone meanwhile.
* **The lease** of silver's tables stays with the process until the work has ended; the caller sees to that
  (`LongWork.tables`), and maintains no table meanwhile.
* **Killed, or failed**: as a cycle that is killed between two tables. The table's mark says what is done.
* **Work that never answers** holds its own table. A stop ends the session, and so the work.
* **The second failure** of a table in a row lets the table rest, whichever cycle meets it: the work remembers
  whether it was the second attempt.

In one JVM Spark serves jobs first in, first out, unless ``spark.scheduler.mode`` is FAIR. Where it is, the
long work's jobs form a pool of their own, and share the cores with all other jobs (`in_background`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bronze.errors import TransientError
from silver.run.masters import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from bronze.lake.control import Run
    from bronze.lsn import Lsn
    from silver.plan.work import Work
    from silver.run.troubles import Troubles

LONG: Final = 1_000_000
"""Changes of a window from which on folding the window is long work: some seconds."""

GRACE_SECONDS: Final = 5.0
"""Seconds for which a cycle waits for long work once all other work has ended."""

_THREADS: Final = 2
"""Tables at long work side by side; others of that size wait for their turn."""

_POOL: Final = ("spark.scheduler.pool", "deltasmelt-long")


@dataclass(frozen=True, slots=True)
class Away:
    """Work of a table that outlived the cycle that began the work.

    Attributes:
        futures: of the table, and of its history.
        end: LSN to which the work carries the table.
        again: whether the work is the second attempt, after a failure.
    """

    futures: tuple[Future[Run], ...]
    end: Lsn
    again: bool

    @property
    def has_ended(self) -> bool:
        """Whether all of the work is done."""
        return all(future.done() for future in self.futures)


class LongWork:
    """The long work of one lake's tables.

    Args:
        troubles: decides what a failure of a table's work means.
    """

    def __init__(self, troubles: Troubles) -> None:
        self._troubles = troubles
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="silver-long")
        self._away: dict[TableName, Away] = {}
        self._returned: frozenset[TableName] = frozenset()

    @property
    def tables(self) -> frozenset[TableName]:
        """Tables whose work outlived its cycle, and whose result no cycle has taken yet."""
        return frozenset(self._away)

    @property
    def has_ended(self) -> bool:
        """Whether some work has ended, so that a cycle can take the result."""
        return any(away.has_ended for away in self._away.values())

    def furthest(self) -> Iterable[Lsn]:
        """Return the LSNs to which the work carries its tables."""
        return [away.end for away in self._away.values()]

    def suits(self, work: Work) -> bool:
        """Check whether work may outlive its cycle: the window has many changes.

        A table whose work has just ended is caught up first, or a table that always has much to fold would
        never be in a cut. A snapshot does not come with every window.
        """
        activity = work.activity
        returned = work.table.table in self._returned and activity.snapshot is None
        return activity.changes >= LONG and not returned

    def submit(self, run: Callable[[Work], Run], work: Work) -> Future[Run]:
        """Begin long work, on a thread for such work."""
        return self._pool.submit(run, work)

    def leave(
        self, begun: Sequence[tuple[TableName, Future[Run]]], end: Lsn, *, again: bool
    ) -> frozenset[TableName]:
        """Wait for long work for some seconds, then leave what has not ended to later cycles.

        Args:
            begun: the long work of a cycle, by table.
            end: LSN to which the cycle carries tables.
            again: whether this is the cycle's second attempt.

        Returns:
            The tables that are left.
        """
        unfinished = wait([future for _, future in begun], GRACE_SECONDS).not_done
        left = {name for name, future in begun if future in unfinished}
        for table in left:
            self._away[table] = Away(tuple(one for name, one in begun if name == table), end, again)
        return frozenset(left)

    def take(self, end: Lsn, *, wait_for_all: bool) -> tuple[list[Run], dict[TableName, Exception]]:
        """Take the results of work that has ended, each once.

        Args:
            end: LSN to which the cycle carries tables.
            wait_for_all: wait until all work has ended.

        Returns:
            The runs, and by table what ended the work and may pass: the cycle tries those tables again.

        Raises:
            TransientError: a temporary failure.
        """
        if wait_for_all:
            wait(future for away in self._away.values() for future in away.futures)
        ended = {table: away for table, away in self._away.items() if away.has_ended}
        self._returned = frozenset(ended)
        runs: list[Run] = []
        failed: tuple[dict[TableName, Exception], dict[TableName, Exception]] = ({}, {})
        transient: list[TransientError] = []
        for table, away in ended.items():
            del self._away[table]
            for future in away.futures:
                try:
                    with self._troubles.isolated(table, away.end, failed[away.again]):
                        runs.append(future.result())
                except TransientError as error:
                    transient.append(error)
        if transient:
            raise transient[0]
        self._troubles.pause(failed[True], end)
        return runs, failed[False]

    def close(self) -> None:
        """Wait for all work, and end the threads."""
        self._pool.shutdown(wait=True)


def in_background(session: SparkSession) -> None:
    """Have the jobs of this thread share the cores with other jobs, instead of coming before them.

    A Spark Connect server decides that itself.
    """
    if not is_remote(session):
        session.sparkContext.setLocalProperty(*_POOL)
