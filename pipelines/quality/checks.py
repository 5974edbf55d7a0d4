"""Evaluation of all expectations of a run over the tables of its cut, in few Spark jobs.

One evaluation covers a table's derived expectations and the expectations of each of its suite files, because
one aggregation then answers them together. Great Expectations sees one table at a time; queries of deltasmelt
check the expectations over several tables, all tables together.

A rule in SQL is a query without result rows, evaluated by deltasmelt in the session of the run's own tables.
Great Expectations would evaluate the rule in the process's first session, without the views of the tables at
the cut, and without the settings of a run beside a pipeline. Great Expectations would also rename columns
(`pipelines.quality.engine`), and leave a view behind.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.pipelines.quality.anomalies import check_volume, days_of_tables
from deltasmelt.pipelines.quality.change_log import CHANGES_ONCE, WHOLE_TRANSACTIONS, check_log
from deltasmelt.pipelines.quality.derived import catalog_frame
from deltasmelt.pipelines.quality.document_rows import EACH_ROOT, ELEMENTS, check_document
from deltasmelt.pipelines.quality.engine import LOOKED_AT, failed_with, short_cause
from deltasmelt.pipelines.quality.examples import SAMPLES, without_values
from deltasmelt.pipelines.quality.expectations import FOREIGN_KEY, LOG_SUITE, LeftOut, Result
from deltasmelt.pipelines.quality.references import check_references
from deltasmelt.pipelines.quality.suite_files import OF_QUERY, QUERY, misnamed, placeholders
from deltasmelt.silver.schema.live_rows import live_rows
from deltasmelt.silver.spark.access import cached_or_none
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.pipelines.quality.cut import QualityCut
    from deltasmelt.pipelines.quality.engine import Engine
    from deltasmelt.pipelines.quality.examples import Examples
    from deltasmelt.pipelines.quality.expectations import Expectation

_ARGUMENTS: Final = (QUERY, "row_condition", "condition_parser")
_BATCH_VIEW: Final = "deltasmelt_quality_batch"
_ENDS: Final = "; \t\r\n\v\f"


def check_query(
    expectation: Expectation, frame: DataFrame, rows: int, views: Mapping[str, str], limit: int
) -> Result:
    """Return the result of a rule (`OF_QUERY`), whose tables exist, over the suite's table of so many rows.

    `views` has the name of a temporary view for each other table in braces.
    """
    from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415 - Spark is loaded by who needs it

    for name in expectation.kwargs:
        if name not in _ARGUMENTS:
            message = f"{expectation.kind}: unknown argument {name!r}{suggestion(name, _ARGUMENTS)}"
            return Result(expectation, None, element_count=rows, error=message)
    query = _composed(expectation.kwargs.get(QUERY), views)
    if query is None:
        message = f"{expectation.kind}: {QUERY}: expected a SELECT with paired braces; double a literal brace"
        return Result(expectation, None, element_count=rows, error=message)
    spark = frame.sparkSession
    condition = expectation.kwargs.get("row_condition")
    try:
        (frame if condition is None else frame.where(str(condition))).createOrReplaceTempView(_BATCH_VIEW)
        try:
            # A subquery: a statement other than a SELECT, which could change something, is no valid subquery.
            # On a line of its own, the bracket is not part of a comment that ends the query.
            violations = spark.sql(f"SELECT * FROM (\n{query}\n)")
            count = violations.count()
            examples = violations.limit(limit).collect() if count else []
        finally:
            spark.catalog.dropTempView(_BATCH_VIEW)
    except SPARK_ERRORS as error:
        return failed_with(expectation, error, rows)
    values: tuple[dict[str, Any], ...] = tuple(row.asDict(recursive=True) for row in examples)
    return Result(
        expectation,
        success=count == 0,
        element_count=rows,
        unexpected_count=count,
        unexpected_percent=100 * count / rows if rows else None,
        values=values,
    )


def _composed(query: object, views: Mapping[str, str]) -> str | None:
    """Return the query over views; None for no text, or unpaired braces."""
    if not isinstance(query, str):
        return None
    for name in placeholders(query):
        query = query if name == "batch" else query.replace("{" + name + "}", quote(views[name]))
    try:
        return query.format(batch=_BATCH_VIEW).rstrip(_ENDS)
    except (ValueError, LookupError, AttributeError):
        return None


_IN_MEMORY_BYTES: Final = 128_000_000
"""Largest size of cached tables' files during a run, smallest tables first."""
_DOCUMENT_ROWS: Final = frozenset({EACH_ROOT, ELEMENTS})
_OF_OWN: Final = frozenset({CHANGES_ONCE, WHOLE_TRANSACTIONS}) | _DOCUMENT_ROWS
"""Derived kinds checked by deltasmelt, whose results contain the failing rows."""


