"""`smelt preview`: print one document as built now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.commands.context import documents_named, open_gold, require_lake, spark_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


def run_preview(
    pipeline: Pipeline, document: str, key: Sequence[str], output: Output, *, fresh: bool = False
) -> None:
    """Print one document as JSON, built from silver's newest cut; with `fresh`, from rows at the log's head.

    Raises:
        SmeltError: no such document, or the key does not fit.
        Failure: no document has the key.
    """
    documents_named(pipeline, document)
    require_lake(pipeline)
    with spark_for(pipeline, output) as spark:
        with output.waiting(f"building {document} {', '.join(key)}"):
            built = preview_document(spark, pipeline, document, key, fresh=fresh)
        output.document(built)


def preview_document(
    spark: SparkSession, pipeline: Pipeline, document: str, key: Sequence[str], *, fresh: bool = False
) -> str:
    """Return one document as JSON text."""
    lake = pipeline.lake_address()
    control = ControlTables(lake)
    gold = open_gold(spark, pipeline, control)
    if not fresh:
        return gold.preview(document, list(key))
    from deltasmelt.silver.fresh import FreshTables  # noqa: PLC0415 - loads what folds

    tables = FreshTables(spark, lake, pipeline.silver, control)
    try:
        return gold.preview(document, list(key), fresh=tables)
    finally:
        tables.close()
