"""The age of a change when silver shows it: a live server, with reader and silver as in `smelt run`.

pgbench commits 1,000 single-row transactions a second over five tables (half updates, half inserts). A
transaction's age is the time from the server's commit timestamp to the record of the first cut that contains
the transaction. The first seconds, the warm-up of Spark, do not count.
"""

from __future__ import annotations

import statistics
import subprocess
import time
from bisect import bisect_left
from typing import TYPE_CHECKING, Final

import psycopg
import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from deltasmelt.pipelines.runtime.supervisor import Supervisor
from deltasmelt.pipelines.settings import load_pipeline

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.pipelines.settings import Pipeline

_TABLES: Final = 5
_ROWS: Final = 20_000
_RATE: Final = 1000


def load_script() -> str:
    """Return pgbench's script: an update or an insert of one row in one of the tables."""
    return f"\\set id random(1, {_ROWS})\n\\set kind random(1, 2)\n\\set n random(1, {_TABLES})\n" + "".join(
        f"\\if :n = {number}\n\\if :kind = 1\n"
        f"UPDATE t{number} SET total = total + 1 WHERE id = :id;\n\\else\n"
        f"INSERT INTO t{number} (note, total) VALUES ('live', 1);\n\\endif\n\\endif\n"
        for number in range(1, _TABLES + 1)
    )


def make_tables(dsn: str) -> None:
    """Create the tables with their first rows."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(1, _TABLES + 1):
            table = f"t{number}"
            connection.execute(
                f"CREATE TABLE {table} (id bigserial PRIMARY KEY, note text, total numeric(12, 2), "
                "at timestamptz DEFAULT now())".encode()
            )
            connection.execute(
                f"INSERT INTO {table} (note, total) SELECT 'note ' || n, n "
                f"FROM generate_series(1, {_ROWS}) n".encode()
            )


def ages(folder: Path, *, warm: float, seconds: float) -> list[float]:
    """Return the seconds from commit to silver of each transaction after the warm-up."""
    folder.mkdir(parents=True, exist_ok=True)
    script = folder / "load.pgbench"
    script.write_text(load_script())
    with EmbeddedServer(settings={"max_wal_size": "4GB"}) as server:
        make_tables(server.dsn())
        file = folder / "pipeline.yml"
        file.write_text(
            f"pipeline: bench\nsource: {{dsn: '{server.dsn()}', slot: bench, publication: bench}}\n"
            "lake: {path: ./lake}\nspark: {spark.driver.memory: 2g}\n"
        )
        pipeline = load_pipeline(file)
        with Supervisor(pipeline, [], command="bench-silver", layers=("bronze", "silver")) as supervisor:
            control = ControlTables(pipeline.lake_address())
            while control.latest_cut("silver") is None:
                supervisor.wait(0.2)
            load = subprocess.Popen(
                [
                    str(server.bin / "pgbench"), "-n", "-f", str(script), "-c", "4", "-R", str(_RATE),
                    "-T", str(round(warm + seconds)), server.dsn(),
                ],
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            start = time.time() + warm
            while load.poll() is None:
                supervisor.wait(0.2)
            deadline = time.monotonic() + 60
            ended = time.time()
            while time.monotonic() < deadline and time.time() < ended + 15:
                supervisor.wait(0.2)
        return _ages(pipeline, start, ended)


def _ages(pipeline: Pipeline, begun: float, ended: float) -> list[float]:
    lake = pipeline.lake_address()
    cuts = [
        (int(cut.commit_lsn), cut.recorded_at.timestamp())
        for cut in ControlTables(lake).cuts("silver")
        if cut.recorded_at is not None
    ]
    frontiers = [lsn for lsn, _ in cuts]
    rows = DeltaTable(lake.uri("bronze", "changes")).to_pyarrow_table(
        columns=["commit_lsn", "commit_ts", "op", "end_of_tx"]
    )
    rows = rows.filter(pc.and_(rows["end_of_tx"], pc.is_in(rows["op"], pa.array(["insert", "update"]))))
    seconds_behind = []
    for lsn, moment in zip(rows["commit_lsn"].to_pylist(), rows["commit_ts"].to_pylist(), strict=True):
        committed = moment.timestamp()
        if begun <= committed <= ended:
            at = bisect_left(frontiers, lsn)
            seconds_behind.append(float("inf") if at == len(cuts) else cuts[at][1] - committed)
    return seconds_behind


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return the median and the 95th percentile."""
    ordered = sorted(values)
    return statistics.median(ordered), ordered[int(len(ordered) * 0.95)]
