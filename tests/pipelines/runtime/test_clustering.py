"""`smelt maintain` clusters rows by the documents' join columns: everything once, later only new rows."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.gold.builder import gold_table
from deltasmelt.pipelines.runtime.clustering import OWED, cluster_as_configured
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.schema.clustering import STATISTICS
from deltasmelt.silver.schema.ddl import create
from deltasmelt.silver.settings import SilverSettings
from tests.benchmarks.gold_work import CUSTOMER, GoldWork
from tests.fix_spark import rows_of
from tests.gold.shop import relation

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.silver.schema.catalog import SilverTable

pytestmark = pytest.mark.spark

CUSTOMERS = 4_000
ORDERS = 20_000


def maintained(work: GoldWork, settings: SilverSettings) -> dict[str, list[str]]:
    """Run maintenance; return its actions by silver table."""
    return {result.name: result.done for result in work.maintain(settings, layers=("silver",))}


def customers_in_order(work: GoldWork) -> list[int]:
    """Return the foreign keys of orders in the order of the table's only file."""
    table = DeltaTable(work.lake.uri("silver", "orders"))
    assert len(table.file_uris()) == 1
    name = "customer_id"
    rows: list[int] = pq.read_table(table.file_uris()[0], columns=[name])[name].to_pylist()
    return rows


def clustering(work: GoldWork, layer: Layer, name: str) -> list[str]:
    row = rows_of(work.spark, f"DESCRIBE DETAIL {work.lake.sql(layer, name)}")[0]
    return list(row["clusteringColumns"])


def test_orders_are_clustered_by_their_customer(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = GoldWork(spark, tmp_path / "lake", CUSTOMER)
    work.fill("customers", CUSTOMERS)
    work.fill("orders", ORDERS, f"1 + (n * 7919) % {CUSTOMERS}")
    work.cut()
    rows = rows_of(spark, f"SELECT * FROM {work.lake.sql('silver', 'orders')} ORDER BY id")

    assert maintained(work, SilverSettings()) == {"customers": [], "orders": ["clustered"]}
    order = customers_in_order(work)
    assert sorted(order) == sorted(row["customer_id"] for row in rows)
    near = sum(abs(place - next_place) < 10 for place, next_place in pairwise(order))
    assert near > 0.95 * ORDERS, "rows of neighbouring customers lie together"
    assert maintained(work, SilverSettings()) == {"customers": [], "orders": []}, "and stay as they are"
    assert rows_of(spark, f"SELECT * FROM {work.lake.sql('silver', 'orders')} ORDER BY id") == rows

    monkeypatch.setattr(gold_table, "_SMALL_ROWS", -1)
    work.gold.cycle()
    work.touch("SELECT id * 97 AS id FROM range(1, 100)", "touched")
    work.cut()
    work.gold.cycle()
    run = work.control.runs("gold")[0]
    assert (run.mode, run.updates, run.inserts, run.deletes) == ("incremental", 99, 0, 0)
    target = work.lake.sql("gold", "customer")
    (counts,) = rows_of(
        spark,
        f"SELECT count(*) AS documents, sum(size(orders)) AS orders, "
        f"sum(size(filter(orders, o -> o.status = 'touched'))) AS touched FROM {target}",
    )
    assert counts.asDict() == {"documents": CUSTOMERS, "orders": ORDERS, "touched": 99}

    # The pipeline file wins, and an empty list is the key. A process ends before rows are written again.
    by_key = SilverSettings(cluster={"public.orders": []})
    shape = work.shapes(by_key)["orders"]
    stored = open_existing(work.lake.uri("silver", "orders"))
    assert cluster_as_configured(spark, work.lake.sql("silver", "orders"), shape, stored, spark.sql)
    assert maintained(work, by_key)["orders"][0] == "clustered"
    assert maintained(work, by_key)["orders"] == []
    assert clustering(work, "silver", "orders") == ["id"]
    assert clustering(work, "gold", "customer") == ["id"], "told when it was built"


def test_a_wide_table_keeps_statistics_of_its_key(spark: SparkSession, tmp_path: Path) -> None:
    lake = Lake(path=str(tmp_path / "lake"))
    target = lake.sql("silver", "t")

    def shape(second: str, *cluster: str) -> SilverTable:
        types = {f"c{number}": second if number == 1 else "text" for number in range(40)}
        settings = SilverSettings(cluster={"public.t": list(cluster)})
        return silver_table(relation("public.t", types, ("c35",)), settings)

    spark.sql(create(target, shape("bool"))[0])
    stored = open_existing(lake.uri("silver", "t"))
    assert not cluster_as_configured(spark, target, shape("int4", "c1"), stored, spark.sql), (
        "still BOOLEAN there"
    )
    stored.update_incremental()
    assert OWED not in stored.metadata().configuration
    assert cluster_as_configured(spark, target, shape("bool", "c2"), stored, spark.sql)
    stored.update_incremental()
    properties = stored.metadata().configuration
    assert (properties[OWED], properties[STATISTICS]) == ("true", "`c2`,`c35`,`_commit_lsn`")
    assert list(rows_of(spark, f"DESCRIBE DETAIL {target}")[0]["clusteringColumns"]) == ["c2"]
