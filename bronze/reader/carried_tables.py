"""Determine which tables are selected, which the stream carries, and which need a snapshot.

A selected table without a problem needs a snapshot in two cases: bronze has no mark of a complete snapshot,
or a later mark requests a new snapshot (`bronze.store.gaps`). A *catalog poll* (`poll`) finds such tables:
the poll reads the catalog, records problems, and extends the publication. The next poll finds tables that
appear under the patterns later. These tables join the publication first and are copied afterwards, so the
stream has every change after the snapshot's LSN.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltasmelt.bronze.catalog.problems import COPY_ONLY
from deltasmelt.bronze.catalog.ruled_tables import unmatched_patterns
from deltasmelt.bronze.drift.joining import Joining, may_forget
from deltasmelt.bronze.drift.membership import fingerprints, transactions
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.blockers import running_transactions
from deltasmelt.bronze.postgres.connection import connect, log_end, translated, until_stopped, within
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.reader.catalog_poll import CatalogPoll
from deltasmelt.bronze.reader.changed_tables import (
    UnderWay,
    record_comments,
    resnapshot_rewritten,
    resnapshot_unpublished,
)
from deltasmelt.bronze.reader.marks_beyond import settled_requests
from deltasmelt.bronze.reader.named_partitions import NamedPartitions
from deltasmelt.bronze.reader.polled_rules import PolledRules
from deltasmelt.bronze.reader.quiet_shapes import record_shapes
from deltasmelt.bronze.reader.table_errors import RepeatedCopies, UnreadableTables
from deltasmelt.bronze.setup.publication import ensure_publication

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.drift.streamed import StreamedParts
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.postgres.blockers import Wait
    from deltasmelt.bronze.reader.table_errors import TableErrors
    from deltasmelt.bronze.store.landing import Landing

_LOGGER = logging.getLogger("deltasmelt.reader")

_POLL_SHARE: Final = 0.05
"""Share of time for catalog polls while the catalog changes continuously."""


class _Requests(NamedTuple):
    """Number of the stream's requests for tables, and the last request of each table.

    A table whose last request the newest poll has processed may be missing.
    """

    times: int
    last: Mapping[TableName, int]


class _Catalog(NamedTuple):
    """The server's answers in one catalog poll."""

    # all selected tables, with their problems
    tables: list[SourceTable]
    # names of the tables without a problem that are members of the publication
    members: set[TableName]
    # the way in which each carried table is carried (`bronze.drift.membership`)
    fingerprints: dict[TableName, int]
    # end of the log, read after all other answers
    end: Lsn
    # transactions that tables wait for; empty without any
    blockers: str
    # bronze's frontier before the first query
    frontier: Lsn
    # partitions that the stream had named by then (`bronze.drift.streamed`)
    streamed: Mapping[TableName, StreamedParts]
    # rules of the pipeline file for tables that do not exist
    tableless: list[TableError]


