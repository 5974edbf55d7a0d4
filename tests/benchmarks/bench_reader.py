"""`make bench-reader`: the reader into bronze against `pg_recvlogical` to /dev/null, over equal WAL.

The benchmark creates publication and slot before the rows; each run reads the WAL from a copy of this slot.
The two clients alternate, and each second pair runs in reverse order. A ratio compares neighbouring runs, so
unrelated load affects both clients. Each run of the reader has a fresh lake.

Both clients are measured from just before START_REPLICATION (`pg_recvlogical --verbose` prints this moment).
The measurement of pg_recvlogical ends with its process. The reader's measurement ends when everything is
durable in bronze and confirmed. Neither includes process start and connecting. CPU seconds are those of the
whole process for pg_recvlogical, and of the measured span for the reader.

The bars: wall at most 1.25 times pg_recvlogical's for bulk (and 10 s of CPU), 1.0 for oltp; peak resident
memory at most 300 MB, also for one transaction of ten million rows.

`rules` is bulk with one of ten columns of `orders` hashed, beside the reader without rules: at most 1.3 times
the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.lsn import Lsn
from tests.benchmarks.measuring import Run, Watched, bench_server, machine, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

_WORKLOADS: Final = Path(__file__).parent / "workloads"
_WALL_BARS: Final = {"bulk": 1.25, "oltp": 1.0}
_RULES: Final = {
    "columns": {"public.orders": {"note": "hash"}},
    "hash_key": "a key of the benchmark with 32 bytes",
}
_RULES_BAR: Final = 1.3
_CPU_BAR: Final = 10.0
"""Maximum CPU seconds of the reader, for bulk."""
_MEMORY_BAR: Final = 300e6 / 2**20


@dataclass(frozen=True, slots=True)
class ReaderRun(Run):
    """One measured run of the reader.

    Attributes:
        start_up: seconds before the measurement: imports, connecting, creating the tables.
        changes: number of changes that the reader wrote.
    """

    start_up: float
    changes: int


def main() -> int:
    """Measure, print the table, and return 1 if a bar is missed."""
    parser = argparse.ArgumentParser(prog="bench-reader")
    parser.add_argument("workloads", nargs="*", default=["bulk", "oltp", "transaction", "rules"])
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    say(f"{machine()}\n")
    say(f"{'workload':12} {'client':16} {'wall s':>8} {'CPU s':>8} {'peak MiB':>9} {'ratio':>7}")
    passed = True
    for workload in options.workloads:
        if workload == "rules":
            passed = report_rules(measure_rules(options.repeats)) and passed
            continue
        pairs = measure(workload, 1 if workload == "transaction" else options.repeats)
        passed = report(workload, pairs) and passed
    return 0 if passed else 1


def measure(workload: str, repeats: int) -> list[tuple[Run, ReaderRun]]:
    """Return pairs of neighbouring runs: pg_recvlogical, reader."""
    with bench_server() as server:
        make_tables(server, workload)
        end = make_changes(server, workload)
        pairs = []
        for repeat in range(repeats):
            if repeat % 2 == 0:
                limit = run_pg_recvlogical(server, end)
                pairs.append((limit, run_fresh_reader(server, end)))
            else:
                ours = run_fresh_reader(server, end)
                pairs.append((run_pg_recvlogical(server, end), ours))
        return pairs


def measure_rules(repeats: int) -> list[tuple[ReaderRun, ReaderRun]]:
    """Return pairs of neighbouring runs of the reader over bulk: without rules, with a hash.

    Rules hold from the first poll that records them. So each slot has a lake with the empty tables before
    the changes come.
    """
    with bench_server() as server, tempfile.TemporaryDirectory() as folder:
        start = make_tables(server)
        every = ({}, _RULES) * repeats
        lakes = [(f"{folder}/{n}", copy_slot(server), rules) for n, rules in enumerate(every)]
        for each in lakes:
            run_reader(server, start, *each)
        end = make_changes(server, "bulk")
        runs = [run_reader(server, end, *each) for each in lakes]
        return list(zip(runs[::2], runs[1::2], strict=True))


def make_tables(server: EmbeddedServer, workload: str = "") -> int:
    """Create tables, publication and slot; return the LSN after them."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        execute_file(connection, "schema.sql")
        if workload == "oltp":
            execute_file(connection, "bulk.sql")
            connection.execute("VACUUM ANALYZE")
        connection.execute("CREATE PUBLICATION bench FOR ALL TABLES WITH (publish_via_partition_root = true)")
        connection.execute("SELECT pg_create_logical_replication_slot('template', 'pgoutput')")
        return end_of_log(connection)


def make_changes(server: EmbeddedServer, workload: str) -> int:
    """Make the changes of a workload; return the LSN after the changes."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        if workload == "oltp":
            script = str(_WORKLOADS / "oltp.pgbench")
            subprocess.run(
                [
                    str(server.bin / "pgbench"),
                    "-n",
                    "-f",
                    script,
                    "-c",
                    "4",
                    "-j",
                    "2",
                    "-t",
                    "25000",
                    server.dsn(),
                ],
                check=True,
                capture_output=True,
            )
        else:
            execute_file(connection, f"{workload}.sql")
        return end_of_log(connection)


def end_of_log(connection: psycopg.Connection[Any]) -> int:
    """Return the LSN of the log's end, and write a message after that end."""
    row = connection.execute("SELECT pg_current_wal_lsn() - '0/0'").fetchone()
    assert row is not None
    connection.execute("SELECT pg_logical_emit_message(true, 'deltasmelt', 'end')")
    return int(row[0])


