"""The whole pipeline as a user runs it: real processes, a real server, Spark in a separate process."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import jsonschema
import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.marks import kept_from
from deltasmelt.bronze.store.position import read_position
from deltasmelt.pipelines.commands.explain import show_document_schema, show_explanation
from deltasmelt.pipelines.commands.preview import preview_document
from deltasmelt.pipelines.commands.run import run_layers
from deltasmelt.pipelines.commands.verify import run_verify
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.runtime.locks import lake_lock
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.lake_sql import LakeSql, cut_of
from deltasmelt.pipelines.spark.launch import JVM_OPTIONS, jvm_options
from deltasmelt.pipelines.sql_shell.results import FirstRows, first_rows, json_lines
from deltasmelt.pipelines.terminal.failures import Failure
from deltasmelt.pipelines.terminal.output import Format, Output
from tests.fix_postgres import drop_database, make_database
from tests.patience import wait_for
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import Command, thread_seconds
from tests.pipelines.test_cli import smelt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.settings import Pipeline

SCHEMA = """
CREATE TABLE customers (id int PRIMARY KEY, name text NOT NULL, seen timestamptz, tags text[]);
CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers ON DELETE CASCADE,
                     total numeric(10, 2));
COMMENT ON TABLE orders IS 'Orders of ${x}';
COMMENT ON COLUMN orders.total IS 'in ${env:HOME}';
INSERT INTO customers
SELECT n, 'c' || n, '2026-01-01 12:00+02', ARRAY['a', NULL] FROM generate_series(1, 50) n;
INSERT INTO orders SELECT n, 1 + n % 50, n FROM generate_series(1, 200) n;
"""

SHORT_LIVED = f"{JVM_OPTIONS}: '{jvm_options('', brief=True)}'"
"""JVM options without the optimising compiler, whose code a test never runs often enough."""

DOCUMENT = """
document: customer
root: public.customers
fields: [id, name, {orders: {many: public.orders, on: {customer_id: id}, fields: [id, total]}}]
"""


class Shop:
    """A database, its pipeline file, and the cuts of its lake."""

    def __init__(self, folder: Path, dsn: str) -> None:
        self.folder = folder
        self.dsn = dsn
        self.file = folder / "pipeline.yml"
        name = "run_" + str(conninfo_to_dict(dsn)["dbname"])
        self.file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: {name}, publication: {name}}}\n"
            "lake: {path: './my läke #1+'}\nbronze: {heartbeat: 1s}\ngold: {documents: [customer.yml]}\n"
            f"spark: {{spark.master: 'local[2]', spark.driver.memory: 1g, {SHORT_LIVED}}}\n"
        )
        (folder / "customer.yml").write_text(DOCUMENT)
        self.execute(SCHEMA)

    @property
    def pipeline(self) -> Pipeline:
        return load_pipeline(self.file)

    def execute(self, statements: str) -> Lsn:
        """Run SQL at the source; return the end of the log afterwards."""
        with psycopg.connect(self.dsn, autocommit=True) as connection:
            connection.execute(statements.encode())
            row = connection.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone()
        assert row is not None
        return Lsn.parse(row[0])

    def gold_has(self, end: Lsn) -> bool:
        """Check whether gold's newest cut contains everything up to the log's end, where no commit ends."""
        cut = ControlTables(self.pipeline.lake_address()).latest_cut("gold")
        return cut is not None and cut.commit_lsn >= end - 1


def is_free(pipeline: Pipeline) -> bool:
    """Check whether no process holds the lake's lock of silver."""
    try:
        with lake_lock(pipeline.lake_address(), ("silver",), command="smelt silver"):
            return True
    except DefiniteError:
        return False


