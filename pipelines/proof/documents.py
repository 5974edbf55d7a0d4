"""Documents computed by the server, in the same snapshot as silver's compared rows.

* **The same snapshot.** A separate session imports the exported snapshot together with the workers, and locks
  the documents' tables while the workers hold their locks: no table can be rewritten in between.
* **Bounded.** The query selects some roots of each document, from pages all over the root's table
  (TABLESAMPLE). Statements, documents and all documents together have a time limit, documents a size limit.
* **Bounded at the client, too.** A connection that swallows an answer makes the server's limits ineffective:
  each statement ends its connection after a time, and so the snapshot and the locks.
* **The copy of rows continues.** A failure of this module becomes the reason why a document is not compared
  with the server. A document without an answer is not compared, whatever ended its thread.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.connection import abandon, connect, until_stopped, within
from deltasmelt.gold.reference.comparable import comparable
from deltasmelt.gold.reference.query import documents, root_columns
from deltasmelt.gold.reference.values import rows_at_source
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.silver.schema.catalog import silver_catalog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from psycopg.rows import TupleRow

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.rules import Rules
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.gold.verify.against_source import WrongDocument
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable

ROOTS: Final = 200
"""Largest number of queried roots of a document."""

BYTES: Final = 8 << 20
"""Largest size of a document's compared answers."""

_STATEMENT_SECONDS: Final = 20.0
_DOCUMENT_SECONDS: Final = 30.0
_ALL_SECONDS: Final = 120.0
_MARGIN_SECONDS: Final = 5.0
"""Time for a living server to send the error about its own limit."""

_FETCHED: Final = 20
_FETCHED_BYTES: Final = 1 << 20
_LOCKS: Final = 500
"""Largest number of locked tables and partitions."""


@dataclass(slots=True)
class ServerDocument:
    """A document computed by the server for some roots, and the outcome of the comparison.

    Attributes:
        tree: the compared part; None without a comparable part.
        left_out: fields outside the comparison, each with its reason.
        reason: reason for no comparison; empty for a comparison.
        lsn: position of the snapshot.
        answers: the server's documents.
        differing: documents with a different result in gold.
        lost: columns with values outside silver's types; queried after a difference.
        withdrawn: different documents with such values: gold cannot be equal there.
        empty: True if the root's table has no rows.
        ruled: True if the lake's rows differ from the source's by rules of the pipeline file.
    """

    name: str
    tree: Tree | None = None
    left_out: tuple[str, ...] = ()
    reason: str = ""
    lsn: Lsn = ZERO
    answers: list[str] = field(default_factory=list)
    differing: list[WrongDocument] = field(default_factory=list)
    lost: str = ""
    withdrawn: int = 0
    empty: bool = False
    ruled: bool = False

    @property
    def compared(self) -> int:
        """Return the number of compared roots."""
        return 0 if self.reason else len(self.answers) - self.withdrawn

    def explain(self, lost: Mapping[str, int], roots: Collection[str]) -> None:
        """Withdraw the verdict on documents with lost values, and on no others.

        `lost` are the numbers of values outside silver's types, by column; `roots` the keys of the documents
        with such values, as JSON.
        """
        self.lost = ", ".join(f"{name} ({times:,})" for name, times in lost.items())
        valid = [document for document in self.differing if document.key not in roots]
        self.withdrawn, self.differing = len(self.differing) - len(valid), valid
        if self.withdrawn == len(self.answers):
            self.reason = f"all sampled documents read values that silver's types cannot hold: {self.lost}"


@dataclass(frozen=True, slots=True)
class _Request:
    """A thread for the server's computation of some documents."""

    thread: threading.Thread
    connection: psycopg.Connection[TupleRow]
    group: Sequence[ServerDocument]

    def ended(self, seconds: float) -> bool:
        """Wait for the thread, then end its connection; return whether the thread has ended."""
        self.thread.join(seconds)
        if self.thread.is_alive():
            with suppress(psycopg.Error, OSError):  # closed meanwhile
                abandon(self.connection)
            self.thread.join(_MARGIN_SECONDS)
        return not self.thread.is_alive()