def execute_file(connection: psycopg.Connection[Any], name: str) -> None:
    """Run the statements of a file, each in its own transaction."""
    text = (_WORKLOADS / name).read_text()
    code = "\n".join(line for line in text.splitlines() if not line.startswith("--"))
    for statement in code.split(";"):
        if statement.strip():
            connection.execute(statement.encode())


def run_pg_recvlogical(server: EmbeddedServer, end: int) -> Run:
    """Measure the limit: receive everything, decode nothing, write to /dev/null."""
    slot = copy_slot(server)
    command = [
        str(server.bin / "pg_recvlogical"), "-d", server.dsn(), "-S", slot, "--start", "-f", "/dev/null",
        f"--endpos={Lsn(end)}", "-o", "proto_version=1", "-o", "publication_names=bench", "--verbose",
    ]  # fmt: skip
    watched = Watched(command)
    assert watched.process.stderr is not None
    for line in watched.process.stderr:
        if "starting log streaming" in line:
            break
    run = watched.ended(time.monotonic())
    drop_slot(server, slot)
    return run


def run_reader(
    server: EmbeddedServer, end: int, lake: str, slot: str, rules: Mapping[str, object] | None = None
) -> ReaderRun:
    """Measure the reader in a new process, without snapshots.

    With `rules`, which are settings of the source, the reader takes the first snapshot of each table.
    """
    settings = {
        "dsn": server.dsn(),
        "slot": slot,
        "lake": lake,
        "until": end,
        "rules": rules or {},
        "snapshots": "never" if rules is None else "initial",
    }
    process = subprocess.run(
        [sys.executable, "-m", "tests.benchmarks.reader_run", json.dumps(settings)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    counters = json.loads(process.stdout.splitlines()[-1])
    return ReaderRun(
        counters["wall"], counters["cpu"], counters["peak_mib"], counters["start_up"], counters["changes"]
    )


def run_fresh_reader(server: EmbeddedServer, end: int) -> ReaderRun:
    """Measure the reader into a fresh lake."""
    slot = copy_slot(server)
    with tempfile.TemporaryDirectory() as lake:
        run = run_reader(server, end, lake, slot)
    drop_slot(server, slot)
    return run


def copy_slot(server: EmbeddedServer) -> str:
    """Copy the template slot, with its start position, under a new name: a slot belongs to its first lake."""
    slot = f"run_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        connection.execute("SELECT pg_copy_logical_replication_slot('template', %s)", [slot])
    return slot


def drop_slot(server: EmbeddedServer, slot: str) -> None:
    """Drop a slot once its walsender has ended."""
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for _ in range(100):
            row = connection.execute(
                "SELECT active FROM pg_replication_slots WHERE slot_name = %s", [slot]
            ).fetchone()
            if row is not None and not row[0]:
                break
            time.sleep(0.05)
        connection.execute("SELECT pg_drop_replication_slot(%s)", [slot])


def report(workload: str, pairs: list[tuple[Run, ReaderRun]]) -> bool:
    """Print a workload's runs; return whether the bars hold."""
    for limit, ours in pairs:
        ratio = ours.wall / limit.wall
        for client, run, figure in (("pg_recvlogical", limit, 1.0), ("reader", ours, ratio)):
            say(f"{workload:12} {client:16} {run.wall:8.2f} {run.cpu:8.2f} {run.peak:9.0f} {figure:7.2f}")
    ratio = statistics.median(ours.wall / limit.wall for limit, ours in pairs)
    peak = max(ours.peak for _, ours in pairs)
    start_up = statistics.median(ours.start_up for _, ours in pairs)
    bar = _WALL_BARS.get(workload)
    passed = peak <= _MEMORY_BAR and (bar is None or ratio <= bar)
    passed = passed and (workload != "bulk" or statistics.median(ours.cpu for _, ours in pairs) <= _CPU_BAR)
    say(
        f"{workload:12} {pairs[0][1].changes:,} changes: median ratio {ratio:.2f} (bar {bar or 'none'}), "
        f"peak {peak:.0f} MiB (bar {_MEMORY_BAR:.0f}), start-up {start_up:.2f} s apart: "
        f"{'holds' if passed else 'MISSED'}\n"
    )
    return passed


def report_rules(pairs: list[tuple[ReaderRun, ReaderRun]]) -> bool:
    """Print the runs without and with rules; return whether the bar holds."""
    for pair in pairs:
        for client, run in zip(("reader", "reader, hash"), pair, strict=True):
            ratio = run.cpu / pair[0].cpu
            say(f"{'rules':12} {client:16} {run.wall:8.2f} {run.cpu:8.2f} {run.peak:9.0f} {ratio:7.2f}")
    ratio = statistics.median(ruled.cpu / plain.cpu for plain, ruled in pairs)
    passed = ratio <= _RULES_BAR and pairs[0][0].changes == pairs[0][1].changes
    say(f"{'rules':12} {pairs[0][1].changes:,} changes: median ratio of CPU {ratio:.2f} (bar {_RULES_BAR})\n")
    return passed


if __name__ == "__main__":
    sys.exit(main())