@pytest.fixture(scope="module")
def shop(server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    dsn = make_database(server_dsn)
    yield Shop(tmp_path_factory.mktemp("shop"), dsn)
    drop_database(server_dsn, dsn)


@pytest.mark.postgres
@pytest.mark.spark
def test_a_run_outlives_its_reader_until_ctrl_c(
    shop: Shop,
) -> None:
    with Command("run", shop.file, folder=shop.folder) as run:
        wait_for(lambda: shop.gold_has(Lsn(1)) or run.process.poll() is not None)
        assert run.process.poll() is None, run.text()

        second = smelt_here("silver", shop.file, folder=shop.folder)
        assert second.returncode == 1
        assert f"`smelt run`, process {run.process.pid}" in second.stderr
        assert second.stderr.count("error:") == 1

        status = read_status(shop.pipeline)
        assert {table.name: table.state for table in status.tables} == {
            "public.customers": "streaming",
            "public.orders": "streaming",
        }
        assert [document.name for document in status.documents] == ["customer"]
        assert [rung.name for rung in status.ladder] == [
            "head", "slot confirmed", "received", "bronze", "silver", "gold",
        ]  # fmt: skip
        assert status.slot is not None
        assert status.slot.active_pid is not None

        (reader,) = run.family("deltasmelt.pipelines.runtime.reader_process")
        os.kill(reader, signal.SIGKILL)
        end = shop.execute(
            "UPDATE orders SET total = total + 0.5 WHERE id <= 20; DELETE FROM customers WHERE id = 50"
        )
        wait_for(lambda: shop.gold_has(end) or run.process.poll() is not None)
        assert run.process.poll() is None, run.text()
        assert run.family("deltasmelt.pipelines.runtime.reader_process") not in ([], [reader])

        run.process.send_signal(signal.SIGINT)
        wait_for(lambda: is_free(shop.pipeline), 60)
        assert not run.family("java"), "its JVM outlives the lake's lock"
        assert run.wait(60) == 130, "two seconds on a quiet machine"
        wait_for(lambda: not run.family(), 60)
    output = run.text()
    assert "Traceback" not in output
    assert "WARN" not in output
    assert "silver as of" in output
    assert "gold   as of" in output


@pytest.mark.postgres
@pytest.mark.spark
def test_until_caught_up_names_a_table_without_key(shop: Shop, spark: SparkSession) -> None:
    """Runs on the tests' session. `test_commands` tests how a process with its own JVM ends."""
    assert spark is not None
    shop.execute("CREATE TABLE keyless (a int); INSERT INTO customers VALUES (51, 'new', NULL, '{}')")
    end = shop.execute("INSERT INTO orders VALUES (1000, 51, 1.25)")
    process = smelt_here("run", shop.file, "--until-caught-up", folder=shop.folder)
    assert process.returncode == 3, process.stderr
    assert "keyless" in process.stderr
    assert "Traceback" not in process.stdout + process.stderr
    assert shop.gold_has(end)
    status = json.loads(smelt_here("status", shop.file, "--output", "json", folder=shop.folder).stdout)
    assert [rung["commits"] for rung in status["ladder"] if rung["name"] in {"silver", "gold"}] == [0, 0]
    assert {table["name"]: table["state"] for table in status["tables"]} == {
        "public.customers": "streaming",
        "public.keyless": "stopped",
        "public.orders": "streaming",
    }
    assert [document["name"] for document in status["documents"]] == ["customer"]
    assert (status["lake_error"], status["source_error"]) == (None, None)


@pytest.mark.postgres
@pytest.mark.spark
def test_a_job_starts_spark_only_for_work(
    shop: Shop, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    java, called = tmp_path / "bin" / "java", tmp_path / "called"
    java.parent.mkdir()
    java.write_text(f"#!/bin/sh\ntouch '{called}'\nexit 1\n")
    java.chmod(0o755)
    control = ControlTables(shop.pipeline.lake_address())

    def job(command: str, code: int) -> None:
        """Run a command with the failing Java; its exit code is 1 exactly if the command called Java."""
        called.unlink(missing_ok=True)
        with monkeypatch.context() as patched:
            patched.setenv("JAVA_HOME", str(tmp_path))
            with Command(command, shop.file, "--until-caught-up", folder=shop.folder) as run:
                assert run.wait() == code, run.text()
                assert not run.family()
        assert called.exists() == (code == 1), run.text()

    before = [cut for cut in (control.latest_cut("silver"), control.latest_cut("gold")) if cut is not None]
    assert len(before) == 2
    end = shop.execute("CREATE SCHEMA other; DROP SCHEMA other")
    job("run", 3)  # for the table that cannot be carried
    for cut in before:
        newest = control.latest_cut(cut.layer)
        assert newest is not None
        assert (newest.commit_lsn >= end - 1, newest.tables) == (True, cut.tables)
    job("gold", 0)
    (shop.folder / "customer.yml").write_text(DOCUMENT.replace("fields: [id, name, ", "fields: [id, "))
    job("gold", 1)
    (shop.folder / "customer.yml").write_text(DOCUMENT)
    end = shop.execute("DELETE FROM orders WHERE id = 7")
    job("run", 1)
    assert not shop.gold_has(end)
    assert spark is not None  # it is there, so the stages use it
    pipeline = shop.pipeline
    pipeline = pipeline.model_copy(update={"bronze": pipeline.bronze.model_copy(update={"retention": 0.0})})
    with pytest.raises(Failure):
        run_layers(pipeline, Output(), layers=["silver", "gold"], until_caught_up=True, command="test")
    assert shop.gold_has(end)
    changes = open_existing(pipeline.lake_address().uri("bronze", "changes"))
    assert kept_from(changes) > 0  # the end of the run has decided about old changes
    query = "SELECT id FROM silver.orders WHERE id IN (7, 8)"
    assert LakeSql(spark, shop.pipeline).query(query).collect() == [(8,)]


@pytest.mark.postgres
@pytest.mark.spark
def test_sql_shows_all_layers_at_a_cut(shop: Shop, spark: SparkSession) -> None:
    lake = LakeSql(spark, shop.pipeline)
    rows = lake.query(
        "SELECT (SELECT count(*) FROM silver.customers), (SELECT count(*) FROM gold.customer), "
        "(SELECT count(*) FROM bronze.changes WHERE commit_lsn > (SELECT max(commit_lsn) FROM control.cuts))"
    ).collect()
    assert [tuple(row) for row in rows] == [(50, 50, 0)]

    first = ControlTables(shop.pipeline.lake_address()).cuts("gold")[0]
    before = LakeSql(spark, shop.pipeline, cut_of(shop.pipeline, first.commit_lsn))
    assert before.query("SELECT name FROM silver.customers WHERE id IN (50, 51)").collect()[0][0] == "c50"
    assert before.query("SELECT max(commit_lsn) FROM bronze.changes").collect()[0][0] <= first.commit_lsn

    frame = LakeSql(spark, shop.pipeline).query(
        "SELECT id, seen, tags, orders FROM silver.customers JOIN gold.customer USING (id) WHERE id = 51"
    )
    assert [json.loads(line) for line in json_lines(frame)] == [
        {"id": 51, "seen": None, "tags": [], "orders": [{"id": 1000, "total": 1.25}]}
    ]
    frame = LakeSql(spark, shop.pipeline).query(
        "SELECT id, seen, tags FROM silver.customers ORDER BY id LIMIT 2"
    )
    assert first_rows(frame, limit=1) == FirstRows(
        ("id", "seen", "tags"), ("id",), (("1", "2026-01-01 10:00:00", '["a",null]'),), more=True
    )


@pytest.mark.postgres
@pytest.mark.spark
def test_variables_in_a_statement_mean_themselves(shop: Shop, spark: SparkSession) -> None:
    lake = LakeSql(spark, shop.pipeline)
    row = lake.query(
        "SELECT '${env:HOME} ${spark.app.name} ${x}' AS said, count(*) AS `${env:HOME}` FROM silver.customers"
    ).collect()[0]
    assert row.asDict() == {"said": "${env:HOME} ${spark.app.name} ${x}", "${env:HOME}": 50}
    lake.query("SELECT 1 FROM silver.orders")
    described = {
        description["col_name"]: description
        for description in lake.query("DESCRIBE EXTENDED silver.orders").collect()
    }
    assert described["Comment"]["data_type"] == "Orders of ${x}"
    assert described["total"]["comment"] == "in ${env:HOME} (attribute 3)"
    assert described["customer_id"]["comment"] == "attribute 2"


@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (
            "SELECT * FROM silver.custmers",
            "the table silver.custmers does not exist; did you mean 'silver.customers'?",
        ),
        ("SELECT nme FROM silver.customers", "[UNRESOLVED_COLUMN"),
        ("SELEC 1", "[PARSE_SYNTAX_ERROR]"),
        ("SELECT * FROM control", "the table control does not exist"),
    ],
)
def test_a_refused_statement_is_one_message_without_stack(
    shop: Shop, spark: SparkSession, statement: str, message: str
) -> None:
    with pytest.raises(DefiniteError) as raised:
        LakeSql(spark, shop.pipeline).query(statement)
    assert message in str(raised.value)
    assert "\tat " not in str(raised.value)