class ServerDocuments:
    """Lets the server compute documents, in a separate thread, while rows are copied."""

    def __init__(
        self, pipeline: Pipeline, definitions: Sequence[Document], tables: Sequence[SourceTable]
    ) -> None:
        self._source = pipeline.source
        self._tables = {table.table: table for table in tables}
        catalog = silver_catalog([table.relation for table in tables], pipeline.silver)
        self.results = [_prepared(document, catalog, pipeline.source.rules) for document in definitions]
        self._requests: list[_Request] = []
        self._stop = threading.Event()

    def begin(self, snapshot: str, lsn: Lsn, held: Collection[TableName]) -> None:
        """Import a snapshot and start computing the documents over the locked tables.

        `snapshot` names an exported snapshot, valid until this call returns; `held` are the tables locked
        against a rewrite by the workers.
        """
        waiting = [
            document for document in self.results if document.tree is not None and document.lsn == ZERO
        ]
        ready = [
            document
            for document in waiting
            if document.tree is not None and document.tree.tables().keys() <= set(held)
        ]
        tables = {name for document in ready if document.tree is not None for name in document.tree.tables()}
        if sum(1 + len(self._tables[name].partitions) for name in tables) > _LOCKS:
            _not_compared(ready, "its tables have too many partitions: each partition needs a lock")
            return
        if not ready or self._stop.is_set():
            return
        for document in ready:
            document.lsn = lsn
        try:
            connection = connect(self._source, application_name="deltasmelt verify documents")
        except SmeltError as error:
            _not_compared(ready, str(error))
            return
        try:
            self._take_over(connection, snapshot, ready)
        except psycopg.Error as error:
            _not_compared(ready, _reason(error))
            connection.close()
            return
        thread = threading.Thread(
            target=self._query_all, args=(connection, ready), name="smelt-verify-documents", daemon=True
        )
        self._requests.append(_Request(thread, connection, ready))
        thread.start()

    def result(self) -> list[ServerDocument]:
        """Wait for the answers, for a bounded time; return the documents."""
        for request in self._requests:
            if not request.ended(_ALL_SECONDS + _STATEMENT_SECONDS + 2 * _MARGIN_SECONDS):
                # The thread may still write to the documents that it has.
                stuck = {
                    document.name: ServerDocument(document.name, lsn=document.lsn)
                    for document in request.group
                }
                _not_compared(stuck.values(), "the server did not answer")
                self.results = [stuck.get(document.name, document) for document in self.results]
        _not_compared(
            [document for document in self.results if document.lsn == ZERO],
            "its tables were not read in one snapshot",
        )
        for document in self.results:
            if document.empty:
                _not_compared([document], "the root's table has no rows")
            elif not document.answers:
                _not_compared([document], "the server returned no document, so nothing was compared")
        return self.results

    def stop(self) -> None:
        """Cancel the queries, and wait for the threads, for a bounded time."""
        self._stop.set()
        for request in self._requests:
            request.ended(2 * _MARGIN_SECONDS)

    def _take_over(
        self, connection: psycopg.Connection[TupleRow], snapshot: str, group: Sequence[ServerDocument]
    ) -> None:
        tables = {
            name: table
            for document in group
            if document.tree
            for name, table in document.tree.tables().items()
        }
        names = ", ".join(rows_at_source(tables[name]) for name in sorted(tables))
        for statement in (
            "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
            f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}",
            "SET LOCAL lock_timeout = '2s'",
            f"SET LOCAL statement_timeout = '{int(_STATEMENT_SECONDS)}s'",
            "SET LOCAL jit = off",
            f"LOCK TABLE {names} IN ACCESS SHARE MODE",
        ):
            _execute(connection, statement)

    def _query_all(self, connection: psycopg.Connection[TupleRow], group: Sequence[ServerDocument]) -> None:
        over = time.monotonic() + _ALL_SECONDS
        with connection, until_stopped(self._stop, connection):
            for document in group:
                if self._stop.is_set() or time.monotonic() > over:
                    document.reason = "the server had no time left for the document"
                    continue
                try:
                    self._answer(connection, document, min(over, time.monotonic() + _DOCUMENT_SECONDS))
                except psycopg.Error as error:
                    if not document.answers:
                        document.reason = _reason(error)
                except Exception as error:  # noqa: BLE001 - the reason why this document is not compared
                    document.reason = f"{type(error).__name__}: {error}"

    def _answer(
        self, connection: psycopg.Connection[TupleRow], document: ServerDocument, over: float
    ) -> None:
        """Fetch the answers for one document within the limits."""
        if document.tree is None:
            return
        sample = self._sample(document.tree)
        # The statistics may be of a larger table, and few pages may have no rows: then from all pages.
        for pages in (sample, "") if sample else ("",):
            _execute(connection, "SAVEPOINT document")
            try:
                has_roots = _fetch(connection, document, self._query(document.tree, pages), over)
            finally:
                if not connection.closed:
                    with suppress(psycopg.Error):  # the next statement says what is wrong
                        _execute(connection, "ROLLBACK TO SAVEPOINT document")
            if has_roots:
                return
        document.empty = True

    def _query(self, tree: Tree, sample: str) -> str:
        """Return the query for some roots; an answer above the size limit is NULL."""
        rows = rows_at_source(tree.root.table)
        roots = f"(SELECT {root_columns(tree)} FROM {rows}{sample} LIMIT {ROOTS})"
        sent = f"CASE WHEN octet_length(a.answer) <= {BYTES} THEN a.answer END"
        # OFFSET keeps the planner from computing each answer twice.
        return (
            f"SELECT {sent}\nFROM (SELECT * FROM (\n{documents(tree, roots)}\n) AS b OFFSET 0) AS a(answer)"
        )

    def _sample(self, tree: Tree) -> str:
        rows = self._tables[tree.root.table.table].rows_estimate
        if rows <= 20 * ROOTS:
            return ""
        # Four times as many as are taken: pages hold unlike numbers of rows.
        return f" TABLESAMPLE SYSTEM ({400 * ROOTS / rows:.6f}) REPEATABLE (7)"