class CarriedTables:
    """The selected tables of one pipeline.

    Threads:
        * The stream's thread calls `carries`, `request`, `leave_out`, `request_count`, `wants_new_stream`,
          `wants_stream_from` and `new_stream`. None of these waits for a server or the lake.
        * The copies' thread and the watch's thread call `poll`; `_polling` admits one caller at a time. The
          stream's thread makes the first poll before both begin. Only polls access `_locked` and
          `_partitions`.
        * Any thread reads `newest`. A poll replaces `newest` as a whole, together with additions to
          `_rejoin`; `_lock` protects both against `new_stream`.
        * Only the stream's thread replaces `_requests`, as a whole. Only the copies' thread replaces
          `_under_way`, in `copying`.
        * `rules`, `repeated`, `_joining`, `_unreadable`, the errors and the wait are thread-safe.

    Args:
        wait: called while tables wait for transactions.
    """

    def __init__(self, source: SourceSettings, landing: Landing, errors: TableErrors, wait: Wait) -> None:
        self._source = source
        self._landing = landing
        self._errors = errors
        self._wait = wait
        self.rules = PolledRules(source, landing)
        self._joining = Joining()
        self._unreadable = UnreadableTables(source.timing)
        self.repeated = RepeatedCopies(source.timing)
        self._partitions = NamedPartitions()
        self._polling = threading.Lock()
        self._locked: dict[TableName, TableError] = {}
        self._lock = threading.Lock()
        self._newest = CatalogPoll()
        # earliest time of another poll for catalog news, by the monotonic clock; also after a failed poll
        self.next_at = 0.0
        self._rejoin: frozenset[TableName] = frozenset()
        self._has_session = False
        self._requests = _Requests(0, {})
        self._under_way: Mapping[TableName, UnderWay] = {}

    @property
    def newest(self) -> CatalogPoll:
        """Result of the newest catalog poll."""
        return self._newest

    @property
    def request_count(self) -> int:
        """Number of the stream's requests for tables."""
        return self._requests.times

    def request(self, tables: Iterable[TableName]) -> None:
        """Request a catalog poll at once, after the stream opened gaps; copies are incomplete until the poll.

        A table that fails anyway keeps its pauses, because the same text would fail each of its copies. A
        person ends the pauses with a new mark, set after the poll that processed this request.
        """
        answered, times = self._newest.request_count, self._requests.times + 1
        open_ = {table: time for table, time in self._requests.last.items() if time > answered}
        self._requests = _Requests(times, open_ | dict.fromkeys(tables, times))

    def leave_out(self, table: TableName, lsn: Lsn, error: Exception) -> bool:
        """Report a table whose shape the stream cannot read, because of an unforeseen error.

        The next poll records the error, and the stream carries the table no more. After a growing pause a new
        session carries the table again, and the table is copied.

        Args:
            table: table whose changes the session drops; the caller opens the table's gap afterwards.
            lsn: commit LSN of the first dropped change.

        Returns:
            Whether the report is new.
        """
        if not self._unreadable.add(table, lsn, error):
            return False
        self.request([table])
        return True

    def carries(self, table: TableName) -> bool:
        """Check whether bronze keeps the stream's changes of a table.

        A table that matches the patterns but is still unknown (new, renamed) is kept. The next poll finds the
        table, and a copy follows; until then its rows are harmless. A table with a problem is left out, and
        so is a table outside the patterns. A name that the catalog no longer has is left out if its rules
        changed: its changes in the log may be of former rules, and no snapshot will replace them. If bronze
        knew the table by another name, this name gets a gap (`bronze.stream.session`).
        """
        carried = self._newest.carried.get(table)
        if carried is not None:
            return carried
        is_selected = any(table.matches(pattern) for pattern in self._source.tables)
        return is_selected and not any(table.matches(pattern) for pattern in self._source.exclude)

    @property
    def wants_new_stream(self) -> bool:
        """Whether tables are carried again that the running session's decoder leaves out."""
        return bool(self._rejoin)

    @property
    def wants_stream_from(self) -> Lsn | None:
        """Least LSN at which a new session must begin before more tables are copied; None without a need."""
        return self._joining.start_position(self._newest.waiting)

    @property
    def rejoining(self) -> frozenset[TableName]:
        """Tables that the stream carries again, and that wait for a new session."""
        return self._rejoin

    def new_stream(self, begins: Lsn, reads: frozenset[TableName]) -> None:
        """Register a new session: its decoder calls `carries` again, and tables waiting for it may be copied.

        Args:
            reads: tables that the session reads again. A snapshot of such a table may be in progress since
                the earlier session, which left the table out: the caller has opened gaps of these tables up
                to `begins`.
        """
        self._has_session = True
        with self._lock:
            self._rejoin -= reads
            self._joining.session(begins)

    @property
    def waits_for_transactions(self) -> bool:
        """Whether tables wait for transactions from before they joined the publication."""
        return bool(self._joining.held_up(self._newest.waiting))

    def poll(self, stop: threading.Event) -> CatalogPoll:
        """Poll the catalog: select tables, record problems, extend the publication, find tables to copy.

        Raises:
            SmeltError: the server does not answer, the publication may not be changed, or the poll is
                cancelled.
            OSError, DeltaError: the lake cannot be read or written.
        """
        with self._polling:
            requests, started = self._requests, time.monotonic()
            try:
                catalog = self._query_server(stop, requests)
            finally:
                self.next_at = time.monotonic() + (time.monotonic() - started) / _POLL_SHARE
            poll = self._compare(catalog, requests, stop)
            # Keep this after `_compare`: a table whose error is closed must already be carried, or its next
            # change is dropped without an error.
            problems = {table.table: table.problems for table in catalog.tables}
            problems |= {error.table: (error,) for error in catalog.tableless}
            self._errors.record_poll(problems, poll.uncopied)
            self._report_waiting(poll, catalog.blockers)
            return poll

    @contextmanager
    def copying(self, tables: Sequence[SourceTable], poll: CatalogPoll) -> Iterator[None]:
        """Mark tables as being copied within the block, in the state of the given poll.

        Polls meanwhile request such a table again only for new reasons.
        """
        self._under_way = {
            table.table: UnderWay(table.storage, poll.unknown.get(table.relation.relation_id, ZERO))
            for table in tables
        }
        try:
            yield
        finally:
            self._under_way = {}

    @property
    def may_settle(self) -> bool:
        """Whether the stream has passed an earlier poll's LSN, so that a new poll settles open questions."""
        return self._landing.sink.tables.settles(self._newest.frontier, self._frontier())

    def _frontier(self) -> Lsn:
        position = self._landing.sink.position
        return ZERO if position is None else position.frontier

    def _query_server(self, stop: threading.Event, stream_requests: _Requests) -> _Catalog:
        frontier, on_record = self._frontier(), self._landing.sink.tables.streamed()
        with (
            connect(self._source) as connection,
            translated(self._source),
            within(self._source.timing.poll_answer, connection),
            until_stopped(stop, connection),
        ):
            tables, members = self._members(connection, stream_requests)
            waiting = self._landing.sink.tables.needing_copy(list(on_record)) if on_record else set()
            streamed = self._partitions.prove(connection, tables, on_record, waiting)
            carried = [table.table for table in tables if _is_carried(table)]
            ways = fingerprints(connection, self._source.publication, carried)
            forgets = may_forget(connection.info.server_version)
            running = transactions(connection) if forgets else None
            end = log_end(connection)
            if running is None:
                self._joining.forget()
            else:
                self._joining.record_poll(ways, *running, end)
            blockers = running_transactions(connection) if self._joining.held_up(carried) else ""
        tableless = self.rules.tableless(tables)
        return _Catalog(tables, members, ways, end, blockers, frontier, streamed, tableless)

    def _members(
        self, connection: psycopg.Connection[Any], stream_requests: _Requests
    ) -> tuple[list[SourceTable], set[TableName]]:
        """Return the selected tables, and the members among them; a table that cannot join has a problem."""
        last_poll = self._newest
        tables = self.rules.selected(connection)
        if not last_poll.carried:
            # Before the first change of this process is read: a misspelt name protects nothing.
            for error in self.rules.tableless(tables):
                raise error
            for warning in unmatched_patterns(tables):
                _LOGGER.warning("%s", warning)
        waiting = {
            name: error
            for name, error in self._locked.items()
            if not self._may_be_tried(name, last_poll.requests, stream_requests, last_poll)
        }
        members = {table.table for table in tables if table.problem is None} - waiting.keys()
        locked: list[TableError] = []
        # Tables that are no longer selected are members of deltasmelt's publication until they do harm.
        unselected = self.rules.harmful(connection, tables)
        blocked = [table.table for table in tables if table.blocked] + sorted(unselected)
        wanted = {table.table: table.wanted for table in tables if table.wanted is not None}
        # A table that cannot be copied may be a member, and then the stream carries its changes.
        corrected = {table.table for table in tables if table.problem and _is_carried(table)} - waiting.keys()
        changed = ensure_publication(
            connection,
            self._source,
            sorted(members),
            locked,
            without=blocked,
            wanted=wanted,
            corrected=corrected,
        )
        for error in locked:
            self._errors.cannot_join(error, last_poll.requests.get(error.table))
        self._locked = waiting | {error.table: error for error in locked}
        if changed:
            # Select again, because the tables are members now; the next poll finds tables created since.
            selected = {table.table for table in tables}
            tables = [table for table in self.rules.selected(connection) if table.table in selected]
        self._unreadable.release({table.table for table in tables}, last_poll.carried)
        left_out = {**self._locked, **self._unreadable.errors()}
        tables = [
            replace(table, problems=(*table.problems, left_out[table.table]))
            if table.table in left_out
            and left_out[table.table].code not in {problem.code for problem in table.problems}
            else table
            for table in tables
        ]
        return tables, members - left_out.keys()

    def _compare(self, catalog: _Catalog, stream_requests: _Requests, stop: threading.Event) -> CatalogPoll:
        """Compare the server's answers with bronze, and make the result the newest poll."""
        tables, sink = catalog.tables, self._landing.sink
        healthy = [table for table in tables if table.problem is None and table.table in catalog.members]
        names = tuple(table.table for table in healthy)
        selected = [table.table for table in tables]
        ways, end, frontier = catalog.fingerprints, catalog.end, catalog.frontier
        concerned = self.rules.concerned
        resnapshot_unpublished(
            self._landing, self._source, selected, ways, end, frontier=frontier, ruled=concerned
        )
        unknown = self._landing.shapes.unknown_columns()
        waiting_for_copy = sink.tables.needing_copy(names)
        recorded = resnapshot_rewritten(
            self._landing,
            healthy,
            waiting_for_copy,
            unknown,
            catalog.end,
            streamed=catalog.streamed,
            frontier=catalog.frontier,
            under_way=self._under_way,
            record=lambda quiet: record_shapes(self._source, self._landing.shapes, quiet, stop),
        )
        shapes_at = self._newest.shapes_at
        if recorded.relations:
            shapes_at = max(recorded.lsn, Lsn(self._frontier() + 1))
        record_comments(self._landing, healthy)
        requests, moved_back = settled_requests(sink.tables, self._source, names, catalog.end, stop)
        needing, renewing = sink.tables.to_copy(names)
        # A pause ends at the request of a person, whose mark is newer than the gap's.
        resting = self.repeated.resting()
        pauses = {table for table, gap in sink.tables.gaps(resting).items() if requests.get(table) == gap}
        tried = [
            table
            for table in healthy
            if table.table in needing - pauses
            and self._may_be_tried(table.table, requests, stream_requests, self._newest)
        ]
        unselected = self._landing.shapes.tables().intersection(concerned).difference(selected)
        gone = sink.tables.changed_rules(self._source.rules, sorted(unselected))
        carried = dict.fromkeys(gone.reasons, False) | {table.table: _is_carried(table) for table in tables}
        carried |= dict.fromkeys(self._leaking(tables), False)
        oids = frozenset(oid for table in tables if table.storage for oid in table.storage.parts)
        types = frozenset(oid for table in tables for oid in table.relation.redefinable())
        self.rules.keep_unrecorded(tables)
        stopped = {table for table in self.rules.stopped(tables) if carried.get(table) is False}
        with self._lock:
            before = self._newest.carried
            # The problem of these tables is gone, but the decoder of the running session still leaves the
            # tables out. So a new session begins first, and the tables' snapshots follow.
            self._rejoin |= {name for name, flag in carried.items() if flag and before.get(name) is False}
            # The running session reads by former rules, or by a publication without the rules: only a new
            # session drops the changes up to the gap (`bronze.reader.session_decoder`), and only a new
            # session stops a table that the running session has announced.
            if self._has_session:
                self._rejoin |= {name for name in stopped if before.get(name) is not False}
                moved = self.rules.moved(ways).union(set(moved_back).intersection(concerned))
                self._rejoin |= {name for name in moved if carried.get(name)}
            now = [table for table in tried if table.table not in self._rejoin]
            # An older server might skip changes of a table that just joined; then the stream restarts first
            # (`bronze.drift.joining`).
            waiting = frozenset(table.table for table in now if not self._joining.may_copy(table.table))
            due = tuple(table for table in now if table.table not in waiting)
            renewal = [
                table
                for table in healthy
                if table.table in renewing - self._rejoin
                and self._joining.may_copy(table.table)
                and self._may_be_tried(table.table, requests, stream_requests, self._newest)
            ]
            # Replace the newest poll only after the marks in bronze are durable: if the lake fails on the
            # way, the next poll finds everything again.
            self.rules.note(tables, ways)
            self._newest = CatalogPoll(
                carried,
                names,
                due,
                waiting,
                self._rejoin,
                requests,
                unknown,
                stream_requests.times,
                oids,
                types,
                catalog.frontier,
                shapes_at,
                recorded.cut_short,
                frozenset(needing | renewing),
                () if due or waiting else tuple(renewal[:1]),
            )
            return self._newest

    def _leaking(self, tables: Sequence[SourceTable]) -> set[TableName]:
        """Return the tables that an older server may still send by a former filter (`bronze.drift.joining`).

        A changed filter requests a snapshot, so a table without a request has the filter of its copy. A table
        that cannot be copied counts, too: the stream may carry the table.
        """
        filtered = [t.table for t in tables if t.wanted is not None and t.wanted.printed is not None]
        joining = [table for table in filtered if not self._joining.may_copy(table)]
        return self._landing.sink.tables.needing_copy(joining) if joining else set()

    def _report_waiting(self, poll: CatalogPoll, blockers: str) -> None:
        if held_up := self._joining.held_up(poll.waiting):
            wait_text = self._wait.goes_on(held_up, blockers, address_of(self._source))
            self._landing.progress.set(copies_wait=wait_text)
        elif poll.waiting:
            self._landing.progress.set(copies_wait="snapshots wait for a new session of the stream")

    def _may_be_tried(
        self,
        table: TableName,
        requests: Mapping[TableName, Lsn],
        stream_requests: _Requests,
        before: CatalogPoll,
    ) -> bool:
        by_stream = stream_requests.last.get(table, 0) > before.request_count  # no poll has processed it
        return self._errors.may_be_tried(table, requests.get(table), by_stream=by_stream)


def _is_carried(table: SourceTable) -> bool:
    return all(problem.code in COPY_ONLY for problem in table.problems)
