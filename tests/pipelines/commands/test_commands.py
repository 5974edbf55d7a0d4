"""Each command succeeds once: arguments, exit code, and main output.

Tests next to the commands' code cover all further cases. All commands share the lake of a real server, in the
order of the tests. Commands without Spark run as processes. All further commands start Spark by common code,
and use the tests' session; the torture marker runs them as processes. `test_run`, `test_shell` and
`test_jobs_spark_submit` run `smelt run`, stages and `smelt sql` as processes with a JVM.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.silver.cycle import Silver
from tests.bronze.replaying import read_all
from tests.fix_postgres import drop_database, make_database
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import Command
from tests.pipelines.runtime.test_run import Shop
from tests.pipelines.test_cli import smelt

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from subprocess import CompletedProcess

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]


class Commands:
    """A shop whose rows are in bronze and silver, and its commands."""

    def __init__(self, spark: SparkSession, shop: Shop) -> None:
        self.shop = shop
        self.lake = shop.pipeline.lake_address()
        self.control = ControlTables(self.lake)
        read_all(shop.pipeline.source, str(self.lake.path), snapshot=SnapshotSettings(workers=2))
        silver = Silver(spark, self.lake, shop.pipeline.silver, self.control)
        silver.cycle()
        silver.close()

    def run(self, command: str, *more: str) -> str:
        """Run a command as a process; require success and return the output."""
        return printed(smelt(command, self.shop.file, *more, folder=self.shop.folder, seconds=280))

    def run_here(self, command: str, *more: str) -> str:
        """Run a command on the tests' session; require success and return the output."""
        return printed(smelt_here(command, self.shop.file, *more, folder=self.shop.folder))

    def value(self, command: str, *more: str) -> Any:
        """Run a command as a process; return the value of its line of JSON."""
        return json.loads(self.run(command, *more, "--output", "json"))

    def versions(self, layer: str) -> dict[str, int]:
        """Return the table versions of a layer's newest cut."""
        cut = self.control.latest_cut("silver" if layer == "silver" else "gold")
        assert cut is not None
        return dict(cut.tables)


def printed(done: CompletedProcess[str]) -> str:
    """Require success without a warning or traceback; return the command's output."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "WARN" not in done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def commands(
    spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Commands]:
    dsn = make_database(server_dsn)
    yield Commands(spark, Shop(tmp_path_factory.mktemp("commands"), dsn))
    drop_database(server_dsn, dsn)


def test_gold_builds_the_documents_of_silvers_newest_cut(commands: Commands) -> None:
    commands.run_here("gold", "--until-caught-up")
    cut, before = commands.control.latest_cut("gold"), commands.control.latest_cut("silver")
    assert cut is not None
    assert before is not None
    assert (cut.commit_lsn, set(cut.tables)) == (before.commit_lsn, {"customer"})


def test_status_shows_every_layer(commands: Commands) -> None:
    status = commands.value("status")
    assert {table["name"]: table["state"] for table in status["tables"]} == {
        "public.customers": "streaming",
        "public.orders": "streaming",
    }
    assert [document["name"] for document in status["documents"]] == ["customer"]
    assert status["lake_error"] is None
    assert status["source_error"] is None


def test_explain_tells_how_changes_reach_a_document(commands: Commands) -> None:
    output = commands.run("explain", "customer")
    assert output.startswith("gold.customer: one document per row of public.customers, found by id\n")
    assert "join path public.orders.customer_id = public.customers.id" in output


def test_preview_prints_a_document(commands: Commands) -> None:
    document = json.loads(commands.run_here("preview", "customer", "--key", "7"))
    assert (document["id"], document["name"]) == (7, "c7")
    assert [order["id"] for order in document["orders"]] == [6, 56, 106, 156]


def test_verify_finds_gold_equal_to_a_rebuild(commands: Commands) -> None:
    (verdict,) = json.loads(commands.run_here("verify", "--document", "*", "--output", "json"))["documents"]
    assert (verdict["document"], verdict["equal"], verdict["compared"]) == ("customer", True, 50)


def test_quality_checks_the_catalog_and_writes_a_report(commands: Commands, tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    result = json.loads(commands.run_here("quality", "--report", str(report), "--output", "json"))
    assert result["success"] is True
    assert "customers" in report.read_text()


def test_maintain_says_what_it_did_to_each_table(commands: Commands) -> None:
    output = commands.run_here("maintain", "--output", "json")
    lines = [json.loads(line) for line in output.splitlines()]
    assert {f"{result['layer']}.{result['name']}" for result in lines} == {
        "silver.customers",
        "silver.orders",
        "gold.customer",
    }


def test_rebuild_derives_silver_from_bronze(commands: Commands) -> None:
    before = commands.versions("silver")
    lines = commands.run_here("rebuild", "silver").splitlines()
    assert {line.partition(":")[0] for line in lines} == {"silver.customers", "silver.orders"}
    after = commands.versions("silver")
    assert after.keys() == before.keys()
    assert all(after[name] > before[name] for name in before)


def test_rebuild_builds_gold_from_silver(commands: Commands) -> None:
    assert commands.run_here("rebuild", "gold") == "gold.customer: rebuilt in full from silver\n"
    cut, before = commands.control.latest_cut("gold"), commands.control.latest_cut("silver")
    assert cut is not None
    assert before is not None
    assert cut.commit_lsn == before.commit_lsn


@pytest.mark.torture
def test_stages_and_sql_succeed_too(commands: Commands) -> None:
    commands.shop.execute("INSERT INTO customers VALUES (51, 'new', NULL, '{}')")
    for stage in ("bronze", "silver"):
        commands.run(stage, "--until-caught-up")
    with Command("gold", commands.shop.file, "--until-caught-up", folder=commands.shop.folder) as gold:
        assert gold.wait(280) == 0, gold.text()
        assert not gold.family(), "neither a JVM nor a reader outlives it"
    query = "SELECT count(*) AS n FROM silver.customers JOIN gold.customer USING (id)"
    assert commands.value("sql", query) == {"n": 51}
    assert json.loads(commands.run("preview", "customer", "--key", "51"))["name"] == "new"
    assert commands.value("quality")["success"] is True
    verified = commands.value("verify")
    assert [verdict["equal"] for verdict in verified["tables"] + verified["documents"]] == [True, True, True]
    assert len(commands.run("maintain", "--output", "json").splitlines()) == 3
    assert len(commands.run("rebuild", "silver").splitlines()) == 2
    assert commands.run("rebuild", "gold") == "gold.customer: rebuilt in full from silver\n"
