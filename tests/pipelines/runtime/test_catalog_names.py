"""Names in the session's catalog, a Hive metastore with Derby, that outlive the session that made them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[3]
pytestmark = [pytest.mark.spark, pytest.mark.process]

SESSION: Final = """
import sys
from datetime import UTC, datetime
from bronze.lake.control import Cut
from bronze.lake.location import Lake
from bronze.lsn import Lsn
from pipelines.runtime.catalog_names import CatalogNames
from pipelines.spark.session import spark_session

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


def session(folder: Path, step: str) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-c", SESSION, str(folder), step],
        check=False, capture_output=True, text=True, cwd=ROOT, timeout=250,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout, done.stderr


def test_names_stay_show_the_newest_rows_and_take_nobody_else_s(tmp_path: Path) -> None:
    _, said = session(tmp_path, "make")
    assert said.count("spark_catalog.silver.taken is another table") == 1
    assert said.count("silver.Größe gets no name in spark_catalog") == 1
    assert "customer" not in said
    found, _ = session(tmp_path, "read")
    assert found.split() == ["2", "customer", "0"]
