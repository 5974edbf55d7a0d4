"""A lake in an object store: a whole pipeline, a kill within a commit, and two drivers on one table.

The server is moto's, behind a proxy that counts, delays and refuses requests (`tests.object_store`).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pytest
from deltalake import DeltaTable, QueryBuilder

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.pipelines.spark.hadoop import LOG_STORE
from deltasmelt.pipelines.spark.launch import JVM_OPTIONS, jvm_options
from deltasmelt.silver.rebuild import SCRATCH
from tests.bronze.replaying import execute, fetch, source_of
from tests.object_store import Faults
from tests.pipelines.processes import ROOT, Command, until
from tests.pipelines.shop_in_store import job, pipeline_in

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import ObjectStore, Request

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.process, pytest.mark.timeout(900)]

# How much is in a store is not known, so a job there would not take a JVM of few statements by itself.
SETTINGS: Final = {"spark.driver.memory": "1g", JVM_OPTIONS: jvm_options("", brief=True)}
DRIVER: Final = """
import sys
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.pipelines.spark.session import spark_session
from tests.object_store import options_of
name, root, url = sys.argv[1:]
root = in_store(root, options_of(url))
few = {"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "1"}
spark = spark_session(few, lake=root, brief=True)
spark.range(1).count()
print("ready", flush=True)
for line in sys.stdin:
    spark.sql(f"SELECT '{name}' AS who, {line} AS number").write.format("delta").mode("append").save(root)
    print("done", flush=True)
"""


def test_a_pipeline_killed_within_a_commit_and_refused_for_a_while_is_equal_to_its_source(
    store: ObjectStore, database: str, tmp_path: Path
) -> None:
    source = source_of(database)
    execute(
        source,
        "CREATE TABLE customers (id int PRIMARY KEY, name text)",
        "CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total numeric)",
        "INSERT INTO customers SELECT i, 'n' || i FROM generate_series(1, 50) i",
        "INSERT INTO orders SELECT i, i % 50 + 1, i FROM generate_series(1, 300) i",
    )
    file = pipeline_in(
        tmp_path, database, source.slot, store.options(), more=f"spark: {json.dumps(SETTINGS)}\n"
    )
    store.set_faults(Faults(hold=r"silver/orders/_delta_log/0+1\.json$"))
    with Command("run", file, "--until-caught-up", folder=tmp_path) as killed:
        until(lambda: store.held() or killed.process.poll() is not None, seconds=300)
        assert killed.process.poll() is None, killed.text()
        for pid in [killed.process.pid, *killed.family()]:
            os.kill(pid, signal.SIGKILL)
        killed.wait()
    execute(
        source,
        "UPDATE orders SET total = total + 1 WHERE id % 7 = 0",
        "DELETE FROM orders WHERE id % 50 = 1",
        "UPDATE customers SET name = 'other' WHERE id = 7",
    )
    with Command("run", file, "--until-caught-up", folder=tmp_path) as restarted:
        until(lambda: "see whether it is alive" in restarted.text() or restarted.process.poll() is not None)
        store.set_faults()  # what the killed one had sent is carried out now
        until(lambda: "starting Spark" in restarted.text() or restarted.process.poll() is not None)
        store.set_faults(Faults(unavailable=8.0))
        assert restarted.wait() == 0, restarted.text()
        assert "see whether it is alive" in restarted.text()
    store.set_faults()
    execute(source, "INSERT INTO orders VALUES (900, 9, 5)")
    count = "SELECT count(*) AS orders FROM silver.orders"
    with job(store.options(), SETTINGS) as smelt:
        smelt("bronze", file, "--until-caught-up")
        assert "294" in smelt("sql", file, count)
        assert "295" in smelt("sql", file, "--fresh", count)
        store.forget()
        smelt("silver", file, "--until-caught-up")
        assert len(requests_of(store, "silver/orders")) <= 50
        assert len(requests_of(store, "silver/customers")) <= 12, "it is opened, and did not change"
        assert not requests_of(store, "silver/orders", r"[.]crc")
        lists = [unquote(request.query) for request in requests_of(store, "silver/orders/_delta_log")]
        assert any(
            "start-after=shop/silver/orders/_delta_log/0" in listing
            for listing in lists
            if "delimiter=/" in listing
        )
        # As S3's directory buckets do; deltalake, whose lists have no delimiter, knows no other way.
        store.set_faults(Faults(unlisted="(?=.*delimiter=)(?=.*start-after=)"))
        assert "rebuilt" in smelt("rebuild", file, "silver", "orders")
        store.set_faults()
        assert "rebuilt" in smelt("rebuild", file, "gold")
        assert "silver.orders" in smelt("maintain", file)
        output = smelt("verify", file)
        assert "silver.orders: equal to PostgreSQL" in output
        assert "295 rows" in output
        assert "gold.customer: equal to a full rebuild" in output
        assert "pg_drop_replication_slot" in smelt("drop", file, "--yes")
    assert fetch(source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", source.slot) == 0
    assert fetch(source, "SELECT count(*) FROM pg_publication") == 0
    commits = [
        request for request in store.requests("PUT") if re.search(r"_delta_log/[0-9]+\.json$", request.path)
    ]
    assert {request.path.split("/")[3] for request in commits} == {
        "bronze",
        "silver",
        "gold",
        "control",
        SCRATCH,
    }
    shop = in_store("s3://lake/shop", store.options())
    paths = {
        path.path.removeprefix("/lake/shop/") for path in store.requests("PUT", f"/lake/shop/{SCRATCH}/")
    }
    extra = [path for path in paths if not path.endswith("/") and objects.read(shop, path) is not None]
    assert (bool(paths), extra) == (True, []), "what a rebuild made for itself is gone"
    assert {request.condition for request in commits} == {"*"}, "each commit is put on condition"


def requests_of(store: ObjectStore, table: str, pattern: str = "") -> list[Request]:
    """Return the requests for a table's folder, listings included."""
    of_table = [
        request for request in store.requests() if f"/{table}/" in f"{request.path}?{unquote(request.query)}"
    ]
    return [request for request in of_table if re.search(pattern, request.path)]


def driver(name: str, root: str, store: ObjectStore) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, name, root, store.url],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip


def tell(process: subprocess.Popen[str], number: int) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{number}\n")
    process.stdin.flush()


def hear(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_two_drivers_on_one_table_lose_no_commit_of_each_other(store: ObjectStore) -> None:
    root = "s3://lake/race"
    with driver("a", root, store) as a, driver("b", root, store) as b:
        try:
            assert [hear(a), hear(b)] == ["ready", "ready"], f"with the log store {LOG_STORE}"
            tell(a, 0)
            assert hear(a) == "done"

            store.set_faults(Faults(hold=r"race/_delta_log/0+1\.json$"))
            tell(a, 1)
            until(lambda: bool(store.held()))
            tell(b, 1)
            assert hear(b) == "done", "the later driver was first"
            store.set_faults()
            assert hear(a) == "done"

            store.set_faults(Faults(hold=r"race/_delta_log/0+3\.json$"))
            tell(a, 2)
            until(lambda: bool(store.held()))
            a.kill()
            tell(b, 2)
            assert hear(b) == "done"
            store.set_faults()
            tell(b, 3)
            assert hear(b) == "done"
        finally:
            a.kill()
            b.kill()
    table = DeltaTable(root, storage_options=store.options())
    stored_rows = QueryBuilder().register("race", table).execute("SELECT who, number FROM race").read_all()
    rows = zip(stored_rows["who"].to_pylist(), stored_rows["number"].to_pylist(), strict=True)
    assert sorted(rows) == [("a", 0), ("a", 1), ("b", 1), ("b", 2), ("b", 3)]
    assert table.version() == 4
