"""A quality run from beginning to end: one cut, all suites, results kept, a report written.

Every table is read at its version of one cut. A table's derived expectations and those of each of its suite
files are evaluated in one go, because their questions are then gathered into few Spark jobs. Small tables are
kept in memory meanwhile. Nothing is changed but `quality.*` and the report. If the run is killed, its results
are not there, and nothing else is missing.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import chain
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable

from bronze.errors import ConfigurationError, SmeltError
from bronze.lake.control_tables import ControlTables
from bronze.postgres.connection import connect, translated
from bronze.store.relations import read_relations
from gold.language.document import load_documents
from pipelines.quality.constraints import (
    Constraints,
    read_constraints,
    record_constraints,
    recorded_constraints,
)
from pipelines.quality.cut import QualityCut, quality_cut
from pipelines.quality.derived import catalog_frame, from_catalog, from_documents
from pipelines.quality.engine import Engine, short_cause
from pipelines.quality.expectations import (
    FOREIGN_KEY,
    CutTable,
    Expectation,
    LeftOut,
    QualityResult,
    Result,
)
from pipelines.quality.references import check_references
from pipelines.quality.report import write_report
from pipelines.quality.results import append_results, past_runs
from pipelines.quality.suite_files import QUERY, load_suites, misnamed, placeholders
from pipelines.runtime.maintenance_errors import stops
from silver.schema.catalog import silver_catalog
from silver.schema.live_rows import live_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from bronze.lake.location import Lake
    from pipelines.settings import Pipeline

_IN_MEMORY_BYTES: Final = 128_000_000
"""So much of the tables' files, the smallest tables first, is kept in memory during a run."""

_HISTORY: Final = 30


def run_quality(
    spark: SparkSession,
    pipeline: Pipeline,
    *,
    report: Path | None = None,
    progress: Callable[[str], None] | None = None,
) -> QualityResult:
    """Check silver and gold at one cut.

    Args:
        spark: the session.
        pipeline: the pipeline file.
        report: where to write the HTML report; its folder is made.
        progress: is told what is being checked.

    Raises:
        ConfigurationError: silver has no cut yet, or Great Expectations is not installed.
    """
    started, run_at = time.monotonic(), datetime.now(UTC)
    say = progress or (lambda _: None)
    lake = pipeline.lake_address()
    control = ControlTables(lake)
    cut = quality_cut(control, with_gold=bool(pipeline.gold.documents), where=str(pipeline.path))
    say(f"reading the tables at {cut.commit_lsn}")
    frames = {table.qualified: cut.frame(spark, lake, table) for table in cut.tables}
    columns = {name: frame.columns for name, frame in frames.items()}

    expectations, left_out = _derived(pipeline, lake, cut, columns)
    from_files, file_errors = load_suites(pipeline.suite_files(), pipeline.folder)
    expectations += from_files
    left_out = [*cut.left_out, *_stopped(control), *left_out]

    say("loading Great Expectations")
    engine = Engine()
    rows = _Checks(spark, lake, cut, engine, say).run(expectations, frames)
    counts: dict[str, int] = {}
    for row in rows:  # one with a condition speaks of fewer rows than the table has
        name = row.expectation.qualified
        if row.element_count is not None:
            counts[name] = max(row.element_count, counts.get(name, 0))
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
    append_results(lake, result)
    if report is not None:
        write_report(result, past_runs(lake, _HISTORY), report)
    return result


def _derived(
    pipeline: Pipeline, lake: Lake, cut: QualityCut, columns: dict[str, list[str]]
) -> tuple[list[Expectation], list[LeftOut]]:
    constraints, left_out = _constraints(pipeline, lake)
    relations = [relation for relation in read_relations(lake) if relation.from_lsn <= cut.commit_lsn]
    catalog = silver_catalog(relations, pipeline.silver)
    expectations, not_derived = from_catalog(catalog.values(), constraints, columns)
    left_out += not_derived
    try:
        documents = load_documents(pipeline.document_files())
    except ConfigurationError as error:  # a wrong definition stops gold, not the look at what is there
        return expectations, [*left_out, LeftOut("documents", str(error))]
    of_documents, not_derived = from_documents(documents, catalog, columns)
    return [*expectations, *of_documents], [*left_out, *not_derived]


