"""Each command succeeds once as a process with a JVM of its own: arguments, exit code, and main output.

Tests next to the commands' code cover all further cases, on the tests' session. `test_run`, `test_shell` and
`test_jobs_spark_submit` run `smelt run`, stages and `smelt sql` as processes in `make test`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.config.sections import SnapshotSettings
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.silver.cycle import Silver
from tests.bronze.replaying import read_all
from tests.pipelines.processes import Command
from tests.pipelines.runtime.test_run import Shop
from tests.pipelines.test_cli import smelt

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.torture]


class Commands:
    """A shop whose rows are in bronze and silver, and its commands."""

    def __init__(self, spark: SparkSession, shop: Shop) -> None:
        self.shop = shop
        lake = shop.pipeline.lake_address()
        read_all(shop.pipeline.source, str(lake.path), snapshot=SnapshotSettings(workers=2))
        silver = Silver(spark, lake, shop.pipeline.silver, ControlTables(lake))
        silver.cycle()
        silver.close()

    def run(self, command: str, *more: str) -> str:
        """Run a command as a process; require success without a warning, and return the output."""
        done = smelt(command, self.shop.file, *more, folder=self.shop.folder, seconds=280)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stdout + done.stderr
        assert "WARN" not in done.stdout + done.stderr
        return done.stdout

    def value(self, command: str, *more: str) -> Any:
        """Run a command as a process; return the value of its line of JSON."""
        return json.loads(self.run(command, *more, "--output", "json"))


def test_each_command_succeeds_as_a_process(spark: SparkSession, tmp_path: Path, database: str) -> None:
    commands = Commands(spark, Shop(tmp_path, database))
    commands.shop.execute("INSERT INTO customers VALUES (51, 'new', NULL, '{}')")
    for stage in ("bronze", "silver"):
        commands.run(stage, "--until-caught-up")
    with Command("gold", commands.shop.file, "--until-caught-up", folder=commands.shop.folder) as gold:
        assert gold.wait(280) == 0, gold.text()
        assert not gold.family(), "neither a JVM nor a reader outlives it"
    status = commands.value("status")
    assert {table["state"] for table in status["tables"]} == {"streaming"}
    assert "join path public.orders.customer_id" in commands.run("explain", "customer")
    query = "SELECT count(*) AS n FROM silver.customers JOIN gold.customer USING (id)"
    assert commands.value("sql", query) == {"n": 51}
    assert json.loads(commands.run("preview", "customer", "--key", "51"))["name"] == "new"
    assert commands.value("quality")["success"] is True
    verified = commands.value("verify")
    assert [verdict["equal"] for verdict in verified["tables"] + verified["documents"]] == [True, True, True]
    assert len(commands.run("maintain", "--output", "json").splitlines()) == 3
    assert len(commands.run("rebuild", "silver").splitlines()) == 2
    assert commands.run("rebuild", "gold") == "gold.customer: rebuilt in full from silver\n"
