"""Freshness and volume: silent tables and floods, found in the log of the last two weeks.

The check counts each table's changes by days ending at the cut's commit time, so today is always a whole day.
The source's clock counts. The counts come from `bronze.changes`: `control.runs` keeps the runs of one day
only.

A false alarm costs more trust than a late alarm, so the check covers only tables with a past:

* **Silent**: no change today, although each of the seven days before the silence had at least `STEADY`
  changes. A table with quiet weekends is never steady enough and is not checked. The warning about a silent
  table lasts a week; afterwards the two weeks contain no seven steady days.
* **Flood**: more than `TIMES` the greatest day of the two weeks before, and at least `LEAST_FLOOD` changes.
  The check requires a first row in these weeks, of a snapshot or a change, at least eight days ago.

Both are warnings: a quiet holiday and a planned migration look alike. The cut shows no standstill of the
whole stream; `smelt status` shows a standstill.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.store.contract import OP_DELETE, OP_INSERT, OP_TRUNCATE, OP_UPDATE
from deltasmelt.pipelines.quality.expectations import VOLUME_SUITE, Expectation, Result

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from pyspark.sql import DataFrame

CHANGING: Final = "expect_table_to_keep_changing"
USUAL: Final = "expect_usual_number_of_changes"

DAYS: Final = 14
"""Number of compared days before today."""
STEADY_DAYS: Final = 7
STEADY: Final = 20
TIMES: Final = 10
LEAST_FLOOD: Final = 10_000

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_OPS: Final = ", ".join(f"'{op}'" for op in (OP_INSERT, OP_UPDATE, OP_DELETE, OP_TRUNCATE))
_COUNTS: Final = f"""
SELECT table_schema, table_name, day, count_if(op IN ({_OPS})) AS changes
FROM (
    SELECT table_schema, table_name, op,
           CAST(floor((unix_micros(last) - unix_micros(commit_ts)) / 86400000000) AS INT) AS day
    FROM {{{{log}}}} CROSS JOIN (SELECT {{until}} AS last)
    WHERE table_name IS NOT NULL AND commit_ts <= last AND commit_ts > last - INTERVAL {DAYS + 1} DAYS
)
GROUP BY table_schema, table_name, day
"""


@dataclass(frozen=True, slots=True)
class Days:
    """Changes of a table by day: today and the days before, as far back as the table has rows."""

    changes: tuple[int, ...]

    @property
    def today(self) -> int:
        """Changes of the day ending at the cut."""
        return self.changes[0]

    @property
    def before(self) -> tuple[int, ...]:
        """Changes of each day before."""
        return self.changes[1:]

    @property
    def quiet(self) -> int:
        """Days without a change until now."""
        return next((day for day, count in enumerate(self.changes) if count), len(self.changes))

    @property
    def before_silence(self) -> tuple[int, ...]:
        """Changes of each day before today, or before the first day of a continuing silence."""
        return self.changes[max(1, self.quiet) :]

    @property
    def steady(self) -> bool:
        """True if each of the last of these days had enough changes for a meaningful silence."""
        last = self.before_silence[:STEADY_DAYS]
        return len(last) == STEADY_DAYS and min(last) >= STEADY

    @property
    def known(self) -> bool:
        """True if the table's past is long enough to recognise a flood."""
        return len(self.before) >= STEADY_DAYS

    @property
    def silent(self) -> bool:
        """True if a steady table fell silent."""
        return self.steady and self.today == 0

    @property
    def flooded(self) -> bool:
        """True if today is far above every day before."""
        return self.known and self.today >= LEAST_FLOOD and self.today > TIMES * max(self.before)


def days_of_tables(log: DataFrame, until: datetime | None) -> dict[str, Days]:
    """Return the changes by day of each table with rows in these weeks, by silver's name.

    `log` is `bronze.changes` up to the cut, and `until` the cut's commit time.
    """
    spark = log.sparkSession
    micros = None if until is None else (until - _EPOCH) // timedelta(microseconds=1)
    # A cut without a commit time: the log's newest commit time counts.
    if micros is None:
        (newest,) = spark.sql("SELECT unix_micros(max(commit_ts)) AS micros FROM {log}", log=log).collect()
        micros = newest.micros
    if micros is None:
        return {}
    rows = spark.sql(_COUNTS.format(until=f"timestamp_micros({micros})"), log=log).collect()
    changes: dict[str, dict[int, int]] = {}
    for row in rows:
        name = TableName(row.table_schema, row.table_name).silver_name
        changes.setdefault(name, {})[row.day] = row.changes
    return {
        name: Days(tuple(by_day.get(day, 0) for day in range(max(by_day) + 1)))
        for name, by_day in changes.items()
    }


def check_volume(days: Mapping[str, Days], tables: Collection[str]) -> list[Result]:
    """Return the results for each of the cut's tables with a past."""
    results: list[Result] = []
    for name, table_days in sorted(days.items()):
        if f"silver.{name}" not in tables:
            continue
        if table_days.steady:
            results.append(_result(name, CHANGING, table_days, holds=not table_days.silent))
        if table_days.known:
            results.append(_result(name, USUAL, table_days, holds=not table_days.flooded))
    return results


def _result(name: str, kind: str, days: Days, *, holds: bool) -> Result:
    past = days.before_silence if kind == CHANGING else days.before
    now = "changes in the 24 hours before the cut"
    if kind == CHANGING and days.quiet > 1:
        now = f"no change for {days.quiet} days"
    note = f"{now}; {_range(past)} a day in the {len(past)} days before"
    expectation = Expectation(
        "silver", name, VOLUME_SUITE, kind, {}, severity="warning", note=note, where="the log of recent days"
    )
    return Result(expectation, success=holds, observed=days.today)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
