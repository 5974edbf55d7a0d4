"""`smelt rebuild`: rebuild silver from bronze, or gold from silver, without the server.

The command holds the locks of the layers, so no stage may run meanwhile; the reader may. First a cycle brings
silver to bronze's frontier. Then the command derives each table, and the table's history, as of exactly this
LSN (`silver.rebuild`), and records the cut again with the new versions. A derived table joins the cut again,
also after an error had stopped the table.

The record of gold's cut shows gold the silver version behind each document, and gold compares this version
with the new one (`gold.cycle`). So gold's next cycle corrects documents built from a damaged table.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import ConfigurationError, TableError, TransientError
from deltasmelt.bronze.lake.control import Run
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.leases import still_writing
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.pipelines.commands.context import (
    documents_named,
    documents_to_join,
    open_gold,
    require_lake,
    spark_for,
)
from deltasmelt.pipelines.runtime.clustering import clustered
from deltasmelt.pipelines.runtime.locks import lake_lock, writing
from deltasmelt.pipelines.terminal.failures import TABLES_STOPPED, Failure, error_text
from deltasmelt.silver.errors import CODES, failure
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.run.worklist import claimants, rejection_of, same_names
from deltasmelt.silver.schema.catalog import histories, silver_catalog
from deltasmelt.silver.spark.failure_scope import answers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output
    from deltasmelt.silver.schema.catalog import SilverTable

_LOGGER: Final = logging.getLogger("deltasmelt.rebuild")


def run_rebuild(pipeline: Pipeline, layer: str, name: str | None, output: Output) -> None:
    """Rebuild a layer, or one table or document in the layer.

    Raises:
        SmeltError: the table or document does not exist, or the stage runs.
        Failure: some tables or documents could not be derived.
    """
    require_lake(pipeline)
    lake = pipeline.lake_address()
    documents: list[Document] = []
    tables: list[TableName] = []
    if layer == "silver":
        tables = tables_named(pipeline, name)
    else:
        documents = documents_named(pipeline, name)
        if not documents:
            raise ConfigurationError(
                "no document to rebuild: gold.documents is empty",
                code="document-unknown",
                where=str(pipeline.path),
                remedy="name the document files in gold.documents",
            )
    locks: tuple[Layer, ...] = ("silver", "gold") if layer == "silver" else ("gold",)
    with lake_lock(lake, locks, command=f"smelt rebuild {layer}"), spark_for(pipeline, output) as spark:
        if layer == "silver":
            failed = rebuild_silver(spark, _as_maintained(pipeline, output), tables, output)
        else:
            failed = rebuild_gold(spark, pipeline, [document.name for document in documents], output)
    if failed:
        raise Failure(f"not rebuilt: {', '.join(failed)}", exit_code=TABLES_STOPPED)


def _as_maintained(pipeline: Pipeline, output: Output) -> Pipeline:
    """Return the pipeline with tables clustered by the joins of its documents."""
    silver = clustered(pipeline.silver, documents_to_join(pipeline, output) or ())
    return pipeline.model_copy(update={"silver": silver})


def rebuild_silver(
    spark: SparkSession, pipeline: Pipeline, tables: Sequence[TableName], output: Output
) -> list[str]:
    """Rebuild tables; print a message for each failed table and return the failed tables."""
    from deltasmelt.silver.cycle import Silver  # noqa: PLC0415 - loads Spark

    lake, settings = pipeline.lake_address(), pipeline.silver
    control = ControlTables(lake)
    failed: list[str] = []
    with writing(lake, "silver"):
        silver = Silver(spark, lake, settings, control)
        try:
            with output.waiting("updating silver to the end of bronze"):
                silver.cycle()
        finally:
            silver.close()
        cut, relations = require_lake(pipeline), read_relations(lake)
        catalog = silver_catalog(relations, settings)
        bronze = open_existing(lake.uri("bronze", CHANGES))
        filled = claimants(catalog.values(), bronze, settings)
        same_name = same_names(lake, catalog.values(), bronze, settings)
        for name in [name for name in tables if name in catalog]:
            whole = True
            rejection = same_name.get(name) or rejection_of(
                catalog[name],
                cut.commit_lsn,
                existing=filled,
                relations=relations,
                last=cut,
                settings=settings,
            )
            # The tables refused by a cycle, too: a rebuild would overwrite another table's rows, or write
            # columns that do not fit.
            if rejection is not None:
                output.report(error_text(rejection))
                failed.append(catalog[name].name)
                continue
            for table in [catalog[name], *histories([catalog[name]], settings)]:
                try:
                    cut = _derive(
                        spark, pipeline, control, table, relations=relations, cut=cut, output=output
                    )
                except TableError as error:
                    output.report(error_text(error))
                    failed.append(table.name)
                    whole = False
            if whole:
                for code in CODES:
                    control.close_errors("table", str(name), code)
    return failed


def _derive(
    spark: SparkSession,
    pipeline: Pipeline,
    control: ControlTables,
    table: SilverTable,
    *,
    relations: Sequence[Relation],
    cut: Cut,
    output: Output,
) -> Cut:
    """Derive one table, record the cut again, and return the new cut."""
    from deltasmelt.silver.rebuild import rebuild  # noqa: PLC0415 - loads Spark

    lake = pipeline.lake_address()
    started, clock = datetime.now(UTC), time.monotonic()
    end = cut.commit_lsn
    try:
        with output.waiting(f"rebuilding silver.{table.name} from bronze"):
            last_cut = control.last_named("silver", table.name)
            version = rebuild(
                spark,
                lake,
                pipeline.silver,
                table,
                relations=relations,
                end=end,
                own=-1 if last_cut is None else last_cut.version,
            )
    except (TableError, TransientError):
        raise
    except Exception as error:
        if not answers(spark):
            raise
        _LOGGER.warning("%s could not be rebuilt", table.table, exc_info=error)
        raise failure(table.table, error) from None
    run = Run("silver", table.name, "full", None, end, reason="smelt rebuild", started_at=started)
    run.delta_version, run.seconds = version, time.monotonic() - clock
    still_writing(lake, "silver")
    control.record_runs([run])
    tables, marks = {**cut.tables, table.name: version}, {**cut.marks, table.name: end}
    stored = SilverLog(lake).read(table.name)
    ids = cut.ids if stored is None or stored.table_id is None else {**cut.ids, table.name: stored.table_id}
    cut = replace(cut, tables=tables, marks=marks, ids=ids, recorded_at=datetime.now(UTC))
    control.record_cut(cut)
    output.line(f"silver.{table.name}: rebuilt from bronze as of {end}, version {version}")
    return cut


def rebuild_gold(spark: SparkSession, pipeline: Pipeline, names: Sequence[str], output: Output) -> list[str]:
    """Build documents in full from silver's newest cut; return the documents with an error."""
    lake = pipeline.lake_address()
    control = ControlTables(lake)
    gold = open_gold(spark, pipeline, control)
    with writing(lake, "gold"), output.waiting(f"rebuilding {', '.join(names)} from silver"):
        gold.cycle(rebuild=names)
    errors = {error.name: error for error in control.open_errors() if error.scope == "document"}
    for name in names:
        if name in errors:
            output.report(f"gold.{name}: {errors[name].message}\n  remedy: {errors[name].remedy}")
        else:
            output.line(f"gold.{name}: rebuilt in full from silver")
    return [name for name in names if name in errors]


def tables_named(pipeline: Pipeline, name: str | None) -> list[TableName]:
    """Return the selected tables: one, by its name in silver or at the source, or all."""
    catalog = silver_catalog(read_relations(pipeline.lake_address()), pipeline.silver)
    names = {source_table.name: source_table.table for source_table in catalog.values()} | {
        str(source_table): source_table for source_table in catalog
    }
    if name is None:
        return list(catalog)
    if name not in names:
        raise ConfigurationError(
            f"silver has no table {name!r}{suggestion(name, names)}",
            code="table-unknown",
            where=str(pipeline.path),
            remedy="use the table's name in silver (orders, sales__orders) or at the source (public.orders)",
        )
    return [names[name]]
