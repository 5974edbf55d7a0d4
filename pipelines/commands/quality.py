"""Commands that ask the lake by Spark and end: `smelt sql`, `smelt preview`, `smelt quality`."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from bronze.config.yaml_file import suggestion
from bronze.errors import ConfigurationError, DefiniteError
from bronze.lake.control_tables import ControlTables
from bronze.store.relations import read_relations
from pipelines.commands.run import load_documents_of, terminable
from pipelines.spark.jvm_death import death_told
from pipelines.spark.session import active_session, lent, spark_session, stop_session
from pipelines.terminal.failures import Failure, Terminated
from pipelines.terminal.jvm_errors import in_words
from pipelines.terminal.logs import log_folder, spark_log
from pipelines.writable import why_unwritable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from bronze.lake.control import Cut
    from gold.cycle import Gold
    from gold.language.model import Document
    from pipelines.quality.expectations import QualityResult
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output


@contextmanager
def spark_for(pipeline: Pipeline, output: Output) -> Iterator[SparkSession]:
    """A session for one command; stopped afterwards, or left as it was where somebody else had started it.

    Interrupted, the session is left as it is: the connection to the JVM is in the middle of a call and
    would not answer. The JVM ends with this process, whose end of its standard input it watches.
    """
    given = active_session()
    log = spark_log(pipeline.pipeline)
    failure: BaseException | None = None
    with terminable():
        if given is not None:
            with lent(given, pipeline.spark):
                yield given
            return
        spark = spark_session(pipeline.spark, log=log, announce=output.say, brief=True)
        try:
            with death_told(pipeline.spark, log):
                yield spark
        except (KeyboardInterrupt, Terminated):
            raise
        except BaseException as error:  # noqa: BLE001 - raised again below, in words
            failure = in_words(error)
        stop_session(spark)
    if failure is not None:
        raise failure


def run_sql(
    pipeline: Pipeline, statement: str, output: Output, *, as_of: str | None = None, limit: int = 1000
) -> None:
    """Run one statement at one cut and print its rows.

    Raises:
        SmeltError: there is no such cut, or Spark refuses the statement.
    """
    from pipelines.spark.lake_sql import LakeSql, cut_of, parse_as_of, print_rows  # noqa: PLC0415

    at = None if as_of is None else parse_as_of(as_of)
    require_lake(pipeline)
    cut = cut_of(pipeline, at)
    with spark_for(pipeline, output) as spark:
        lake_sql = LakeSql(spark, pipeline, cut)
        frame = lake_sql.query(statement)
        print_rows(frame, output, limit=limit)
        if lake_sql.cut.commit_lsn is not None and not output.json:
            moment = f" ({lake_sql.cut.commit_ts:%Y-%m-%d %H:%M:%S} UTC)" if lake_sql.cut.commit_ts else ""
            output.say(f"as of {lake_sql.cut.commit_lsn}{moment}")


def run_preview(pipeline: Pipeline, document: str, key: Sequence[str], output: Output) -> None:
    """Print one document as JSON, built from silver's newest cut.

    Raises:
        SmeltError: no such document, or the key does not fit.
        Failure: no document has that key.
    """
    documents_named(pipeline, document)
    require_lake(pipeline)
    with spark_for(pipeline, output) as spark:
        output.document(preview_document(spark, pipeline, document, key))


def preview_document(spark: SparkSession, pipeline: Pipeline, document: str, key: Sequence[str]) -> str:
    """One document as JSON text."""
    return open_gold(spark, pipeline, ControlTables(pipeline.lake_address())).preview(document, list(key))


def open_gold(spark: SparkSession, pipeline: Pipeline, control: ControlTables) -> Gold:
    """The pipeline's documents, over silver as bronze's newest relations describe it."""
    from gold.cycle import Gold  # noqa: PLC0415 - loads Spark
    from silver.schema.catalog import silver_catalog  # noqa: PLC0415

    lake = pipeline.lake_address()
    documents = load_documents_of(pipeline)
    return Gold(
        spark, lake, documents, lambda: silver_catalog(read_relations(lake), pipeline.silver), control
    )


def documents_named(pipeline: Pipeline, name: str | None) -> list[Document]:
    """The documents that are meant: one or all.

    Raises:
        ConfigurationError: there is none of that name, or a file is wrong.
    """
    documents = load_documents_of(pipeline)
    names = [document.name for document in documents]
    if name is not None and name not in names:
        raise ConfigurationError(
            f"there is no document {name!r}{suggestion(name, names)}",
            code="document-unknown",
            where=str(pipeline.path),
            remedy="gold.documents in the pipeline file says which files are read",
        )
    return [document for document in documents if name in (None, document.name)]


def run_quality_checks(pipeline: Pipeline, output: Output, *, report: Path | None = None) -> None:
    """Check silver and gold, print what does not hold, write the report.

    Raises:
        Failure: an expectation does not hold, or could not be checked.
    """
    from pipelines.quality.run import run_quality  # noqa: PLC0415 - loads Great Expectations

    require_lake(pipeline)
    if report is not None:
        _require_file(report)
    where = report or log_folder(pipeline.pipeline) / "quality.html"
    with spark_for(pipeline, output) as spark:
        result = run_quality(spark, pipeline, report=where, progress=output.say)
    show_quality(result, output)
    if not result.success:
        raise Failure(result.summary())


def _require_file(report: Path) -> None:
    """Refuse a report that could not be written in the end.

    Raises:
        ConfigurationError: it is a folder, or this account may not write where it is to lie.
    """
    why = "is a folder, not a file" if report.is_dir() else why_unwritable(report.absolute().parent)
    if why is not None:
        raise ConfigurationError(
            why,
            code="report-unwritable",
            where=str(report),
            remedy="name another file: --report quality.html",
        )


def show_quality(result: QualityResult, output: Output) -> None:
    """The result of a quality run: what failed, what was left out, where the report lies."""
    if output.json:
        output.value(result.to_dict())
        return
    if result.failed:
        rows = [
            (
                row.expectation.qualified,
                row.expectation.column,
                row.expectation.kind.removeprefix("expect_"),
                row.expectation.severity,
                row.unexpected_count,
            )
            for row in result.failed
        ]
        columns = ("table", "column", "expectation", "severity", "rows that break it")
        output.table(columns, rows, title="failed", right=columns[-1:])
    for text in result.errors:
        output.line(f"could not be checked: {text}", style="yellow")
    for left_out in result.left_out:
        output.line(f"left out: {left_out.subject}: {left_out.why}", style="yellow")
    output.line(f"{result.summary()} as of {result.commit_lsn}", style="green" if result.success else "red")
    if result.report is not None:
        output.line(f"report: {result.report}")


def require_lake(pipeline: Pipeline) -> Cut:
    """Silver's newest cut. Refuses at once, before Spark starts, where there is nothing to ask.

    Raises:
        DefiniteError: silver has no cut yet.
    """
    lake = pipeline.lake_address()
    cut = ControlTables(lake).latest_cut("silver")
    if cut is None:
        raise DefiniteError(
            "the lake is empty: nothing has reached silver yet",
            code="layer-empty",
            where=lake.path or str(lake.catalog),
            remedy=f"run `smelt run {pipeline.path.name} --until-caught-up` first",
        )
    return cut