@pytest.mark.postgres
@pytest.mark.spark
def test_small_tables_read_from_files_answer_alike(shop: Shop, spark: SparkSession) -> None:
    statements = [
        "SELECT count(*), max(orders.total) FROM silver.orders",
        "SELECT silver.orders.id FROM silver.orders ORDER BY 1 LIMIT 3",
        "SELECT max(o.id) FROM SILVER.`orders` o JOIN silver.customers c ON c.id = o.customer_id",
        "WITH orders AS (SELECT 0 AS i), b AS (SELECT id FROM silver.orders) SELECT max(id+i) FROM b, orders",
        "SELECT count(*) FROM IDENTIFIER('silver.orders')",
        "SELECT silver.id FROM silver.orders AS silver ORDER BY 1 LIMIT 1",
        "SELECT silver.orders.id FROM (SELECT struct(7 AS id) AS orders) AS silver",
        "FROM gold.customer SELECT id, orders[0].id ORDER BY id LIMIT 2",
        "DESCRIBE silver.orders",
        "SHOW TABLES IN silver",
        "SELECT count(*) FROM silver.orders, bronze.relations",
    ]
    plain, alone = LakeSql(spark, shop.pipeline), LakeSql(spark, shop.pipeline, alone=True)
    before = [plain.query(statement).collect() for statement in statements]
    plain.forget()
    assert [alone.query(statement).collect() for statement in statements] == before
    # What a statement makes of its own stays apart from what is made to answer others.
    spark.sql("CREATE OR REPLACE GLOBAL TEMP VIEW customers AS SELECT 'mine' AS name")
    alone.query("CREATE OR REPLACE TEMP VIEW few AS SELECT id FROM silver.orders WHERE id < 3")
    alone.query("SELECT count(*) FROM silver.orders").collect()
    assert alone.query("SELECT count(*) FROM few").collect() == [(2,)]
    assert alone.query("SELECT name FROM global_temp.customers").collect() == [("mine",)]
    alone.forget()
    names = {row.tableName for row in spark.sql("SHOW TABLES IN global_temp").collect()}
    assert "orders" not in names
    spark.sql("DROP VIEW few")
    spark.sql("DROP VIEW IF EXISTS global_temp.customers")


