"""The measures of a day in `bench_month`: on disk, at the server, in memory, and the seconds of starts."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from statistics import mean
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
_GROWTH: Final = 1.15
"""Ratio of the last week's mean to the second week's that counts as growth."""
_SLACK: Final = {"s": 0.5, "MiB": 8.0, "kB": 40.0}
"""Difference below which a measure with this unit does not grow; 4 without a unit."""


def growing(rows: Sequence[Mapping[str, float]]) -> dict[str, tuple[float, float]]:
    """Return the measures that grow from the days after `SETTLED` to the last days, with both means."""
    settled = [row for row in rows if row["day"] >= SETTLED]
    third = max(1, len(settled) // 3)
    found = {}
    for name in rows[-1]:
        early, late = (mean(row[name] for row in part) for part in (settled[:third], settled[-third:]))
        slack = _SLACK.get(name.rpartition(" ")[2], 4.0)
        if name not in ("day", "day s") and late > early * _GROWTH and late - early > slack:
            found[name] = early, late
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
        counts: Counter[str] = Counter()
        for path in self._lake.rglob("*"):
            try:
                size = path.stat().st_size
            except FileNotFoundError:  # removed meanwhile
                continue
            if not path.is_file():
                continue
            counts["lake MiB"] += size
            if path.parent.name != "_delta_log":
                counts["data files"] += 1
            elif path.suffix == ".json":
                counts["log entries"] += 1
            elif ".checkpoint" in path.name and path.suffix == ".parquet":
                counts["checkpoints kB"] += size
            else:
                counts["other files of logs"] += 1
        found: dict[str, float] = {name: float(counts[name]) for name in sorted(counts)}
        found["lake MiB"] /= MIB
        found["checkpoints kB"] = found.get("checkpoints kB", 0.0) / 1000
        changes = self._lake / "bronze" / "changes" / "_delta_log"
        newest = max(changes.glob("*.checkpoint.parquet"), default=None)
        found["bronze's checkpoint kB"] = 0.0 if newest is None else newest.stat().st_size / 1000
        found["folders of silver"] = float(len(list((self._lake / "silver").iterdir())))
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
        found["JVM MiB"] = _resident(jvm.java.lang.ProcessHandle.current().pid())
        found["Spark's views"] = float(len(spark.catalog.listTables()))
        return found

    def _starts(self) -> dict[str, float]:
        """Return the seconds in which a reader and a run open a copy of the lake, without loading code."""
        copy = self._folder / "start"
        shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(self._lake, copy / "lake", ignore_dangling_symlinks=True)
        text = (self._folder / "pipeline.yml").read_text()
        (copy / "pipeline.yml").write_text(text)
        shutil.copytree(self._folder / "documents", copy / "documents")
        command = [sys.executable, "-m", "tests.benchmarks.month_start", str(copy / "pipeline.yml")]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        shutil.rmtree(copy, ignore_errors=True)
        starts: dict[str, float] = json.loads(done.stdout)
        return starts


def _resident(pid: int | None) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))
