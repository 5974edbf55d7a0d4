"""The pipeline uses a cluster as a cluster: the whole pipeline on two executors, with one executor killed.

Two clusters run on this machine: ``local-cluster``, which Spark uses for tests, and a standalone master with
two workers. Executors are separate processes. So code fails here if it needs tasks in the driver's process: a
file in the driver's temporary folder, a class on the driver's class path alone.
"""

from __future__ import annotations

import json
import os
import re
import signal
from functools import partial
from typing import TYPE_CHECKING

import psycopg
import pytest

from tests.bronze.replaying import execute
from tests.patience import wait_for
from tests.pipelines.processes import Command
from tests.torture.clusters import Ran, executors, stages_begun, standalone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.torture, pytest.mark.spark, pytest.mark.timeout(2400)]

ROWS = 120_000
SCHEMA = f"""
CREATE TABLE customer (id int PRIMARY KEY, name text NOT NULL, note text);
CREATE TABLE purchase (
  id int PRIMARY KEY, customer_id int NOT NULL REFERENCES customer, amount numeric(12,2)
);
CREATE INDEX ON purchase (customer_id);
INSERT INTO customer
  SELECT n, 'customer ' || n, repeat(md5(n::text), 3) FROM generate_series(1, {ROWS // 4}) AS n;
INSERT INTO purchase SELECT n, 1 + n % {ROWS // 4}, n * 0.25 FROM generate_series(1, {ROWS}) AS n;
"""
CHANGES = f"""
UPDATE purchase SET amount = amount + 1 WHERE id % 2 = 0;
DELETE FROM purchase WHERE id % 10 = 1;
INSERT INTO purchase SELECT n, 1 + n % 1000, 7 FROM generate_series({ROWS + 1}, {ROWS + 30_000}) AS n;
UPDATE customer SET name = name || '!' WHERE id % 3 = 0;
"""
DOCUMENT = """\
document: customer
root: public.customer
fields:
  - name
  - note
  - purchases: {many: public.purchase, on: {customer_id: id}, fields: [id, amount], order_by: [id]}
"""
CELLS = {
    "customer": "concat_ws('|', id, name, note)",
    "purchase": "concat_ws('|', id, customer_id, amount)",
}
"""The compared expression of each table, valid in both PostgreSQL and Spark."""

LARGE = 20_000
"""Number of records from which a stage counts as large, as in `silver.spark.tuning.SMALL`."""

_DRIVER_BYTES = 10 * 2**20
"""Maximum bytes that a task may send to the driver: enough for Spark's broadcasts, not for a table."""


def fingerprint_there(dsn: str, table: str, cells: str) -> list[str]:
    """Return the number of rows at the source and the sum of their hashes."""
    query = (
        f"SELECT count(*)::text, sum(('x' || substr(md5({cells}), 1, 8))::bit(32)::bigint)::text FROM {table}"
    )
    with psycopg.connect(dsn) as connection:
        row = connection.execute(query.encode()).fetchone()
    assert row is not None
    return list(row)


def fingerprint_here(pipeline: Path, table: str, cells: str) -> list[str]:
    """Return the number of rows in silver and the sum of their hashes."""
    number = f"CAST(conv(substr(md5({cells}), 1, 8), 16, 10) AS BIGINT)"
    query = f"SELECT CAST(count(*) AS STRING) AS n, CAST(sum({number}) AS STRING) AS h FROM silver.{table}"
    with Command("sql", pipeline, query, "--output", "json", folder=pipeline.parent) as command:
        assert command.wait() == 0, command.text()
        match = re.search(r"\{.*\}", command.text())
        assert match, command.text()
        return list(json.loads(match[0]).values())


@pytest.fixture(params=["local-cluster", "standalone"])
def master(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local-cluster":
        yield "local-cluster[2,1,1024]"
        return
    with standalone(tmp_path / "cluster", workers=2) as address:
        yield address


@pytest.fixture
def pipeline(database: str, master: str, tmp_path: Path) -> Path:
    """Create a pipeline over large tables that runs on the cluster and writes an event log."""
    execute(database, SCHEMA)
    (tmp_path / "events").mkdir()
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "customer.yml").write_text(DOCUMENT)
    file = tmp_path / "pipeline.yml"
    file.write_text(
        f'pipeline: cluster\nsource: {{dsn: "{database}", slot: c{os.getpid()}, publication: c}}\n'
        "lake: {path: lake}\ngold: {documents: ['documents/*.yml']}\n"
        f"spark:\n  spark.master: '{master}'\n  spark.executor.memory: 1g\n  spark.executor.cores: 1\n"
        "  spark.eventLog.enabled: true\n  spark.eventLog.compress: false\n"
        f"  spark.eventLog.dir: '{(tmp_path / 'events').as_uri()}'\n"
        "  spark.driver.memory: 1g\n  spark.driver.host: 127.0.0.1\n"
        # What the cluster's owner calls a task's worth of data, so small that these tables are large.
        "  spark.sql.files.maxPartitionBytes: 256k\n  spark.sql.files.openCostInBytes: 64k\n"
        "  spark.sql.adaptive.advisoryPartitionSizeInBytes: 256k\n"
    )
    return file


def at_work(run: Command, events: Path, word: str, before: int) -> bool:
    """Check whether executors run a stage of the statement; fail if the run ended earlier."""
    assert run.process.poll() is None, run.text()
    return stages_begun(events, word) > before and bool(executors())


def test_cluster_pipeline_survives_lost_executor_and_uses_all(
    pipeline: Path, database: str, tmp_path: Path
) -> None:
    with Command("run", pipeline, "--until-caught-up", folder=tmp_path) as first:
        assert first.wait() == 0, first.text()
    execute(database, CHANGES)
    events = tmp_path / "events"
    for word in ("scanning files for matches", "_content_hash"):  # a fold of silver; a build of gold
        with Command("run", pipeline, "--until-caught-up", folder=tmp_path) as run:
            before = stages_begun(events, word)
            wait_for(partial(at_work, run, events, word, before))
            os.kill(min(executors()), signal.SIGKILL)
            assert run.wait() == 0, run.text()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute("UPDATE customer SET note = note || '?' WHERE id % 2 = 0")
    with Command("run", pipeline, "--until-caught-up", folder=tmp_path) as last:
        assert last.wait() == 0, last.text()
    for table, cells in CELLS.items():
        assert fingerprint_here(pipeline, table, cells) == fingerprint_there(database, table, cells)
    with Command("verify", pipeline, folder=tmp_path) as verify:
        assert verify.wait() == 0, verify.text()
    ran = Ran.of(tmp_path / "events")
    assert ran.lost >= 2
    assert len(ran.executors) >= 3
    large = ran.tasks_of_large(LARGE)
    assert large
    assert sum(tasks >= 2 for tasks in large) >= len(large) / 2, sorted(large)
    assert ran.driver_bytes[0] <= _DRIVER_BYTES, ran.driver_bytes