def _constraints(pipeline: Pipeline, lake: Lake) -> tuple[Constraints | None, list[LeftOut]]:
    """What the source's catalog says, or what it last said if it cannot be asked."""
    try:
        with (
            connect(pipeline.source, application_name="deltasmelt quality") as connection,
            translated(pipeline.source),
        ):
            constraints = read_constraints(connection)
    except SmeltError as error:  # the run goes on, and says what it could not ask
        recorded = recorded_constraints(lake)
        why = f"the source could not be asked ({error.message})"
        if recorded is None:
            return None, [LeftOut("foreign keys", why)]
        as_of = f"{recorded.read_at:%Y-%m-%d %H:%M:%S} UTC"
        return recorded, [LeftOut("newer constraints", f"{why}; using its catalog as of {as_of}")]
    record_constraints(lake, constraints)
    return constraints, []


def _stopped(control: ControlTables) -> list[LeftOut]:
    """Tables and documents that stand still; their last state is not in the cut, or old."""
    return [
        LeftOut(f"{error.scope} {error.name}", f"it has stopped: {error.message}")
        for error in control.open_errors()
        if error.scope in {"table", "document"} and stops(error)
    ]


@dataclass(frozen=True, slots=True)
class _Checks:
    """What every check of a run needs."""

    spark: SparkSession
    lake: Lake
    cut: QualityCut
    engine: Engine
    say: Callable[[str], None]

    def run(self, expectations: Sequence[Expectation], frames: dict[str, DataFrame]) -> list[Result]:
        """What became of each expectation, in their order."""
        from gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415 - `smelt check` reads suites without Spark

        columns = {name: frame.columns for name, frame in frames.items()}
        results: dict[int, Result] = {}
        groups: dict[str, dict[bool, list[int]]] = defaultdict(lambda: defaultdict(list))
        references: list[int] = []
        for index, about in enumerate(expectations):
            wrong = None if about.derived else misnamed(about, columns)
            if wrong is not None:
                results[index] = Result(about, None, error=wrong)
            elif about.kind == FOREIGN_KEY:
                references.append(index)
            else:
                groups[about.qualified][about.derived].append(index)
        rows: dict[str, int] = {}
        with self._in_memory(frames), self._views(frames, expectations) as views:
            for number, (name, suites) in enumerate(sorted(groups.items()), 1):
                self.say(f"checking {name} ({number} of {len(groups)})")
                try:
                    rows[name] = live_rows(frames[name]).count()
                except SPARK_ERRORS as error:  # a file that is gone, say: the other tables are looked at
                    for index in chain(*suites.values()):
                        results[index] = Result(expectations[index], None, error=short_cause(str(error)))
                    continue
                for derived, indexes in suites.items():
                    asked = [expectations[index] for index in indexes]
                    frame = catalog_frame(frames[name], asked) if derived else frames[name]
                    results |= zip(
                        indexes, self.engine.evaluate(frame, asked, rows[name], views), strict=True
                    )
            if references:
                self.say(f"checking {len(references)} foreign keys")
                asked = [expectations[index] for index in references]
                found = check_references(asked, lambda name: live_rows(frames[name]), rows)
                results |= zip(references, found, strict=True)
        return [results[index] for index in range(len(expectations))]

    @contextmanager
    def _views(
        self, frames: dict[str, DataFrame], expectations: Sequence[Expectation]
    ) -> Iterator[dict[str, str]]:
        """Temporary views of the tables that queries name, at the cut."""
        named = {name for about in expectations for name in placeholders(str(about.kwargs.get(QUERY, "")))}
        views = {name: f"deltasmelt_quality_{n}" for n, name in enumerate(sorted(named & frames.keys()))}
        for name, view in views.items():
            frames[name].createOrReplaceTempView(view)
        try:
            yield views
        finally:
            for view in views.values():
                self.spark.catalog.dropTempView(view)

    @contextmanager
    def _in_memory(self, frames: dict[str, DataFrame]) -> Iterator[None]:
        """Keep small tables in memory, so that not each question plans and reads their files again."""
        kept: list[DataFrame] = []
        room = _IN_MEMORY_BYTES
        for size, table in sorted((self._size(table), table.qualified) for table in self.cut.tables):
            room -= size
            if room < 0:
                break
            kept.append(frames[table].persist())
        try:
            yield
        finally:
            for frame in kept:
                frame.unpersist()

    def _size(self, table: CutTable) -> int:
        """Bytes of a table's files at the cut; asked of its log, not of Spark."""
        actions = DeltaTable(self.lake.uri(table.layer, table.name), version=table.version).get_add_actions()
        return sum(actions.column("size_bytes").to_pylist())
