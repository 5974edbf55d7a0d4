"""`smelt check`: report everything that would stop or degrade a pipeline, without changing anything.

The command checks four subjects, and a failure of one subject hides no finding of the others:

* the files: documents, suites, settings that name tables;
* the lake: whether this account can write, which pipeline owns the lake, where the lake's stream ends;
* the source (`bronze.checks.inspect`);
* the agreement of files, lake and source: documents and the source's columns, type overrides and the source's
  types, decimals and the source's numbers, the slot and the position of the stream. Offline, the command
  checks documents against the shapes in the lake.
"""

from __future__ import annotations

import difflib
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from deltasmelt.bronze.catalog.collations import other_orders
from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.checks.lake_store import probe_store
from deltasmelt.bronze.checks.ownership import require_own_slot
from deltasmelt.bronze.checks.recorded_rules import select_recorded
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TableError
from deltasmelt.bronze.figures import bytes_text
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.lake.erasures import Erasures
from deltasmelt.bronze.lake.failures import lake_opened
from deltasmelt.bronze.postgres.connection import connect, identify, primary_log_end, translated
from deltasmelt.bronze.postgres.conninfo import address_of, conninfo
from deltasmelt.bronze.reader.session_start import SessionStart
from deltasmelt.bronze.setup.create_slot import CHECKING
from deltasmelt.bronze.setup.slot import read_slot
from deltasmelt.bronze.store.contract import (
    CHANGES,
    CHANGES_SCHEMA,
    PIPELINE_PROPERTY,
    RELATIONS,
    RELATIONS_SCHEMA,
    require_format,
)
from deltasmelt.bronze.store.marks import kept_from, snapshot_of
from deltasmelt.bronze.store.ownership import foreign, owner_properties
from deltasmelt.bronze.store.position import position_of
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.bronze.store.retention import growth
from deltasmelt.bronze.store.rule_marks import STILL_HELD, changed_rules, recorded_rules
from deltasmelt.bronze.stream.continuity import check_start, slot_gone
from deltasmelt.gold.builder.spark_settings import HASH, LSN
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.language.document import load_documents
from deltasmelt.gold.tree.check import checked_tree
from deltasmelt.gold.tree.text_order import text_orders
from deltasmelt.pipelines.health.document_rules import rule_findings, with_excluded
from deltasmelt.pipelines.health.former_values import former_value_findings
from deltasmelt.pipelines.health.numeric_digits import numeric_findings
from deltasmelt.pipelines.private import why_unwritable
from deltasmelt.pipelines.quality.cut import held_columns
from deltasmelt.pipelines.quality.masking import parse_masked
from deltasmelt.pipelines.quality.suite_files import check_suites
from deltasmelt.pipelines.runtime.locks import lake_folder
from deltasmelt.pipelines.runtime.retention import BronzeRetention
from deltasmelt.silver.schema.catalog import check_table, histories, is_named, silver_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import psycopg
    from psycopg.rows import TupleRow

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.position import Position
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable

_T = TypeVar("_T")

_AWAY: Final = frozenset({"lake-bucket", "lake-credentials", "lake-unreachable"})
"""Codes of findings that prevent opening a lake in an object store."""
_LEVELS: Final = {"error": 0, "warning": 1, "info": 2}


def run_check(pipeline: Pipeline, *, offline: bool = False) -> list[Finding]:
    """Return the findings about a pipeline, errors first.

    Args:
        offline: check the files and the lake alone.
    """
    findings: list[Finding] = []
    problems: dict[str, ConfigurationError] = {}
    documents = _collect(findings, lambda: load_documents(pipeline.document_files(), problems)) or []
    findings += map(Finding.of, problems.values())
    suites = _collect(findings, pipeline.suite_files) or []
    if offline:
        _collect(findings, lambda: conninfo(pipeline.source))
    storage = _unwritable(pipeline)
    findings += storage
    unreachable = any(finding.code in _AWAY for finding in storage)  # a second finding would repeat the first
    lake = None if unreachable else _collect(findings, lambda: _Lake(pipeline))
    if lake is not None:
        findings += lake.foreign(owner_properties(pipeline.pipeline))
        findings += _collect(findings, lake.unfinished) or []
        if pipeline.bronze.retention is None:
            findings += _collect(findings, lake.growing) or []
        findings += _collect(findings, lambda: lake.behind(pipeline)) or []
        findings += _collect(findings, lambda: lake.former_values(pipeline)) or []
    relations: Sequence[Relation] = [] if lake is None else lake.relations
    orders: Mapping[tuple[TableName, str], str] = {}
    if not offline:
        try:
            relations, orders = _source(pipeline, lake, findings)
        except SmeltError as error:
            findings.append(Finding.of(error))
    tables: dict[str, list[str]] | None = None
    if relations:
        catalog = _catalog(pipeline, relations, findings)
        findings += _names(pipeline, catalog)
        _collect(findings, lambda: _masked(pipeline, catalog))
        tables = _tables(pipeline, documents, catalog, orders, findings)
    elif documents:
        findings.append(
            Finding(
                level="info",
                code="documents-unchecked",
                subject="gold.documents",
                message="the documents' tables and columns were not checked: the source was not read, and "
                "the lake has no table definitions yet",
            )
        )
    for fault in check_suites(suites, pipeline.folder, tables):
        subject, _, message = fault.partition(": ")
        findings.append(Finding(level="error", code="suite-invalid", subject=subject, message=message))
    return sorted(findings, key=lambda finding: _LEVELS[finding.level])


