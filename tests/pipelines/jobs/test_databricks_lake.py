"""The bundle's SQL on a real lake: its alerts, the notebook, and the events for AUTO CDC.

Databricks itself is not available. Its SQL is Spark's; the test replaces the parts that only its runtime
provides (magics, widgets).
"""

from __future__ import annotations

import re
import sys
import time
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from psycopg.conninfo import conninfo_to_dict
from pyspark.errors import PySparkException

from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.quality.results import RESULTS_SCHEMA
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.borrowed_sql import OLD_VERSIONS
from deltasmelt.silver.cycle import Silver
from tests.bronze.replaying import read_all
from tests.fix_postgres import drop_database, make_database
from tests.fix_spark import reading, rows_of
from tests.pipelines.aged import age
from tests.pipelines.in_process import smelt_here
from tests.pipelines.jobs import bundle

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import Row, SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

DATABRICKS: Final = conf_folder() / "databricks"
SCHEMA: Final = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, seen timestamptz, ok boolean, raw bytea);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, note text);
ALTER TABLE orders ALTER note SET STORAGE EXTERNAL, REPLICA IDENTITY FULL;
CREATE TABLE notes (id int PRIMARY KEY, note text, mark int);
ALTER TABLE notes ALTER note SET STORAGE EXTERNAL;
INSERT INTO customers SELECT n, 'c' || n, '2026-01-01 12:00:00.5+02', n % 2 = 0, '\\x00ff'
FROM generate_series(1, 9) n;
INSERT INTO orders SELECT n, n, repeat('a', 9000) FROM generate_series(1, 4) n;
INSERT INTO notes VALUES (1, repeat('b', 9000), 1);
"""
CHANGES: Final = (
    "UPDATE customers SET name = 'quoted '' \\ name' WHERE id = 2; DELETE FROM customers WHERE id = 9",
    "UPDATE customers SET id = 108 WHERE id = 8",
    "ALTER TABLE customers RENAME name TO title; ALTER TABLE customers ADD level int DEFAULT 7",
    "UPDATE customers SET level = 8, seen = 'infinity' WHERE id = 3",
    "INSERT INTO customers VALUES (10, 'new')",
    "UPDATE orders SET customer_id = 1; UPDATE notes SET mark = 2",
    "DELETE FROM customers WHERE id = 108; INSERT INTO customers VALUES (108, 'again', NULL, TRUE)",
)


class Shop:
    """A source, and a lake with a document and its cuts."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder, self.dsn, self.file = folder, dsn, folder / "pipeline.yml"
        name = "jobs_" + str(conninfo_to_dict(dsn)["dbname"])
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {name}, publication: {name}}}\n"
            "lake: {path: ./lake}\ngold: {documents: [customer.yml]}\n"
        )
        (folder / "customer.yml").write_text("document: customer\nroot: public.customers\nfields: [id]\n")
        self.pipeline = load_pipeline(self.file)
        self.lake = str(self.pipeline.lake_address().path)
        self.control = ControlTables(self.pipeline.lake_address())
        self.execute(SCHEMA)

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def read(self) -> None:
        """Read the server's current state into bronze."""
        read_all(self.pipeline.source, self.lake, snapshot=SnapshotSettings(workers=1))

    def advance(self, spark: SparkSession) -> None:
        """Fold silver up to bronze, and gold up to silver."""
        silver = Silver(spark, self.pipeline.lake_address(), self.pipeline.silver, self.control)
        silver.cycle()
        silver.close()
        process = smelt_here("gold", self.file, "--until-caught-up", folder=self.folder)
        assert process.returncode == 0, process.stderr


