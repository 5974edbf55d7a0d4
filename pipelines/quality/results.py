"""`quality.results`: one row per expectation and run, appended; the source of the report's history.

One commit through delta-rs appends each run, like the control tables, and the files are compacted in the same
way. So a run is present as a whole or not at all, and reading the history needs no Spark.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control_table import ControlTable
from deltasmelt.bronze.lake.table import sorted_by
from deltasmelt.pipelines.quality.expectations import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from datetime import datetime

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.pipelines.quality.expectations import Expectation, QualityResult, Result

RESULTS_TABLE: Final = "results"

RESULTS_SCHEMA: Final = pa.schema(
    [
        pa.field("run_id", pa.string()),
        pa.field("run_at", pa.timestamp("us", tz="UTC")),
        pa.field("commit_lsn", pa.int64()),
        pa.field("commit_ts", pa.timestamp("us", tz="UTC")),
        pa.field("layer", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("delta_version", pa.int64()),
        pa.field("suite", pa.string()),
        pa.field("expectation", pa.string()),
        pa.field("column", pa.string()),
        pa.field("kwargs", pa.string()),
        pa.field("severity", pa.string()),
        pa.field("success", pa.bool_()),
        pa.field("element_count", pa.int64()),
        pa.field("unexpected_count", pa.int64()),
        pa.field("unexpected_percent", pa.float64()),
        pa.field("observed", pa.string()),
        pa.field("partial_unexpected", pa.list_(pa.field("element", pa.string()))),
        pa.field("source", pa.string()),
        pa.field("error", pa.string()),
    ]
)
"""Schema of `quality.results`.

`column` is NULL for an expectation of the table. `success` is NULL for an expectation that could not be
checked; `error` has the reason. An unreadable suite file is one row with `error` and neither table nor
expectation. `kwargs` and `observed` are JSON; numbers unknown to JSON (NaN, infinity) are null. `source` is
``file:line`` of the suite, or ``catalog of schema.table``.
"""


KEPT: Final = timedelta(days=90)
"""Shortest retention of a run's results."""
_TIDY_EVERY: Final = 50
"""Number of commits between two removals of old runs."""

Identity: TypeAlias = tuple[Any, ...]

_NAMED: Final = ("layer", "table_name", "suite", "expectation", "kwargs")
"""Columns with the identity of an expectation, without its line in the file, which may move."""

_MEASURED: Final = ("observed", "unexpected_percent")

_ERRORS: Final = frozenset({"error", "critical"})
"""The severities of an error; rows of the first runs have ``critical``."""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run in numbers.

    Attributes:
        failed: number of broken expectations of severity ``error``.
        errors: number of expectations that could not be checked.
        warned: number of broken expectations of other severities.
    """

    run_id: str
    run_at: datetime
    passed: int
    failed: int
    errors: int
    warned: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """The outcome of an expectation in a run.

    `success` is None for an expectation that could not be checked. `value` is the observed number, or the
    percentage of passing rows; None for no number.
    """

    run_id: str
    run_at: datetime
    success: bool | None
    value: float | None


@dataclass(frozen=True, slots=True)
class History:
    """The newest runs, oldest first, and each expectation's outcomes in them, by `identity`."""

    runs: tuple[PastRun, ...]
    trends: Mapping[Identity, tuple[Point, ...]]


def append_results(lake: Lake, result: QualityResult) -> None:
    """Append a run by one commit; now and then compact the files, and remove runs older than `KEPT`."""
    versions = {table.qualified: table.version for table in result.tables}
    common = {
        "run_id": result.run_id,
        "run_at": result.run_at,
        "commit_lsn": int(result.commit_lsn),
        "commit_ts": result.commit_ts,
    }
    rows: list[dict[str, Any]] = [
        {**common, **_row(row), "delta_version": versions.get(row.expectation.qualified)}
        for row in result.rows
    ]
    rows += [{**common, "error": error} for error in result.file_errors]
    place = lake.uri("quality", RESULTS_TABLE)
    table = ControlTable(place, RESULTS_SCHEMA, "One row per expectation and run")
    table.append(rows)
    if delta.open_existing(place).version() % _TIDY_EVERY == 0:
        table.prune(_since(result.run_at - KEPT))
        table.tidy()


