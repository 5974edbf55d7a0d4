"""A lake in an object store: a whole pipeline, and two drivers on one table.

The server is moto's, behind a proxy that counts, delays and refuses requests (`tests.object_store`).
"""

from __future__ import annotations

import json
import os
import re
import signal
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder, write_deltalake

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.place import in_store
from deltasmelt.pipelines.spark.launch import JVM_OPTIONS, jvm_options
from deltasmelt.silver.rebuild import SCRATCH
from tests.bronze.replaying import execute, fetch, source_of
from tests.object_store import Faults
from tests.patience import wait_for
from tests.pipelines.processes import Command
from tests.pipelines.shop_in_store import Job, pipeline_file

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings
    from tests.object_store import ObjectStore, Request

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.process, pytest.mark.timeout(900)]

# How much is in a store is not known, so a job there would not take a JVM of few statements by itself.
SETTINGS: Final = {"spark.driver.memory": "1g", JVM_OPTIONS: jvm_options("", brief=True)}
FIRST: Final = (
    "CREATE TABLE customers (id int PRIMARY KEY, name text)",
    "CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total numeric)",
    "INSERT INTO customers SELECT i, 'n' || i FROM generate_series(1, 50) i",
    "INSERT INTO orders SELECT i, i % 50 + 1, i FROM generate_series(1, 300) i",
)
CHANGES: Final = (
    "UPDATE orders SET total = total + 1 WHERE id % 7 = 0",
    "DELETE FROM orders WHERE id % 50 = 1",
    "INSERT INTO orders VALUES (900, 9, 5)",
)


