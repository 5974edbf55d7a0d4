"""Which tables the reader carries, and their copies, on a thread beside the stream.

A table needs a copy when it is selected, has no problem, and bronze holds no mark of a complete snapshot of
it, or a later mark that asks for a newer one (`bronze.store.retake`). Tables that appear under the patterns
later are found by looking again now and then; they join the publication first and are copied then, so that
every change behind the copy's LSN is in the stream; where an older server might pass over some of them, the
stream begins anew in between (`bronze.drift.joining`). A mark that another process sets is noticed within two
seconds, a change in the catalog of a known table about as soon (`bronze.reader.watch`), also while tables are
copied.

A fault that heals (lost connection, lock) is retried with growing pauses; tables that were complete before it
stay complete. A definite error of one table, and a lock that others hold on it, is recorded for that table
alone, and its copy is tried again at later looks, ever more rarely, or when it is asked for. Any other stops
the reader, through `raise_failure`.

With ``snapshot.mode: never`` a table starts empty, but one that was asked for is copied: whoever asks wants
its rows.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from bronze.backoff import Backoff
from bronze.catalog.select import select_tables
from bronze.drift.joining import Joining, may_forget
from bronze.drift.membership import NOT_CARRIED, fingerprints, transactions
from bronze.drift.storage import plain_defaults, why_again
from bronze.errors import SmeltError, TableError, TransientError
from bronze.lake.control import OpenError
from bronze.lake.failures import lake_failures
from bronze.lsn import LAST, ZERO, Lsn
from bronze.postgres.blockers import Wait, running_transactions
from bronze.postgres.connection import connect, describe, log_end, translated, until_stopped, within
from bronze.postgres.error_rules import REFUSALS
from bronze.reader.watch import Watch
from bronze.setup.publication import ensure_publication
from bronze.snapshot.snapshot import Outcome, Snapshot

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import psycopg

    from bronze.catalog.source_table import SourceTable
    from bronze.config.sections import SnapshotSettings, SourceSettings
    from bronze.drift.storage import Storage
    from bronze.identifiers import TableName
    from bronze.lake.control_tables import ControlTables
    from bronze.reader.copy_trouble import CopyTrouble
    from bronze.store.landing import Landing

_LOOK_SECONDS: Final = 30.0
_MARKS_SECONDS: Final = 2.0
_NEWS_SECONDS: Final = 0.2
_JOIN_SECONDS: Final = 1.0
_LOOK_SHARE: Final = 0.05
"""Of the time that looks may take where the catalog changes all the time."""

_LONGEST_PAUSE_SECONDS: Final = 600.0
_ANSWER_SECONDS: Final = 300.0
"""How long a look may take, locks that it waits for included; behind it the line is taken for dead."""

_LOGGER = logging.getLogger("deltasmelt.reader")

SOURCE_CODES: Final = frozenset(
    {
        "character-not-convertible",
        "column-name-reserved",
        "columns-differ-only-in-case",
        "copy-failed",
        "identity-generated",
        "key-column-unknown",
        "key-generated",
        "key-not-in-identity",
        "partition-identity",
        "partition-not-logged",
        "partition-privilege",
        "permission-denied",
        "publication-column-list",
        "publication-partition-root",
        "publication-row-filter",
        "replica-identity-missing",
        "replica-identity-nothing",
        "row-level-security",
        "schema-privilege",
        "server-error",
        "silver-name-clash",
        "stream-failed",
        "table-changed",
        "table-gone",
        "table-locked",
        "table-not-published",
        "table-privilege",
        "table-without-key",
    }
)
"""Errors of a table that are found at the source; the others are silver's to close."""


_COPY_ONLY: Final = frozenset(
    {"partition-privilege", "row-level-security", "schema-privilege", "table-locked", "table-privilege"}
)
"""Problems that keep a table from being copied, but not its changes from being streamed."""


def _is_carried(table: SourceTable) -> bool:
    return all(problem.code in _COPY_ONLY for problem in table.problems)


@dataclass(frozen=True, slots=True)
class _Failure:
    """A table that could not be copied.

    Attributes:
        pause: seconds after which it is tried again.
        again_at: when that is, by the monotonic clock.
        mark: its retake mark then.
    """

    pause: float
    again_at: float
    mark: Lsn | None


class _Unreadable(NamedTuple):
    """A table that the stream cannot read: its error, and when it is tried again, by the monotonic clock."""

    error: TableError
    again_at: float


