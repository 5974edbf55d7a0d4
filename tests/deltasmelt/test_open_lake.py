"""`deltasmelt.open` in a borrowed session: the tables that a lake shows, and the session afterwards."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake

import deltasmelt
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.proof.load import Load
from deltasmelt.pipelines.spark.borrowed_sql import OLD_VERSIONS
from deltasmelt.pipelines.spark.sql_names import aliased
from tests.fix_spark import reading
from tests.pipelines.sql_shell.small_lake import FIRST, ROWS, SECOND, make_small_lake

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

VIEWS = {
    ("silver", "orders"): "v1",
    ("gold", "orders"): "v2",
    ("silver", "Order Details"): "v3",
    ("silver", "b"): "v4",
}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_lake(tmp_path_factory.mktemp("open"))


@pytest.fixture
def lake(file: Path, spark: SparkSession) -> Iterator[deltasmelt.OpenLake]:
    with reading(spark), deltasmelt.open(file) as lake:
        yield lake


def count(frame: DataFrame) -> int:
    return frame.count()


def test_import_loads_neither_spark_nor_delta() -> None:
    """The public names are present after the import."""
    probe = (
        "import sys, deltasmelt; "
        "print([name for name in ('pyspark', 'deltalake', 'pyarrow', 'pydantic') if name in sys.modules]); "
        "print([name for name in dir(deltasmelt) if not getattr(deltasmelt, name, None)])"
    )
    process = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert process.stdout.split("\n") == ["[]", "[]", ""]


def test_tables_and_statements_show_newest_or_earlier_cut(lake: deltasmelt.OpenLake) -> None:
    assert count(lake.table("silver.orders")) == 2 * ROWS
    for moment in (FIRST, int(FIRST), "0/1FF", "2026-01-01T12:30", datetime(2026, 1, 1, 12, tzinfo=UTC)):
        assert lake.at(moment).commit_lsn == FIRST, moment
    assert count(lake.table("gold.customer", as_of=FIRST)) == ROWS
    most = "SELECT max(orders.id) AS most, max(silver.orders.total) AS total FROM silver.orders"
    assert lake.sql(most).collect() == [(2 * ROWS, 2 * ROWS + 0.5)]
    joined = "SELECT count(*) FROM silver.orders AS o JOIN gold.customer ON customer.id = o.id"
    assert lake.sql(joined, as_of="0/100").collect() == [(ROWS,)]
    with pytest.raises(deltasmelt.DefiniteError, match=r"the table silver\.late does not exist"):
        lake.sql(f"{joined}, silver.late", as_of=FIRST)


def test_layers_show_same_commit_while_pipeline_runs(spark: SparkSession, tmp_path: Path) -> None:
    with reading(spark), deltasmelt.open(make_small_lake(tmp_path)) as lake:
        now, newest = lake.at(), lake.table("silver.orders")
        assert (now.commit_lsn, now.commit_ts) == (SECOND, datetime(2026, 1, 1, 13, tzinfo=UTC))
        assert {"silver.orders", "silver.late", "gold.customer", "control.cuts"} <= set(now.tables)
        count_rows = now.sql("SELECT count(*) FROM silver.orders JOIN gold.customer USING (id)")

        address, control = lake.pipeline.lake_address(), ControlTables(lake.pipeline.lake_address())
        frame = pa.table({"id": pa.array([1], pa.int32())})
        write_deltalake(address.uri("silver", "orders"), frame, mode="overwrite", schema_mode="overwrite")
        control.record_cut(Cut("silver", Lsn(0x300), None, {"orders": 2}))

        assert count(lake.table("silver.orders")) == 1, "silver alone is ahead"
        assert lake.at().commit_lsn == SECOND, "gold is not"
        assert count_rows.collect() == [(2 * ROWS,)]
        assert count(newest) == count(now.table("silver.orders")) == 2 * ROWS
        assert lake.at("0/100").sql("SELECT count(*) FROM silver.orders").collect() == [(ROWS,)]


@pytest.mark.usefixtures("active")
def test_existing_session_is_used_and_left_unchanged(file: Path, spark: SparkSession) -> None:
    def seen() -> tuple[Any, ...]:
        views = spark.sql("SHOW VIEWS").collect()
        schemas = spark.sql("SHOW SCHEMAS").collect()
        settings: Any = spark.conf.getAll
        return views, schemas, dict(settings)

    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    spark.conf.unset(OLD_VERSIONS)
    spark.sql("CREATE OR REPLACE TEMPORARY VIEW orders AS SELECT 'mine' AS id")
    try:
        before = seen()
        with deltasmelt.open(file) as lake:
            frame = lake.sql(
                "SELECT o.id FROM silver.orders o JOIN orders ON o.id = 1 WHERE orders.id = 'mine'"
            )
            assert frame.sparkSession is spark
            assert frame.collect() == [(1,)]
            assert spark.conf.get(OLD_VERSIONS) == "false"
            frame.createOrReplaceTempView("kept")
            assert spark.sql("SELECT id FROM kept").collect() == [(1,)]
            spark.sql("DROP VIEW kept")
        assert seen() == before
        assert frame.collect() == [(1,)], "the session goes on, and its DataFrames"
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        spark.conf.set(OLD_VERSIONS, "false")
        spark.sql("DROP VIEW IF EXISTS orders")


@pytest.mark.parametrize(
    ("statement", "code", "message"),
    [
        ("SELECT * FROM silver.ordres", "sql-table", "did you mean 'silver.orders'?"),
        ("SELECT totl FROM silver.orders", "sql", "[UNRESOLVED_COLUMN"),
        ("SELEC 1", "sql", "[PARSE_SYNTAX_ERROR]"),
        ("DELETE FROM silver.orders", "sql-writes", "only read, and DELETE writes"),
        ("UPDATE control.cuts SET layer = 'x'", "sql-writes", "only read, and UPDATE writes"),
        ("EXECUTE IMMEDIATE 'DELETE FROM ' || 'silver.orders'", "sql-writes", "and DELETE writes"),
        ("EXECUTE IMMEDIATE no_variable", "sql", "[UNRESOLVED_COLUMN"),
    ],
)
def test_statement_rejected_by_spark_is_own_error(
    lake: deltasmelt.OpenLake, statement: str, code: str, message: str
) -> None:
    """The error is an error class of deltasmelt."""
    with pytest.raises(deltasmelt.SmeltError) as raised:
        lake.sql(statement)
    assert raised.value.code == code
    assert message in str(raised.value)


def test_assembled_statement_sees_tables_and_arguments(lake: deltasmelt.OpenLake) -> None:
    text = "'SELECT count(*) FROM silver.' || 'orders WHERE id BETWEEN :low AND :high'"
    assert lake.sql(f"EXECUTE IMMEDIATE {text} USING 2 + 3 AS low, 10 AS high").collect() == [(6,)]
    lake.sql("DECLARE OR REPLACE id = 5")
    counted_rows = lake.sql("EXECUTE IMMEDIATE 'SELECT count(*) FROM silver.orders WHERE id = ?' USING id")
    lake.sql("DROP TEMPORARY VARIABLE id")
    assert counted_rows.collect() == [(1,)], "the variable, and not the column of its name"


def test_each_view_pins_version_against_writes(
    lake: deltasmelt.OpenLake,
) -> None:
    lake_sql = lake.at(FIRST)._sql
    assert {layer for layer, _ in lake_sql._known} == {"bronze", "silver", "gold", "control"}
    assert all(" VERSION AS OF " in lake_sql._view(table)[1] for table in lake_sql._known)


def test_unknown_names_are_reported_without_calling_spark(lake: deltasmelt.OpenLake, tmp_path: Path) -> None:
    with pytest.raises(
        deltasmelt.DefiniteError, match=r"no table silver\.ordrs .*did you mean 'silver\.orders'"
    ):
        lake.table("silver.ordrs")
    assert count(lake.table("Silver.Orders", as_of=FIRST)) == ROWS
    with pytest.raises(deltasmelt.ConfigurationError, match="neither an LSN nor a time"):
        lake.at("yesterday")
    with pytest.raises(deltasmelt.DefiniteError, match="the oldest cut is 0/100"):
        lake.sql("SELECT 1 FROM silver.orders", as_of=1)
    with pytest.raises(deltasmelt.ConfigurationError, match="the pipeline file does not exist"):
        deltasmelt.open(tmp_path / "none.yml")
    (tmp_path / "empty.yml").write_text(lake.pipeline.path.read_text())
    (tmp_path / "customer.yml").write_text((lake.pipeline.folder / "customer.yml").read_text())
    with pytest.raises(deltasmelt.DefiniteError, match="silver has no cut yet"):
        deltasmelt.open(tmp_path / "empty.yml").at()


@pytest.mark.parametrize(
    "arguments",
    [
        {"sample": 0},
        {"sample": -1},
        {"sample": 1.5},
        {"sample": float("nan")},
        {"sample": "all"},
        {"rate": 0},
        {"rate": 0.5},
        {"rate": float("inf")},
        {"max_connections": 0},
        {"max_connections": 65},
        {"max_connections": 2.5},
    ],
)
def test_invalid_comparison_is_rejected_before_any_read(file: Path, arguments: dict[str, Any]) -> None:
    """The command would refuse the comparison, too."""
    with deltasmelt.open(file) as lake, pytest.raises(deltasmelt.ConfigurationError) as refused:
        lake.verify(**arguments)
    assert (refused.value.code, refused.value.where) == ("argument-invalid", next(iter(arguments)))


def test_comparison_bounds_are_reported_as_plain_figures() -> None:
    for arguments, message in (
        ({"sample": 0}, "sample: 0 is not a number from 0.000001 to 1"),
        ({"connections": 65}, "max_connections: 65 is not a whole number from 1 to 64"),
        ({"rate": 0}, "rate: 0 is not a whole number, at least 1"),
    ):
        with pytest.raises(deltasmelt.ConfigurationError) as refused:
            Load(**arguments)
        assert str(refused.value).splitlines()[0] == message
    for most in (Load(connections=64, rate=1, sample=1), Load(connections=1, sample=0.000001), Load()):
        assert most.connections in {64, 1, None}


def test_unwritable_report_is_rejected_before_checks(
    file: Path, lake: deltasmelt.OpenLake, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    for report in (tmp_path, str(tmp_path), tmp_path / "file" / "report.html"):
        with pytest.raises(deltasmelt.ConfigurationError) as refused:
            lake.quality(report=report)
        assert (refused.value.code, refused.value.where) == ("report-unwritable", str(report))
    assert not (file.parent / "lake" / "quality").exists(), "nothing was checked"


@pytest.mark.parametrize(
    ("statement", "meant"),
    [
        ("SELECT max(orders.total) FROM silver.orders", "SELECT max(orders.total) FROM v1 AS `orders`"),
        ("SELECT silver.orders.id FROM silver.orders", "SELECT `orders`.id FROM v1 AS `orders`"),
        ("SELECT * FROM SILVER.`orders` o, silver.b", "SELECT * FROM v1 o, v4 AS `b`"),
        (
            "SELECT silver.orders.id FROM silver.orders JOIN gold.orders USING (id)",
            "SELECT `silver.orders`.id FROM v1 AS `silver.orders` JOIN v2 AS `gold.orders` USING (id)",
        ),
        (
            "WITH b AS (SELECT 1 FROM silver.orders) TABLE b",
            "WITH b AS (SELECT 1 FROM v1 AS `orders`) TABLE b",
        ),
        ("DESCRIBE silver.orders", "DESCRIBE v1"),
        ("show columns from silver.orders", "show columns from v1"),
        ("FROM ( -- all\n silver.orders) SELECT 1", "FROM ( -- all\n v1 AS `orders`) SELECT 1"),
        (
            "SELECT 'silver.b' FROM silver.orders TABLESAMPLE (5 ROWS)",
            "SELECT 'silver.b' FROM v1 TABLESAMPLE (5 ROWS)",
        ),
        (
            "SELECT `Order Details`.x FROM silver.`order details`",
            "SELECT `Order Details`.x FROM v3 AS `Order Details`",
        ),
    ],
)
def test_table_read_under_no_alias_keeps_name(statement: str, meant: str) -> None:
    tables: Any = VIEWS  # layers are words here
    assert aliased(statement, tables, tables.__getitem__) == meant


def test_names_differing_in_case_keep_their_tables() -> None:
    """An ambiguous name is left to Spark, which finds no such table."""
    tables: Any = {("silver", "Orders"): "v1", ("silver", "orders"): "v2"}
    statement = (
        "SELECT * FROM silver.Orders o JOIN silver.orders p USING (id) JOIN silver.ORDERS q USING (id)"
    )
    assert aliased(statement, tables, tables.__getitem__) == (
        "SELECT * FROM v1 o JOIN v2 p USING (id) JOIN silver.ORDERS q USING (id)"
    )