def _since(moment: datetime) -> Callable[[pa.Table], pa.Table]:
    """Return the rows of the runs since a moment."""
    return lambda rows: rows.filter(pc.greater_equal(rows["run_at"], pa.scalar(moment, rows["run_at"].type)))


def history(lake: Lake, limit: int) -> History:
    """Return the newest runs, and each expectation's outcomes in them; empty without runs."""
    table = delta.open_table(lake.uri("quality", RESULTS_TABLE))
    if table is None:
        return History((), {})
    run_times: set[datetime] = set()
    for batch in table.batches(["run_at"]):
        run_times = set(sorted(run_times.union(pc.unique(batch["run_at"]).to_pylist()), reverse=True)[:limit])
    if not run_times:
        return History((), {})
    # Batch by batch: deltalake's dataset takes a column without statistics for one that equals nothing.
    columns = ["run_id", "run_at", "severity", "success", *_NAMED, *_MEASURED]
    near = [
        batch.filter(pc.is_in(batch["run_at"], value_set=pa.array(sorted(run_times), batch["run_at"].type)))
        for batch in table.batches(columns)
    ]
    rows = pa.Table.from_batches(near)
    runs: dict[tuple[Any, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    trends: dict[Identity, list[Point]] = defaultdict(list)
    for row in sorted_by(rows, "run_at").to_pylist():
        runs[row["run_at"], row["run_id"]][_outcome(row)] += 1
        if row["expectation"] is not None:
            point = Point(row["run_id"], row["run_at"], row["success"], _measured(row))
            trends[tuple(row[name] for name in _NAMED)].append(point)
    past = tuple(PastRun(run_id, run_at, *counts) for (run_at, run_id), counts in sorted(runs.items()))
    return History(past, {name: tuple(points) for name, points in trends.items()})


def newest_run(lake: Lake) -> datetime | None:
    """Return the begin of the newest recorded run; None without runs. Read one column, batch by batch."""
    table = delta.open_table(lake.uri("quality", RESULTS_TABLE))
    if table is None:
        return None
    moments = (pc.max(batch["run_at"]).as_py() for batch in table.batches(["run_at"]))
    return max((moment for moment in moments if moment is not None), default=None)


def identity(expectation: Expectation) -> Identity:
    """Return an expectation's identity across runs."""
    plain = {
        "layer": expectation.layer,
        "table_name": expectation.table,
        "suite": expectation.suite,
        "expectation": expectation.kind,
        "kwargs": expectation.kwargs_json(),
    }
    return tuple(plain[name] for name in _NAMED)


def _outcome(row: dict[str, Any]) -> int:
    """Return the count of `PastRun` increased by a result."""
    if row["success"] is None:
        return 2
    if row["success"]:
        return 0
    return 1 if row["severity"] in _ERRORS else 3


def _measured(row: dict[str, Any]) -> float | None:
    """Return a run's finding as a number: the observed value, else the share of passing rows."""
    observed = None if row["observed"] is None else json.loads(row["observed"])
    if isinstance(observed, int | float | str) and not isinstance(observed, bool):
        with suppress(ValueError, OverflowError):  # a decimal is kept as text, but not every text is one
            number = float(observed)
            return number if math.isfinite(number) else None
    percent = row["unexpected_percent"]
    return None if percent is None or not math.isfinite(percent) else 100 - float(percent)


def _row(row: Result) -> dict[str, Any]:
    expectation, observed = row.expectation, finite(row.observed)
    return {
        "layer": expectation.layer,
        "table_name": expectation.table,
        "suite": expectation.suite,
        "expectation": expectation.kind,
        "column": expectation.column,
        "kwargs": expectation.kwargs_json(),
        "severity": expectation.severity,
        "success": row.success,
        "element_count": row.element_count,
        "unexpected_count": row.unexpected_count,
        "unexpected_percent": finite(row.unexpected_percent),
        "observed": None if observed is None else json.dumps(observed, default=str, ensure_ascii=False),
        "partial_unexpected": list(row.samples),
        "source": expectation.where,
        "error": row.error,
    }
