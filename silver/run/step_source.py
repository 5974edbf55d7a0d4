"""What the changes of one step come to, computed on Spark: the part that both targets of a step share.

A cycle merges it into the table (`silver.run.step_runner`); a fresh read lays it over the table's rows
(`silver.fresh`). A small window's fold is computed once and kept: both read it two or three times, and
plan it each time. For windows of some hundred changes that halved the cost of a MERGE. A large fold is left
to Delta, which keeps it itself.
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
    """One row for each key that changed, or each row as it is where no key occurs twice.

    Args:
        session: the thread's own session.
        step: whose changes.
        before: the table's rows before it, as Spark SQL.
        keep: compute it now.
    """
    if not step.folded:
        return unfolded(step.table, step.window)
    found = fold(step.table, step.window, target=before, origins=_origins(session, step, before))
    return replace(found, query=kept(session, found.query, _FOLDED)) if keep else found


def versions(session: SparkSession, step: Step, before: str, ranges: Ranges, *, keep: bool) -> Upsert:
    """What a step does to a table of versions; what the window's transactions did is computed once.

    Args:
        session: the thread's own session.
        step: in mode ``versions``.
        before: all of the table's rows before it, as Spark SQL.
        ranges: of the keys that change, by which files of the table are skipped.
        keep: compute its rows now.
    """
    table, window = step.table, step.window
    live = row_versions.standing(before, table)
    found = commits(table, window, target=live, origins=_origins(session, step, live))
    found = replace(found, query=kept(session, found.query, _FOLDED))
    within = {} if window.ends_all else ranges(found)
    source = row_versions.versions(table, window, found, rows=_FOLDED, before=live, ranges=within)
    if keep:
        source = kept(session, source, _VERSIONS)
    merged = row_versions.merge_history if table.history else row_versions.merge_soft
    return merged(table, found, source, within)


def kept(session: SparkSession, query: str, view: str) -> str:
    """Compute a query now, under the name of a view; returns a query of its rows."""
    computed(session.sql(query)).createOrReplaceTempView(view)
    return f"SELECT * FROM {view}"


def _origins(session: SparkSession, step: Step, before: str) -> str | None:
    """A temporary view of the values that moved with their rows; None where none did."""
    found = moves(step.table, step.window, target=before)
    if found is None:
        return None
    first, round_ = found
    kept(session, first, _ORIGINS)
    while session.sql(f"SELECT 1 FROM {_ORIGINS} WHERE parent IS NOT NULL LIMIT 1").collect():
        kept(session, round_(_ORIGINS), _ORIGINS)
    return _ORIGINS