def _fetch(
    connection: psycopg.Connection[TupleRow], document: ServerDocument, query: str, over: float
) -> bool:
    """Fetch a query's answers within the limits; return whether the table may have root rows."""
    _execute(connection, f"DECLARE documents NO SCROLL CURSOR FOR\n{query}")
    size, fetched, count = 0, 0, 1
    while time.monotonic() < over:
        rows = _execute(connection, f"FETCH {count} FROM documents").fetchall()
        for (answer,) in rows:
            fetched += 1
            size += len(answer or "")
            if answer is None or size > BYTES:
                if not document.answers:
                    document.reason = f"its first document is larger than {BYTES >> 20} MB"
                return True
            document.answers.append(answer)
        if len(rows) < count:
            return fetched > 0
        count = max(1, min(_FETCHED, _FETCHED_BYTES * fetched // max(size, 1)))
    return True


def _execute(connection: psycopg.Connection[TupleRow], statement: str) -> psycopg.Cursor[TupleRow]:
    with within(_STATEMENT_SECONDS + _MARGIN_SECONDS, connection):
        return connection.execute(statement.encode())


def _prepared(document: Document, catalog: Mapping[TableName, SilverTable], rules: Rules) -> ServerDocument:
    tree, problems = resolve(document, catalog)
    if tree is None:
        return ServerDocument(document.name, reason=problems[0].message)
    # The server computes documents from clear values and all rows.
    ruled = [name for name in sorted(tree.tables()) if rules.table(name).changes_rows]
    if ruled:
        reason = f"source.columns or source.where changes the rows of {ruled[0]}"
        return ServerDocument(document.name, reason=reason, ruled=True)
    if problem := next((table.problem for table in tree.tables().values() if table.problem), None):
        return ServerDocument(document.name, reason=str(problem))
    verifiable = comparable(tree)
    if verifiable.tree is None:
        return ServerDocument(document.name, reason="; ".join(verifiable.left_out))
    return ServerDocument(document.name, verifiable.tree, verifiable.left_out)


def _not_compared(group: Collection[ServerDocument], reason: str) -> None:
    for document in group:
        document.reason = document.reason or reason


def _reason(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.QueryCanceled):
        return f"the server did not compute the document within {_STATEMENT_SECONDS:g} s"
    return (error.diag.message_primary or str(error)).strip()
