"""`quality.results`: one row per expectation and run, appended; the source of the report's history.

Each run is appended by one commit through delta-rs, like the control tables. So a run is there as a whole or
not at all, and reading the history needs no Spark.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bronze.lake import delta

if TYPE_CHECKING:
    from datetime import datetime

    from bronze.lake.location import Lake
    from pipelines.quality.expectations import QualityResult, Result

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
"""`quality.results`.

`column` is NULL where the expectation speaks of the table. `success` is NULL where it could not be checked;
`error` then says why. A suite file that could not be read is one row with `error` and neither table nor
expectation. `kwargs` and `observed` are JSON. `source` is ``file:line`` of the suite, or ``catalog of
schema.table``.
"""


@dataclass(frozen=True, slots=True)
class PastRun:
    """A run in numbers."""

    run_id: str
    run_at: datetime
    passed: int
    failed: int
    errors: int


def append_results(lake: Lake, result: QualityResult) -> None:
    """Append a run by one commit."""
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
    table = delta.open_or_create(
        delta.location(lake, "quality", RESULTS_TABLE),
        RESULTS_SCHEMA,
        description="One row per expectation and run",
    )
    delta.append(table, pa.Table.from_pylist(rows, schema=RESULTS_SCHEMA))


def past_runs(lake: Lake, limit: int) -> list[PastRun]:
    """The newest runs, oldest first."""
    table = delta.open_table(delta.location(lake, "quality", RESULTS_TABLE))
    if table is None:
        return []
    rows = table.to_pyarrow_dataset().to_table(["run_id", "run_at", "success"])
    times = pc.unique(rows["run_at"]).sort(order="descending")[:limit]
    rows = rows.filter(pc.is_in(rows["run_at"], value_set=times))
    runs: dict[tuple[Any, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows.to_pylist():
        outcome = 2 if row["success"] is None else 0 if row["success"] else 1
        runs[row["run_at"], row["run_id"]][outcome] += 1
    return [PastRun(run_id, run_at, *counts) for (run_at, run_id), counts in sorted(runs.items())]


def _row(row: Result) -> dict[str, Any]:
    about = row.expectation
    return {
        "layer": about.layer,
        "table_name": about.table,
        "suite": about.suite,
        "expectation": about.kind,
        "column": about.column,
        "kwargs": about.kwargs_json(),
        "severity": about.severity,
        "success": row.success,
        "element_count": row.element_count,
        "unexpected_count": row.unexpected_count,
        "unexpected_percent": row.unexpected_percent,
        "observed": None
        if row.observed is None
        else json.dumps(row.observed, default=str, ensure_ascii=False),
        "partial_unexpected": list(row.samples),
        "source": about.where,
        "error": row.error,
    }
