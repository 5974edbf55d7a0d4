"""Names in the session's catalog; in a Hive metastore the names outlive their session."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.location import Lake, Layer
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.runtime.catalog_names import CatalogNames

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

ROOT: Final = Path(__file__).parents[3]
pytestmark = [pytest.mark.spark, pytest.mark.process]

SESSION: Final = """
import sys
from datetime import UTC, datetime
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.location import Lake, Layer
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.runtime.catalog_names import CatalogNames
from deltasmelt.pipelines.spark.session import spark_session

folder, step = sys.argv[1:]
spark = spark_session({
    "spark.driver.memory": "900m",
    "spark.sql.catalogImplementation": "hive",
    "spark.hadoop.javax.jdo.option.ConnectionURL": f"jdbc:derby:;databaseName={folder}/metastore;create=true",
    "spark.hadoop.datanucleus.schema.autoCreateAll": "true",
    "spark.hadoop.hive.metastore.schema.verification": "false",
})
lake = Lake(path=f"{folder}/my läke")


def cut(layer, **versions):
    return Cut(layer, Lsn(7), None, versions, datetime.now(UTC))


if step == "make":
    names = CatalogNames(spark, lake, "spark_catalog")
    for layer, name in (("silver", "orders"), ("silver", "taken"), ("silver", "Größe"), ("gold", "customer")):
        spark.sql(f"CREATE TABLE {lake.sql(layer, name)} USING DELTA AS SELECT 1 AS id, '{name}' AS name")
    spark.sql("CREATE SCHEMA IF NOT EXISTS silver")
    spark.sql(f"CREATE TABLE silver.taken (id INT) USING DELTA LOCATION '{folder}/elsewhere'")
    names.make(cut("silver", orders=0, taken=0, **{"Größe": 0}))
    names.make(cut("gold", customer=0))
    names.make(cut("gold", customer=0))
else:
    spark.sql(f"INSERT INTO {lake.sql('silver', 'orders')} VALUES (2, 'later')")
    print(spark.sql("SELECT count(*) FROM silver.orders").first()[0])
    print(spark.sql("SELECT name FROM spark_catalog.gold.customer").first()[0])
    print(spark.sql("SELECT count(*) FROM silver.taken").first()[0])
"""


@pytest.fixture
def schemas(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    for schema in ("silver", "gold"):
        spark.sql(f"DROP SCHEMA IF EXISTS spark_catalog.{schema} CASCADE")


def test_each_cut_table_gets_name_unless_occupied(
    schemas: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    spark, lake = schemas, Lake(path=str(tmp_path / "my läke"))
    names = CatalogNames(spark, lake, "spark_catalog")
    table_names: list[tuple[Layer, str]] = [("silver", "Orders"), ("silver", "taken"), ("gold", "customer")]
    for layer, name in table_names:
        spark.sql(f"CREATE TABLE {lake.sql(layer, name)} USING DELTA AS SELECT '{layer}' AS of")
    spark.sql("CREATE SCHEMA IF NOT EXISTS silver")
    spark.sql(f"CREATE TABLE silver.taken (id INT) USING DELTA LOCATION '{tmp_path}/elsewhere'")
    cuts: list[tuple[Layer, dict[str, int]]] = [
        ("silver", {"Orders": 0, "taken": 0}),
        ("gold", {"customer": 0}),
    ]
    for layer, tables in cuts:
        for _ in range(2):
            names.make(Cut(layer, Lsn(7), None, tables, datetime.now(UTC)))
    spark.sql(f"INSERT INTO {lake.sql('silver', 'Orders')} VALUES ('later')")
    rows = spark.sql(
        "SELECT of FROM silver.Orders UNION ALL SELECT of FROM spark_catalog.gold.customer"
    ).collect()
    assert sorted(row[0] for row in rows) == ["gold", "later", "silver"]
    assert spark.sql("SELECT count(*) FROM silver.taken").first() == (0,)
    warnings_logged = [
        record.getMessage() for record in caplog.records if "silver.taken" in record.getMessage()
    ]
    assert len(warnings_logged) == 1
    assert "is another table" in warnings_logged[0]


def session(folder: Path, step: str) -> tuple[str, str]:
    process = subprocess.run(
        [sys.executable, "-c", SESSION, str(folder), step],
        check=False, capture_output=True, text=True, cwd=ROOT, timeout=400,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    return process.stdout, process.stderr


@pytest.mark.torture
@pytest.mark.timeout(900)
def test_names_persist_with_newest_rows_and_spare_others(tmp_path: Path) -> None:
    _, log = session(tmp_path, "make")
    assert log.count("spark_catalog.silver.taken is another table") == 1
    assert log.count("silver.Größe cannot be registered in spark_catalog") == 1
    assert "customer" not in log
    rows, _ = session(tmp_path, "read")
    assert rows.split() == ["2", "customer", "0"]
