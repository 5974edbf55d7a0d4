"""Copy the ranges of large tables on executors, under the snapshot held by a session of the reader.

**The snapshot.** The holder imports the slot's snapshot and exports the snapshot again. The export lives as
long as the holder's transaction, which ends after the last task. A task that misses the snapshot fails the
round. The next round copies all uncommitted tables under a new snapshot, as after any lost connection.

**Locks.** A task locks its table at once or not at all (`bronze.snapshot.locks.Worker.open`).

**One job has one task for a few ranges of one table.** Engines bound the concurrent tasks of a job only by
the size of the cluster. Here threads are the bound: `snapshot.workers` threads each run one job at a time. So
the server never has more task sessions, except those of abandoned executors that still run.

**Files.** Each attempt writes separate files under the round's prefix (`bronze.snapshot.range_task`). The
reader commits the files of results, or removes them with their table. All other files of the prefix belong to
lost attempts, and the reader removes these files at the end.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections import deque
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
from pyarrow.fs import FileSelector

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError, TableError, TransientError
from deltasmelt.bronze.lake.parquet import delete_files, file_system
from deltasmelt.bronze.lake.place import Location
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.snapshot.copy_out import snapshot_gone
from deltasmelt.bronze.snapshot.executor_errors import not_shared, unfit, versions, without_executors
from deltasmelt.bronze.snapshot.executors import run_fit
from deltasmelt.bronze.snapshot.range_task import (
    TASK_NAME,
    RangeTask,
    copy_ranges,
    prefix_of,
    results_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from datetime import datetime

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.snapshot.chunks import Chunk
    from deltasmelt.bronze.snapshot.executors import Executors
    from deltasmelt.bronze.snapshot.locks import Leaf, Worker
    from deltasmelt.bronze.snapshot.range_task import RangeResult
    from deltasmelt.bronze.snapshot.table_copy import TableCopy

    Begin: TypeAlias = Callable[[Worker, datetime], "RemoteCopy"]
    """Begins a round, from the holder of the snapshot and the server's clock at the snapshot."""

_LOGGER = logging.getLogger("deltasmelt.reader")

_MOST: Final = 16
"""Largest number of ranges per job: the cost of a lost executor."""
_JOBS: Final = 8
"""Least number of jobs per thread for a large table, so that all threads end at about the same time."""
_TICK: Final = 10.0
_POLL_SECONDS: Final = 0.2
_WORKING: Final = "SELECT FROM pg_stat_activity WHERE application_name = %s LIMIT 1"


@dataclass(frozen=True, slots=True)
class Hooks:
    """Callbacks of `RemoteCopy.run`; `copied` and `failed` are called on its threads."""

    # called for a written range; commits the table after its last range
    copied: Callable[[TableCopy, RangeResult], None]
    # called with an error that ends the round
    failed: Callable[[BaseException], None]
    # checks whether the round must end
    cancelled: Callable[[], bool]
    # called periodically, to check that the snapshot's holder is alive
    tick: Callable[[], None]


