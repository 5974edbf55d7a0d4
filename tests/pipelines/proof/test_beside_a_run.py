"""`smelt verify` in parallel with a running pipeline, while rows change constantly: repeatedly equal."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.settings import load_pipeline
from tests.patience import wait_for
from tests.pipelines.processes import Command
from tests.pipelines.test_cli import smelt

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.torture, pytest.mark.postgres, pytest.mark.spark]

_ROWS = 2_000


class Busy(threading.Thread):
    """A thread of inserts, updates, deletes, key changes and rare TRUNCATEs, as fast as possible."""

    def __init__(self, dsn: str) -> None:
        super().__init__(daemon=True)
        self._dsn = dsn
        self.stop = threading.Event()
        self.done = 0

    def run(self) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            while not self.stop.wait(0.002):
                n = self.done = self.done + 1
                connection.execute("UPDATE a SET v = %s WHERE id = %s", [n, 1 + n * 7 % _ROWS])
                with connection.transaction():
                    connection.execute("INSERT INTO b (id, v) VALUES (%s, %s)", [_ROWS + n, n])
                    connection.execute("DELETE FROM b WHERE id = %s", [n])
                    connection.execute("UPDATE b SET id = -id WHERE id = %s", [_ROWS + n - 5])
                if n % 500 == 0:
                    with connection.transaction():
                        connection.execute("TRUNCATE c")
                        connection.execute("INSERT INTO c SELECT i, %s FROM generate_series(1, 50) i", [n])


def test_repeated_proof_passes_while_silver_passes_snapshot(database: str, tmp_path: Path) -> None:
    name = "beside_" + str(conninfo_to_dict(database)["dbname"])
    with psycopg.connect(database, autocommit=True) as connection:
        for table in ("a", "b", "c"):
            connection.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, v int)".encode())
            connection.execute(f"INSERT INTO {table} SELECT i, 0 FROM generate_series(1, {_ROWS}) i".encode())
    file = tmp_path / "pipeline.yml"
    file.write_text(
        f"pipeline: beside\nsource: {{dsn: '{database}', slot: {name}, publication: {name}}}\n"
        "lake: {path: ./lake}\nsilver: {history: [public.a]}\n"
        "spark: {spark.master: 'local[2]', spark.driver.memory: 1g}\n"
    )
    control = ControlTables(load_pipeline(file).lake_address())
    with Command("run", file, folder=tmp_path) as run:
        wait_for(lambda: control.latest_cut("silver") is not None, 120)
        busy = Busy(database)
        busy.start()
        lsns = []
        for _ in range(4):
            process = smelt("verify", file, "--output", "json", folder=tmp_path, seconds=280)
            assert process.returncode == 0, process.stdout + process.stderr
            tables = json.loads(process.stdout)["tables"]
            assert {verdict["name"] for verdict in tables} == {"a", "a__history", "b", "c"}
            lsns.append({verdict["lsn"] for verdict in tables})
        busy.stop.set()
        busy.join()
        assert run.process.poll() is None, run.text()
    assert all(len(lsn) == 1 for lsn in lsns)
    assert len(set.union(*lsns)) == 4
    assert busy.done > 1_000
