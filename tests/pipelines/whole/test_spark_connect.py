"""Silver, gold, sql, verify and quality at a Spark Connect server, compared with a local JVM.

All tests share one server. The commands run in processes that cannot start Java.
"""

from __future__ import annotations

import shutil
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake.location import Lake
from tests.bronze.replaying import execute, session, source_of
from tests.connect_front import Front
from tests.connect_server import ConnectServer
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import Command, Turns
from tests.pipelines.shop_in_store import DOCUMENT
from tests.silver.stored import rows_at

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.process, pytest.mark.timeout(1200)]

_RULES: Final = """
table: silver.orders
expectations:
  - {expectation: expect_column_values_to_be_between, column: total, kwargs: {max_value: 90}}
  - {sql: "SELECT * FROM {batch} WHERE id = 9"}
"""
_TABLES: Final[tuple[tuple[Layer, str], ...]] = (
    ("silver", "customers"),
    ("silver", "customers__history"),
    ("silver", "orders"),
    ("gold", "customer"),
)
_OUT: Final = ("--output", "csv")
_OF_THE_SERVER: Final = {"spark.sql.sources.parallelPartitionDiscovery.parallelism": "2"}
"""A setting that maintenance changes where permitted: the default VACUUM has 10,000 tasks, slow on two cores.
"""


class Remote:
    """Commands in a folder that use a server."""

    def __init__(self, folder: Path, remote: str) -> None:
        self.folder = folder
        self.file = folder / "shop.yml"
        empty = str(folder / "no-programs")
        self._variables = {"SPARK_REMOTE": remote, "JAVA_HOME": empty, "PATH": empty}

    def smelt(self, *arguments: str | Path) -> str:
        """Return the output of a command that must succeed without any Java to start."""
        words = (arguments[0], self.file, *arguments[1:])
        with Command(*words, folder=self.folder, variables=self._variables) as command:
            assert command.wait() == 0, command.text()
            return command.text()

    def turns(self) -> Turns:
        """Start a process for several commands."""
        return Turns(self.folder, variables=self._variables)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ConnectServer]:
    with ConnectServer(tmp_path_factory.mktemp("connect"), settings=_OF_THE_SERVER) as server:
        yield server


def carry_beside(folder: Path, beside: Path) -> None:
    """Fold a copy of the bronze at once, into a second lake, in a session with a JVM."""
    beside.mkdir()
    for file in folder.glob("*.yml"):
        shutil.copy(file, beside)
    shutil.copytree(folder / "lake/bronze", beside / "lake/bronze")
    for layer in ("silver", "gold"):
        process = smelt_here(layer, "shop.yml", "--until-caught-up", folder=beside)
        assert process.returncode == 0, process.stderr


def stored_rows(spark: SparkSession, lake: Path, table: tuple[Layer, str]) -> list[dict[str, Any]]:
    """Return the rows of a table's newest version."""
    layer, name = table
    version = DeltaTable(str(lake / layer / name)).version()
    return rows_at(spark, Lake(path=str(lake)), name, version, layer=layer)


def rows(spark: SparkSession, lake: Path, table: tuple[Layer, str]) -> Counter[str]:
    """Return the newest version's rows with all columns, unordered, except the cut that built a document."""
    cut = {"_commit_lsn"} if table[0] == "gold" else set()
    stored = stored_rows(spark, lake, table)
    return Counter(repr(sorted(cell for cell in row.items() if cell[0] not in cut)) for row in stored)