@dataclass(frozen=True, slots=True)
class Checks:
    """Shared inputs of every check of a run.

    `trees` are the resolved documents by name; `report` receives the progress; `in_memory` caches small
    tables meanwhile.
    """

    spark: SparkSession
    lake: Lake
    cut: QualityCut
    engine: Engine
    examples: Examples
    trees: Mapping[str, Tree]
    report: Callable[[str], None]
    in_memory: bool = True

    def run(
        self, expectations: Sequence[Expectation], frames: dict[str, DataFrame]
    ) -> tuple[list[Result], list[LeftOut]]:
        """Return the result of each expectation, in their order, with examples; and the unchecked parts."""
        # Only live rows of silver's tables count, for suites too.
        frames = {
            name: live_rows(frame) if name.startswith("silver.") else frame for name, frame in frames.items()
        }
        columns = {name: frame.columns for name, frame in frames.items()}
        results: dict[int, Result] = {}
        groups: dict[str, dict[bool, list[int]]] = defaultdict(lambda: defaultdict(list))
        indexes_of_kind: dict[str, list[int]] = defaultdict(list)
        for index, expectation in enumerate(expectations):
            problem = None if expectation.derived else misnamed(expectation, columns)
            if problem is not None:
                results[index] = Result(expectation, None, error=problem)
            elif expectation.kind == FOREIGN_KEY:
                indexes_of_kind[FOREIGN_KEY].append(index)
            elif expectation.derived and expectation.kind in _OF_OWN:
                indexes_of_kind["document" if expectation.kind in _DOCUMENT_ROWS else LOG_SUITE].append(index)
            else:
                groups[expectation.qualified][expectation.derived].append(index)
        evaluated: dict[int, Result] = {}
        rows: dict[str, int] = {}
        with self._in_memory(frames), self._views(frames, expectations) as views:
            if indexes_of_kind[LOG_SUITE]:
                self.report("checking the log of changes")
                chosen = [expectations[index] for index in indexes_of_kind[LOG_SUITE]]
                evaluated |= zip(
                    indexes_of_kind[LOG_SUITE], self._log(chosen, frames["bronze.changes"]), strict=True
                )
            for number, (name, suites) in enumerate(sorted(groups.items()), 1):
                self.report(f"checking {name} ({number} of {len(groups)})")
                asked_of = {
                    derived: {index: expectations[index] for index in indexes}
                    for derived, indexes in suites.items()
                }
                evaluated |= self._table(asked_of, frames[name], views, rows)
            if indexes_of_kind[FOREIGN_KEY]:
                self.report(f"checking {len(indexes_of_kind[FOREIGN_KEY])} foreign keys")
                chosen = [expectations[index] for index in indexes_of_kind[FOREIGN_KEY]]
                verdicts = check_references(chosen, frames.__getitem__, rows)
                evaluated |= zip(indexes_of_kind[FOREIGN_KEY], verdicts, strict=True)
            if indexes_of_kind["document"]:
                self.report("comparing documents with their rows")
                evaluated |= {
                    index: self._document(expectations[index], frames)
                    for index in indexes_of_kind["document"]
                }
            for index, result in evaluated.items():
                results[index] = self.examples.of(result, _rows(result, frames))
            volume, left_out = self._volume(frames)
        return [*(results[index] for index in range(len(expectations))), *volume], left_out

    def _volume(self, frames: dict[str, DataFrame]) -> tuple[list[Result], list[LeftOut]]:
        """Return the volume results of each table, or the reason for no result."""
        from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415

        if "bronze.changes" not in frames:
            return [], []
        self.report("counting the changes of the last days")
        try:
            days = days_of_tables(frames["bronze.changes"], self.cut.commit_ts)
        except SPARK_ERRORS as error:
            reason = short_cause(str(error))
            if self.examples.masks.masked:
                reason = without_values(reason)
            return [], [LeftOut("freshness and volume", f"the changes could not be counted: {reason}")]
        return check_volume(days, frames), []

    def _document(self, expectation: Expectation, frames: dict[str, DataFrame]) -> Result:
        from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415

        try:
            limit = max(self.examples.rows, SAMPLES)
            return check_document(expectation, self.trees[expectation.table], frames.__getitem__, limit)
        except SPARK_ERRORS as error:
            return failed_with(expectation, error)

    def _log(self, expectations: Sequence[Expectation], log: DataFrame) -> list[Result]:
        from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415 - `smelt check` reads suites without Spark

        try:
            return check_log(expectations, log, max(self.examples.rows, SAMPLES))
        except SPARK_ERRORS as error:
            return [failed_with(expectation, error) for expectation in expectations]

    def _table(
        self,
        suites: dict[bool, dict[int, Expectation]],
        frame: DataFrame,
        views: dict[str, str],
        rows: dict[str, int],
    ) -> dict[int, Result]:
        """Return the results of a table's expectations, derived and others; add its row count to `rows`."""
        from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415

        expectations = {
            index: expectation for suite in suites.values() for index, expectation in suite.items()
        }
        try:
            count = frame.count()
        except SPARK_ERRORS as error:  # a file that is gone, say: the other tables are looked at
            return {index: failed_with(expectation, error) for index, expectation in expectations.items()}
        rows[next(iter(expectations.values())).qualified] = count
        queries = {
            index: expectation for index, expectation in expectations.items() if expectation.kind == OF_QUERY
        }
        limit = max(self.examples.rows, LOOKED_AT)
        results = {
            index: check_query(expectation, frame, count, views, limit)
            for index, expectation in queries.items()
        }
        for derived, suite in suites.items():
            of_columns = {index: expectation for index, expectation in suite.items() if index not in queries}
            expected = list(of_columns.values())
            if expected:
                of_rows = catalog_frame(frame, expected) if derived else frame
                results |= zip(of_columns, self.engine.evaluate(of_rows, expected, count), strict=True)
        return results

    @contextmanager
    def _views(
        self, frames: dict[str, DataFrame], expectations: Sequence[Expectation]
    ) -> Iterator[dict[str, str]]:
        """Make temporary views of the tables in queries, at the cut."""
        needed_names = {
            name
            for expectation in expectations
            for name in placeholders(str(expectation.kwargs.get(QUERY, "")))
        }
        views = {
            name: f"deltasmelt_quality_{n}" for n, name in enumerate(sorted(needed_names & frames.keys()))
        }
        for name, view in views.items():
            frames[name].createOrReplaceTempView(view)
        try:
            yield views
        finally:
            for view in views.values():
                self.spark.catalog.dropTempView(view)

    @contextmanager
    def _in_memory(self, frames: dict[str, DataFrame]) -> Iterator[None]:
        """Cache small tables, so that not every query plans and reads their files again."""
        cached: list[DataFrame] = []
        sizes = self.cut.sizes(self.lake) if self.in_memory else {}
        room = _IN_MEMORY_BYTES
        for size, table in sorted((size, name) for name, size in sizes.items()):
            room -= size
            if room < 0:
                break
            in_memory = cached_or_none(frames[table].persist)
            if in_memory is None:
                break
            cached.append(in_memory)
        try:
            yield
        finally:
            for frame in cached:
                frame.unpersist()


def _rows(result: Result, frames: dict[str, DataFrame]) -> DataFrame | None:
    """Return the rows of a result; None for a result with its rows in the values, or without rows."""
    expectation = result.expectation
    if result.success is not False or (expectation.derived and expectation.kind in _OF_OWN):
        return None
    return frames[expectation.qualified]
