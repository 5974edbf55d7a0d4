"""Maintain tables from `bronze.changes` by Lakeflow's AUTO CDC, instead of silver.

This file is a template: name your tables in `TABLES`. First read the limits (docs/how-to/auto-cdc.md): large
values that PostgreSQL did not send, TRUNCATE, keys that two rows exchange, and rows that a new snapshot no
longer has.

Update the pipeline at least daily. `bronze.changes` keeps its log, and files that compaction has joined, for
a day. After a longer pause the pipeline fails (failOnDataLoss), and needs a full refresh. In a catalog the
log stays for at least thirty days, but files that OPTIMIZE joined are removed after a day all the same.
"""

from __future__ import annotations

from decoding import META, SEQUENCE, SourceTable, decoded
from pyspark import pipelines as dp
from pyspark.sql.functions import expr

LAKE = spark.conf.get("deltasmelt.lake").rstrip("/")  # noqa: F821 - Lakeflow's own; see pipeline.yml

TABLES = (
    SourceTable(
        schema="public",
        name="customers",
        keys=("id",),
        columns={"id": "INT", "name": "STRING", "seen": "TIMESTAMP"},
    ),
)


def declare(table: SourceTable) -> None:
    """Declare a table, and the flow that maintains the table."""
    events = f"{table.name}_events"

    @dp.temporary_view(name=events)
    @dp.expect_or_fail("the shape of every change is known", "_shape_known")
    @dp.expect("every value was sent", "_unchanged IS NULL")
    def _events():  # noqa: ANN202 - a DataFrame
        # With bronze.retention the reader removes files of old changes, which this stream has read.
        stream = spark.readStream.format("delta").option("ignoreDeletes", "true")  # noqa: F821
        changes = stream.load(f"{LAKE}/bronze/changes")
        relations = spark.read.format("delta").load(f"{LAKE}/bronze/relations")  # noqa: F821
        return decoded(changes, relations, table)

    dp.create_streaming_table(table.name, comment=f"{table.schema}.{table.name} of the source")
    dp.create_auto_cdc_flow(
        target=table.name,
        source=events,
        keys=list(table.keys),
        sequence_by=expr(SEQUENCE),
        apply_as_deletes=expr("_op = 'delete'"),
        except_column_list=list(META),
        stored_as_scd_type=1,
    )


for each in TABLES:
    declare(each)
