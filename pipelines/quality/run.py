"""A quality run from begin to end: one cut, all suites, recorded results, a report.

The run writes `quality.*` and the report alone. A killed run leaves no results, and nothing else is missing.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.checks.ownership import FOREIGN_CODES, require_own
from deltasmelt.bronze.errors import ConfigurationError, SmeltError
from deltasmelt.bronze.figures import moment_text
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.gold.compile.query import KEY
from deltasmelt.gold.language.document import load_documents
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.pipelines.quality.change_log import of_log
from deltasmelt.pipelines.quality.checks import Checks
from deltasmelt.pipelines.quality.constraints import (
    Constraints,
    read_constraints,
    record_constraints,
    recorded_constraints,
)
from deltasmelt.pipelines.quality.cut import quality_cut
from deltasmelt.pipelines.quality.derived import differently_built, from_catalog, from_documents
from deltasmelt.pipelines.quality.engine import Engine, load
from deltasmelt.pipelines.quality.examples import Examples
from deltasmelt.pipelines.quality.expectations import Expectation, LeftOut, QualityResult, Result
from deltasmelt.pipelines.quality.masking import masks_of
from deltasmelt.pipelines.quality.report import write_report
from deltasmelt.pipelines.quality.results import append_results, history
from deltasmelt.pipelines.quality.suite_files import load_suites
from deltasmelt.pipelines.runtime.maintenance import stops
from deltasmelt.silver.schema.catalog import silver_catalog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import OpenError
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.language.document import Document
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable

_HISTORY: Final = 30


class RunEndedError(Exception):
    """Raised for a run given up at the end of its session."""


def run_quality(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    report: Path | None = None,
    progress: Callable[[str], None] | None = None,
    in_memory: bool = True,
    ended: Callable[[], bool] = lambda: False,
) -> QualityResult:
    """Check bronze, silver and gold at one cut.

    Args:
        spark: the session.
        pipeline: the pipeline file.
        report: path of the HTML report; missing folders are made.
        progress: receives the progress.
        in_memory: cache small tables meanwhile.
        ended: returns whether the session is about to stop. Called before each table, before Great
            Expectations uses the session (which would start another session) and before any write.

    Raises:
        RunEndedError: `ended` returned True. Nothing was written.
        ConfigurationError: silver has no cut yet, Great Expectations is not installed, or `quality.masked`
            names no column.
        DefiniteError: another server answers (`bronze.checks.ownership`).
    """
    started, run_at = time.monotonic(), datetime.now(UTC)

    def check_ended() -> None:
        if ended():
            raise RunEndedError

    def note(text: str) -> None:
        check_ended()
        if progress is not None:
            progress(text)

    lake = pipeline.lake_address()
    control = ControlTables(lake)
    cut = quality_cut(lake, control, with_gold=bool(pipeline.gold.documents), where=str(pipeline.path))
    note(f"reading the tables at {cut.commit_lsn}")
    frames = {table.qualified: cut.frame(spark, lake, table) for table in cut.tables}
    columns = {name: frame.columns for name, frame in frames.items()}

    relations = read_relations(lake)
    of_cut = [relation for relation in relations if relation.from_lsn <= cut.commit_lsn]
    catalog, newest = (silver_catalog(shapes, pipeline.silver) for shapes in (of_cut, relations))
    documents, left_out = _documents(pipeline)
    resolved = {document.name: resolve(document, catalog)[0] for document in documents}
    trees = {name: tree for name, tree in resolved.items() if tree is not None}
    different = differently_built(spark, lake, cut.tables, documents, (catalog, newest))
    differing = different  # masks use column names of the cut's catalog alone
    if pipeline.quality.masked and catalog != newest:
        differing = differently_built(spark, lake, cut.tables, documents, (catalog,))
    masks = masks_of(pipeline.quality.masked, catalog, trees, columns, differing)
    expectations, not_derived = _derived(pipeline, lake, catalog, columns)
    of_documents, no_document = from_documents(documents, catalog, columns, different)
    expectations += of_documents
    left_out += [*not_derived, *no_document]
    from_files, file_errors = load_suites(pipeline.suite_files(), pipeline.folder)
    expectations += from_files
    left_out = [*cut.left_out, *_stopped(control, masked=bool(pipeline.quality.masked)), *left_out]

    note("loading Great Expectations")
    row_limit = pipeline.quality.failing_rows
    load()
    check_ended()
    engine = Engine(row_limit)
    examples = Examples(masks, _keys(catalog, trees), row_limit)
    checks = Checks(spark, lake, cut, engine, examples, trees, note, in_memory)
    rows, not_checked = checks.run(expectations, frames)
    left_out += not_checked
    counts = _row_counts(rows)
    result = QualityResult(
        pipeline=pipeline.pipeline,
        run_id=uuid.uuid4().hex,
        run_at=run_at,
        seconds=time.monotonic() - started,
        commit_lsn=cut.commit_lsn,
        commit_ts=cut.commit_ts,
        tables=tuple(replace(table, rows=counts.get(table.qualified)) for table in cut.tables),
        rows=tuple(rows),
        file_errors=tuple(file_errors),
        left_out=tuple(left_out),
        report=report,
        details={"great_expectations": engine.version},
    )
    check_ended()
    append_results(lake, result)
    if report is not None:
        write_report(result, history(lake, _HISTORY), report)
    return result


def _row_counts(results: Iterable[Result]) -> dict[str, int]:
    """Return the row counts found in results; not every result counts rows."""
    counts: dict[str, int] = {}
    for row in results:  # one with a condition speaks of fewer rows than the table has
        name = row.expectation.qualified
        if row.element_count is not None and row.counted == "rows":
            counts[name] = max(row.element_count, counts.get(name, 0))
    return counts


def _documents(pipeline: Pipeline) -> tuple[list[Document], list[LeftOut]]:
    """Return gold's documents; leave out each document with a wrong definition."""
    errors: dict[str, ConfigurationError] = {}
    documents = load_documents(pipeline.document_files(), errors)
    return documents, [LeftOut(f"document {name}", str(error)) for name, error in errors.items()]


