"""A lake without a path, in a metastore shared by several drivers: run, refused, killed, continued.

Reader, `smelt run` and every command are separate drivers. Each has a JVM, so the test takes minutes.
"""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pytest

from tests.bronze.replaying import execute, fetch, source_of
from tests.metastore import Metastore
from tests.patience import wait_for
from tests.pipelines.processes import Command, in_turn
from tests.pipelines.shop_in_store import DOCUMENT

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.process,
    pytest.mark.torture,
    pytest.mark.timeout(1800),
]

_LONG: Final = "(SELECT string_agg(md5(i::text || '{0}'), '') FROM generate_series(1, 300) i)"
"""A text that PostgreSQL stores out of line, and omits from an update of other columns."""


def pipeline_file(folder: Path, database: str, slot: str, metastore: Metastore) -> Path:
    (folder / "customer.yml").write_text(DOCUMENT)
    file = folder / "shop.yml"
    spark = json.dumps({**metastore.settings, "spark.driver.memory": "900m"})
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {slot}, publication: smelt}}\n"
        "bronze: {flush_interval: 2s}\nlake: {catalog: spark_catalog, lease: 24s}\n"
        f"gold: {{documents: [customer.yml]}}\nspark: {spark}\n"
    )
    return file


def commits(folder: Path, table: str) -> int:
    """Return the number of a table's log entries; only the test knows the catalog's folder."""
    layer, name = table.split(".")
    return len(list((folder / "warehouse" / f"{layer}.db" / name / "_delta_log").glob("0*.json")))


def test_killed_pipeline_is_continued_by_other_drivers(database: str, tmp_path: Path) -> None:
    source = source_of(database)
    execute(
        source,
        "CREATE TABLE customers (id int PRIMARY KEY, name text, long text)",
        "ALTER TABLE customers ALTER long SET STORAGE EXTERNAL",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total numeric)",
        f"INSERT INTO customers SELECT i, 'n' || i, {_LONG.format('a')} FROM generate_series(1, 20) i",
        "INSERT INTO orders SELECT i, i % 20 + 1, i FROM generate_series(1, 300) i",
    )
    with Metastore(tmp_path) as metastore:
        file = pipeline_file(tmp_path, database, source.slot, metastore)
        with Command("run", file, folder=tmp_path) as running:
            wait_for(
                lambda: commits(tmp_path, "gold.customer") > 1 or running.process.poll() is not None, 900
            )
            assert running.process.poll() is None, running.text()
            with Command("silver", file, "--until-caught-up", folder=tmp_path) as second:
                assert second.wait() != 0, second.text()
                assert "this lake's silver stage is already running: by `smelt run`" in second.text()
            folded = commits(tmp_path, "silver.orders")
            execute(
                source,
                "UPDATE orders SET total = total + 1 WHERE id % 7 = 0",
                "DELETE FROM orders WHERE id % 50 = 1",
                "UPDATE customers SET name = 'other' WHERE id = 7",
            )
            wait_for(
                lambda: commits(tmp_path, "silver.orders") > folded or running.process.poll() is not None
            )
            assert running.process.poll() is None, running.text()
            for pid in [running.process.pid, *running.family()]:  # folded, and in no cut yet
                with suppress(ProcessLookupError):  # one may end with the other
                    os.kill(pid, signal.SIGKILL)
            running.wait()
        execute(
            source,
            "UPDATE customers SET name = upper(name) WHERE id < 5",
            "ALTER TABLE orders ADD note text DEFAULT 'none'",
            "INSERT INTO orders VALUES (900, 9, 5, 'x')",
            "UPDATE orders SET id = 901 WHERE id = 3",
        )
        with Command("run", file, "--until-caught-up", folder=tmp_path) as restarted:
            assert restarted.wait(900) == 0, restarted.text()
            assert "see whether the holder still runs" in restarted.text()
        execute(source, "INSERT INTO orders VALUES (902, 9, 5, 'y')", "TRUNCATE orders CASCADE",
                "INSERT INTO orders SELECT i, i % 20 + 1, i FROM generate_series(1, 40) i")  # fmt: skip
        commands = [
            ["bronze", str(file), "--until-caught-up"],
            ["sql", str(file), "--fresh", "SELECT 'fresh', count(*) FROM silver.orders"],
            ["silver", str(file), "--until-caught-up"],
            ["gold", str(file), "--until-caught-up"],
            ["sql", str(file), "SELECT 'cut', count(*) FROM silver.orders"],
            ["status", str(file)],
            ["quality", str(file)],
            ["maintain", str(file)],
            ["rebuild", str(file), "silver", "orders"],
            ["rebuild", str(file), "gold"],
            ["verify", str(file)],
            ["check", str(file)],
            ["drop", str(file), "--yes"],
        ]
        results = in_turn(*commands, folder=tmp_path, seconds=1500)
    report = "\n".join(
        f"== {command[0]}: {code}\n{text}" for command, (code, text) in zip(commands, results, strict=True)
    )
    assert [code for code, _ in results] == [0] * len(commands), report
    text = {command[0]: text for command, (_, text) in zip(commands, results, strict=True)}
    assert "40" in results[1][1], report
    assert "40" in results[4][1], report
    assert "lake     catalog spark_catalog" in text["status"]
    assert "silver.orders: equal to PostgreSQL" in text["verify"]
    assert "silver.customers: equal to PostgreSQL" in text["verify"]
    assert "gold.customer: equal to a full rebuild" in text["verify"]
    assert "pg_drop_replication_slot" in text["drop"]
    assert fetch(source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", source.slot) == 0
