"""Which tables are selected, which of them the stream carries, and which need a snapshot.

A selected table without a problem needs a snapshot in two cases. Bronze holds no mark of a complete one; or
it holds a later mark that asks for a newer one (`bronze.store.gaps`). A *look* finds such tables: it
asks the catalog, records problems, and extends the publication. Tables that appear under the patterns later
are found by the next look. They join the publication first and are copied then, so that every change after
the snapshot's LSN is in the stream. Where an older server might pass over some of them, the stream begins
again in between (`bronze.drift.joining`).

A table with a problem is left out of the stream, too. When its problem is gone it is carried again, but the
session's decoder still leaves it out: a new session begins first, and its snapshot follows.
"""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from deltasmelt.bronze.catalog.select import select_tables
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
from deltasmelt.bronze.reader.quiet_shapes import record_shapes
from deltasmelt.bronze.reader.table_errors import UnreadableTables
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

_LOOK_SHARE: Final = 0.05
"""Of the time that looks may take where the catalog changes all the time."""

_COPY_ONLY: Final = frozenset(
    {"partition-privilege", "row-level-security", "schema-privilege", "table-locked", "table-privilege"}
)
"""Problems that keep a table from being copied, but not its changes from being streamed."""


class _Asked(NamedTuple):
    """How often the stream asked for tables, and which time was the last for each.

    A table whose last time the newest look has taken in may be missing.
    """

    times: int
    last: Mapping[TableName, int]


class _Catalog(NamedTuple):
    """What the server says in one look.

    Attributes:
        tables: selected ones.
        members: names of those without a problem that are members of the publication.
        fingerprints: how each carried table is carried (`bronze.drift.membership`).
        end: of the log; read after all the others.
        blockers: transactions that tables wait for; empty where none does.
        frontier: bronze's before the server was asked.
        streamed: partitions that the stream had named by then (`bronze.drift.streamed`).
    """

    tables: list[SourceTable]
    members: set[TableName]
    fingerprints: dict[TableName, int]
    end: Lsn
    blockers: str
    frontier: Lsn
    streamed: Mapping[TableName, StreamedParts]


