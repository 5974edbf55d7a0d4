"""Run the thread that copies tables in parallel with the stream, round after round.

A *round* is a catalog poll (`bronze.reader.carried_tables`) and the snapshot of its due tables. Rounds follow
each other at an interval. If the stream or another process requests a table, the next round begins within two
seconds. A catalog change of a known table is about as fast (`bronze.reader.watch`). During copies the watch
polls, so that silver learns which tables to leave out; the next round copies the tables found.

A transient fault (lost connection, lock) is retried with growing pauses; tables completed before stay
complete. A definite error of one table, or a foreign lock on the table, is recorded for this table alone. So
is the lack of executors for a large table. Later polls retry the copy with growing pauses, or on request; the
error stays open until the table is copied. Any other error stops the reader, through `raise_failure`.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import SmeltError, TableError, TransientError
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.blockers import Wait
from deltasmelt.bronze.postgres.connection import translated
from deltasmelt.bronze.postgres.error_rules import REFUSALS
from deltasmelt.bronze.reader.carried_tables import CarriedTables
from deltasmelt.bronze.reader.pipeline_errors import RetryGate
from deltasmelt.bronze.reader.table_errors import TableErrors
from deltasmelt.bronze.reader.watch import Watch
from deltasmelt.bronze.snapshot.snapshot import Snapshot
from deltasmelt.bronze.snapshot.table_copy import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.reader.catalog_poll import CatalogPoll
    from deltasmelt.bronze.reader.pipeline_errors import PipelineErrors
    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand
    from deltasmelt.bronze.store.landing import Landing

_LOGGER = logging.getLogger("deltasmelt.reader")


class SnapshotThread:
    """The snapshots of one pipeline's tables, on a separate thread.

    Threads:
        * The stream's thread creates the object, calls `first_poll`, `start` and `stop`, and reads the
          properties. This thread writes `_first` before the copies' thread begins and takes over `_first`.
        * The copies' thread alone writes `_lsn`, `_finished` and `_failure`, each atomically. It writes
          `_lsn` before the end of the round: a caller that reads `complete` first gets a valid `lsn`.
        * The watch's thread calls `_poll_meanwhile`, which only polls.

    Args:
        errors: record of the pipeline's errors, for failures of whole rounds.
        executors: prepares the executors that copy large tables; None: the reader's own workers copy.
    """

    def __init__(
        self,
        source: SourceSettings,
        settings: SnapshotSettings,
        landing: Landing,
        control: ControlTables,
        errors: PipelineErrors,
        *,
        executors: ExecutorsAtHand | None = None,
    ) -> None:
        self._source = source
        self._timing = source.timing
        self._settings = settings
        self._landing = landing
        # failures of rounds since the last completed round
        self.retry_gate = RetryGate(errors, source.timing)
        self._wait = Wait()
        self._errors = TableErrors(control, source.timing, strays=errors.strays)
        self.tables = CarriedTables(source, landing, self._errors, self._wait)
        hides = self.tables.rules.hides
        self._snapshot = Snapshot(
            source, settings, landing, wait=self._wait, executors=executors, hides=hides
        )
        renewing = replace(landing, renews=True)
        self._renewal = Snapshot(
            source, settings, renewing, wait=self._wait, executors=executors, hides=hides
        )
        self._watch = Watch(
            source,
            landing.progress,
            lambda: self.tables.newest.oids,
            self._poll_meanwhile,
            lambda: self._copying.is_set() and self._has_requests(self.tables.newest),
            retry_gate=RetryGate(errors, source.timing),
            types=lambda: self.tables.newest.types,
        )
        self._first: CatalogPoll | None = None
        self._lsn = ZERO
        self._finished: CatalogPoll | None = None
        self._failure: BaseException | None = None
        self._copying = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smelt-copies", daemon=True)

    @property
    def complete(self) -> bool:
        """Whether every table selected at the start or in doubt since is copied or failed."""
        finished = self._finished
        return finished is not None and not self._has_requests(finished)

    @property
    def lsn(self) -> Lsn:
        """LSN that the stream must reach for the snapshots since the start; read after `complete`."""
        return self._lsn

    @property
    def held_up(self) -> tuple[SmeltError, float] | None:
        """Transactions that copies wait for, and the wait in seconds; None without a wait."""
        return self._wait.held_up()

    def first_poll(self, stop: threading.Event) -> None:
        """Poll the catalog before the stream starts; `start` copies tables without a snapshot.

        Raises:
            SmeltError: as `CarriedTables.poll`.
        """
        self._first = self.tables.poll(stop)

    def start(self) -> None:
        """Start the threads, unless they run already."""
        if self._thread.ident is None:
            self._watch.start()
            self._thread.start()

    def stop(self) -> None:
        """End the threads; the next start takes a new snapshot of unfinished tables."""
        self._stop.set()
        self._watch.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self.retry_gate.ended()

    def raise_failure(self) -> None:
        """Raise the error that ended a thread: the thread does not restart, so no session may continue.

        A transient fault ends neither thread and is never raised here.

        Raises:
            SmeltError: a definite error that concerns more than one table.
            Exception: a defect of deltasmelt.
        """
        for failure in (self._failure, self._watch.failure):
            if failure is not None:
                raise failure

    def _poll_meanwhile(self) -> bool:
        """Poll on the watch's thread, during copies, for tables that silver must leave out of cuts."""
        if not self._copying.is_set():
            return True
        if time.monotonic() < self.tables.next_at:
            return False
        with translated(self._source), lake_failures("the lake"):
            # Tables that need a snapshot wait: the copies' thread polls again after its copies.
            self.tables.poll(self._stop)
        return True

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    poll, self._first = self._first, None
                    with translated(self._source), lake_failures("the lake"):
                        poll = self.tables.poll(self._stop) if poll is None else poll
                        self._copy(poll)
                        self.retry_gate.worked()
                    self._end_round(poll)
                    self._pause(poll)
                except SmeltError as error:
                    if self._stop.is_set():
                        return
                    # The stream's own connection works, and a refused connection may succeed later.
                    if not isinstance(error, TransientError) and error.code not in REFUSALS:
                        raise
                    _LOGGER.warning("copying tables is retried: %s", error)
                    self._landing.progress.set(copies_wait=f"snapshots are retried: {error.in_a_line()}")
                    self.retry_gate.failed(error)
                    if self.retry_gate.pause(self._stop):
                        return
        except BaseException as error:  # noqa: BLE001 - raised by `raise_failure`
            self._failure = error

    def _copy(self, poll: CatalogPoll) -> None:
        """Copy the due tables of a poll."""
        tables: Sequence[SourceTable] = poll.due
        if self._settings.mode == "never":
            position = self._landing.sink.position
            # With `snapshot.mode: never` a table starts empty, but a requested table is copied, because the
            # request needs its rows. A gap without a request is of the table's first rules: the stream drops
            # the changes up to the gap, so the table starts after the gap.
            empty = [table for table in tables if table.table not in poll.requests]
            gaps = self._landing.sink.tables.gaps([table.table for table in empty])
            start = position.frontier if position else ZERO
            starts = [(table, max(start, Lsn(gaps.get(table.table, -1) + 1))) for table in empty]
            self._snapshot.start_empty(starts)
            self._lsn = max([self._lsn, *(lsn for _, lsn in starts)])
            tables = [table for table in tables if table.table in poll.requests]
        elif not tables:
            tables = poll.renewal
        snapshot = self._snapshot if tables is not poll.renewal else self._renewal
        if not tables:
            return
        self._finished = None  # a caller that waits for all tables waits for these, too

        def fail(error: TableError) -> None:
            self._landing.progress.copy_failed(str(error.table))
            # A renewal that only waits for others is no error: the table keeps a valid snapshot.
            waits = snapshot is self._renewal and error.code == "table-locked"
            record = self._errors.cannot_join if waits else self._errors.copy_failed
            record(error, poll.requests.get(error.table))

        outcome = Outcome(report=fail)
        try:
            with self.tables.copying(tables, poll):
                self._copying.set()
                snapshot.take(tables, self._stop, outcome)
        finally:
            self._copying.clear()
            self._landing.progress.copies_ended()
            if outcome.copied:
                self._lsn = max(self._lsn, outcome.lsn, outcome.trace)
                self.tables.repeated.copied(outcome.copied)
            with suppress(TransientError), lake_failures("the lake"):  # a poll closes the remaining errors
                self._errors.copied(outcome.copied)

    def _end_round(self, poll: CatalogPoll) -> None:
        """Update the reported wait, and whether all tables are copied."""
        newest = self.tables.newest
        if not self.tables.waits_for_transactions:
            self._wait.over()
        if not newest.waiting:
            self._landing.progress.set(copies_wait="")
        # Not all tables are copied if a table waits, if the poll was cut short, or if the watch has polled
        # since: the watch's poll may have found a table unknown to this round.
        ended = newest is poll and not (poll.waiting or poll.rejoining or poll.cut_short)
        self._finished = poll if ended else None

    def _pause(self, poll: CatalogPoll) -> None:
        """Wait for the next poll: the interval, a change in the catalog, or a mark that requests a table."""
        tables, timing = self.tables, self._timing
        if tables.newest.cut_short:
            return
        deadline = time.monotonic() + (timing.poll_joining if tables.newest.waiting else timing.catalog_poll)
        marks_at = time.monotonic() + timing.poll_marks
        while not self._stop.wait(min(timing.poll_news, max(deadline - time.monotonic(), 0.0))):
            if time.monotonic() >= tables.next_at and self._has_news(poll):
                return
            if time.monotonic() < min(marks_at, deadline):
                continue
            marks_at = time.monotonic() + timing.poll_marks
            if (
                time.monotonic() >= deadline
                or self._landing.sink.tables.requests(poll.members) != poll.requests
                or self.tables.may_settle
            ):
                return
            if self._has_requests(poll):
                return

    def _has_news(self, poll: CatalogPoll) -> bool:
        """Check whether the catalog changed, the watch polled, or the session awaited by tables began."""
        changed = self._watch.news()
        rejoined = bool(poll.rejoining) and not self.tables.wants_new_stream
        return changed or rejoined or self.tables.newest is not poll

    def _has_requests(self, poll: CatalogPoll) -> bool:
        """Check whether the stream requested tables, or met columns in doubt, after a poll."""
        return (
            self.tables.request_count != poll.request_count
            or self._landing.shapes.unknown_columns() != poll.unknown
        )
