"""`smelt quality`: check the data's promises at one cut and print the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.bronze.checks.ownership import refuse_others
from deltasmelt.pipelines.commands.context import require_lake, spark_for
from deltasmelt.pipelines.private import require_report
from deltasmelt.pipelines.quality.engine import load_in_background
from deltasmelt.pipelines.quality.run import run_quality
from deltasmelt.pipelines.terminal.failures import TABLES_STOPPED, Failure
from deltasmelt.pipelines.terminal.logs import log_folder
from deltasmelt.pipelines.terminal.output import ERROR, GOOD, WARNING

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.pipelines.quality.expectations import QualityResult
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


def run_quality_checks(pipeline: Pipeline, output: Output, *, report: Path | None = None) -> None:
    """Check bronze, silver and gold; print each failed expectation; write the report.

    Raises:
        ConfigurationError: a pattern in the pipeline file selects no file.
        Failure: an expectation of severity ``error`` fails, an expectation could not be checked, no
            expectation exists, or an error has stopped a table or document.
    """
    pipeline.document_files(), pipeline.suite_files()  # refused before Spark starts
    require_lake(pipeline)
    refuse_others(pipeline.source, pipeline.lake_address(), pipeline.pipeline)
    if report is not None:
        require_report(report)
    target = report or log_folder(pipeline.pipeline) / "quality.html"
    load_in_background()
    with spark_for(pipeline, output) as spark, output.waiting("checking data quality"):
        result = run_quality(spark, pipeline, report=target, progress=output.report)
    show_quality(result, output)
    if (failure := failure_of(result)) is not None:
        raise failure


def failure_of(result: QualityResult) -> Failure | None:
    """Return the failure of a run; None for success. Pure."""
    if result.errors or result.broken or (not result.rows and not result.stopped):
        return Failure(result.summary())
    # Stopped tables decide the exit code only if no expectation fails.
    if result.stopped:
        return Failure(
            f"{result.summary()}, but without objects that an error has stopped: "
            f"{', '.join(result.stopped)}\nremedy: `smelt status` shows each error with its remedy",
            exit_code=TABLES_STOPPED,
        )
    return None


def show_quality(result: QualityResult, output: Output) -> None:
    """Print the result of a quality run: failures, omissions, the report's place."""
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
        columns = ("table", "column", "expectation", "severity", "failing rows")
        output.table(columns, rows, title="failed", right=columns[-1:])
    for text in result.errors:
        output.line(f"could not be checked: {text}", style=WARNING)
    for left_out in result.left_out:
        output.line(f"left out: {left_out.subject}: {left_out.why}", style=WARNING)
    style = ERROR if not result.success else WARNING if result.failed else GOOD
    output.line(f"{result.summary()} as of {result.commit_lsn}", style=style)
    if result.report is not None:
        output.line(f"report: {result.report}")