def _keys(catalog: Mapping[TableName, SilverTable], trees: Mapping[str, Tree]) -> dict[str, tuple[str, ...]]:
    keys = {f"silver.{table.name}": table.key for table in catalog.values()}
    return keys | {f"gold.{name}": tree.key_fields or (KEY,) for name, tree in trees.items()}


def _derived(
    pipeline: Pipeline,
    lake: Lake,
    catalog: Mapping[TableName, SilverTable],
    columns: dict[str, list[str]],
) -> tuple[list[Expectation], list[LeftOut]]:
    constraints, left_out = _constraints(pipeline, lake)
    if constraints is not None:
        constraints = constraints.under(pipeline.source.rules)
    of_log_ = of_log() if "bronze.changes" in columns else []
    of_catalog, not_derived = from_catalog(
        catalog.values(), constraints, columns, whole=pipeline.snapshot.mode != "never"
    )
    return [*of_log_, *of_catalog], [*left_out, *not_derived]


def _constraints(pipeline: Pipeline, lake: Lake) -> tuple[Constraints | None, list[LeftOut]]:
    """Return the present answer of the source's catalog, or the last recorded answer."""
    try:
        with (
            connect(
                pipeline.source,
                application_name="deltasmelt quality",
                patience=pipeline.source.timing.poll_answer,
            ) as connection,
            translated(pipeline.source),
        ):
            require_own(connection, pipeline.source, lake, pipeline.pipeline)
            constraints = read_constraints(connection)
    except SmeltError as error:  # the run goes on, and says what it could not ask
        if error.code in FOREIGN_CODES:
            raise
        recorded = recorded_constraints(lake)
        reason = f"the source could not be read ({error.message})"
        if recorded is None:
            return None, [LeftOut("foreign keys", reason)]
        as_of = f"{moment_text(recorded.read_at)}"
        return recorded, [LeftOut("newer constraints", f"{reason}; using its catalog as of {as_of}")]
    record_constraints(lake, constraints)
    return constraints, []


def _stopped(control: ControlTables, *, masked: bool) -> list[LeftOut]:
    """Return stopped tables and documents; their last state is missing from the cut, or old."""
    return [
        LeftOut(f"{error.scope} {error.name}", f"stopped: {_shown_text(error, masked=masked)}", stopped=True)
        for error in control.open_errors()
        if error.scope in {"table", "document"} and stops(error)
    ]


def _shown_text(error: OpenError, *, masked: bool) -> str:
    # A message may quote any value, so no message is shown if any column is masked.
    if not masked:
        return error.message
    return f"{error.code}; remedy: {error.remedy}" if error.remedy else error.code
