"""The changes of one step, computed on Spark, for both users of a step.

A cycle merges the changes into the table (`silver.run.step_runner`); a fresh read combines the changes with
the table's rows (`silver.fresh`). Both read a fold two or three times and plan each read. So the fold of a
small window is computed once and cached: with some hundred changes, a MERGE took half the time. Delta itself
materializes a large fold.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.silver.fold import row_versions
from deltasmelt.silver.fold.fold import commits, fold, moves, unfolded
from deltasmelt.silver.spark.access import computed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.silver.fold.fold import Fold
    from deltasmelt.silver.fold.upsert import Upsert
    from deltasmelt.silver.plan.steps import Step

    Ranges = Callable[[Fold], Mapping[int, tuple[str, str]]]

_ORIGINS: Final = "smelt_origins"
_FOLDED: Final = "smelt_folded"
_VERSIONS: Final = "smelt_versions"
"""Temporary views; a session runs one table at a time."""


def folded(session: SparkSession, step: Step, before: str, *, keep: bool) -> Fold:
    """Return one row for each changed key, or all rows unchanged where no key occurs twice.

    `before` are the table's rows before the step, as Spark SQL. With `keep` the fold is computed and cached
    now.
    """
    if not step.folded:
        return unfolded(step.table, step.window)
    found = fold(step.table, step.window, target=before, origins=_origins(session, step, before))
    return replace(found, query=cached(session, found.query, _FOLDED)) if keep else found


def versions(session: SparkSession, step: Step, before: str, ranges: Ranges, *, keep: bool) -> Upsert:
    """Return a step's effect on a table of versions; the effects of transactions are computed once.

    Args:
        session: the session of the calling thread.
        step: a step in mode ``versions``.
        before: all rows of the table before the step, as Spark SQL.
        ranges: returns ranges of the changed keys, by which the MERGE skips files of the table.
        keep: compute and cache the rows now.
    """
    table, window = step.table, step.window
    live = row_versions.standing(before, table)
    found = commits(table, window, target=live, origins=_origins(session, step, live))
    found = replace(found, query=cached(session, found.query, _FOLDED))
    within = {} if window.ends_all else ranges(found)
    source = row_versions.versions(table, window, found, rows=_FOLDED, before=live, ranges=within)
    if keep:
        source = cached(session, source, _VERSIONS)
    merged = row_versions.merge_history if table.history else row_versions.merge_soft
    return merged(table, found, source, within)


def cached(session: SparkSession, query: str, view: str) -> str:
    """Compute a query now, under the name of a view; return a query of the view."""
    computed(session.sql(query)).createOrReplaceTempView(view)
    return f"SELECT * FROM {view}"


def _origins(session: SparkSession, step: Step, before: str) -> str | None:
    """Return a temporary view of the values that moved with their rows; None where no value moved."""
    found = moves(step.table, step.window, target=before)
    if found is None:
        return None
    first, round_ = found
    cached(session, first, _ORIGINS)
    while session.sql(f"SELECT 1 FROM {_ORIGINS} WHERE parent IS NOT NULL LIMIT 1").collect():
        cached(session, round_(_ORIGINS), _ORIGINS)
    return _ORIGINS
