"""Long work of a table, which goes on while cycles pass: the copy of a large table holds no other table.

A cycle waits for a window of millions of changes as long as the cycle's other work takes, or some seconds
where other tables have no work. If the window is not folded by then, and there are other tables, the cycle
records its cut without the table. Until the work has ended, no cycle looks at the table or names it in a cut.
The next cycle after the end takes the result: the run, or the failure, which counts as if that cycle had met
it. The cycle then carries the table on from its mark, and the table is in the cut again.

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
long work's jobs form a pool of their own, and so do gold's. Each pool has its share of the cores that become
free (`silver.spark.access.Jvm.in_background`). None becomes free for as long as a task lasts, and tasks of
long work last long: so the work leaves a core to the others (`silver.spark.tuning.leave_a_core`).
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Run
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.silver.plan.activity import Work
    from deltasmelt.silver.run.failed_tables import FailedTables

LONG: Final = 1_000_000
"""Changes of a window with a snapshot from which on folding the window is long work: some seconds."""

LONG_STREAM: Final = 10_000_000
"""Likewise of a window without one, whose table was in the cut before and is missed at once."""

GRACE_SECONDS: Final = 5.0
"""Seconds for which a cycle without other work waits for long work."""


@dataclass(frozen=True, slots=True)
class Away:
    """Work of a table that outlived the cycle that began the work.

    Attributes:
        works: of the table, and of its history.
        end: LSN to which the work carries the table.
        again: whether the work is the second attempt, after a failure.
        snapshot: the table's newest one when the work began.
    """

    works: tuple[tuple[Work, Future[Run]], ...]
    end: Lsn
    again: bool
    snapshot: Lsn | None

    @property
    def has_ended(self) -> bool:
        """Whether all of the work is done."""
        return all(future.done() for _, future in self.works)


class LongWork:
    """The long work of one lake's tables.

    Args:
        troubles: decides what a failure of a table's work means.
    """

    def __init__(self, troubles: FailedTables) -> None:
        self._troubles = troubles
        # One after the other: each may take all cores but one.
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="silver-long")
        self._away: dict[TableName, Away] = {}
        self._returned: set[TableName] = set()
        self._runs: list[Run] = []

    @property
    def tables(self) -> frozenset[TableName]:
        """Tables whose work outlived its cycle, and whose result no cycle has taken yet."""
        return frozenset(self._away)

    @property
    def targets(self) -> frozenset[str]:
        """Names of silver's tables that such work writes: a new table of the source may get the same name."""
        return frozenset(work.table.name for away in self._away.values() for work, _ in away.works)

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
        if activity.snapshot is not None:
            return activity.changes >= LONG
        return activity.changes >= LONG_STREAM and work.table.table not in self._returned

    def submit(self, run: Callable[[Work], Run], work: Work) -> Future[Run]:
        """Begin long work, on a thread for such work."""
        return self._pool.submit(run, work)

    def leave(
        self, begun: Sequence[tuple[Work, Future[Run]]], end: Lsn, *, again: bool, waited: bool
    ) -> None:
        """Leave to later cycles the long work that has not ended.

        Args:
            begun: the long work of a cycle.
            end: LSN to which the cycle carries tables.
            again: whether this is the cycle's second attempt.
            waited: whether the cycle had other work, and so has waited; else it waits some seconds.
        """
        seconds = 0.0 if waited else GRACE_SECONDS
        unfinished = wait([future for _, future in begun], seconds).not_done
        for table in {work.table.table for work, future in begun if future in unfinished}:
            works = tuple(one for one in begun if one[0].table.table == table)
            self._away[table] = Away(works, end, again, self._troubles.snapshot(table))

    def take(self, end: Lsn, *, wait_for_all: bool) -> tuple[list[Run], dict[TableName, Exception]]:
        """Take the results of work that has ended.

        Args:
            end: LSN to which the cycle carries tables.
            wait_for_all: wait until all work has ended.

        Returns:
            The runs that no cycle has recorded yet, and by table what ended the work and may pass: the cycle
            tries those tables again.

        Raises:
            TransientError: a temporary failure; what is left to take, the next call takes.
        """
        if wait_for_all:
            wait(future for away in self._away.values() for _, future in away.works)
        failed: dict[TableName, Exception] = {}
        transient: list[TransientError] = []
        for table, away in [one for one in self._away.items() if one[1].has_ended]:
            failed_again: dict[TableName, Exception] = {}
            for _, future in away.works:
                error = future.exception()
                if isinstance(error, TransientError):
                    transient.append(error)
                    continue
                with self._troubles.isolated(
                    table, away.end, failed_again if away.again else failed, away.snapshot
                ):
                    self._runs.append(future.result())
            self._troubles.pause(failed_again, end)
            del self._away[table]
            self._returned.add(table)
        if transient:
            raise transient[0]
        return list(self._runs), failed

    def recorded(self, tables: Iterable[TableName]) -> None:
        """Forget what a cycle has recorded: the runs that were taken, and tables that are in a cut again."""
        self._runs.clear()
        self._returned.difference_update(tables)

    def close(self) -> None:
        """Wait for the work that has begun, and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