class _Lake:
    """Facts that the lake has recorded about itself; empty before the first commit."""

    def __init__(self, pipeline: Pipeline) -> None:
        address = pipeline.lake_address()
        self.uri = address.uri("bronze", CHANGES)
        with lake_opened(self.uri):
            table = open_table(self.uri)
            if table is not None:
                require_format(table)
            self.changes, self._erasures = table, Erasures(address)
            self.properties: dict[str, str] = {} if table is None else table.metadata().configuration
            self.position: Position | None = None if table is None else position_of(table)
            self.relations: list[Relation] = [] if table is None else read_relations(address)

    def foreign(self, ours: Mapping[str, str]) -> list[Finding]:
        """Return findings about a lake with the changes of another pipeline, cluster or database."""
        return [Finding.of(error) for error in foreign(self.uri, self.properties, ours)]

    def unfinished(self) -> list[Finding]:
        """Return findings about erasures that a kill or a failed search has left unfinished."""
        with lake_opened(self.uri):
            errors = [erasure.error for erasure in self._erasures.unfinished()]
        return [Finding("warning", error.code, error.name, error.message, error.remedy) for error in errors]

    def growing(self) -> list[Finding]:
        """Return a finding about the growth of bronze, which keeps every change; none in the first day."""
        if self.changes is None or not self.changes.shows_files:
            return []
        with lake_opened(self.uri):
            grown = growth(self.changes, datetime.now(UTC))
        if grown is None:
            return []
        return [
            Finding(
                level="info",
                code="bronze-grows",
                subject="bronze.retention",
                message=f"bronze keeps every change forever: {bytes_text(grown.size)} now, growing by "
                f"{bytes_text(int(grown.bytes_per_day))} a day (over {grown.days:,.0f} days); after another "
                f"year {bytes_text(grown.after_a_year)}",
                remedy="set bronze.retention, for instance to 90d; or keep all changes",
            )
        ]

    def former_values(self, pipeline: Pipeline) -> list[Finding]:
        """Return the tables of silver with values from before the rules."""
        if self.changes is None or not pipeline.source.rules.ruled:
            return []
        with lake_opened(self.uri):
            return list(former_value_findings(pipeline, self.changes, self.relations))

    def behind(self, pipeline: Pipeline) -> list[Finding]:
        """Return the tables of silver that lack changes which bronze has removed."""
        if self.changes is None or not kept_from(self.changes):
            return []
        with lake_opened(self.uri):
            retention = BronzeRetention(pipeline, ControlTables(pipeline.lake_address()))
            boundary = retention.boundary(self.changes, self.relations, datetime.now(UTC))
        return [
            Finding(
                level="error",
                code="changes-removed",
                subject=need.name,
                message=f"needs the changes from {need.first} on, and bronze has removed the changes before "
                f"{boundary.kept_from} (bronze.retention)",
                remedy=f"restore a newer copy of {need.name}, or rebuild the table: smelt explain-error "
                "changes-removed",
            )
            for need in boundary.behind
        ]


def _collect(findings: list[Finding], step: Callable[[], _T]) -> _T | None:
    """Return the result of `step`; turn a `SmeltError` into a finding."""
    try:
        return step()
    except SmeltError as error:
        findings.append(Finding.of(error))
        return None


