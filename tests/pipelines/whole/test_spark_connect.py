"""Silver, gold, sql, verify and quality at a Spark Connect server, beside what a JVM of ours gives.

One server stands for the whole of it. The commands are processes of their own, and start no Java.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq
import pytest

from tests.bronze.replaying import execute, source_of
from tests.connect_front import Front
from tests.connect_server import ConnectServer
from tests.fix_spark import rows_of
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import Command
from tests.pipelines.shop_in_store import DOCUMENT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.process, pytest.mark.timeout(1200)]

_RULES: Final = """
table: silver.orders
expectations:
  - {expectation: expect_column_values_to_be_between, column: total, kwargs: {max_value: 90}}
  - {sql: "SELECT * FROM {batch} WHERE id = 9"}
"""
_TABLES: Final = ("silver/customers", "silver/customers__history", "silver/orders", "gold/customer")
_OUT: Final = ("--output", "csv")


class Remote:
    """Commands in a folder, at a server."""

    def __init__(self, folder: Path, remote: str) -> None:
        self.folder = folder
        self.file = folder / "shop.yml"
        self._remote = remote

    def smelt(self, *arguments: str | Path, code: int = 0) -> str:
        """What a command says that ends with this code, where there is no Java that it could start."""
        words = (arguments[0], self.file, *arguments[1:])
        empty = str(self.folder / "no-programs")
        variables = {"SPARK_REMOTE": self._remote, "JAVA_HOME": empty, "PATH": empty}
        with Command(*words, folder=self.folder, variables=variables) as command:
            assert command.wait() == code, command.text()
            return command.text()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect")) as server:
        yield server


def carry_beside(folder: Path, beside: Path) -> None:
    """Fold the same bronze in a lake of its own, in a session with a JVM."""
    beside.mkdir(exist_ok=True)
    for file in folder.glob("*.yml"):
        shutil.copy(file, beside)
    shutil.rmtree(beside / "lake/bronze", ignore_errors=True)
    shutil.copytree(folder / "lake/bronze", beside / "lake/bronze")
    for layer in ("silver", "gold"):
        done = smelt_here(layer, "shop.yml", "--until-caught-up", folder=beside)
        assert done.returncode == 0, done.stderr


def test_a_pipeline_at_a_server_gives_what_one_with_a_jvm_of_its_own_gives(
    server: ConnectServer, database: str, tmp_path: Path, spark: SparkSession
) -> None:
    remote, source = Remote(tmp_path, server.remote), source_of(database)
    execute(
        source,
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total numeric(12,2))",
        "INSERT INTO customers SELECT i, 'n' || i FROM generate_series(1, 20) i",
        "INSERT INTO orders SELECT i, i % 20 + 1, i FROM generate_series(1, 90) i",
    )
    (tmp_path / "customer.yml").write_text(DOCUMENT)
    (tmp_path / "rules.yml").write_text(_RULES)
    remote.file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
        "lake: {path: lake}\nsilver: {history: [public.customers]}\ngold: {documents: [customer.yml]}\n"
        "quality: {suites: [rules.yml]}\nspark: {spark.driver.memory: 1g}\n"
    )
    assert "first build" in remote.smelt("run", "--until-caught-up")
    beside = tmp_path / "beside"
    carry_beside(tmp_path, beside)
    execute(
        source,
        "UPDATE customers SET name = 'other' WHERE id = 7",
        "UPDATE orders SET id = 300 WHERE id = 2",
        "UPDATE orders SET total = total + 0.25 WHERE id % 7 = 0",
        "DELETE FROM orders WHERE id % 30 = 1",
        "ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'",
        "INSERT INTO orders VALUES (200, 1, 20, 'new')",
    )
    remote.smelt("bronze", "--until-caught-up")

    out = tmp_path / "orders.parquet"
    remote.smelt("sql", "SELECT orders.id, total FROM silver.orders ORDER BY id", "--to", out)
    assert pq.read_table(out)["id"].to_pylist() == [*range(1, 91)]
    fresh = remote.smelt("sql", "SELECT count(*), max(orders.note) FROM silver.orders", "--fresh", *_OUT)
    assert "\n88,none\n" in fresh, "the new column, before silver has it"

    for layer in ("silver", "gold"):
        assert "in full" not in remote.smelt(layer, "--until-caught-up")
    carry_beside(tmp_path, beside)
    for table in _TABLES:
        one, other = (
            f"SELECT to_json(struct(*)) FROM delta.`{folder}/lake/{table}`" for folder in (beside, tmp_path)
        )
        assert rows_of(spark, other), table
        assert rows_of(spark, f"({one} EXCEPT ALL {other}) UNION ALL ({other} EXCEPT ALL {one})") == [], table

    said = remote.smelt("verify")
    assert "silver.customers__history: equal to PostgreSQL" in said
    assert "silver.orders: equal to PostgreSQL" in said
    assert "gold.customer: equal to a full rebuild" in said

    said = remote.smelt("quality", code=1)
    assert "1 of" in said, said

    said = remote.smelt("sql", "SELECT id / 0 FROM silver.orders", code=1)
    assert "[DIVIDE_BY_ZERO]" in said
    assert "Traceback" not in said


@pytest.mark.torture
def test_what_serverless_compute_refuses_a_lake_in_a_catalog_does_not_need(
    server: ConnectServer, database: str, tmp_path: Path
) -> None:
    source = source_of(database)
    execute(
        source,
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total int)",
        "INSERT INTO customers SELECT i, 'n' || i FROM generate_series(1, 20) i",
        "INSERT INTO orders SELECT i, i % 20 + 1, i FROM generate_series(1, 90) i",
    )
    (tmp_path / "customer.yml").write_text(DOCUMENT)
    with Front(server.remote) as front:
        remote = Remote(tmp_path, front.remote)
        remote.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
            "lake: {catalog: spark_catalog}\nsilver: {history: [public.customers]}\n"
            "gold: {documents: [customer.yml]}\n"
        )
        assert "first build" in remote.smelt("run", "--until-caught-up")
        execute(
            source,
            "UPDATE orders SET total = total + 1 WHERE id % 7 = 0",
            "UPDATE customers SET name = 'other' WHERE id = 7",
            "DELETE FROM orders WHERE id = 1",
        )
        assert "in full" not in remote.smelt("run", "--until-caught-up")
        said = remote.smelt("sql", "SELECT count(*), sum(total) FROM silver.orders", *_OUT)
        assert f"\n89,{sum(range(2, 91)) + 12}\n" in said
        assert "silver.orders" in remote.smelt("status")
        refused = {condition for condition, _ in front.refused}
        assert refused == {"CONFIG_NOT_AVAILABLE", "NOT_SUPPORTED_WITH_SERVERLESS"}
        assert not {subject for _, subject in front.refused} & {"GLOBAL TEMPORARY VIEW", "GLOBAL"}