@pytest.mark.parametrize("beside", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_a_pipeline_at_a_server_equals_its_source(
    server: ConnectServer, database: str, tmp_path: Path, spark: SparkSession, *, beside: bool
) -> None:
    """With `beside`, silver and gold also equal those of a session with a JVM, in every column."""
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
    file, out = remote.file, tmp_path / "orders.parquet"
    with remote.turns() as turns:
        assert "first build" in turns.run("run", file, "--until-caught-up")
        execute(
            source,
            "UPDATE customers SET name = 'other' WHERE id = 7",
            "UPDATE orders SET id = 300 WHERE id = 2",
            "UPDATE orders SET total = total + 0.25 WHERE id % 7 = 0",
            "DELETE FROM orders WHERE id % 30 = 1",
            "ALTER TABLE orders ADD COLUMN note text DEFAULT 'none'",
            "INSERT INTO orders VALUES (200, 1, 20, 'new')",
        )
        turns.run("bronze", file, "--until-caught-up")
        query = "SELECT orders.id, total FROM silver.orders ORDER BY id"
        assert "90 rows" in turns.run("sql", file, query, "--to", out)
        assert pq.read_table(out)["id"].to_pylist() == [*range(1, 91)]
        query = "SELECT count(*), max(orders.note) FROM silver.orders"
        fresh = turns.run("sql", file, query, "--fresh", *_OUT)
        assert "\n88,none\n" in fresh, "the new column, before silver has it"
        assert "in full" not in turns.run("silver", file, "--until-caught-up")
        assert "in full" not in turns.run("gold", file, "--until-caught-up")
        verified = turns.run("verify", file)
        assert "silver.customers__history: equal to PostgreSQL" in verified
        assert "silver.orders: equal to PostgreSQL" in verified
        assert "gold.customer: equal to a full rebuild" in verified
        judged = turns.run("quality", file, code=1)
        assert "1 of" in judged, judged
        refused = turns.run("sql", file, "SELECT id / 0 FROM silver.orders", code=1)
        assert "[DIVIDE_BY_ZERO]" in refused
        assert "Traceback" not in refused

    stored = stored_rows(spark, tmp_path / "lake", ("silver", "orders"))
    with session(source) as connection:
        orders = connection.execute("SELECT id, customer_id, total, note FROM orders").fetchall()
    assert Counter(tuple(row[name] for name in ("id", "customer_id", "total", "note")) for row in stored) == (
        Counter(orders)
    )

    if beside:
        folder = tmp_path / "beside"
        carry_beside(tmp_path, folder)
        for table in _TABLES:
            stored_here = rows(spark, tmp_path / "lake", table)
            assert stored_here, table
            assert stored_here == rows(spark, folder / "lake", table), table


@pytest.mark.torture
def test_a_catalog_lake_avoids_what_serverless_refuses(
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
        output = remote.smelt("sql", "SELECT count(*), sum(total) FROM silver.orders", *_OUT)
        assert f"\n89,{sum(range(2, 91)) + 12}\n" in output
        assert "public.orders" in remote.smelt("status")
        remote.smelt("maintain")
        refused = {condition for condition, _ in front.refused}
        assert refused == {"CONFIG_NOT_AVAILABLE", "NOT_SUPPORTED_WITH_SERVERLESS"}
        assert not {subject for _, subject in front.refused} & {"GLOBAL TEMPORARY VIEW", "GLOBAL"}


@pytest.mark.torture
def test_serverless_only_reads_a_lake_with_a_path(
    server: ConnectServer, database: str, tmp_path: Path
) -> None:
    source = source_of(database)
    execute(
        source,
        "CREATE TABLE orders (id int PRIMARY KEY, total int NOT NULL)",
        "INSERT INTO orders SELECT i, i FROM generate_series(1, 90) i",
    )
    remote = Remote(tmp_path, server.remote)
    remote.file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
        "lake: {path: lake}\n"
    )
    remote.smelt("run", "--until-caught-up")
    execute(source, "UPDATE orders SET total = total + 1 WHERE id % 7 = 0")
    remote.smelt("bronze", "--until-caught-up")
    query = "SELECT count(*), sum(total) FROM silver.orders"
    with Front(server.remote) as front, Remote(tmp_path, front.remote).turns() as turns:
        refused = turns.run("silver", remote.file, "--until-caught-up", code=1)
        listed = turns.run("sql", remote.file, query, *_OUT)
        judged = turns.run("quality", remote.file)
    assert "[spark-setting-guarded]" in refused, refused
    assert "on Databricks a cluster" in refused
    assert f"\n90,{sum(range(1, 91))}\n" in listed
    assert "hold as of" in judged
    remote.smelt("silver", "--until-caught-up")
