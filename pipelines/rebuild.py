"""`smelt rebuild`: silver again from bronze, or gold again from silver; the server is not asked.

It holds the layer's lock, so the stage must not run meanwhile. Silver is first carried to bronze's frontier
by a cycle; then each table is derived as of that very LSN (`silver.rebuild`) and the cut is recorded again
with the new versions. A table that an error had stopped and that can be derived joins the cut again.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from bronze.control_tables import ControlTables
from bronze.errors import ConfigurationError, DefiniteError, TableError
from bronze.relations import read_relations
from gold.yaml_source import suggestion
from pipelines.failures import tables_stopped
from pipelines.lock import lake_lock, writing
from pipelines.queries import require_lake, spark_for
from pipelines.run import load_documents_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pipelines.output import Output
    from pipelines.settings import Pipeline


def run_rebuild(pipeline: Pipeline, layer: str, name: str | None, output: Output) -> None:
    """Rebuild a layer or one table or document of it.

    Raises:
        SmeltError: there is no such table or document, or the stage runs.
        Failure: some tables cannot be derived from bronze.
    """
    require_lake(pipeline)
    lake = pipeline.lake_address()
    with lake_lock(lake, (layer,), command=f"smelt rebuild {layer}"), spark_for(pipeline, output) as spark:
        if layer == "silver":
            failed = rebuild_silver(spark, pipeline, name, output)
            if failed:
                raise tables_stopped(failed)
        else:
            rebuild_gold(spark, pipeline, name, output)


def rebuild_silver(spark: SparkSession, pipeline: Pipeline, name: str | None, output: Output) -> list[str]:
    """Derive all tables, or one; returns those that bronze does not have whole."""
    from silver.catalog import silver_catalog  # noqa: PLC0415 - loads Spark
    from silver.cycle import Silver  # noqa: PLC0415
    from silver.errors import table_error  # noqa: PLC0415
    from silver.rebuild import rebuild  # noqa: PLC0415

    lake = pipeline.lake_address()
    control = ControlTables(lake)
    relations = read_relations(lake)
    catalog = silver_catalog(relations, pipeline.silver)
    known = {table.name: table for table in catalog.values()}
    known |= {str(table.table): table for table in catalog.values()} if name else {}
    if name is not None and name not in known:
        raise ConfigurationError(
            f"silver has no table {name!r}{suggestion(name, known)}",
            code="table-unknown",
            where=str(pipeline.path),
            remedy="name it as in silver (orders, sales__orders) or at the source (public.orders)",
        )
    silver = Silver(spark, lake, pipeline.silver, control)
    failed: list[str] = []
    with writing(lake, "silver"):
        silver.cycle()
        silver.close()
        cut = control.latest_cut("silver")
        if cut is None:
            raise DefiniteError("silver has no cut", code="layer-empty", where=str(pipeline.path))
        for table in [known[name]] if name else list(known.values()):
            try:
                version = rebuild(
                    spark, lake, pipeline.silver, table, relations=relations, end=cut.commit_lsn
                )
            except TableError as error:
                failed.append(str(table.table))
                output.say(str(error))
                continue
            except Exception as error:
                found = table_error(table.table, str(error))
                if found is None:
                    raise
                failed.append(str(table.table))
                output.say(str(found))
                continue
            cut = replace(cut, tables={**cut.tables, table.name: version}, recorded_at=datetime.now(UTC))
            control.record_cut(cut)
            control.close_errors("table", str(table.table))
            output.line(f"silver.{table.name}: derived from bronze as of {cut.commit_lsn}, version {version}")
    return failed


def rebuild_gold(spark: SparkSession, pipeline: Pipeline, name: str | None, output: Output) -> None:
    """Build all documents, or one, as a whole from silver's newest cut."""
    from gold.cycle import Gold  # noqa: PLC0415 - loads Spark
    from silver.catalog import silver_catalog  # noqa: PLC0415

    lake = pipeline.lake_address()
    control = ControlTables(lake)
    documents = load_documents_of(pipeline)
    names = [document.name for document in documents]
    if name is not None and name not in names:
        raise ConfigurationError(
            f"there is no document {name!r}{suggestion(name, names)}",
            code="document-unknown",
            where=str(pipeline.path),
            remedy="gold.documents in the pipeline file says which files are read",
        )
    wanted = [name] if name else names
    gold = Gold(
        spark, lake, documents, lambda: silver_catalog(read_relations(lake), pipeline.silver), control
    )
    with writing(lake, "gold"):
        gold.cycle(rebuild=wanted)
    stopped = {error.name for error in control.open_errors() if error.scope == "document"} & set(wanted)
    for one in wanted:
        if one not in stopped:
            output.line(f"gold.{one}: built from silver as a whole")
    if stopped:
        raise tables_stopped(sorted(stopped))
