"""Documents that the server itself computes, in the very snapshot whose rows silver is compared with.

* **The same snapshot.** A separate session takes over the exported snapshot together with the workers, and
  locks the documents' tables while the workers hold their locks: no table can be rewritten between.
* **Bounded.** The query asks for some roots of each document, from pages all over the root's table
  (TABLESAMPLE). Statements, documents and all documents together have a time limit, documents a size limit.
  Answers that came within the limits are compared.
* **The copy of rows goes on.** A failure here becomes the reason for which a document is not compared with
  the server.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import psycopg

from bronze.errors import SmeltError
from bronze.identifiers import quote_literal
from bronze.lsn import ZERO, Lsn
from bronze.postgres.connection import connect, until_stopped
from gold.reference.comparable import comparable
from gold.reference.query import documents, root_columns
from gold.tree.resolve import resolve
from silver.schema.catalog import silver_table

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from psycopg.rows import TupleRow

    from bronze.catalog.source_table import SourceTable
    from bronze.identifiers import TableName
    from gold.language.document import Document
    from gold.tree.nodes import Tree
    from gold.verify.against_source import WrongDocument
    from pipelines.settings import Pipeline
    from silver.schema.catalog import SilverTable

ROOTS: Final = 200
"""Roots of a document that are asked for, at most."""

_BYTES: Final = 8 << 20
_STATEMENT_SECONDS: Final = 20.0
_DOCUMENT_SECONDS: Final = 30.0
_ALL_SECONDS: Final = 120.0
_FETCHED: Final = 20
_LOCKS: Final = 500
"""Tables and partitions that are locked, at most."""


@dataclass(slots=True)
class ServerDocument:
    """A document computed by the server for some roots, and the outcome of the comparison.

    Attributes:
        name: the document's.
        tree: the compared part; None if nothing can be compared.
        left_out: fields not compared, each with its reason.
        reason: the reason for which nothing is compared; empty if documents are compared.
        lsn: of the snapshot.
        answers: the server's.
        wrong: documents that gold makes differently.
    """

    name: str
    tree: Tree | None = None
    left_out: tuple[str, ...] = ()
    reason: str = ""
    lsn: Lsn = ZERO
    answers: list[str] = field(default_factory=list)
    wrong: list[WrongDocument] = field(default_factory=list)

    @property
    def compared(self) -> int:
        """How many roots were compared."""
        return 0 if self.reason else len(self.answers)

    def explain(self, lost: Mapping[str, int]) -> None:
        """Take back the verdict: gold cannot be equal where silver could not hold what the server reads."""
        columns = ", ".join(f"{name} ({times:,})" for name, times in lost.items())
        self.reason = (
            f"{len(self.wrong):,} differ, and it reads values that silver's types cannot hold: {columns}"
        )
        self.wrong = []


class ServerDocuments:
    """Has the server compute documents, in a separate thread, while rows are copied.

    Args:
        pipeline: whose source.
        asked: the documents.
        tables: the source's tables.
    """

    def __init__(self, pipeline: Pipeline, asked: Sequence[Document], tables: Sequence[SourceTable]) -> None:
        self._source = pipeline.source
        self._tables = {table.table: table for table in tables}
        catalog = {table.table: silver_table(table.relation, pipeline.silver) for table in tables}
        self.found = [_prepared(document, catalog) for document in asked]
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    def begin(self, snapshot: str, lsn: Lsn, held: Collection[TableName]) -> None:
        """Take over a snapshot and start computing the documents over the locked tables.

        Args:
            snapshot: name of an exported snapshot, valid until this call returns.
            lsn: of the snapshot's rows.
            held: tables locked against a rewrite by the workers.
        """
        waiting = [one for one in self.found if one.tree is not None and one.lsn == ZERO]
        some = [one for one in waiting if one.tree is not None and one.tree.tables().keys() <= set(held)]
        tables = {name for one in some if one.tree is not None for name in one.tree.tables()}
        if sum(1 + len(self._tables[name].partitions) for name in tables) > _LOCKS:
            _not_compared(some, "its tables have too many partitions, each of which is a lock")
            return
        if not some or self._stop.is_set():
            return
        for one in some:
            one.lsn = lsn
        try:
            connection = connect(self._source, application_name="deltasmelt verify documents")
        except SmeltError as error:
            _not_compared(some, str(error))
            return
        try:
            self._take_over(connection, snapshot, some)
        except psycopg.Error as error:
            _not_compared(some, _said(error))
            connection.close()
            return
        thread = threading.Thread(
            target=self._ask, args=(connection, some), name="smelt-verify-documents", daemon=True
        )
        self._threads.append(thread)
        thread.start()

    def result(self) -> list[ServerDocument]:
        """Wait for the answers, for a bounded time; return the documents."""
        for thread in self._threads:
            thread.join()
        _not_compared(
            [one for one in self.found if one.lsn == ZERO], "its tables were not read in one snapshot"
        )
        return self.found

    def stop(self) -> None:
        """Cancel the queries, and wait for the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _take_over(
        self, connection: psycopg.Connection[TupleRow], snapshot: str, some: Sequence[ServerDocument]
    ) -> None:
        tables = {name for one in some if one.tree is not None for name in one.tree.tables()}
        names = ", ".join(sorted(name.quoted for name in tables))
        for statement in (
            "BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY",
            f"SET TRANSACTION SNAPSHOT {quote_literal(snapshot)}",
            "SET LOCAL lock_timeout = '2s'",
            f"SET LOCAL statement_timeout = '{int(_STATEMENT_SECONDS)}s'",
            "SET LOCAL jit = off",
            f"LOCK TABLE {names} IN ACCESS SHARE MODE",
        ):
            connection.execute(statement.encode())

    def _ask(self, connection: psycopg.Connection[TupleRow], some: Sequence[ServerDocument]) -> None:
        over = time.monotonic() + _ALL_SECONDS
        with connection, until_stopped(self._stop, connection):
            for one in some:
                if self._stop.is_set() or time.monotonic() > over:
                    one.reason = "the server had no time left for it"
                    continue
                try:
                    connection.execute("SAVEPOINT document")
                    self._answer(connection, one, min(over, time.monotonic() + _DOCUMENT_SECONDS))
                except psycopg.Error as error:
                    if not one.answers:
                        one.reason = _said(error)
                if connection.closed:
                    continue
                with suppress(psycopg.Error):  # the next one says what is wrong
                    connection.execute("ROLLBACK TO SAVEPOINT document")

    def _answer(self, connection: psycopg.Connection[TupleRow], one: ServerDocument, over: float) -> None:
        """Fetch the answers for one document within the limits."""
        if one.tree is None:
            return
        query = documents(one.tree, self._roots(one.tree))
        connection.execute(f"DECLARE documents NO SCROLL CURSOR FOR\n{query}".encode())
        size = 0
        while size < _BYTES and time.monotonic() < over:
            rows = connection.execute(f"FETCH {_FETCHED} FROM documents".encode()).fetchall()
            one.answers += [row[0] for row in rows]
            size += sum(len(row[0]) for row in rows)
            if len(rows) < _FETCHED:
                break

    def _roots(self, tree: Tree) -> str:
        name = tree.root.table.table
        rows = self._tables[name].rows_estimate
        sample = ""
        if rows > 20 * ROOTS:
            # Four times as many as are taken: pages hold unlike numbers of rows.
            sample = f" TABLESAMPLE SYSTEM ({400 * ROOTS / rows:.6f}) REPEATABLE (7)"
        return f"(SELECT {root_columns(tree)} FROM {name.quoted}{sample} LIMIT {ROOTS})"


def _prepared(document: Document, catalog: dict[TableName, SilverTable]) -> ServerDocument:
    tree, problems = resolve(document, catalog)
    if tree is None:
        return ServerDocument(document.name, reason=problems[0].message)
    found = comparable(tree)
    if found.tree is None:
        return ServerDocument(document.name, reason="; ".join(found.left_out))
    return ServerDocument(document.name, found.tree, found.left_out)


def _not_compared(some: Sequence[ServerDocument], reason: str) -> None:
    for one in some:
        one.reason = one.reason or reason


def _said(error: psycopg.Error) -> str:
    if isinstance(error, psycopg.errors.QueryCanceled):
        return f"the server did not compute it within {_STATEMENT_SECONDS:g} s"
    return (error.diag.message_primary or str(error)).strip()
