"""Plan the steps of a table that also holds former rows of the source: history, and soft deletes. Pure.

For a table of current rows nothing before the newest snapshot or TRUNCATE counts (`silver.plan.steps`). For
these tables earlier changes count: earlier rows ended at the snapshot or TRUNCATE. So the plan splits a
window right before every snapshot, and right before every change of shape. Each part is one step, one commit
and one mark. A part begins either with the table's own rows, or empty, and may contain any number of
TRUNCATEs (`silver.fold.row_versions`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.plan.steps import (
    Step,
    check_identity,
    distinct_shapes,
    only_inserts,
    shapes_at,
    shapes_of,
    snapshot_is_unique,
    splits,
    window_of,
)
from deltasmelt.silver.schema.catalog import history_of, silver_table

if TYPE_CHECKING:
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.fold.window import Window
    from deltasmelt.silver.plan.activity import Activity, Work
    from deltasmelt.silver.plan.steps import Mode
    from deltasmelt.silver.schema.catalog import SilverTable


def plan_versions(work: Work) -> list[Step]:
    """Return the steps that carry a table over its window, in order; else as `silver.plan.steps.plan`.

    Raises:
        TableError: the window has changes of rows that the stream does not identify.
        ConfigurationError: for the reasons of `silver_table`.
    """
    activity, start, end, healed = work.activity, work.start, work.end, work.healed

    def table_of(version: Relation) -> SilverTable:
        table = silver_table(version, work.settings)
        return history_of(table) if work.table.history else table

    distinct = distinct_shapes(work.versions)
    if not activity.effective:
        window = window_of(work, distinct[-1], start, end)
        mode: Mode = "describe" if work.described else "alter"
        return [Step(table_of(distinct[-1]), window, mode, folded=False)]
    # The states between a gap in bronze and the snapshot that heals the gap are unknown: the plan omits the
    # changes between, and the last known rows stay until the snapshot.
    low = start if healed is None or not start < healed <= end else Lsn(healed - 1)
    barriers = {
        Lsn(change.commit_lsn - 1): change for change in activity.barriers if low < change.commit_lsn <= end
    }
    announced = {Lsn(lsn - 1) for lsn in splits(distinct) if low < lsn <= end and lsn > distinct[0].from_lsn}
    copied = {place for place, change in barriers.items() if change.seq is None}
    places = sorted({low, *copied, *announced} - {end})
    steps: list[Step] = []
    for place, following in zip(places, [*places[1:], end], strict=True):
        barrier = barriers.get(place)
        snapshot = barrier if barrier is not None and barrier.seq is None else None
        truncates = [
            change for at, change in barriers.items() if change.seq is not None and place <= at < following
        ]
        holding = shapes_at(distinct, Lsn(place + 1))
        version = holding[-1]
        table = table_of(version)
        check_identity(version, activity)
        split = place in announced and snapshot is None
        shapes = shapes_of(table, holding if split else [version])
        window = window_of(work, version, place, following, shapes=shapes)
        window = replace(window, truncates=tuple(truncates))
        if snapshot is not None:
            window = replace(window, snapshot=snapshot.commit_lsn, snapshot_ts=snapshot.commit_ts)
        planned = _steps(table, window, activity, fresh=work.fresh and not steps)
        # A later snapshot is the remedy of every error in a step before the snapshot, so silver may omit the
        # step.
        steps += [replace(step, optional=place < max(copied, default=low)) for step in planned]
    return steps


def _steps(table: SilverTable, window: Window, activity: Activity, *, fresh: bool) -> list[Step]:
    snapshot = window.snapshot
    if fresh and snapshot is not None and snapshot_is_unique(table, window):
        quiet = activity.last_change <= snapshot and not window.truncates
        if quiet or snapshot == window.end:
            return [Step(table, window, "load", folded=False)]
        rows = replace(window, end=snapshot, truncates=())
        remainder = replace(window, start=snapshot, snapshot=None, snapshot_ts=None)
        return [Step(table, rows, "load", folded=False), *_steps(table, remainder, activity, fresh=False)]
    if table.history and not window.ends_all and only_inserts(table, window, activity):
        return [Step(table, window, "append", folded=False)]
    return [Step(table, window, "versions", folded=True)]


def halves(step: Step) -> list[Step]:
    """Return the steps before and after the middle TRUNCATE of a step; none if the step is not optional.

    Silver repeats a failed optional step in halves, which together give the result of the whole step. The
    state at each TRUNCATE is known, so the omitted part never exceeds the changes between two TRUNCATEs.
    """
    window = step.window
    # Halving ends at steps whose only TRUNCATE is at the beginning.
    inner = [truncate for truncate in window.truncates if truncate.commit_lsn - 1 > window.start]
    if not inner or not step.optional:
        return []
    at = inner[len(inner) // 2].commit_lsn
    before = tuple(truncate for truncate in window.truncates if truncate.commit_lsn < at)
    first = replace(window, end=Lsn(at - 1), truncates=before)
    second = replace(window, start=Lsn(at - 1), snapshot=None, truncates=window.truncates[len(before) :])
    return [replace(step, window=first), replace(step, window=second)]
