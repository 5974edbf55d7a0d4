"""The measures of a day in `bench_month`: on disk, at the server, in memory, and the seconds of starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable

from deltasmelt.bronze.lake.delta import open_existing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import psycopg

    from deltasmelt.pipelines.runtime.supervisor import Supervisor
    from deltasmelt.pipelines.settings import Pipeline

MIB: Final = 2**20
SETTLED: Final = 8
"""The first day on which nothing may grow any longer."""
_STARTS_EVERY: Final = 3
"""Number of days between two measures of a start."""
_TOLERANCE: Final = {
    "reader MiB": 0.03,
    "run MiB": 0.03,
    "JVM outside heap MiB": 0.05,
    **dict.fromkeys(("log entries", "other files of logs", "checkpoints", "control.cuts"), 0.6),
    **dict.fromkeys(("maintenance s", "commit to silver s", "commit to gold s"), 1.0),
}
"""Share of a measure by which it may rise from day 8 to the last day; 0.15 for others, none for `_STAYS`.

Logs rise for four days until the next tidying, and seconds with the machine's other work: CPU is the measure.
"""
_SLACK: Final = {"s": 1.0, "MiB": 6.0, "kB": 20.0}
"""Further rise that is none, of a measure with this unit; 6 without a unit."""
_STAYS: Final = {
    "bronze.relations": 2.0,
    "marks of bronze": 4.0,
    "folders of silver": 2.0,
    "files of gone tables": 20.0,
    "bronze's checkpoint kB": 1.4,
}
"""What stays, a day, of two gone tables (docs/scaling/growth.md)."""
_LATER: Final = frozenset(
    {"files of quiet tables", "files of tmp", "lake MiB", "heap after GC MiB", "JVM MiB"}
)
"""Measures that do not count, because a bound is later than the last day.

A table with a change a week has five versions after more than a month. Delta's cache forgets a gone table an
hour after its last use, by the monotonic clock. Until then the heap rises, up to the JVM's limit of 1 GiB.
"""
TIMES: Final = ("day", "day s")
_APART: Final = {
    "day": "files of gone tables",
    "quiet": "files of quiet tables",
    "gold.failing": "files of the failing document",
}
"""Names of measures by the begin of the name of a table of silver, or by a document."""
_ON_DISK: Final = (
    "lake MiB",
    "data files",
    "log entries",
    "other files of logs",
    "checkpoints",
    *_APART.values(),
)


def rise(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """Return the rise of a measure a day since `SETTLED`: the median of the slopes between any two days."""
    points = [(row["day"], row[name]) for row in rows if row["day"] >= SETTLED]
    return median((later - value) / (end - day) for (day, value), (end, later) in combinations(points, 2))


def growing(rows: Sequence[Mapping[str, float]]) -> dict[str, str]:
    """Return each measure that rises from `SETTLED` to the last day by more than is tolerated, in words."""
    days, found = rows[-1]["day"] - SETTLED, {}
    for name in rows[-1]:
        if name in TIMES or name in _LATER:
            continue
        level = median(row[name] for row in rows if row["day"] >= SETTLED)
        slack = _SLACK.get(name.rpartition(" ")[2], 6.0)
        a_day = rise(rows, name) - _STAYS.get(name, 0.0)
        tolerance = 0.0 if name in _STAYS else _TOLERANCE.get(name, 0.15)
        if a_day * days > level * tolerance + slack:
            found[name] = f"{a_day:,.3g} a day too much, at {level:,.5g}"
    return found


def disk(lake: Path) -> dict[str, float]:
    """Return counts and sizes of a lake's files; tables gone and quiet are apart."""
    counts = Counter(dict.fromkeys(_ON_DISK, 0))
    newest: dict[Path, tuple[str, int]] = {}
    for path in lake.rglob("*"):
        try:
            size = path.stat().st_size
        except FileNotFoundError:  # removed meanwhile
            continue
        if not path.is_file():
            continue
        counts["lake MiB"] += size
        layer, name = path.relative_to(lake).parts[:2]
        apart = _APART.get(name.partition("_")[0]) if layer == "silver" else _APART.get(f"{layer}.{name}")
        if apart is not None:
            counts[apart] += 1
        elif path.parent.name != "_delta_log":
            counts["data files"] += 1
        elif path.suffix == ".json":
            counts["log entries"] += 1
        elif ".checkpoint" in path.name and path.suffix == ".parquet":
            counts["checkpoints"] += 1
            newest[path.parent] = max(newest.get(path.parent, ("", 0)), (path.name, size))
        else:
            counts["other files of logs"] += 1
    found: dict[str, float] = {name: float(counts[name]) for name in _ON_DISK}
    found["lake MiB"] /= MIB
    found["newest checkpoints kB"] = sum(size for _, size in newest.values()) / 1000
    changes = newest.get(lake / "bronze" / "changes" / "_delta_log", ("", 0))
    found["bronze's checkpoint kB"] = changes[1] / 1000
    found["folders of silver"] = float(len(list((lake / "silver").iterdir())))
    return found


