"""Long work of a table continues while cycles pass: the copy of a large table delays no other table.

A cycle waits for a window of millions of changes as long as the cycle's other work takes, or some seconds
where other tables have no work. If the fold is then unfinished and other tables exist, the cycle records a
cut without the table. Until the work ends, no cycle reads the table or names the table in a cut. The next
cycle after the end takes the result, a run or a failure, carries the table on from the mark, and names the
table in its cut again.

Correctness at each point:

* **The work reads** a pinned version of `bronze.changes` itself, never cached rows, which the next cycle
  replaces (`silver.run.bronze_window`).
* **The work writes** only the table and the table's history, and cycles touch neither meanwhile.
* **The lease** of silver's tables stays with the process until the work ends. The caller ensures this
  (`LongWork.tables`), and maintains no table meanwhile.
* **A kill or a failed call** has the effect of a kill between two tables of a cycle: the table's mark states
  the finished windows.
* **A call that never answers** delays only the work's table, and a third large table after a second such
  call. Where Spark runs on this machine, large windows are folded one after the other, and a dead JVM ends
  the command. A stop ends the session, and so the work.
* **The second failure** of a table in a row pauses the table, in whichever cycle.

In one JVM, Spark serves jobs first in, first out, unless ``spark.scheduler.mode`` is FAIR. With FAIR, the
jobs of long work form a separate pool, and so do gold's jobs (`silver.spark.access.Jvm.in_background`). A
core stays busy until its task ends, and tasks of long work are long: so where Spark runs on this machine,
long work leaves a core to other jobs (`silver.spark.tuning.leave_a_core`).
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
"""Number of changes from which a window with a snapshot is long work: some seconds."""

LONG_STREAM: Final = 10_000_000
"""Number of changes from which a window without a snapshot is long work.

The cut before named the table, so readers miss the table at once.
"""

_THREADS: Final = 2
"""Number of statements of long work at once: a statement that never answers delays no second large table."""

GRACE_SECONDS: Final = 5.0
"""Seconds for which a cycle without other work waits for long work."""


@dataclass(frozen=True, slots=True)
class UnfinishedWork:
    """Work of a table beyond the end of its first cycle.

    Attributes:
        works: the work on the table, and on the table's history.
        end: LSN to which the work carries the table.
        again: whether the work is the second attempt, after a failure.
        snapshot: the table's newest snapshot when the work began.
    """

    works: tuple[tuple[Work, Future[Run]], ...]
    end: Lsn
    again: bool
    snapshot: Lsn | None

    @property
    def has_ended(self) -> bool:
        """Whether all of the work has ended."""
        return all(future.done() for _, future in self.works)


class LongWork:
    """The long work of one lake's tables; `failed_tables` decides how a failure of a table's work counts."""

    def __init__(self, failed_tables: FailedTables) -> None:
        self._failed_tables = failed_tables
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="silver-long")
        self._unfinished: dict[TableName, UnfinishedWork] = {}
        self._returned: set[TableName] = set()
        self._runs: list[Run] = []

    @property
    def tables(self) -> frozenset[TableName]:
        """Tables with work beyond a cycle's end; no cycle has taken the result yet."""
        return frozenset(self._unfinished)

    @property
    def targets(self) -> frozenset[str]:
        """Names of silver's tables under long work: a new table of the source may get the same name."""
        return frozenset(
            work.table.name for unfinished in self._unfinished.values() for work, _ in unfinished.works
        )

    @property
    def has_ended(self) -> bool:
        """Whether some table's work has ended, so a cycle can take the result."""
        return any(unfinished.has_ended for unfinished in self._unfinished.values())

    def furthest(self) -> Iterable[Lsn]:
        """Return the LSNs to which the work carries the tables."""
        return [unfinished.end for unfinished in self._unfinished.values()]

    def suits(self, work: Work) -> bool:
        """Check whether work may outlive the cycle because of many changes in the window."""
        activity = work.activity
        if activity.snapshot is not None:
            # Few windows have a snapshot, so such a window needs no turn in a cut before.
            return activity.changes >= LONG
        # A table whose long work just ended first returns to a cut. Otherwise a table with a large window in
        # every cycle would never be in a cut.
        return activity.changes >= LONG_STREAM and work.table.table not in self._returned

    def submit(self, run: Callable[[], Run]) -> Future[Run]:
        """Begin long work on a thread for long work."""
        return self._pool.submit(run)

    def leave(
        self, submitted: Sequence[tuple[Work, Future[Run]]], end: Lsn, *, again: bool, waited: bool
    ) -> None:
        """Leave unfinished long work to later cycles.

        `end` is the LSN to which the cycle carries tables; `waited` states that the cycle already waited for
        other work.
        """
        # Without other work in the cycle, short work may still end within the cycle.
        seconds = 0.0 if waited else GRACE_SECONDS
        unfinished = wait([future for _, future in submitted], seconds).not_done
        for table in {work.table.table for work, future in submitted if future in unfinished}:
            works = tuple(one for one in submitted if one[0].table.table == table)
            self._unfinished[table] = UnfinishedWork(works, end, again, self._failed_tables.snapshot(table))

    def take(self, *, wait_for_all: bool) -> tuple[list[Run], dict[TableName, Exception]]:
        """Take the results of ended work: the runs to record, and by table the failures to retry.

        Raises:
            TransientError: a temporary failure; the next call takes the remaining results.
        """
        if wait_for_all:
            wait(future for unfinished in self._unfinished.values() for _, future in unfinished.works)
        failed: dict[TableName, Exception] = {}
        transient: list[TransientError] = []
        for table, unfinished in [one for one in self._unfinished.items() if one[1].has_ended]:
            failed_again: dict[TableName, Exception] = {}
            for _, future in unfinished.works:
                error = future.exception()
                if isinstance(error, TransientError):
                    transient.append(error)
                    continue
                # The work remembers whether it was the second attempt, in whichever cycle the attempt began.
                undecided = failed_again if unfinished.again else failed
                with self._failed_tables.isolated(table, undecided, unfinished.snapshot):
                    self._runs.append(future.result())
            self._failed_tables.pause(failed_again)
            del self._unfinished[table]
            self._returned.add(table)
        if transient:
            raise transient[0]
        return list(self._runs), failed

    def recorded(self, tables: Iterable[TableName]) -> None:
        """Forget recorded runs, and tables that a cut names again."""
        self._runs.clear()
        self._returned.difference_update(tables)

    def close(self) -> None:
        """Wait for the running work, and end the threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)