@pytest.mark.postgres
@pytest.mark.spark
def test_preview_builds_one_document_now(shop: Shop, spark: SparkSession) -> None:
    assert json.loads(preview_document(spark, shop.pipeline, "customer", ["51"])) == {
        "id": 51, "name": "new", "orders": [{"id": 1000, "total": 1.25}],
    }  # fmt: skip
    with pytest.raises(DefiniteError, match="customer has no document with the key 50"):
        preview_document(spark, shop.pipeline, "customer", ["50"])


@pytest.mark.postgres
@pytest.mark.spark
def test_verify_names_where_gold_differs(
    shop: Shop, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = shop.pipeline.lake_address()
    control, table = ControlTables(lake), lake.sql("gold", "customer")
    cut = control.latest_cut("gold")
    assert cut is not None
    spark.sql(f"UPDATE {table} SET name = 'old' WHERE id = 51")
    control.record_cut(replace(cut, tables={"customer": cut.tables["customer"] + 1}, recorded_at=None))
    with pytest.raises(Failure, match=r"not equal to a full rebuild: gold\.customer"):
        run_verify(shop.pipeline, Output(), document="cust*")
    output = capsys.readouterr().out
    assert '{"id":51} differs at name\n    in gold:  "old"\n    rebuilt:  "new"\n' in output
    with pytest.raises(Failure):
        run_verify(shop.pipeline, Output(Format.JSON), document="customer")
    (verdict,) = json.loads(capsys.readouterr().out)["documents"]
    assert (verdict["equal"], verdict["counts"], verdict["first"][0]["difference"]["path"]) == (
        False, {"differs": 1}, "name",
    )  # fmt: skip
    spark.sql(f"RESTORE TABLE {table} TO VERSION AS OF {cut.tables['customer']}")
    control.record_cut(replace(cut, tables={"customer": cut.tables["customer"] + 2}, recorded_at=None))


def run_notebook() -> dict[str, Any]:
    """Run the shipped notebook in the present folder; return its variables."""
    notebook = json.loads((conf_folder() / "notebooks" / "deltasmelt.ipynb").read_text(encoding="utf-8"))
    variables: dict[str, Any] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), variables)  # noqa: S102 - our own notebook
    return variables