@pytest.fixture(scope="module")
def job(store_of_all: ObjectStore, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    """Start a process for the commands of all tests."""
    with Job(tmp_path_factory.mktemp("job"), store_of_all.options(), SETTINGS) as running:
        yield running


def killed_and_refused(store: ObjectStore, source: SourceSettings, file: Path) -> None:
    """Kill `smelt run` within a commit, and refuse requests of the next `smelt run` for a while."""
    folder = file.parent
    store.set_faults(Faults(hold=r"silver/orders/_delta_log/0+1\.json$"))
    with Command("run", file, "--until-caught-up", folder=folder) as killed:
        wait_for(lambda: store.held() or killed.process.poll() is not None, seconds=300)
        assert killed.process.poll() is None, killed.text()
        for pid in [killed.process.pid, *killed.family()]:
            os.kill(pid, signal.SIGKILL)
        killed.wait()
    execute(source, "UPDATE orders SET total = -total", "UPDATE customers SET name = 'other' WHERE id = 7")
    with Command("run", file, "--until-caught-up", folder=folder) as restarted:
        wait_for(
            lambda: (
                "see whether the holder still runs" in restarted.text()
                or restarted.process.poll() is not None
            )
        )
        store.set_faults()  # what the killed one had sent is carried out now
        wait_for(lambda: "starting Spark" in restarted.text() or restarted.process.poll() is not None)
        store.set_faults(Faults(unavailable=8.0))
        assert restarted.wait() == 0, restarted.text()
        assert "see whether the holder still runs" in restarted.text()
    store.set_faults()


@pytest.mark.parametrize("killed", [False, pytest.param(True, marks=pytest.mark.torture)])
def test_a_pipeline_in_a_store_equals_its_source(
    store: ObjectStore, job: Job, database: str, tmp_path: Path, *, killed: bool
) -> None:
    source = source_of(database)
    execute(source, *FIRST)
    file = pipeline_file(
        tmp_path, database, source.slot, store.options(), more=f"spark: {json.dumps(SETTINGS)}\n"
    )
    if killed:
        killed_and_refused(store, source, file)
    else:
        job.run("run", file, "--until-caught-up")
    execute(source, *CHANGES)
    job.run("bronze", file, "--until-caught-up")
    count = "SELECT count(*) AS orders FROM silver.orders"
    assert "300" in job.run("sql", file, count)
    assert "295" in job.run("sql", file, "--fresh", count)
    store.forget()
    job.run("silver", file, "--until-caught-up")
    assert len(requests_of(store, "silver/orders")) <= 50
    assert len(requests_of(store, "silver/customers")) <= 12, "it is opened, and did not change"
    assert not requests_of(store, "silver/orders", r"[.]crc")
    lists = [unquote(request.query) for request in requests_of(store, "silver/orders/_delta_log")]
    assert any(
        "start-after=shop/silver/orders/_delta_log/0" in listing
        for listing in lists
        if "delimiter=/" in listing
    )
    job.run("gold", file, "--until-caught-up")
    # As S3's directory buckets do; deltalake, whose lists have no delimiter, knows no other way.
    store.set_faults(Faults(unlisted="(?=.*delimiter=)(?=.*start-after=)"))
    assert "rebuilt" in job.run("rebuild", file, "silver", "orders")
    store.set_faults()
    assert "silver.orders" in job.run("maintain", file)
    output = job.run("verify", file)
    assert "silver.orders: equal to PostgreSQL" in output
    assert "295 rows" in output
    assert "gold.customer: equal to a full rebuild" in output
    assert "pg_drop_replication_slot" in job.run("drop", file, "--yes")
    assert fetch(source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", source.slot) == 0
    assert fetch(source, "SELECT count(*) FROM pg_publication") == 0
    commits = [put for put in store.requests("PUT") if re.search(r"_delta_log/[0-9]+\.json$", put.path)]
    layers = {put.path.split("/")[3] for put in commits}
    assert layers == {"bronze", "silver", "gold", "control", SCRATCH}
    assert {put.condition for put in commits} == {"*"}, "each commit is put on condition"
    shop = in_store("s3://lake/shop", store.options())
    paths = {put.path.removeprefix("/lake/shop/") for put in store.requests("PUT", f"/lake/shop/{SCRATCH}/")}
    extra = [path for path in paths if not path.endswith("/") and objects.read(shop, path) is not None]
    assert (bool(paths), extra) == (True, []), "what a rebuild made for itself is gone"


def requests_of(store: ObjectStore, table: str, pattern: str = "") -> list[Request]:
    """Return the requests for a table's folder, listings included."""
    of_table = [
        request for request in store.requests() if f"/{table}/" in f"{request.path}?{unquote(request.query)}"
    ]
    return [request for request in of_table if re.search(pattern, request.path)]


def test_two_drivers_lose_no_commit_of_each_other(store: ObjectStore, job: Job) -> None:
    """Spark and deltalake write to one table. The test ends the job's process, so it comes last."""
    root = "s3://lake/race"

    def append(number: int) -> None:
        row = pa.table({"who": ["b"], "number": pa.array([number], pa.int32())})
        write_deltalake(root, row, mode="append", storage_options=store.options())

    job.run("append", root, "a", "0")

    store.set_faults(Faults(hold=r"race/_delta_log/0+1\.json$"))
    job.begin("append", root, "a", "1")
    wait_for(lambda: bool(store.held()))
    append(1)  # the later driver comes first
    store.set_faults()
    job.answer()

    store.set_faults(Faults(hold=r"race/_delta_log/0+3\.json$"))
    job.begin("append", root, "a", "2")
    wait_for(lambda: bool(store.held()))
    job.process.kill()
    append(2)
    store.set_faults()
    append(3)
    table = DeltaTable(root, storage_options=store.options())
    stored_rows = QueryBuilder().register("race", table).execute("SELECT who, number FROM race").read_all()
    rows = zip(stored_rows["who"].to_pylist(), stored_rows["number"].to_pylist(), strict=True)
    assert sorted(rows) == [("a", 0), ("a", 1), ("b", 1), ("b", 2), ("b", 3)]
    assert table.version() == 4