def _source(
    pipeline: Pipeline, lake: _Lake | None, findings: list[Finding]
) -> tuple[list[Relation], Mapping[tuple[TableName, str], str]]:
    """Return the shapes of the selected tables, and the columns that sort differently in silver."""
    with connect(
        pipeline.source, application_name="deltasmelt check", patience=pipeline.source.timing.poll_answer
    ) as connection:
        rules, changes = pipeline.source.rules, None if lake is None else lake.changes
        known = set() if lake is None else {shape.table for shape in lake.relations}
        # The publication may still have the list or the filter of an entry that was removed.
        recorded = {} if changes is None else recorded_rules(changes, rules.tables.keys() | known)
        source_findings = inspect(connection, pipeline.source, recorded, known)
        with translated(pipeline.source):
            own_lake = None
            if lake is not None:
                identity = identify(connection)
                server = owner_properties(pipeline.pipeline, identity)
                del server[PIPELINE_PROPERTY]  # the caller has compared this property
                foreign_findings, broken = lake.foreign(server), list[Finding]()
                if not foreign_findings:
                    _collect(
                        foreign_findings, lambda: require_own_slot(connection, pipeline.source, lake.changes)
                    )
                if lake.position is not None and not foreign_findings:
                    sound = not any(finding.level == "error" for finding in source_findings)
                    broken = _broken(connection, pipeline, lake.position, identity.timeline, streams=sound)
                if broken:  # a lost slot is no slot that the reader has yet to create
                    source_findings = [
                        finding for finding in source_findings if finding.code != "slot-missing"
                    ]
                own_lake = None if foreign_findings else pipeline.lake_address()
                findings += [*foreign_findings, *broken]
            findings += source_findings
            tables = select_recorded(connection, pipeline.source, own_lake, sizes=False)
            findings += [
                Finding.of(problem, str(table.table))
                for table in tables
                for problem in table.problems
                if problem.code == "column-rule-lost"  # the source alone shows all other problems
            ]
            if lake is not None and lake.changes is not None:
                findings += _changed_rules(pipeline, lake.changes, tables)
            findings += numeric_findings(connection, tables, pipeline.silver)
            orders = other_orders(connection, [table.relation.relation_id for table in tables])
    return [table.relation for table in tables], orders


def _changed_rules(pipeline: Pipeline, changes: Table, tables: Iterable[SourceTable]) -> Iterator[Finding]:
    """Yield the tables that the next start snapshots again, because their rules or the key changed."""
    copied = [
        table.table
        for table in tables
        if table.problem is None and snapshot_of(changes, table.table) is not None
    ]
    for name, reason in changed_rules(changes, pipeline.source.rules, copied).reasons.items():
        yield Finding(
            level="warning",
            code="rules-changed",
            subject=str(name),
            message=f"the next start snapshots the table again: {reason}; {STILL_HELD}",
        )


def _unwritable(pipeline: Pipeline) -> list[Finding]:
    """Return findings where this account cannot make the lake's folder or write to the folder."""
    lake = pipeline.lake_address()
    folder = lake.folder
    if folder is None:
        return probe_store(lake.root)
    if (reason := why_unwritable(folder)) is None:
        return []
    return [Finding.of(lake_folder(folder, reason))]


def _broken(
    connection: psycopg.Connection[TupleRow],
    pipeline: Pipeline,
    position: Position,
    timeline: int,
    *,
    streams: bool,
) -> list[Finding]:
    """Check whether the stream can continue at the lake's end, as the reader checks at each start."""
    source, name, address = pipeline.source, pipeline.source.slot, address_of(pipeline.source)
    slot = read_slot(connection, name)
    end = primary_log_end(connection)
    if end is None:
        return []
    try:
        if slot is None:
            raise slot_gone(position, name=name, where=address)
        if slot.active_pid is not None or not streams:
            # Compare LSNs alone where no stream can start, or where a reader holds the slot: the reader
            # compared the log at its own start.
            check_start(position, replace(slot, active_pid=0), 0, end, name=name, where=address)
        else:
            begin = SessionStart(
                pipeline.pipeline,
                source,
                pipeline.lake_address(),
                CHECKING,
                report=_give_up,
                reached=lambda _: None,
            )
            # The check leaves a comparison of a long stretch of log to the reader.
            with suppress(_TakesLongError):
                begin.require_history(connection, position, slot, timeline, confirm=False)
    except DefiniteError as error:
        return [Finding.of(error, f"slot {name}")]
    return []