class InitialCopies:
    """The selected tables of one pipeline, and the thread that copies those that need it.

    Args:
        source: which server and tables.
        settings: of snapshots.
        landing: where rows go.
        control: where errors of tables are recorded.
        trouble: where failures of a whole round are told.
    """

    def __init__(
        self,
        source: SourceSettings,
        settings: SnapshotSettings,
        landing: Landing,
        control: ControlTables,
        trouble: CopyTrouble,
    ) -> None:
        self._source = source
        self._settings = settings
        self._landing = landing
        self._control = control
        self._trouble = trouble
        self._wait = Wait()
        self._snapshot = Snapshot(source, settings, landing, wait=self._wait)
        self._known: dict[TableName, bool] = {}
        self._failed: dict[TableName, _Failure] = {}
        self._locked: dict[TableName, TableError] = {}
        self._unreadable: dict[TableName, _Unreadable] = {}
        self._unreadable_pauses: dict[TableName, float] = {}
        self._joining = Joining()
        self._waiting: frozenset[TableName] = frozenset()
        self._retakes: dict[TableName, Lsn] = {}
        self._rejoin: set[TableName] = set()
        self._unknown: dict[int, Lsn] = {}
        self._settled: dict[int, Lsn] = {}
        self._oids: frozenset[int] = frozenset()
        self._looking = threading.Lock()
        self._copying = threading.Event()
        self._ready = 0.0
        self._watch = Watch(source, landing.progress, lambda: self._oids, self._look_meanwhile)
        self._first: list[SourceTable] | None = None
        self._stop = threading.Event()
        self._complete = threading.Event()
        self._failure: BaseException | None = None
        self._asked = self._answered = 0
        self._pressed: frozenset[TableName] = frozenset()
        self._thread = threading.Thread(target=self._run, name="smelt-copies", daemon=True)
        self.lsn = ZERO
        """Greatest LSN of a snapshot taken since the start."""

    @property
    def complete(self) -> bool:
        """Every table selected at the start is copied, or failed; so are those that came to be in doubt."""
        settled = self._landing.shapes.unknown_columns() == self._settled and self._asked == self._answered
        return self._complete.is_set() and settled

    @property
    def held_up(self) -> tuple[SmeltError, float] | None:
        """Which transactions copies wait for, and since how many seconds; None where they do not."""
        return self._wait.held_up()

    def ask(self, tables: Iterable[TableName]) -> None:
        """The stream opened gaps: look at once, and be complete only after it. From the stream's thread.

        A table that fails anyway keeps its pauses: the same text would end each of its copies.
        """
        self._pressed |= frozenset(tables)
        self._asked += 1

    def leave_out(self, table: TableName, lsn: Lsn, error: Exception) -> bool:
        """The stream cannot read a table's shape, for a reason that no rule knows. From the stream's thread.

        The next look records that, and the table is carried no more; after a pause, a longer one each time,
        it is carried again, by a new session, and copied then.

        Args:
            table: whose changes the session leaves out; the caller opens its gap behind this.
            lsn: commit LSN of the first of them.
            error: what nobody foresaw.

        Returns:
            Whether that is news.
        """
        if table in self._unreadable:
            return False
        pause = self._unreadable_pauses.get(table, _LOOK_SECONDS)
        self._unreadable_pauses[table] = min(pause * 2, _LONGEST_PAUSE_SECONDS)
        problem = TableError(
            table,
            f"its changes from {lsn} on cannot be read: {type(error).__name__}: {error}",
            code="stream-failed",
            remedy="the log of the reader has the whole story, which is a defect of deltasmelt; the table is "
            "read and taken again by itself, or left out with source.exclude",
        )
        self._unreadable[table] = _Unreadable(problem, time.monotonic() + pause * 0.9)
        self.ask([table])
        return True

    def carries(self, table: TableName) -> bool:
        """Whether the stream's changes of a table are kept.

        A table that matches the patterns but is not known yet (new, renamed) is kept: it is copied when the
        next look finds it, and until then its rows do no harm. One with a problem is left out, and so is one
        out of the patterns; where bronze knew it by another name, that gets a gap (`bronze.stream.session`).
        """
        known = self._known.get(table)
        if known is not None:
            return known
        wanted = any(table.matches(pattern) for pattern in self._source.tables)
        return wanted and not any(table.matches(pattern) for pattern in self._source.exclude)

    def first_look(self, stop: threading.Event) -> None:
        """Select tables before the stream starts; `start` copies those without a copy.

        Args:
            stop: gives it up.

        Raises:
            SmeltError: as `look`.
        """
        with self._looking:
            self._first = self._look(stop)

    def look(self) -> list[SourceTable]:
        """Select tables, record their problems, extend the publication; the tables that need a copy.

        Raises:
            SmeltError: the server cannot be asked; the publication may not be changed; it is given up.
        """
        with self._looking:
            return self._look(self._stop)

    def _look_meanwhile(self) -> bool:
        """While tables are copied, look for what silver is to leave out of its cuts; on the watch's thread.

        What needs a copy waits for its turn: the copies' thread looks again when it is done.
        """
        if not self._copying.is_set():
            return True
        if time.monotonic() < self._ready:
            return False
        with translated(self._source), lake_failures("the lake"):
            self.look()
        return True

    def _look(self, stop: threading.Event) -> list[SourceTable]:
        started = time.monotonic()
        with (
            connect(self._source) as connection,
            translated(self._source),
            within(_ANSWER_SECONDS, connection),
            until_stopped(stop, connection),
        ):
            tables, members = self._members(connection)
            healthy = [table for table in tables if table.problem is None and table.table in members]
            carried = [table.table for table in tables if _is_carried(table)]
            ways = fingerprints(connection, self._source.publication, carried)
            forgets = may_forget(connection.info.server_version)
            running = transactions(connection) if forgets else None
            end = log_end(connection)
            if running is None:
                self._joining.forget()
            else:
                self._joining.seen(ways, *running, end)
            blockers = running_transactions(connection) if self._joining.held_up(carried) else ""
        self._ready = time.monotonic() + (time.monotonic() - started) / _LOOK_SHARE
        self._note_membership(tables, ways, end)
        regained = {table for table in carried if self._known.get(table) is False}
        self._known = {table.table: _is_carried(table) for table in tables}
        self._rejoin |= regained
        open_errors = self._control.open_errors()
        for table in tables:
            self._record_problems(table.table, table.problems, open_errors)
        selected = {str(table.table) for table in tables}
        for error in open_errors:
            if error.scope == "table" and error.name not in selected and error.code in SOURCE_CODES:
                self._control.close_errors("table", error.name, error.code)
        self._oids = frozenset(oid for table in tables if table.storage for oid in table.storage.parts)
        sink = self._landing.sink
        names = [table.table for table in healthy]
        self._want_changed(healthy, sink.tables.needing_copy(names), end)
        self._retakes = sink.tables.retakes(names)
        needing = sink.tables.needing_copy(names)
        due = [
            table
            for table in healthy
            if table.table in needing and table.table not in self._rejoin and self._may_be_tried(table.table)
        ]
        self._waiting = frozenset(table.table for table in due if not self._joining.may_copy(table.table))
        if held_up := self._joining.held_up(self._waiting):
            self._landing.progress.set(
                copies_wait=self._wait.goes_on(held_up, blockers, describe(self._source))
            )
        elif self._waiting:
            self._landing.progress.set(copies_wait="copies wait for a new session of the stream")
        return [table for table in due if table.table not in self._waiting]

    def _members(self, connection: psycopg.Connection[Any]) -> tuple[list[SourceTable], set[TableName]]:
        """The selected tables, and which of them are members of the publication, as far as that is ours.

        One that cannot join it yet has a problem, and is tried again after a pause.
        """
        tables = select_tables(connection, self._source, storage=True)
        waiting = {name: error for name, error in self._locked.items() if not self._may_be_tried(name)}
        members = {table.table for table in tables if table.problem is None} - waiting.keys()
        locked: list[TableError] = []
        changed = ensure_publication(connection, self._source, sorted(members), locked)
        for error in locked:
            _LOGGER.warning("%s", error)
            self._failed[error.table] = self._next_failure(error.table)
        self._locked = waiting | {error.table: error for error in locked}
        if changed:
            # Seen once more, now as members; one that is new since is left to the next look.
            seen = {table.table for table in tables}
            tables = [
                table
                for table in select_tables(connection, self._source, storage=True)
                if table.table in seen
            ]
        for name, found in list(self._unreadable.items()):
            # Not before a look has noted it: only a table that was left out is read by a new session.
            if self._known.get(name) is False and time.monotonic() >= found.again_at:
                del self._unreadable[name]
        left_out = {**self._locked, **{name: found.error for name, found in self._unreadable.items()}}
        tables = [
            replace(table, problems=(*table.problems, left_out[table.table]))
            if table.table in left_out
            else table
            for table in tables
        ]
        return tables, members - left_out.keys()

    @property
    def wants_new_stream(self) -> bool:
        """Whether tables are carried again that this session's decoder leaves out."""
        return bool(self._rejoin)

    @property
    def wants_stream_from(self) -> Lsn | None:
        """At or after which place a new session has to begin before more tables are copied, if at all."""
        return self._joining.wanted(self._waiting)

    def new_stream(self, begins: Lsn) -> None:
        """A session begins, whose decoder asks `carries` anew; tables that wait for it may be copied.

        Args:
            begins: at which place of the log.
        """
        self._rejoin = set()
        self._trouble.stream_began()
        self._joining.session(begins)

    def _note_membership(self, tables: Sequence[SourceTable], seen: dict[TableName, int], lsn: Lsn) -> None:
        """Ask for tables whose changes were not all published, or left out, for a while."""
        selected = {table.table for table in tables}
        sink = self._landing.sink
        left_out = sorted(self._landing.shapes.tables() - selected)
        every = {table: seen.get(table, NOT_CARRIED) for table in selected}
        for table in sink.tables.note_membership(every, left_out, lsn):
            _LOGGER.warning(
                "%s is taken again: publication %s did not carry all of it, or its changes were "
                "left out, for a while before %s",
                table,
                self._source.publication,
                lsn,
            )
            self._landing.progress.set(said=f"{table} is taken again: it was not published all the time")

    def _want_changed(self, tables: Sequence[SourceTable], needing: set[TableName], lsn: Lsn) -> None:
        """Ask for the tables whose rows may have changed without an event (`bronze.drift.storage`).

        What was seen of such a table is not recorded: its copy does that, before its rows. So also a table
        that waits for its copy is compared; silver leaves it out as soon as it is known to differ.

        Args:
            tables: as the catalog says now.
            needing: those that need a copy anyway.
            lsn: the server's WAL position after that look.
        """
        sink = self._landing.sink
        self._unknown = self._landing.shapes.unknown_columns()
        taken = sink.tables.snapshots([table.table for table in tables]) if self._unknown else {}
        changed, harmless = [], {}
        for table in tables:
            known = sink.tables.storage_of(table.table)
            if table.storage is None:
                continue
            carried = () if known is None else self._carried(table, known, lsn, waits=table.table in needing)
            why = None if known is None else why_again(known, table.storage, carried)
            if self._unknown.get(table.relation.relation_id, ZERO) > taken.get(table.table, LAST):
                why = "a column was renamed or dropped before its changes were read"
            if why is not None and self._settings.mode != "never":
                changed.append(table.table)
                if table.table not in needing:
                    _LOGGER.warning("%s is taken again: %s, of which the log says nothing", table.table, why)
                    self._landing.progress.set(said=f"{table.table} is taken again: {why}")
            elif table.table not in needing:
                harmless[table.table] = table.storage
        if changed:
            sink.tables.open_gaps(changed, lsn)
        sink.tables.record_storage(harmless)

    def _carried(self, table: SourceTable, known: Storage, lsn: Lsn, *, waits: bool) -> set[int]:
        """New columns whose default is in bronze, by attnum; where the stream did not bring it, we do.

        A table that nobody writes to is announced by no message. Its shape is recorded here then, from the
        look on: every transaction that commits after the look wrote its rows in this shape, for ALTER TABLE
        waits for those who wrote before it. That they may be in bronze already does no harm: no version of
        the stream is behind this one and lacks the column.

        Args:
            table: as the catalog says now.
            known: what was seen of it before.
            lsn: end of the log after the look; the shape holds from the byte before it, which lies behind the
                commit of whoever made the shape.
            waits: it is to be copied anyway.
        """
        now, shapes = table.storage, self._landing.shapes
        plain = frozenset() if now is None or waits else plain_defaults(known, now)
        if not plain or now is None:
            return set()
        texts = {column.attnum: column.missing for column in table.relation.columns}
        announced = shapes.missing(table.relation.relation_id)
        if plain - announced.keys() and why_again(known, now, plain) is None:
            shapes.record([replace(table.relation, from_lsn=Lsn(lsn - 1))], ahead=True)
            announced = shapes.missing(table.relation.relation_id)
        return {
            attnum for attnum in plain if texts[attnum] is not None and announced.get(attnum) == texts[attnum]
        }

    def start(self) -> None:
        """Begin to copy; nothing if it has begun."""
        if self._thread.ident is None:
            self._watch.start()
            self._thread.start()

    def stop(self) -> None:
        """End the thread; what it was copying is taken again by the next start."""
        self._stop.set()
        self._watch.stop()
        if self._thread.ident is not None:
            self._thread.join()

    def raise_failure(self) -> None:
        """Raise what ended a thread.

        Raises:
            SmeltError: a definite error that concerns more than one table.
        """
        for failure in (self._failure, self._watch.failure):
            if failure is not None:
                raise failure

    def _run(self) -> None:
        backoff = Backoff()
        try:
            while not self._stop.is_set():
                try:
                    tables, self._first = self._first, None
                    asked = self._asked if tables is None else 0
                    with translated(self._source), lake_failures("the lake"):
                        tables = self.look() if tables is None else tables
                        unknown = self._unknown
                        self._copy(tables)
                        self._trouble.ended()
                    self._settled, self._answered = unknown, asked
                    backoff.reset()
                    if not self._joining.held_up(self._waiting):
                        self._wait.over()
                    if not self._waiting:
                        self._landing.progress.set(copies_wait="")
                    if not self._rejoin and not self._waiting:
                        self._complete.set()
                    self._pause()
                except SmeltError as error:
                    if self._stop.is_set():
                        return
                    # The stream's own connection stands; whoever refuses a new one may let it in later.
                    if not isinstance(error, TransientError) and error.code not in REFUSALS:
                        raise
                    _LOGGER.warning("copying tables is tried again: %s", error)
                    self._landing.progress.set(copies_wait=f"copies are tried again: {error.in_a_line()}")
                    with lake_failures("the lake"):
                        self._trouble.failed(error)
                    if backoff.pause(self._stop):
                        return
        except BaseException as error:  # noqa: BLE001 - raised by `raise_failure`
            self._failure = error

    def _pause(self) -> None:
        """Wait for the next look: the interval, a change in the catalog, or a mark that asks for a table."""
        deadline = time.monotonic() + (_JOIN_SECONDS if self._waiting else _LOOK_SECONDS)
        marks_at = time.monotonic() + _MARKS_SECONDS
        while not self._stop.wait(min(_NEWS_SECONDS, max(deadline - time.monotonic(), 0.0))):
            if time.monotonic() >= self._ready and self._watch.news():
                return
            if time.monotonic() < min(marks_at, deadline):
                continue
            marks_at = time.monotonic() + _MARKS_SECONDS
            carried = [table for table, healthy in self._known.items() if healthy]
            if time.monotonic() >= deadline or self._landing.sink.tables.retakes(carried) != self._retakes:
                return
            if self._landing.shapes.unknown_columns() != self._settled or self._asked != self._answered:
                return

    def _may_be_tried(self, table: TableName) -> bool:
        """Whether a table did not fail, or its pause is over, or it was asked for since."""
        failure = self._failed.get(table)
        if failure is None:
            return True
        asked = self._retakes.get(table) != failure.mark and table not in self._pressed
        return time.monotonic() >= failure.again_at or asked

    def _copy(self, tables: Sequence[SourceTable]) -> None:
        if self._settings.mode == "never":
            position = self._landing.sink.position
            empty = [table for table in tables if table.table not in self._retakes]
            self._snapshot.start_empty(empty, position.frontier if position else ZERO)
            tables = [table for table in tables if table.table in self._retakes]
        if not tables:
            return
        self._complete.clear()  # who waits for all waits for these, too
        open_errors = self._control.open_errors()
        for table in tables:
            # Closed while it is tried again, so that a second failure is seen as one.
            if table.table in self._failed:
                self._close_problems(table.table, SOURCE_CODES, open_errors)
        outcome = Outcome(tell=self._failed_copy)
        self._copying.set()
        try:
            self._snapshot.take(tables, self._stop, outcome)
        finally:
            self._copying.clear()
            if outcome.taken:
                self.lsn = max(self.lsn, outcome.lsn)
            for taken in outcome.taken:
                self._failed.pop(taken, None)

    def _failed_copy(self, error: TableError) -> None:
        _LOGGER.error("%s", error)
        self._failed[error.table] = self._next_failure(error.table)
        self._record_problems(error.table, [error], self._control.open_errors())

    def _next_failure(self, table: TableName) -> _Failure:
        known = self._failed.get(table)
        pause = _LOOK_SECONDS if known is None else min(known.pause * 2, _LONGEST_PAUSE_SECONDS)
        # A little early, so that the look at that time finds it due.
        return _Failure(pause, time.monotonic() + pause * 0.9, self._retakes.get(table))

    def _record_problems(
        self, table: TableName, problems: Sequence[TableError], open_errors: Sequence[OpenError]
    ) -> None:
        codes = {problem.code for problem in problems}
        for problem in problems:
            self._control.open_error(
                OpenError("table", str(table), problem.code, problem.message, problem.remedy)
            )
        if table not in self._failed or problems:
            self._close_problems(table, SOURCE_CODES - codes, open_errors)

    def _close_problems(
        self, table: TableName, codes: frozenset[str], open_errors: Sequence[OpenError]
    ) -> None:
        for known in open_errors:
            if known.scope == "table" and known.name == str(table) and known.code in codes:
                self._control.close_errors("table", str(table), known.code)
