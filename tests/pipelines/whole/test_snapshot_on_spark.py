"""`snapshot.engine: spark`: kills during the snapshot, and the files that Spark writes."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from deltalake import DeltaTable
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    execute,
    fetch,
    read_snapshot,
    source_of,
)
from tests.connect_server import ConnectServer
from tests.patience import wait_for
from tests.pipelines.processes import Command

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.process, pytest.mark.torture]

PIPELINE = """
pipeline: shop
source: {{host: {host}, port: "{port}", user: {user}, database: {dbname}, password: {password},
  slot: {slot}, publication: smelt}}
lake: {{path: lake}}
snapshot: {{engine: spark, workers: 2, chunk_rows: 1000}}
spark:
  spark.master: local[2,3]
  spark.driver.memory: 1g
  spark.eventLog.enabled: true
  spark.eventLog.compress: false
  spark.eventLog.dir: file://{events}
"""
END_A_COPY = """
SELECT coalesce(bool_or(pg_terminate_backend(pid)), false) FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'deltasmelt snapshot task %%'
AND query LIKE 'COPY%%'
"""
OWN = 6
"""Number of dashes in a plain file's name; a task's file has more, for its round and range."""
PASSWORD = "hunter2 in the plan"
TABLES = (
    "CREATE TABLE t (id int PRIMARY KEY, note text)",
    "INSERT INTO t SELECT n, repeat(md5(n::text), 60) FROM generate_series(1, 30000) n",
    "CREATE TABLE small (id int PRIMARY KEY)",
    "INSERT INTO small VALUES (1)",
    "ANALYZE",
)


def on_disk(changes: Path) -> set[str]:
    return {file.name for file in changes.glob("*.parquet")}


def own(changes: Path) -> set[str]:
    """Return the files that tasks wrote."""
    return {name for name in on_disk(changes) if name.count("-") > OWN}


def test_kills_and_lost_session_change_no_rows(database: str, lake_path: str, tmp_path: Path) -> None:
    """The reader and the JVM are killed; no secret is written down."""
    source: SourceSettings = source_of(database)
    execute(source, *TABLES)
    events = tmp_path / "events"
    events.mkdir()
    parameters = {"port": 5432, **conninfo_to_dict(database), "password": f"'{PASSWORD}'"}
    file = tmp_path / "pipeline.yml"
    file.write_text(PIPELINE.format(**parameters, slot=source.slot, events=events))
    changes = Path(lake_path, "bronze", "changes")
    table = TableName("public", "t")

    with Command("bronze", file, "--until-caught-up", folder=tmp_path) as killed:
        wait_for(lambda: own(changes) or killed.process.poll() is not None)
        assert killed.process.poll() is None, killed.text()
        for pid in [killed.process.pid, *killed.family("reader_process")]:
            os.kill(pid, signal.SIGKILL)
        wait_for(lambda: not killed.family())  # JVM and Python workers end with the reader
    assert read_snapshot(Lake(lake_path), table) is None
    own_changes = own(changes)
    assert own_changes

    with Command("bronze", file, "--until-caught-up", folder=tmp_path) as command:
        wait_for(lambda: own(changes) - own_changes or command.process.poll() is not None)
        ended = command.family("java")
        for jvm in ended:
            os.kill(jvm, signal.SIGKILL)
        # Before there is another JVM, a session that copies is one of the tasks that were lost with it.
        wait_for(lambda: set(command.family("java")) - set(ended) or command.process.poll() is not None)
        wait_for(lambda: fetch(source, END_A_COPY) or command.process.poll() is not None)
        assert command.wait() == 0, command.text()
    assert_bronze_equals_source(source, lake_path, "public.t", "public.small")
    file_names = {uri.rpartition("/")[2] for uri in DeltaTable(str(changes)).file_uris()}
    assert on_disk(changes) == file_names
    assert not own_changes & file_names
    assert ControlTables(Lake(lake_path)).open_errors() == []

    files = [path for folder in (events, tmp_path / "logs") for path in folder.rglob("*") if path.is_file()]
    texts = {path.name: path.read_text() for path in files}
    assert any("Task End Reason" in text for text in texts.values())
    assert any("terminating connection" in text for text in texts.values())
    assert [name for name, text in texts.items() if PASSWORD in text] == []


def test_connect_executor_snapshot_equals_source(
    database: str, lake_path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reader has no Java; the server repeats a task whose session at PostgreSQL ended."""
    source = source_of(database)
    execute(source, *TABLES)
    parameters = {"port": 5432, **conninfo_to_dict(database), "password": f"'{PASSWORD}'"}
    file = tmp_path / "pipeline.yml"
    text = PIPELINE.format(**parameters, slot=source.slot, events=tmp_path)
    file.write_text(text.partition("spark:\n")[0])
    empty = str(tmp_path / "no-programs")
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)  # as the server's machines have it
    with ConnectServer(tmp_path, master="local[2,3]") as server:
        variables = {"SPARK_REMOTE": server.remote, "JAVA_HOME": empty, "PATH": empty}
        with Command("bronze", file, "--until-caught-up", folder=tmp_path, variables=variables) as reader:
            wait_for(lambda: fetch(source, END_A_COPY) or reader.process.poll() is not None)
            assert reader.wait() == 0, reader.text()
        log_text = server.log.read_text()
    assert "terminating connection" in log_text
    assert PASSWORD not in log_text
    changes = Path(lake_path, "bronze", "changes")
    assert own(changes)
    assert on_disk(changes) == {uri.rpartition("/")[2] for uri in DeltaTable(str(changes)).file_uris()}
    assert_bronze_equals_source(source, lake_path, "public.t", "public.small")
    assert ControlTables(Lake(lake_path)).open_errors() == []
