"""`make bench-month`: a month of one pipeline, in which nothing grows after its first week.

A real PostgreSQL, the real reader, and silver, gold, maintenance and data quality as in `smelt run`, which
runs for the whole month. The wall clock jumps a day at the end of each day (`jumping_clock`), so a day has
the age of a day and the work of a minute. A day: changes of five busy tables for some seconds, one change of
a seventh of the quiet tables, two tables made and the two of the day before dropped, and a last change whose
way to silver and gold is timed. One document reads busy tables, another a quiet one; a third document and a
table each have an error that lasts.

Commits are compressed as the clock is: `month_counts` has the numbers. Maintenance is due hourly by the
monotonic clock: here one whole round is due, and awaited, at the end of each day (`Rounds`). The day's last
step is a probe: a change of one row, when silver and gold have nothing else to do.

Each day ends with a row of measures (`month_measures`), as CSV, and after the last day the chart is drawn.
The exit code is 1 if a measure grows after the first week. `--leak` shows that this is noticed.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from zlib import crc32

import psycopg

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.memory import choose_arrow_allocator, use_one_arena
from deltasmelt.pipelines.commands.context import load_documents_of
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from deltasmelt.pipelines.quality.schedule import ParallelQuality
from deltasmelt.pipelines.runtime.supervisor import Supervisor
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.logs import start_logging
from tests.benchmarks import jumping_clock
from tests.benchmarks.measuring import machine, say
from tests.benchmarks.month_chart import draw
from tests.benchmarks.month_counts import compress_maintenance
from tests.benchmarks.month_measures import Measures, cpu_seconds, growing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.pipelines.runtime.maintenance import Maintenance, MaintenanceResult
    from deltasmelt.pipelines.settings import Pipeline

_BUSY: Final = 5
_WEEK: Final = 7
_QUALITY_EVERY: Final = 600.0
_RATE: Final = 12
_WAIT_SECONDS: Final = 600.0
_PIPELINE: Final = """
pipeline: month
source: {{dsn: '{dsn}', slot: month, publication: month}}
lake: {{path: ./lake, retention: 2d}}
bronze: {{flush_interval: 100ms, retention: 3d, renew: 1GB}}
silver: {{history: [public.busy_1]}}
gold: {{documents: [documents/*.yml]}}
spark:
  spark.driver.memory: 1g
  # Spark takes an executor for lost that was silent for longer, by the wall clock.
  spark.network.timeout: 100000000s
"""
_DOCUMENTS: Final = {
    "busy": """
document: busy
root: public.busy_1
fields:
  - id
  - note
  - lines: {many: public.busy_2, on: {parent: id}, fields: [id, note]}
""",
    "quiet": """
document: quiet
root: public.quiet_1
fields: [id, note]
""",
    "failing": """
document: failing
root: public.busy_3
fields:
  - id
  - number: {sql: cast(note as int)}
""",
}
_TABLE: Final = (
    "CREATE TABLE {name} (id int PRIMARY KEY, parent int, note text, at timestamptz DEFAULT now());"
    "INSERT INTO {name} SELECT n, 1 + n % 100, 'note ' || n FROM generate_series(1, {rows}) n"
)


def main() -> int:
    """Measure a month; return 1 if anything grows."""
    parser = argparse.ArgumentParser(prog="bench-month")
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--tables", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=5, help="of load in a day")
    parser.add_argument("--rest", type=float, default=3, help="idle seconds at the end of a day")
    parser.add_argument("--leak", type=int, default=0, help="MiB that the run loses on each day")
    parser.add_argument("--csv", type=Path, help="file of the measures, a row for each day")
    parser.add_argument("--chart", type=Path, help="SVG file of the chart")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.inside is None:
        choose_arrow_allocator()  # for the process that runs the month, as the command does
        if not jumping_clock.is_possible():
            say("needs Linux and a C compiler (cc)")
            return 2
        with tempfile.TemporaryDirectory(prefix="smelt-month-") as folder:
            words = ["-m", "tests.benchmarks.bench_month", *sys.argv[1:], "--inside", folder]
            return jumping_clock.run_with_clock(words, Path(folder))
    say(f"{machine()}; {options.days} days, {options.tables} tables\n")
    plan = Plan(options.days, options.tables, options.seconds, options.rest, options.leak)
    rows = month(options.inside, plan, options.csv)
    if options.chart is not None:
        options.chart.write_text(draw(rows), encoding="utf-8")
    grown = growing(rows)
    for name, text in grown.items():
        say(f"GROWS: {name}: {text}")
    return 1 if grown else 0


@dataclass(frozen=True, slots=True)
class Plan:
    """The length of a month, its tables, the seconds of a day's load and of its rest, and MiB lost a day."""

    days: int
    tables: int
    seconds: float
    rest: float
    leak: int = 0


def month(folder: Path, plan: Plan, table_file: Path | None) -> list[dict[str, float]]:
    """Return the measures of each day."""
    rows: list[dict[str, float]] = []
    with ExitStack() as held:
        with jumping_clock.real_clock():
            server = held.enter_context(EmbeddedServer())
        # After the server, whose account may not enter these folders.
        for name, variable in (("tmp", "TMPDIR"), ("logs", "SMELT_LOGS")):
            (folder / name).mkdir()
            os.environ[variable] = str(folder / name)
        tempfile.tempdir = None  # Python has chosen the folder already
        compress_maintenance()
        use_one_arena()
        source = held.enter_context(psycopg.connect(server.dsn(), autocommit=True))
        _make_tables(source, plan.tables)
        (folder / "documents").mkdir()
        for name, text in _DOCUMENTS.items():
            (folder / "documents" / f"{name}.yml").write_text(text)
        file = folder / "pipeline.yml"
        file.write_text(_PIPELINE.format(dsn=server.dsn()))
        start_logging("month")
        pipeline = load_pipeline(file)
        quality = held.enter_context(ParallelQuality(pipeline, _QUALITY_EVERY, say))
        supervisor = held.enter_context(
            Supervisor(
                pipeline,
                load_documents_of(pipeline),
                command="bench-month",
                after_cycle=quality.after_cycle,
                loaded_reader=held.enter_context(_reader()),
            )
        )
        measures, rounds, lost = Measures(folder, pipeline, supervisor, source), Rounds(), list[bytes]()
        for number in range(1, plan.days + 1):
            started = time.monotonic()
            probe = _day(_Day(number, plan, source, supervisor, pipeline, rounds))
            lost.append(os.urandom(plan.leak * 2**20))
            rows.append(
                {"day": float(number), **measures.row(), **probe, "day s": time.monotonic() - started}
            )
            _say_row(rows)
            if table_file is not None:
                _write(table_file, rows)
            jumping_clock.jump()
    return rows


@dataclass(frozen=True, slots=True)
class _Day:
    """A day's number, and what its work needs."""

    number: int
    plan: Plan
    source: psycopg.Connection[tuple[object, ...]]
    supervisor: Supervisor
    pipeline: Pipeline
    rounds: Rounds

    def run(self, statement: str) -> None:
        self.source.execute(statement.encode())


def _make_tables(source: psycopg.Connection[tuple[object, ...]], tables: int) -> None:
    for number in range(1, tables):
        name = f"busy_{number}" if number <= _BUSY else f"quiet_{number - _BUSY}"
        source.execute(_TABLE.format(name=name, rows=500 if number <= _BUSY else 50).encode())
    source.execute("CREATE TABLE broken (id numeric PRIMARY KEY, note text)")
    source.execute("INSERT INTO broken VALUES (1, 'a'), ('NaN', 'no decimal')")


def _day(day: _Day) -> dict[str, float]:
    """Do a day's work; return the seconds of its probes."""
    for letter in "ab":
        day.run(_TABLE.format(name=f"day_{day.number}_{letter}", rows=20))
        if day.number > 1:
            day.run(f"DROP TABLE day_{day.number - 1}_{letter}")
    for number in range(1, day.plan.tables - _BUSY):
        if number % _WEEK == day.number % _WEEK:
            day.run(f"UPDATE quiet_{number} SET note = 'of day {day.number}' WHERE id = {day.number}")
    day.run(f"UPDATE broken SET note = 'of day {day.number}' WHERE id = 1")
    end, count = time.monotonic() + day.plan.seconds, 0
    while time.monotonic() < end:
        count += 1
        table, row = f"busy_{1 + count % _BUSY}", 1 + (day.number * 37 + count) % 500
        day.run(f"UPDATE {table} SET note = 'day {day.number}, {count}', at = now() WHERE id = {row}")
        _wait(day, 1 / _RATE)
    _reach(day)
    seconds = {"maintenance s": _maintained(day)}
    # The reader has seen the decision about bronze by its next commit and poll.
    _wait(day, day.plan.rest)
    cpu = cpu_seconds(day.supervisor)
    lags = _reach(day)
    seconds |= {f"commit to {layer} s": lags[layer] for layer in ("silver", "gold")}
    return {**seconds, "commit to gold CPU s": cpu_seconds(day.supervisor) - cpu}


class Rounds:
    """Rounds of a run's maintenance over expired rows and all tables, each begun by a day's request.

    Of each day's round, files of busy tables and of documents are due, and of every third other table. A
    round goes on in the pauses between cycles. Everything here happens in the thread of the stages, so a
    round neither begins anew nor seems over while the thread works at it.
    """

    def __init__(self) -> None:
        self._requested: threading.Event | None = None
        self._running: threading.Event | None = None
        self._work: Maintenance | None = None
        self._number = 0

    def begin(self, work: Maintenance) -> threading.Event:
        """Request a round; return the event of its end."""
        if self._work is None:
            self._work, self._next_turn = work, work.when_it_pays
            work.when_it_pays = self._turn  # type: ignore[method-assign]
        ended = self._requested = threading.Event()
        return ended

    def _turn(self) -> Iterator[MaintenanceResult]:
        work = self._work
        assert work is not None
        if self._requested is not None and not work._waiting:
            self._running, self._requested = self._requested, None
            work._next_expiry = work._next_decision = work._next_round = -math.inf
            self._number += 1
            for (layer, name), last in work._last.items():
                third = crc32(name.encode()) % 3 == self._number % 3
                due = third or layer == "gold" or name.startswith("busy")
                last.removed_at = -math.inf if due else time.monotonic()
        yield from self._next_turn()
        if self._running is not None and not work._waiting:
            self._running.set()


def _maintained(day: _Day) -> float:
    """Wait for a whole round of maintenance, which a real day has 24 of; return its seconds."""
    assert day.supervisor.stages is not None
    work = day.supervisor.stages._maintenance
    assert work is not None
    start, ended = time.monotonic(), day.rounds.begin(work)
    while not ended.is_set():
        _wait(day, 0.2)
        if time.monotonic() - start > _WAIT_SECONDS:
            raise TimeoutError(f"a round of maintenance has not ended in {_WAIT_SECONDS} s")
    if work.failed:
        raise RuntimeError(f"maintenance failed: {work.failed}")
    return time.monotonic() - start


def _reader() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.benchmarks.month_reader"]
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def _reach(day: _Day) -> dict[str, float]:
    """Change a row, and wait until silver and gold have it; return the seconds until each had."""
    start, seconds = time.monotonic(), dict[str, float]()
    row = day.source.execute("SELECT pg_current_wal_insert_lsn() - '0/0'").fetchone()
    assert row is not None
    day.run(f"UPDATE busy_1 SET at = now(), note = 'until {row[0]}' WHERE id = 2")
    target, control = int(str(row[0])), ControlTables(day.pipeline.lake_address())
    while len(seconds) < 2:
        for layer in ("silver", "gold"):
            cut = control.latest_cut(layer)
            if cut is not None and int(cut.commit_lsn) >= target:
                seconds.setdefault(layer, time.monotonic() - start)
        if time.monotonic() - start > _WAIT_SECONDS:
            raise TimeoutError(f"silver and gold have not reached {target} in {_WAIT_SECONDS} s: {seconds}")
        _wait(day, 0.05)
    return seconds


def _wait(day: _Day, seconds: float) -> None:
    """Wait, and raise the error of a stage that failed."""
    end = time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        day.supervisor.wait(min(left, 0.2))


def _write(file: Path, rows: Sequence[dict[str, float]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as opened:
        writer = csv.DictWriter(opened, rows[-1])
        writer.writeheader()
        writer.writerows({name: f"{value:.6g}" for name, value in row.items()} for row in rows)


def _say_row(rows: Sequence[dict[str, float]]) -> None:
    say("; ".join(f"{name} {value:,.5g}" for name, value in rows[-1].items()))


if __name__ == "__main__":
    sys.exit(main())
