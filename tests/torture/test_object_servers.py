"""Lakes on real servers of object stores: killed, cut off, slow, and with logs of ten thousand entries."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.place import in_store
from tests.bronze.replaying import execute, fetch, source_of
from tests.patience import wait_for
from tests.pipelines.processes import Command
from tests.pipelines.shop_in_store import pipeline_file, smelt
from tests.torture.object_servers import ACCOUNT, azurite, make_container, versitygw
from tests.torture.proxy import Proxy

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = [pytest.mark.torture, pytest.mark.postgres, pytest.mark.process, pytest.mark.timeout(3000)]

KILLS: Final = 4
ENTRIES: Final = 10_000


def options(url: str) -> dict[str, str]:
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "testtest", "aws_region": "us-east-1"}
    return {**keys, "aws_endpoint_url": url, "aws_allow_http": "true"}


def tables(source: SourceSettings) -> None:
    execute(
        source,
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total numeric)",
        "INSERT INTO customers SELECT i, 'n' || i FROM generate_series(1, 200) i",
        "INSERT INTO orders SELECT i, i % 200 + 1, i FROM generate_series(1, 3000) i",
    )


def changes(source: SourceSettings, rng: random.Random) -> None:
    first, step = rng.randrange(3000), rng.randrange(3, 11)
    execute(
        source,
        f"UPDATE orders SET total = total + 1 WHERE id % {step} = 0",
        f"DELETE FROM orders WHERE id = {first}",
        f"INSERT INTO orders SELECT max(id) + 1, {rng.randrange(1, 200)}, 5 FROM orders",
        f"UPDATE customers SET name = name || 'x' WHERE id = {rng.randrange(1, 200)}",
    )


def equal(folder: Path, file: Path) -> None:
    output = smelt(folder, "verify", file)
    assert "silver.orders: equal to PostgreSQL" in output
    assert "gold.customer: equal to a full rebuild" in output


def test_a_pipeline_is_killed_again_and_again(database: str, tmp_path: Path) -> None:
    source, rng = source_of(database), random.Random(20261125)
    tables(source)
    with versitygw(tmp_path) as (url, buckets):
        (buckets / "lake").mkdir()
        file = pipeline_file(tmp_path, database, source.slot, options(url))
        for _ in range(KILLS):
            with Command("run", file, folder=tmp_path) as running:
                wait_for(lambda: "as of" in running.text() or running.process.poll() is not None, seconds=300)
                changes(source, rng)
                time.sleep(rng.uniform(0.5, 8))
                with Command("silver", file, "--until-caught-up", folder=tmp_path) as second:
                    assert second.wait() == 1
                    assert "already-running" in second.text()
                changes(source, rng)
                time.sleep(rng.uniform(0, 2))
                for pid in [running.process.pid, *running.family()]:
                    os.kill(pid, signal.SIGKILL)
        smelt(tmp_path, "run", file, "--until-caught-up")
        equal(tmp_path, file)


def test_pipeline_survives_cut_refused_and_slow_store_connection(database: str, tmp_path: Path) -> None:
    source, rng = source_of(database), random.Random(7)
    tables(source)
    with versitygw(tmp_path) as (url, buckets), Proxy(int(url.rpartition(":")[2])) as proxy:
        (buckets / "lake").mkdir()
        file = pipeline_file(tmp_path, database, source.slot, options(f"http://127.0.0.1:{proxy.port}"))
        with Command("run", file, folder=tmp_path) as running:
            wait_for(lambda: "as of" in running.text() or running.process.poll() is not None, seconds=300)
            changes(source, rng)
            proxy.refusing = True
            proxy.cut()
            time.sleep(60)
            changes(source, rng)
            proxy.refusing, proxy.delay = False, 0.2
            proxy.cut()
            time.sleep(60)
            proxy.delay = 0.0
            assert running.process.poll() is None, running.text()
            running.process.send_signal(signal.SIGTERM)
            running.wait()
        smelt(tmp_path, "run", file, "--until-caught-up")
        equal(tmp_path, file)


def test_log_of_ten_thousand_entries_is_read_completely(tmp_path: Path) -> None:
    with versitygw(tmp_path) as (url, buckets):
        (buckets / "lake").mkdir()
        root = in_store("s3://lake/long", options(url))
        write_deltalake(root, pa.table({"a": [1]}), storage_options=options(url))
        log = buckets / "lake" / "long" / "_delta_log"
        for version in range(1, ENTRIES):
            entry = {"txn": {"appId": f"app {version % 7}", "version": version, "lastUpdated": 0}}
            (log / f"{version:020}.json").write_text(json.dumps(entry) + "\n")
        start = time.monotonic()
        table = delta.open_existing(root)
        assert table.version() == ENTRIES - 1
        versions = {name: table.transaction_version(f"app {name}") for name in range(7)}
        assert versions == {name: max(range(name, ENTRIES, 7)) for name in range(7)}
        assert time.monotonic() - start < 600


def test_reader_fills_lake_in_azure_store(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, rng = source_of(database), random.Random(3)
    tables(source)
    with azurite(tmp_path) as url:
        emulated = {
            "AZURE_STORAGE_USE_EMULATOR": "true",
            "AZURITE_BLOB_STORAGE_URL": url,
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
        }
        for name, value in emulated.items():
            monkeypatch.setenv(name, value)
        make_container(url, "lake")
        file = tmp_path / "shop.yml"
        root = f"abfss://lake@{ACCOUNT}.dfs.core.windows.net/shop"
        file.write_text(
            f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
            f"lake: {{path: '{root}', lease: 4s}}\n"
        )
        smelt(tmp_path, "bronze", file, "--until-caught-up")
        with Command("bronze", file, folder=tmp_path) as running:
            changes(source, rng)
            time.sleep(3)
            for pid in [running.process.pid, *running.family()]:
                os.kill(pid, signal.SIGKILL)
        changes(source, rng)
        smelt(tmp_path, "bronze", file, "--until-caught-up")
        parsed = json.loads(smelt(tmp_path, "status", file, "--output", "json"))
        assert {table["name"] for table in parsed["tables"]} == {"public.customers", "public.orders"}
        rows = DeltaTable(f"{root}/bronze/changes").to_pyarrow_table(columns=["op", "table_name"]).to_pylist()
        loaded = sum(row["op"] == "snapshot" and row["table_name"] == "orders" for row in rows)
        deleted = sum(row["op"] == "delete" for row in rows)
        assert loaded == 3000
        assert 3000 + 2 - deleted == fetch(source, "SELECT count(*) FROM orders")