@pytest.mark.postgres
@pytest.mark.spark
def test_the_notebook_uses_and_leaves_the_present_session(
    shop: Shop,
    spark: SparkSession,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(shop.folder)
    variables = run_notebook()
    assert [finding.code for finding in variables["findings"]] == ["table-without-key"]
    assert [error.name for error in variables["status"].errors] == ["public.keyless"]
    assert variables["totals"].filter("customer_id = 51").collect() == [(51, 1, Decimal("1.25"))]
    orders = spark.sql(f"SELECT * FROM {shop.pipeline.lake_address().sql('silver', 'orders')}")
    assert variables["orders"].count() == orders.count(), "the session was not stopped"
    assert variables["first"].commit_lsn < variables["now"].commit_lsn
    assert variables["document"].keys() == {"id", "name", "orders"}
    assert variables["verified"].problems() == ["not compared: silver.keyless"]
    assert sorted(comparison.name for comparison in variables["verified"].proof.compared) == [
        "customers",
        "orders",
    ]
    assert [verification.document for verification in variables["verified"].documents] == ["customer"]
    assert variables["quality"].success
    assert (shop.folder / "quality.html").exists()
    captured = capsys.readouterr()
    assert captured.err == "", "nothing but what the notebook prints"
    assert variables["quality"].summary() in captured.out

    # After `smelt demo` the lake is there, and its server is gone.
    ended = shop.file.read_text().replace(shop.dsn, "host=/nowhere dbname=shop")
    (tmp_path / "pipeline.yml").write_text(ended.replace("./my", f"{shop.folder}/my"))
    (tmp_path / "customer.yml").write_text(DOCUMENT)
    monkeypatch.chdir(tmp_path)
    variables = run_notebook()
    assert "server-unreachable" in {finding.code for finding in variables["findings"]}
    assert "verified" not in variables
    assert variables["quality"].success


@pytest.mark.postgres
@pytest.mark.spark
def test_explain_shows_join_paths_and_the_last_run(
    shop: Shop, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    assert spark is not None
    show_explanation(shop.pipeline, "customer", Output())
    output = capsys.readouterr().out
    assert output.startswith(
        "gold.customer: one document per row of public.customers, found by id\nlast run  "
    )
    assert (
        "orders: many public.orders\n  key       id\n  columns   id, customer_id, total\n  order by  id\n"
        "  join path public.orders.customer_id = public.customers.id\n" in output
    )
    show_explanation(shop.pipeline, "customer", Output(Format.JSON))
    assert [place["path"] for place in json.loads(capsys.readouterr().out)["nodes"]] == ["", "orders"]
    show_document_schema(shop.pipeline, "customer", Output())
    schema = json.loads(capsys.readouterr().out)
    jsonschema.validate(json.loads(preview_document(spark, shop.pipeline, "customer", ["51"])), schema)
    assert schema["properties"]["id"] == {"type": "integer"}
    assert schema["properties"]["orders"]["type"] == "array"


@pytest.mark.torture
@pytest.mark.postgres
@pytest.mark.spark
@pytest.mark.parametrize("moment", ["JVM starting", "Spark starting"])
def test_ctrl_c_ends_a_start_of_spark(shop: Shop, moment: str) -> None:
    """`tests.pipelines.sql_shell.test_shell` interrupts running statements."""
    endless = "SELECT sum(a.id * b.id) FROM range(10000000) a CROSS JOIN range(10000000) b"

    def reached(sql: Command) -> bool:
        for pid in sql.family("java"):
            threads = thread_seconds(pid)
            started = any(name.startswith("dispatcher") for name in threads)
            return started == (moment == "Spark starting")
        return False

    with Command("sql", shop.file, endless, folder=shop.folder) as sql:
        wait_for(lambda: reached(sql))
        sql.process.send_signal(signal.SIGINT)
        assert sql.wait(60) == 130, sql.text()
        wait_for(lambda: not sql.family(), 60)
    assert sql.text().splitlines()[-1] == "interrupted"
    assert "Traceback" not in sql.text()


@pytest.mark.postgres
def test_the_reader_ends_after_its_killed_parent(tmp_path: Path, database: str) -> None:
    shop = Shop(tmp_path, database)
    with Command("bronze", shop.file, folder=tmp_path) as bronze:
        wait_for(lambda: read_position(shop.pipeline.lake_address()) or bronze.process.poll() is not None)
        assert len(bronze.family("deltasmelt.pipelines.runtime.reader_process")) == 1, bronze.text()
        bronze.process.kill()
        bronze.process.wait()
        wait_for(lambda: not bronze.family(), 40)


@pytest.mark.postgres
def test_sigterm_ends_a_stage_in_order(tmp_path: Path, database: str) -> None:
    shop = Shop(tmp_path, database)
    with Command("bronze", shop.file, folder=tmp_path) as bronze:
        wait_for(lambda: read_position(shop.pipeline.lake_address()) or bronze.process.poll() is not None)
        bronze.process.terminate()
        assert bronze.wait(60) == 143
        assert not bronze.family()
    assert "Traceback" not in bronze.text()


@pytest.mark.postgres
def test_a_definite_error_ends_the_run_in_words(tmp_path: Path, database: str) -> None:
    shop = Shop(tmp_path, database)
    slot = shop.pipeline.source.slot
    shop.execute(f"SELECT pg_create_physical_replication_slot('{slot}')")
    process = smelt("bronze", shop.file, "--until-caught-up", folder=tmp_path)
    shop.execute(f"SELECT pg_drop_replication_slot('{slot}')")  # it is the server's, not the database's
    assert process.returncode == 1
    assert slot in process.stderr
    assert "physical" in process.stderr
    assert "remedy" in process.stderr
    assert process.stderr.count("error:") == 1
    assert "Traceback" not in process.stderr