class RemoteCopy:
    """One round of ranges copied by executors.

    Args:
        executors: executors that passed the check (`bronze.snapshot.executors.examine`).
        holder: session that has locked the tables and holds the snapshot until the end.
        source: settings of exactly the holder's server (`bronze.postgres.conninfo.pinned`).
        taken_at: the server's clock when the snapshot was taken.
    """

    def __init__(
        self,
        executors: Executors,
        holder: Worker,
        *,
        source: SourceSettings,
        taken_at: datetime,
        uri: str,
        workers: int,
    ) -> None:
        self._executors = executors
        self._workers = workers
        self._holder = holder
        self._source = source
        self._taken_at = taken_at
        self._uri = uri
        self._snapshot = _export(holder, self._source)
        self._round = uuid.uuid4().hex[:12]
        self._lock = threading.Lock()
        self._named: set[str] = set()
        self._remaining: list[tuple[TableCopy, Chunk]] = []
        self._last_answer = time.monotonic()

    def run(
        self, copies: Sequence[TableCopy], leaves: Sequence[Leaf], hooks: Hooks
    ) -> list[tuple[TableCopy, Chunk]]:
        """Copy tables; return the ranges left to the holder after the last task.

        Args:
            leaves: tables and partitions that the chunks read.
        """
        if not copies:
            return []
        by_name = {leaf.table: leaf for leaf in leaves}
        queue = deque((copy, batch) for copy in copies for batch in _batches(copy.chunks, self._workers))
        threads = [
            threading.Thread(
                target=self._work, args=(queue, by_name, hooks), name=f"smelt-ranges-{number}", daemon=True
            )
            for number in range(min(self._workers, len(queue)))
        ]
        self._last_answer = time.monotonic()
        for thread in threads:
            thread.start()
        self._watch(threads, hooks)
        self._remove_strays(copies)
        return [] if hooks.cancelled() else self._remaining

    def _watch(self, threads: Sequence[threading.Thread], hooks: Hooks) -> None:
        """Wait for the threads; cancel running jobs when the round is cancelled."""
        ticked = time.monotonic()
        for thread in threads:
            while thread.is_alive():
                thread.join(_POLL_SECONDS)
                try:
                    if hooks.cancelled():
                        self._executors.cancel()
                    elif time.monotonic() - ticked >= _TICK:
                        ticked = time.monotonic()
                        # A query of the holder notices a dead connection.
                        hooks.tick()
                        self._require_life()
                except BaseException as error:  # noqa: BLE001 - the threads must end first
                    hooks.failed(error)

    def _require_life(self) -> None:
        """Check that a task ended recently, or that the server has a session of a task.

        Raises:
            TransientError: ``snapshot-task-failed``.
        """
        # Lost executors or lost answers would keep the snapshot open forever, so a silent round fails and
        # releases everything.
        silence = self._source.timing.executors_silence
        if time.monotonic() - self._last_answer < silence:
            return
        with translated(self._source), closing(connect(self._source)) as connection:
            working = connection.execute(_WORKING, [f"{TASK_NAME} {self._round}"]).fetchone()
        if working is None:
            raise TransientError(
                f"no executor has copied any row for {silence:g} s",
                code="snapshot-task-failed",
                where="Spark",
                remedy="nothing to do: incomplete tables are copied again; if the error persists, check in "
                "Spark's UI whether the cluster provides executors",
            )
        self._last_answer = time.monotonic()

    def _work(
        self, queue: deque[tuple[TableCopy, Sequence[Chunk]]], leaves: dict[object, Leaf], hooks: Hooks
    ) -> None:
        try:
            while queue and not hooks.cancelled():
                try:
                    copy, chunks = queue.popleft()
                except IndexError:  # another thread took the last batch
                    return
                if not copy.is_over:
                    ranges = [(leaves[chunk.source], chunk) for chunk in chunks]
                    self._take(copy, chunks, self._results(copy, ranges, hooks), hooks)
        except BaseException as error:  # noqa: BLE001 - the round ends with it
            if not hooks.cancelled():
                hooks.failed(error)

    def _results(
        self, copy: TableCopy, ranges: Sequence[tuple[Leaf, Chunk]], hooks: Hooks
    ) -> list[RangeResult]:
        """Run a task and return its results; empty after a failed task, which ends the copy of the table."""
        try:
            # A small job is cheap to repeat, shows progress and can be cancelled. The engine starts no
            # speculative second copy of the only task, because the job has no other task to compare with.
            texts = run_fit(self._executors, partial(copy_ranges, self._task(copy, ranges)))
            self._last_answer = time.monotonic()
            return results_of(texts)
        except DefiniteError as error:
            copy.error = copy.error or without_executors(copy.table, error)
        except TransientError as error:
            if not hooks.cancelled():
                copy.interrupted = copy.interrupted or error
        return []

    def _task(self, copy: TableCopy, ranges: Sequence[tuple[Leaf, Chunk]]) -> RangeTask:
        return RangeTask(
            source=self._source,
            snapshot=self._snapshot,
            shared=self._holder.shared,
            relation=copy.relation,
            taken_at=self._taken_at,
            condition=copy.condition,
            ranges=tuple(ranges),
            destination=Location(self._uri),
            round=self._round,
            versions=versions(),
        )

    def _take(
        self, copy: TableCopy, chunks: Sequence[Chunk], results: Sequence[RangeResult], hooks: Hooks
    ) -> None:
        """Process a task's results.

        Raises:
            SmeltError: an error that concerns more than the table.
        """
        with self._lock:  # register all files before any failure: the copy owns them from here on
            self._named.update(part["path"] for result in results for part in result.parts)
        by_number = {chunk.number: chunk for chunk in chunks}
        waiting = deque(results)
        try:
            if not all(map(self._is_visible, results)):
                copy.error = copy.error or without_executors(copy.table, not_shared(self._uri))
                self._remove([part["path"] for result in results for part in result.parts])
                return
            while waiting:
                self._take_one(copy, by_number, waiting.popleft(), hooks)
        except BaseException:
            self._remove([part["path"] for result in waiting for part in result.parts])
            raise

    def _take_one(self, copy: TableCopy, chunks: dict[int, Chunk], result: RangeResult, hooks: Hooks) -> None:
        match result.status:
            case "copied":
                hooks.copied(copy, result)
            case "locked":
                with self._lock:
                    # Another session waits for the holder's lock, so the holder itself copies the range.
                    self._remaining.append((copy, chunks[result.number]))
            case "failed":
                error = result.error
                copy.error = copy.error or TableError(
                    copy.table,
                    error["message"] or "",
                    code=error["code"] or "copy-failed",
                    remedy=error["remedy"],
                )
            case "unfit":
                lacks = unfit(result.error["message"] or "", result.error["remedy"] or "")
                copy.error = copy.error or without_executors(copy.table, lacks)
            case "renamed":
                raise TransientError(
                    f"a table or its schema was renamed before its copy: {result.error['message']}",
                    code="concurrent-change",
                    where=address_of(self._source),
                    remedy="nothing to do: the reader reads the tables' state again",
                )
            case "gone":
                raise snapshot_gone(result.error["message"], self._source)

    def _is_visible(self, result: RangeResult) -> bool:
        """Check that the files are visible in the commit's folder; an object store needs no check."""
        folder = Location(self._uri).folder
        files = [] if folder is None else [(folder / part["path"], part["size"]) for part in result.parts]
        return all(file.is_file() and file.stat().st_size == size for file, size in files)

    def _remove_strays(self, copies: Sequence[TableCopy]) -> None:
        """Remove files of attempts without a result."""
        # A file written later by an abandoned executor costs space until the next reader starts.
        prefixes = tuple(prefix_of(copy.relation.relation_id, self._round) for copy in copies)
        try:
            files = perform(
                Effect.LIST_FILES, self._uri, lambda: file_system(self._uri).get_file_info(FileSelector(""))
            )
        except (OSError, pa.ArrowException) as error:  # leftover files only cost space
            _LOGGER.warning("files of lost tasks may still be in %s: %s", self._uri, error)
            return
        names = {file.base_name for file in files if file.base_name.startswith(prefixes)}
        self._remove(sorted(names - self._named))

    def _remove(self, names: Sequence[str]) -> None:
        """Remove files that no commit will name; the next reader removes leftovers."""
        try:
            delete_files(self._uri, names)
        except (OSError, pa.ArrowException) as error:
            _LOGGER.warning("files of lost tasks are still in %s: %s", self._uri, error)


def _batches(chunks: Sequence[Chunk], workers: int) -> Iterator[Sequence[Chunk]]:
    """Yield a table's ranges in page order, batched for jobs. Pure."""
    # A job costs a fraction of a second whatever its size, so tables of very many ranges get larger jobs.
    size = min(max(len(chunks) // (workers * _JOBS), 1), _MOST)
    for start in range(0, len(chunks), size):
        yield chunks[start : start + size]


def _export(holder: Worker, source: SourceSettings) -> str:
    """Export the holder's snapshot again, importable until the holder's transaction ends."""
    row = holder.connection.execute("SELECT pg_export_snapshot()").fetchone()
    if row is None:
        raise TransientError("no snapshot was exported", code="snapshot-gone", where=address_of(source))
    return str(row[0])