@pytest.fixture(scope="module")
def shop(spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    dsn = make_database(server_dsn)
    shop = Shop(tmp_path_factory.mktemp("databricks"), dsn)
    shop.read()
    shop.advance(spark)
    yield shop
    drop_database(server_dsn, dsn)


def alert(name: str, lake: str) -> str:
    """Return the query of an alert."""
    variables = {"lake": lake, "run_as": "-", "warehouse_id": "-"}
    text: str = bundle.for_target(DATABRICKS, "aws", variables)["resources"]["alerts"][name]["query_text"]
    return text


def test_alerts_detect_waiting_open_and_failed_work(spark: SparkSession, shop: Shop) -> None:
    def lag() -> dict[str, int]:
        return {row.layer: row.seconds for row in rows_of(spark, alert("lag", shop.lake))}

    assert lag() == {"silver": 0, "gold": 0}
    ((seconds,),) = rows_of(spark, alert("silent", shop.lake))
    time.sleep(1)
    ((later,),) = rows_of(spark, alert("silent", shop.lake))
    assert 0 <= seconds < later < 3600, "nobody reads, so the newest commit gets older"
    shop.execute(CHANGES[0])
    shop.read()
    stop_time = time.monotonic()
    time.sleep(1)
    waited = lag()
    assert 1 <= waited["silver"] <= time.monotonic() - stop_time + 60
    assert waited["gold"] == 0

    shop.control.open_error(OpenError(scope="table", name="public.x", code="key-missing", message="no key"))
    assert [row.code for row in rows_of(spark, alert("errors", shop.lake))] == ["key-missing"]
    shop.control.close_errors("table", "public.x", "key-missing")
    assert rows_of(spark, alert("errors", shop.lake)) == []

    def run(at: int, *outcomes: tuple[str, bool | None]) -> None:
        rows = [
            {
                "run_at": datetime(2026, 1, at, tzinfo=UTC),
                "severity": severity,
                "success": success,
                "expectation": severity,
            }
            for severity, success in outcomes
        ]
        table = pa.Table.from_pylist(rows, schema=RESULTS_SCHEMA)
        write_deltalake(f"{shop.lake}/quality/results", table, mode="append")

    run(1, ("error", False))
    run(2, ("error", True), ("warning", False), ("critical", None), ("error", False))
    failed = [row.expectation for row in rows_of(spark, alert("quality", shop.lake))]
    assert sorted(failed) == ["critical", "error"]
    run(3, ("error", True), ("info", False))
    assert rows_of(spark, alert("quality", shop.lake)) == []


def cells(notebook: Path) -> list[tuple[str, str]]:
    """Return language and text of each cell, parsed from Databricks' source format."""
    head, *later_cells = re.split(r"\n*# COMMAND ----------\n*", notebook.read_text())
    assert head.startswith("# Databricks notebook source\n")
    sources = []
    for cell in (head.partition("\n")[2], *later_cells):
        lines = cell.strip("\n").splitlines()
        if lines[0].startswith("# MAGIC %"):
            text = "\n".join(line.removeprefix("# MAGIC").removeprefix(" ") for line in lines[1:])
            sources.append((lines[0].removeprefix("# MAGIC %"), text))
        else:
            sources.append(("python", "\n".join(lines)))
    return sources


def play(spark: SparkSession, lake: str, as_of: str = "", *, setting: str = OLD_VERSIONS) -> dict[str, Any]:
    """Run the notebook; return the rows of its last query but one, by table.

    Args:
        spark: session in a notebook's initial state, in which Delta limits the readable versions.
        as_of: value of the notebook's widget.
        setting: replacement for the setting that the notebook changes.
    """
    widgets = {"lake": lake + "/", "as_of": as_of}
    dbutils = SimpleNamespace(widgets=SimpleNamespace(text=lambda *_: None, get=widgets.get))
    names: dict[str, Any] = {"spark": spark, "dbutils": dbutils}
    outputs: list[list[Any]] = []
    for language, source in cells(DATABRICKS / "notebooks" / "read_at_a_cut.py"):
        text = source.replace(OLD_VERSIONS, setting)
        if language == "sql":
            outputs.append(spark.sql(text).collect())
        elif language == "python":
            exec(compile(text, "cell", "exec"), names)  # noqa: S102 - what Databricks does with it
    return {f"{row.layer}.{row.table_name}": row for row in outputs[1]}


@pytest.fixture
def as_delta_has_it(spark: SparkSession) -> Iterator[None]:
    """Limit the session's old versions to Delta's default."""
    spark.conf.set(OLD_VERSIONS, "true")
    yield
    spark.conf.set(OLD_VERSIONS, "false")


@pytest.mark.usefixtures("as_delta_has_it")
def test_notebook_reads_silver_and_gold_at_same_cut(spark: SparkSession, shop: Shop) -> None:
    def ids(view: str) -> list[int]:
        return sorted(row.id for row in spark.table(view).collect())

    with reading(spark):
        before = play(spark, shop.lake)
        assert set(before) == {"silver.customers", "silver.orders", "silver.notes", "gold.customer"}
        assert len({row.lsn for row in before.values()}) == 1
        assert ids("silver_customers") == ids("gold_customer") == list(range(1, 10))
        shop.read()  # the last test has deleted a row
        shop.advance(spark)
        assert ids("silver_customers") == list(range(1, 10)), "the views hold the moment"
        cut = shop.control.latest_cut("gold")
        assert cut is not None
        after = play(spark, shop.lake)
        assert (
            {row.lsn for row in after.values()}
            == {str(cut.commit_lsn)}
            != {row.lsn for row in before.values()}
        )
        assert ids("silver_customers") == ids("gold_customer") == list(range(1, 9))
        assert {row.lsn for row in play(spark, shop.lake, str(int(cut.commit_lsn) - 1)).values()} == {
            row.lsn for row in before.values()
        }
        assert ids("silver_customers") == list(range(1, 10))


@pytest.mark.usefixtures("as_delta_has_it")
def test_notebook_reads_expired_version_or_reports_refusal(
    spark: SparkSession, shop: Shop, capsys: pytest.CaptureFixture[str]
) -> None:
    age(spark, Path(shop.lake), days=9)
    spark.sql(f"ALTER TABLE delta.`{shop.lake}/silver/notes` SET TBLPROPERTIES ('newer' = 'than the cut')")
    with reading(spark):
        with pytest.raises(PySparkException, match="DELTA_UNSUPPORTED_TIME_TRAVEL_BEYOND"):
            play(spark, shop.lake, setting="spark.sql.warehouse.dir")  # which no session may set
        assert "cannot be read here: CANNOT_MODIFY_STATIC_CONFIG" in capsys.readouterr().out
        outputs = play(spark, shop.lake)
        assert capsys.readouterr().out == ""
        for row in outputs.values():
            assert spark.table(f"{row.layer}_{row.table_name}").count() > 0, row


def newest_rows(events: list[Row], *keys: str) -> list[Row]:
    """Return the rows that AUTO CDC keeps: each key's last event unless a delete (SCD type 1)."""
    last: dict[tuple[Any, ...], Row] = {}
    for row in sorted(events, key=lambda row: (row._commit_lsn, row._seq, row._part)):
        last[tuple(row[key] for key in keys)] = row
    return [row for row in last.values() if row._op != "delete"]


def test_events_for_auto_cdc_rebuild_source_rows(
    spark: SparkSession, shop: Shop, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(DATABRICKS / "auto_cdc"))
    shop.execute(*CHANGES[1:])
    shop.read()
    folder = f"{shop.lake}/bronze"
    relations = spark.read.format("delta").load(f"{folder}/relations")
    types = {"title": "STRING", "seen": "TIMESTAMP", "ok": "BOOLEAN", "raw": "BINARY", "level": "INT"}
    with reading(spark):
        decoding = import_module("decoding")
        try:
            assert decoding.SEQUENCE == "struct(_commit_lsn, _seq, _part)"
            customers = decoding.SourceTable("public", "customers", ("id",), {"id": "INT", **types})
            stream = decoding.decoded(
                spark.readStream.format("delta").load(f"{folder}/changes"), relations, customers
            )
            target = str(tmp_path / "events")
            query = stream.writeStream.format("delta").trigger(availableNow=True)
            query = query.option("checkpointLocation", str(tmp_path / "point"))
            assert query.start(target).awaitTermination(120)
            events = spark.read.format("delta").load(target).collect()
            changes = spark.read.format("delta").load(f"{folder}/changes")
            large = [
                decoding.decoded(
                    changes,
                    relations,
                    decoding.SourceTable("public", name, ("id",), {"id": "INT", "note": "STRING"}),
                ).collect()
                for name in ("orders", "notes")
            ]
        finally:
            sys.modules.pop("decoding", None)
    assert {(row._shape_known, row._unchanged) for row in events} == {(True, None)}
    rows = sorted(newest_rows(events, "id"), key=lambda row: row.id)
    with psycopg.connect(shop.dsn) as connection:
        source = connection.execute(
            "SELECT id, title, nullif(seen, 'infinity'), ok, raw, level FROM customers ORDER BY id"
        ).fetchall()
    assert {row[0] for row in source} == {1, 2, 3, 4, 5, 6, 7, 10, 108}
    assert [(row.id, row.title, row.ok, row.raw, row.level) for row in rows] == [
        (*row[:2], *row[3:]) for row in source
    ]
    assert [None if row.seen is None else row.seen.timestamp() for row in rows] == [
        None if row[2] is None else row[2].timestamp() for row in source
    ]
    whole, unsent = (newest_rows(delivered, "id") for delivered in large)
    assert {len(row.note) for row in whole} == {9000}, "from the old row, which is whole"
    assert [(row.note, row._unchanged) for row in unsent] == [(None, ["note"])], "AUTO CDC would write NULL"