class CarriedTables:
    """The selected tables of one pipeline.

    Threads:
        * The stream's thread calls `carries`, `ask`, `leave_out`, `asked`, `wants_new_stream`,
          `wants_stream_from` and `new_stream`. None of them waits for a server or the lake.
        * The copies' thread and the watch's call `look`; `_looking` lets in one at a time. The first look is
          the stream's, before the other two begin. Only looks touch `_locked` and
          `_partitions`.
        * Anybody reads `newest`. A look replaces it as a whole, together with what it adds to `_rejoin`;
          `_lock` holds both against `new_stream`.
        * `_asked` is replaced as a whole, by the stream's thread alone; `_under_way` by the copies', which
          calls `copying`.
        * `_joining`, `_unreadable`, the errors and the wait hold themselves.

    Args:
        source: which server and tables.
        landing: where rows go.
        errors: of tables.
        wait: is told while tables wait for transactions.

    Attributes:
        next_at: not before is another look made for news, by the monotonic clock; also after one that failed.
    """

    def __init__(self, source: SourceSettings, landing: Landing, errors: TableErrors, wait: Wait) -> None:
        self._source = source
        self._landing = landing
        self._errors = errors
        self._wait = wait
        self._joining = Joining()
        self._unreadable = UnreadableTables(source.timing)
        self._partitions = NamedPartitions()
        self._looking = threading.Lock()
        self._locked: dict[TableName, TableError] = {}
        self._lock = threading.Lock()
        self._newest = CatalogPoll()
        self.next_at = 0.0
        self._rejoin: frozenset[TableName] = frozenset()
        self._asked = _Asked(0, {})
        self._under_way: Mapping[TableName, UnderWay] = {}

    @property
    def newest(self) -> CatalogPoll:
        """What the newest look found."""
        return self._newest

    @property
    def asked(self) -> int:
        """How often the stream asked for tables."""
        return self._asked.times

    def ask(self, tables: Iterable[TableName]) -> None:
        """The stream opened gaps: a look is to be made at once, and nothing is complete before it.

        A table that fails anyway keeps its pauses: the same text would end each of its copies. A mark that a
        person sets after the look that took this in ends them.
        """
        seen, times = self._newest.asked, self._asked.times + 1
        open_ = {table: time for table, time in self._asked.last.items() if time > seen}
        self._asked = _Asked(times, open_ | dict.fromkeys(tables, times))

    def leave_out(self, table: TableName, lsn: Lsn, error: Exception) -> bool:
        """The stream cannot read a table's shape, for a reason that no rule knows.

        The next look records that, and the table is carried no more; after a pause, a longer one each time,
        it is carried again, by a new session, and copied then.

        Args:
            table: whose changes the session leaves out; the caller opens its gap after this.
            lsn: commit LSN of the first of them.
            error: what nobody foresaw.

        Returns:
            Whether that is news.
        """
        if not self._unreadable.add(table, lsn, error):
            return False
        self.ask([table])
        return True

    def carries(self, table: TableName) -> bool:
        """Whether the stream's changes of a table are kept.

        A table that matches the patterns but is not known yet (new, renamed) is kept: it is copied when the
        next look finds it, and until then its rows do no harm. One with a problem is left out, and so is one
        out of the patterns; where bronze knew it by another name, that gets a gap (`bronze.stream.session`).
        """
        known = self._newest.carried.get(table)
        if known is not None:
            return known
        wanted = any(table.matches(pattern) for pattern in self._source.tables)
        return wanted and not any(table.matches(pattern) for pattern in self._source.exclude)

    @property
    def wants_new_stream(self) -> bool:
        """Whether tables are carried again that this session's decoder leaves out."""
        return bool(self._rejoin)

    @property
    def wants_stream_from(self) -> Lsn | None:
        """At or after which place a new session has to begin before more tables are copied, if at all."""
        return self._joining.wanted(self._newest.waiting)

    @property
    def rejoining(self) -> frozenset[TableName]:
        """Tables that are carried again, and wait for a session that reads them."""
        return self._rejoin

    def new_stream(self, begins: Lsn, reads: frozenset[TableName]) -> None:
        """A session begins, whose decoder asks `carries` again; tables that wait for it may be copied.

        Args:
            begins: at which place of the log.
            reads: tables that it reads again. A snapshot of one may be under way, from before this session,
                while the one before still left the table out: the caller has opened their gaps up to here.
        """
        with self._lock:
            self._rejoin -= reads
            self._joining.session(begins)

    @property
    def waits_for_transactions(self) -> bool:
        """Whether tables wait for transactions from before they joined the publication."""
        return bool(self._joining.held_up(self._newest.waiting))

    def look(self, stop: threading.Event) -> CatalogPoll:
        """Select tables, record their problems, extend the publication; what needs a snapshot.

        Args:
            stop: gives it up.

        Raises:
            SmeltError: the server cannot be asked; the publication may not be changed; it is given up.
            OSError, DeltaError: the lake cannot be read or written.
        """
        with self._looking:
            asked, started = self._asked, time.monotonic()
            try:
                catalog = self._ask_server(stop, asked)
            finally:
                self.next_at = time.monotonic() + (time.monotonic() - started) / _LOOK_SHARE
            look = self._compare(catalog, asked, stop)
            # Not before: whose error is closed is carried again, or its next change would be left out unsaid.
            self._errors.looked({table.table: table.problems for table in catalog.tables}, look.uncopied)
            self._say_what_waits(look, catalog.blockers)
            return look

    @contextmanager
    def copying(self, tables: Sequence[SourceTable], look: CatalogPoll) -> Iterator[None]:
        """Within the block these tables are copied, as that look found them.

        Other looks meanwhile ask for them again only where something is new of them.
        """
        self._under_way = {
            one.table: UnderWay(one.storage, look.unknown.get(one.relation.relation_id, ZERO))
            for one in tables
        }
        try:
            yield
        finally:
            self._under_way = {}

    @property
    def may_settle(self) -> bool:
        """Whether the stream has read what an earlier look was ahead of, so that a look ends what is open."""
        return self._landing.sink.tables.settles(self._newest.frontier, self._frontier())

    def _frontier(self) -> Lsn:
        position = self._landing.sink.position
        return ZERO if position is None else position.frontier

    def _ask_server(self, stop: threading.Event, asked: _Asked) -> _Catalog:
        frontier, on_record = self._frontier(), self._landing.sink.tables.streamed()
        with (
            connect(self._source) as connection,
            translated(self._source),
            within(self._source.timing.look_answer, connection),
            until_stopped(stop, connection),
        ):
            tables, members = self._members(connection, asked)
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
                self._joining.seen(ways, *running, end)
            blockers = running_transactions(connection) if self._joining.held_up(carried) else ""
        return _Catalog(tables, members, ways, end, blockers, frontier, streamed)

    def _members(
        self, connection: psycopg.Connection[Any], asked: _Asked
    ) -> tuple[list[SourceTable], set[TableName]]:
        """Return the selected tables, and the members among them; one that cannot join yet has a problem."""
        before = self._newest
        tables = select_tables(connection, self._source, storage=True)
        waiting = {
            name: error
            for name, error in self._locked.items()
            if not self._may_be_tried(name, before.requests, asked, before)
        }
        members = {table.table for table in tables if table.problem is None} - waiting.keys()
        locked: list[TableError] = []
        out = [table.table for table in tables if table.blocked]
        changed = ensure_publication(connection, self._source, sorted(members), locked, without=out)
        for error in locked:
            self._errors.cannot_join(error, before.requests.get(error.table))
        self._locked = waiting | {error.table: error for error in locked}
        if changed:
            # Seen once more, now as members; one that is new since is left to the next look.
            seen = {table.table for table in tables}
            tables = select_tables(connection, self._source, storage=True)
            tables = [table for table in tables if table.table in seen]
        self._unreadable.release({table.table for table in tables}, before.carried)
        left_out = {**self._locked, **self._unreadable.errors()}
        tables = [
            replace(table, problems=(*table.problems, left_out[table.table]))
            if table.table in left_out
            and left_out[table.table].code not in {problem.code for problem in table.problems}
            else table
            for table in tables
        ]
        return tables, members - left_out.keys()

    def _compare(self, catalog: _Catalog, asked: _Asked, stop: threading.Event) -> CatalogPoll:
        """Hold what the server says against what bronze has, and make it the newest look.

        That follows the marks in bronze: where the lake fails on the way, the next look finds all once more.
        """
        tables, sink = catalog.tables, self._landing.sink
        healthy = [one for one in tables if one.problem is None and one.table in catalog.members]
        names = tuple(table.table for table in healthy)
        selected = [table.table for table in tables]
        ways, end, frontier = catalog.fingerprints, catalog.end, catalog.frontier
        resnapshot_unpublished(
            self._landing, self._source.publication, selected, ways, end, frontier=frontier
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
        requests = settled_requests(sink.tables, self._source, names, catalog.end, stop)
        needing = sink.tables.needing_copy(names)
        tried = [
            table
            for table in healthy
            if table.table in needing and self._may_be_tried(table.table, requests, asked, self._newest)
        ]
        carried = {table.table: _is_carried(table) for table in tables}
        oids = frozenset(oid for table in tables if table.storage for oid in table.storage.parts)
        types = frozenset(oid for table in tables for oid in table.relation.redefinable())
        with self._lock:
            before = self._newest.carried
            self._rejoin |= {name for name, kept in carried.items() if kept and before.get(name) is False}
            now = [table for table in tried if table.table not in self._rejoin]
            waiting = frozenset(one.table for one in now if not self._joining.may_copy(one.table))
            due = tuple(table for table in now if table.table not in waiting)
            self._newest = CatalogPoll(
                carried,
                names,
                due,
                waiting,
                self._rejoin,
                requests,
                unknown,
                asked.times,
                oids,
                types,
                catalog.frontier,
                shapes_at,
                recorded.cut_short,
                frozenset(needing),
            )
            return self._newest

    def _say_what_waits(self, look: CatalogPoll, blockers: str) -> None:
        if held_up := self._joining.held_up(look.waiting):
            wait_text = self._wait.goes_on(held_up, blockers, address_of(self._source))
            self._landing.progress.set(copies_wait=wait_text)
        elif look.waiting:
            self._landing.progress.set(copies_wait="snapshots wait for a new session of the stream")

    def _may_be_tried(
        self, table: TableName, requests: Mapping[TableName, Lsn], asked: _Asked, before: CatalogPoll
    ) -> bool:
        by_stream = asked.last.get(table, 0) > before.asked  # that no look has taken in yet
        return self._errors.may_be_tried(table, requests.get(table), by_stream=by_stream)


def _is_carried(table: SourceTable) -> bool:
    return all(problem.code in _COPY_ONLY for problem in table.problems)
