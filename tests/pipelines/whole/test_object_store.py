"""A lake in an object store: a whole pipeline, killed within a commit, and two drivers on one table.

The server is moto's, behind a front that counts, holds and refuses requests (`tests.object_store`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Final

import pytest
from deltalake import DeltaTable, QueryBuilder

from pipelines.spark.hadoop import LOG_STORE
from tests.bronze.replaying import execute, source_of
from tests.object_store import Faults
from tests.pipelines.processes import ROOT, Command, until
from tests.pipelines.shop_in_store import pipeline_in, smelt

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import ObjectStore

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.process, pytest.mark.timeout(900)]

SMALL: Final = "spark: {spark.driver.memory: 1g}\n"
DRIVER: Final = """
import sys
from bronze.lake.stores import register
from pipelines.spark.session import spark_session
from tests.object_store import options_of
name, root, url = sys.argv[1:]
register(root, options_of(url))
spark = spark_session({"spark.driver.memory": "700m", "spark.sql.shuffle.partitions": "1"}, lake=root)
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
    file = pipeline_in(tmp_path, database, source.slot, store.options(), more=SMALL)
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
    with Command("run", file, "--until-caught-up", folder=tmp_path) as again:
        until(lambda: "see whether it is alive" in again.text() or again.process.poll() is not None)
        store.set_faults()  # what the killed one had sent is carried out now
        until(lambda: "starting Spark" in again.text() or again.process.poll() is not None)
        store.set_faults(Faults(unavailable=8.0))
        assert again.wait() == 0, again.text()
    store.set_faults()
    said = smelt(tmp_path, "verify", file)
    assert "silver.orders: equal to PostgreSQL" in said
    assert "294 rows" in said
    assert "gold.customer: equal to a full rebuild" in said
    commits = [one for one in store.requests("PUT") if re.search(r"_delta_log/[0-9]+\.json$", one.path)]
    assert {one.path.split("/")[3] for one in commits} == {"bronze", "silver", "gold", "control"}
    assert {one.condition for one in commits} == {"*"}, "each commit is put on condition"


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
    found = QueryBuilder().register("race", table).execute("SELECT who, number FROM race").read_all()
    rows = zip(found["who"].to_pylist(), found["number"].to_pylist(), strict=True)
    assert sorted(rows) == [("a", 0), ("a", 1), ("b", 1), ("b", 2), ("b", 3)]
    assert table.version() == 4
