"""`smelt verify`: whether gold is what a full rebuild would make."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from bronze.lake.control_tables import ControlTables
from bronze.lsn import Lsn
from pipelines.commands.context import documents_named, open_gold, require_lake, spark_for
from pipelines.terminal.failures import Failure
from pipelines.terminal.waiting import ERROR, GOOD

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from gold.verify.verify import Verification, Wrong
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output


def run_verify(
    pipeline: Pipeline, output: Output, *, document: str | None = None, sample: float | None = None
) -> None:
    """Compare one document type or all with a full rebuild at the recorded cut; print what differs.

    Raises:
        SmeltError: no such document, or it has not been built as its file says.
        Failure: some documents are not what a rebuild gives.
    """
    names = [found.name for found in documents_named(pipeline, document)]
    require_lake(pipeline)
    with spark_for(pipeline, output) as spark:
        results = verify_documents(spark, pipeline, names, sample=sample, output=output)
    unequal = [f"gold.{result.document}" for result in results if not result.equal]
    if unequal:
        raise Failure(f"not equal to a full rebuild: {', '.join(unequal)}")


def verify_documents(
    spark: SparkSession, pipeline: Pipeline, names: list[str], *, sample: float | None, output: Output
) -> list[Verification]:
    """Compare documents one after the other, and print each result."""
    from gold.verify.verify import verify  # noqa: PLC0415 - loads Spark

    lake = pipeline.lake_address()
    gold = open_gold(spark, pipeline, ControlTables(lake))
    results = []
    for name in names:
        with output.waiting(f"comparing gold.{name} with a full rebuild"):
            result = verify(spark, lake, gold.built(name), sample=sample)
        if not output.json:
            _say(result, output, sample)
        results.append(result)
    if output.json:
        output.value([_plain(result) for result in results])
    return results


def _plain(result: Verification) -> dict[str, object]:
    return {**asdict(result), "commit_lsn": str(Lsn(result.commit_lsn)), "equal": result.equal}


def _say(result: Verification, output: Output, sample: float | None) -> None:
    from gold.verify.verify import KINDS  # noqa: PLC0415 - loads Spark

    of = "" if sample is None else f" (a sample of {sample:g})"
    compared = f"{result.compared:,} documents compared{of}, version {result.version}"
    at = f"as of {Lsn(result.commit_lsn)}"
    if result.equal:
        output.line(f"gold.{result.document}: equal to a full rebuild {at}; {compared}", style=GOOD)
        return
    output.line(f"gold.{result.document}: not equal to a full rebuild {at}; {compared}", style=ERROR)
    for kind, count in result.counts.items():
        output.line(f"  {count:,} {'document' if count == 1 else 'documents'}: {KINDS[kind]}")
    for wrong in result.first:
        output.line(f"  {wrong.key} {KINDS[wrong.kind]}{_where(wrong)}")
    if sum(result.counts.values()) > len(result.first):
        output.line("  …")
    output.line("  remedy: smelt rebuild FILE gold " + result.document)


def _where(wrong: Wrong) -> str:
    found = wrong.difference
    if found is None:
        return ""
    stored = "nothing" if found.stored is None else found.stored
    rebuilt = "nothing" if found.rebuilt is None else found.rebuilt
    return f" at {found.path or 'the order of its fields'}\n    in gold:  {stored}\n    rebuilt:  {rebuilt}"