class Measures:
    """Takes the measures of a running pipeline."""

    def __init__(
        self,
        folder: Path,
        pipeline: Pipeline,
        supervisor: Supervisor,
        source: psycopg.Connection[tuple[object, ...]],
    ) -> None:
        self._folder, self._pipeline, self._supervisor, self._source = folder, pipeline, supervisor, source
        self._lake = folder / "lake"
        self._rows_taken = 0
        self._started: dict[str, float] = {}

    def row(self) -> dict[str, float]:
        """Return today's measures by name."""
        self._rows_taken += 1
        if self._rows_taken % _STARTS_EVERY == 1:
            self._started = self._starts()
        return {**self._disk(), **self._rows(), **self._server(), **self._memory(), **self._started}

    def _disk(self) -> dict[str, float]:
        found = disk(self._lake)
        for name in ("tmp", "logs"):
            files = [path for path in (self._folder / name).rglob("*") if path.is_file()]
            found[f"files of {name}"] = float(len(files))
        found["logs MiB"] = sum(path.stat().st_size for path in files) / MIB
        return found

    def _rows(self) -> dict[str, float]:
        found = {}
        for name in ("control.cuts", "control.runs", "control.errors", "quality.results", "bronze.relations"):
            place = self._lake.joinpath(*name.split("."))
            if not (place / "_delta_log").is_dir():
                found[name] = 0.0
                continue
            found[name] = float(DeltaTable(str(place)).to_pyarrow_table(columns=[]).num_rows)
        changes: Any = open_existing(str(self._lake / "bronze" / "changes"))
        changes.transaction_version("")
        found["marks of bronze"] = float(len(changes._marks.found))
        return found

    def _server(self) -> dict[str, float]:
        query = """
        SELECT (SELECT count(*) FROM pg_replication_slots) AS "slots",
               (SELECT count(*) FROM pg_publication) AS "publications",
               (SELECT count(*) FROM pg_publication_rel) AS "published tables",
               (SELECT max(pg_current_wal_lsn() - restart_lsn) / 1048576.0 FROM pg_replication_slots)
                 AS "WAL held MiB",
               (SELECT count(*) FROM pg_stat_activity WHERE backend_type IN ('client backend', 'walsender'))
                 AS "connections"
        """
        cursor = self._source.execute(query)
        row, names = cursor.fetchone(), cursor.description
        assert row is not None
        assert names is not None
        return {column.name: float(str(value)) for column, value in zip(names, row, strict=True)}

    def _memory(self) -> dict[str, float]:
        spark: Any = self._supervisor.spark
        assert self._supervisor.reader is not None
        found = {
            "reader MiB": _resident(self._supervisor.reader.pid),
            "run MiB": _resident(os.getpid()),
        }
        jvm = spark._jvm
        for _ in range(2):  # the first finds what Python and Spark let go
            jvm.java.lang.System.gc()
        runtime = jvm.java.lang.Runtime.getRuntime()
        found["heap after GC MiB"] = (runtime.totalMemory() - runtime.freeMemory()) / MIB
        memory = jvm.java.lang.management.ManagementFactory.getMemoryMXBean()
        found["JVM outside heap MiB"] = memory.getNonHeapMemoryUsage().getUsed() / MIB
        found["JVM MiB"] = _resident(jvm.java.lang.ProcessHandle.current().pid())
        found["Spark's views"] = float(len(spark.catalog.listTables()))
        return found

    def _starts(self) -> dict[str, float]:
        """Return the seconds in which a reader and a run open a copy of the lake, without loading code."""
        copy = self._folder / "start"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._lake, copy / "lake", copy_function=_copy)
        text = (self._folder / "pipeline.yml").read_text()
        (copy / "pipeline.yml").write_text(text)
        shutil.copytree(self._folder / "documents", copy / "documents")
        command = [sys.executable, "-m", "tests.benchmarks.month_start", str(copy / "pipeline.yml")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        shutil.rmtree(copy, ignore_errors=True)
        starts: dict[str, float] = json.loads(done.stdout)
        return starts


def _copy(file: str, to: str) -> None:
    with suppress(FileNotFoundError):  # removed or renamed meanwhile
        shutil.copy2(file, to)


def cpu_seconds(supervisor: Supervisor) -> float:
    """Return the CPU of the reader, of this process and of its JVM until now."""
    spark: Any = supervisor.spark
    assert supervisor.reader is not None
    pids = supervisor.reader.pid, os.getpid(), spark._jvm.java.lang.ProcessHandle.current().pid()
    return sum(_ticks(pid) for pid in pids) / os.sysconf("SC_CLK_TCK")


def _ticks(pid: int | None) -> int:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return int(user) + int(system)


def _resident(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