class _TakesLongError(Exception):
    """The check gave up a comparison of the logs."""


def _give_up(_: str) -> NoReturn:
    raise _TakesLongError


def _catalog(
    pipeline: Pipeline, relations: Iterable[Relation], findings: list[Finding]
) -> dict[TableName, SilverTable]:
    """Return silver's tables by their newest shapes; a table without a valid form becomes a finding."""
    catalog: dict[TableName, SilverTable] = {}
    for relation in sorted(relations, key=lambda shape: shape.from_lsn):
        try:
            catalog[relation.table] = silver_table(relation, pipeline.silver)
        except ConfigurationError as error:
            findings.append(Finding.of(error, str(relation.table)))
    return catalog


def _tables(
    pipeline: Pipeline,
    documents: Iterable[Document],
    catalog: dict[TableName, SilverTable],
    orders: Mapping[tuple[TableName, str], str],
    findings: list[Finding],
) -> dict[str, list[str]] | None:
    """Return the columns of every table that a suite can name; None where a wrong document hides some."""
    tables = {
        f"silver.{table.name}": [*(column.name for column in table.columns), *table.own_columns]
        for table in [*catalog.values(), *histories(catalog.values(), pipeline.silver)]
    }
    tables |= {f"bronze.{CHANGES}": CHANGES_SCHEMA.names, f"bronze.{RELATIONS}": RELATIONS_SCHEMA.names}
    complete, rules = True, pipeline.source.rules
    for document in documents:
        tree, problems = checked_tree(document, catalog)
        findings += (with_excluded(rules, Finding.of(problem)) for problem in problems)
        if tree is None:
            complete = False
        else:
            tables[f"gold.{document.name}"] = [*compile_tree(tree, str).columns, LSN, HASH]
            findings += [*_text_orders(tree, orders), *rule_findings(tree, rules)]
    return tables if complete else None


def _text_orders(tree: Tree, orders: Mapping[tuple[TableName, str], str]) -> Iterator[Finding]:
    """Return the places where a document orders text differently from the source's collation."""
    places = {
        f"{label} by {table}.{column} ({orders[table, column]})": None
        for label, table, column in text_orders(tree)
        if (table, column) in orders
    }
    if places:
        yield Finding(
            level="info",
            code="text-order",
            subject=tree.name,
            message=f"text is ordered by code points, not by the source's collation: {', '.join(places)}",
        )


def _masked(pipeline: Pipeline, catalog: dict[TableName, SilverTable]) -> None:
    """Check whether `quality.masked` names columns of the source, or columns in silver.

    Raises:
        ConfigurationError: an entry names no such column.
    """
    if pipeline.quality.masked:
        columns = held_columns(pipeline.lake_address(), catalog.values())
        parse_masked(pipeline.quality.masked, catalog, columns)


def _names(pipeline: Pipeline, catalog: dict[TableName, SilverTable]) -> Iterator[Finding]:
    """Check the tables and columns in the section `silver`, and the clashes between its settings."""
    tables = [str(table) for table in catalog]
    columns = {f"{table}.{column.name}" for table, shape in catalog.items() for column in shape.columns}
    for name in sorted(pipeline.silver.types.keys() - columns):
        yield _unused("type-override-unused", "silver.types", name, columns, "column of a selected table")
    for name in pipeline.silver.history:
        if name not in tables:
            yield _unused("history-unused", "silver.history", name, tables, "selected table")
    for text, names in pipeline.silver.cluster.items():
        table = next((candidate for candidate in catalog if is_named(candidate, [text])), None)
        if table is None:
            yield _unused("cluster-unused", "silver.cluster", text, tables, "selected table")
            continue
        for name in sorted({f"{table}.{name}" for name in names} - columns):
            yield _unused("cluster-unused", "silver.cluster", name, columns, "column of a selected table")
    for shape in catalog.values():
        try:
            check_table(shape, catalog.values(), pipeline.silver)
        except TableError as error:
            yield Finding.of(error, str(shape.table))


def _unused(code: str, subject: str, name: str, known: Iterable[str], kind: str) -> Finding:
    """Return the finding about a name in the pipeline file that matches nothing."""
    message = f"{name} is not a {kind}"
    return Finding(
        level="warning", code=code, subject=subject, message=message, remedy=_correction(name, known)
    )


def _correction(name: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"remove the name, or correct it{f'; did you mean {near[0]}?' if near else ''}"
