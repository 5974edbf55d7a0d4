"""The thread that copies tables beside the stream: those that need a snapshot, round after round.

A *round* is a look (`bronze.reader.carried_tables`) and the snapshot of what it found. Rounds follow each
other now and then. When the stream or another process asks for a table, the next one begins within two
seconds; about as soon when the catalog of a known table changed (`bronze.reader.watch`). While tables are
copied the watch looks, so that silver hears of tables to leave out; what such a look finds is copied by the
round after.

A fault that heals (lost connection, lock) is retried with growing pauses; tables that were complete before it
stay complete. A definite error of one table, and a lock that others hold on it, is recorded for that table
alone. So are executors that a large table needs and that cannot be had. Its copy is tried again at later
looks, ever more rarely, or when it is asked for; its error stays open until it is copied. Any other error
stops the reader, through `raise_failure`.

With ``snapshot.mode: never`` a table starts empty, but one that was asked for is copied: whoever asks wants
its rows.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import SmeltError, TableError, TransientError
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.blockers import Wait
from deltasmelt.bronze.postgres.connection import translated
from deltasmelt.bronze.postgres.error_rules import REFUSALS
from deltasmelt.bronze.reader.carried_tables import CarriedTables
from deltasmelt.bronze.reader.table_errors import TableErrors
from deltasmelt.bronze.reader.trouble import Trouble
from deltasmelt.bronze.reader.watch import Watch
from deltasmelt.bronze.snapshot.snapshot import Snapshot
from deltasmelt.bronze.snapshot.table_copy import Outcome

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SnapshotSettings, SourceSettings
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.reader.catalog_poll import CatalogPoll
    from deltasmelt.bronze.reader.trouble import PipelineErrors
    from deltasmelt.bronze.snapshot.executors import ExecutorsAtHand
    from deltasmelt.bronze.store.landing import Landing

_LOGGER = logging.getLogger("deltasmelt.reader")


class SnapshotThread:
    """The snapshots of one pipeline's tables, on a thread of their own.

    Threads:
        * The stream's thread makes this, calls `first_look`, `start` and `stop`, and reads the properties.
          It writes `_first` before the copies' thread begins, which takes it over.
        * The copies' thread alone writes `_lsn`, `_finished` and `_failure`, each in one piece. It writes
          `_lsn` before the round is finished: who reads `complete` first reads an `lsn` that counts.
        * The watch's thread calls `_look_meanwhile`, which does nothing but look.

    Attributes:
        tables: what the copies and the stream know of tables.
        trouble: what kept rounds from their end since the last that came to it.

    Args:
        source: which server and tables.
        settings: of snapshots.
        landing: where rows go.
        control: where errors of tables are recorded.
        errors: of the pipeline, where failures of whole rounds are recorded.
        executors: makes those ready that copy large tables; None: the reader's own workers do.
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
        self.trouble = Trouble(errors, source.timing)
        self._wait = Wait()
        self._snapshot = Snapshot(source, settings, landing, wait=self._wait, executors=executors)
        self._errors = TableErrors(control, source.timing, strays=errors.strays)
        self.tables = CarriedTables(source, landing, self._errors, self._wait)
        self._watch = Watch(
            source,
            landing.progress,
            lambda: self.tables.newest.oids,
            self._look_meanwhile,
            lambda: self._copying.is_set() and self._asked_since(self.tables.newest),
            trouble=Trouble(errors, source.timing),
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
        """Every table selected at the start is copied, or failed; so are those that came to be in doubt."""
        finished = self._finished
        return finished is not None and not self._asked_since(finished)

    @property
    def lsn(self) -> Lsn:
        """LSN to which the stream must come for the snapshots since the start; read it after `complete`."""
        return self._lsn

    @property
    def held_up(self) -> tuple[SmeltError, float] | None:
        """Which transactions copies wait for, and since how many seconds; None where they do not."""
        return self._wait.held_up()

    def first_look(self, stop: threading.Event) -> None:
        """Select tables before the stream starts; `start` copies those without a snapshot.

        Args:
            stop: gives it up.

        Raises:
            SmeltError: as `CarriedTables.look`.
        """
        self._first = self.tables.look(stop)

    def start(self) -> None:
        """Begin to copy; nothing if it has begun."""
        if self._thread.ident is None:
            self._watch.start()
            self._thread.start()

    def stop(self) -> None:
        """End the thread; the next start takes a new snapshot of what it was copying."""
        self._stop.set()
        self._watch.stop()
        if self._thread.ident is not None:
            self._thread.join()
        self.trouble.ended()

    def raise_failure(self) -> None:
        """Raise what ended a thread: it does not begin again, so no session may go on without it.

        A fault that heals ends neither thread; it is never raised here.

        Raises:
            SmeltError: a definite error that concerns more than one table.
            Exception: a mistake of ours.
        """
        for failure in (self._failure, self._watch.failure):
            if failure is not None:
                raise failure

    def _look_meanwhile(self) -> bool:
        """While tables are copied, look for what silver is to leave out of its cuts; on the watch's thread.

        What needs a snapshot waits for its turn: the copies' thread looks again when it is done.
        """
        if not self._copying.is_set():
            return True
        if time.monotonic() < self.tables.next_at:
            return False
        with translated(self._source), lake_failures("the lake"):
            self.tables.look(self._stop)
        return True

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                try:
                    look, self._first = self._first, None
                    with translated(self._source), lake_failures("the lake"):
                        look = self.tables.look(self._stop) if look is None else look
                        self._copy(look)
                        self.trouble.worked()
                    self._end_round(look)
                    self._pause(look)
                except SmeltError as error:
                    if self._stop.is_set():
                        return
                    # The stream's own connection stands; whoever refuses a new one may let it in later.
                    if not isinstance(error, TransientError) and error.code not in REFUSALS:
                        raise
                    _LOGGER.warning("copying tables is tried again: %s", error)
                    self._landing.progress.set(copies_wait=f"snapshots are tried again: {error.in_a_line()}")
                    self.trouble.failed(error)
                    if self.trouble.pause(self._stop):
                        return
        except BaseException as error:  # noqa: BLE001 - raised by `raise_failure`
            self._failure = error

    def _copy(self, look: CatalogPoll) -> None:
        """Copy what a look found due."""
        tables: Sequence[SourceTable] = look.due
        if self._settings.mode == "never":
            position = self._landing.sink.position
            empty = [table for table in tables if table.table not in look.requests]
            self._snapshot.start_empty(empty, position.frontier if position else ZERO)
            tables = [table for table in tables if table.table in look.requests]
        if not tables:
            return
        self._finished = None  # who waits for all waits for these, too

        def fail(error: TableError) -> None:
            self._landing.progress.copy_failed(str(error.table))
            self._errors.copy_failed(error, look.requests.get(error.table))

        outcome = Outcome(tell=fail)
        try:
            with self.tables.copying(tables, look):
                self._copying.set()
                self._snapshot.take(tables, self._stop, outcome)
        finally:
            self._copying.clear()
            self._landing.progress.copies_ended()
            if outcome.taken:
                self._lsn = max(self._lsn, outcome.lsn, outcome.trace)
            with suppress(TransientError), lake_failures("the lake"):  # a look closes what stays open
                self._errors.copied(outcome.taken)

    def _end_round(self, look: CatalogPoll) -> None:
        """Say what still waits, and whether all is copied.

        It is not where a table waits for its turn, where the look was cut short, nor where the watch has
        looked since: that look may have found a table that this round knows nothing of.
        """
        newest = self.tables.newest
        if not self.tables.waits_for_transactions:
            self._wait.over()
        if not newest.waiting:
            self._landing.progress.set(copies_wait="")
        ended = newest is look and not (look.waiting or look.rejoining or look.cut_short)
        self._finished = look if ended else None

    def _pause(self, look: CatalogPoll) -> None:
        """Wait for the next look: the interval, a change in the catalog, or a mark that asks for a table."""
        tables, timing = self.tables, self._timing
        if tables.newest.cut_short:
            return
        deadline = time.monotonic() + (timing.look_joining if tables.newest.waiting else timing.look)
        marks_at = time.monotonic() + timing.look_marks
        while not self._stop.wait(min(timing.look_news, max(deadline - time.monotonic(), 0.0))):
            if time.monotonic() >= tables.next_at and self._has_news(look):
                return
            if time.monotonic() < min(marks_at, deadline):
                continue
            marks_at = time.monotonic() + timing.look_marks
            if (
                time.monotonic() >= deadline
                or self._landing.sink.tables.requests(look.members) != look.requests
                or self.tables.may_settle
            ):
                return
            if self._asked_since(look):
                return

    def _has_news(self, look: CatalogPoll) -> bool:
        """Whether the catalog changed, the watch looked, or the session began that some tables wait for."""
        changed = self._watch.news()
        rejoined = bool(look.rejoining) and not self.tables.wants_new_stream
        return changed or rejoined or self.tables.newest is not look

    def _asked_since(self, look: CatalogPoll) -> bool:
        """Whether the stream asked for tables, or met columns in doubt, that a look did not know of yet."""
        return self.tables.asked != look.asked or self._landing.shapes.unknown_columns() != look.unknown
