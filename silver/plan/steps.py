"""Turn the activity of a window into statements: counts and shapes to steps. Pure, no Spark.

The changes of each kind are counted for every table at once, in a large window by one grouped query, in a
small window from bronze's files (`silver.plan.activity`). The `Step`s follow from these counts and from the
versions of the table's shape. Each step is one statement and one Delta commit with its own mark. Schema
changes take effect in order with the data: silver folds earlier rows into a table of the old shape, then
alters the table, then folds the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from deltasmelt.bronze.errors import TableError, resnapshot_remedy
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import BY_KEY, same_shape
from deltasmelt.silver.fold.column_mapping import ColumnMapping
from deltasmelt.silver.fold.window import Window
from deltasmelt.silver.schema.catalog import silver_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.plan.activity import Activity, Work
    from deltasmelt.silver.schema.catalog import SilverTable

Mode: TypeAlias = Literal["load", "append", "merge", "versions", "alter", "describe"]

_SPLIT_ABOVE: Final = 100_000
"""Number of snapshot rows from which a separate load pays."""
_SPLIT_RATIO: Final = 2


@dataclass(frozen=True, slots=True)
class Step:
    """A statement: the table's shape during the statement, the changes to fold, and the mode.

    Mode ``append`` inserts rows without a read of the table, ``load`` writes the rows of a snapshot or of an
    emptied table, ``merge`` updates, inserts and deletes, ``versions`` also keeps former rows of the source.
    In mode ``alter`` the step has no statement and no mark: the table takes its shape. In mode ``describe``
    the table takes comments alone (`silver.schema.comments`).

    A later snapshot replaces any result of an `optional` step.
    """

    table: SilverTable
    window: Window
    mode: Mode
    folded: bool
    optional: bool = False


def plan(work: Work) -> list[Step]:
    """Return the statements that carry a table over its window, in order.

    Raises:
        TableError: the window has changes of rows that the stream does not identify.
        ConfigurationError: for the reasons of `silver_table`.
    """
    activity, start, end = work.activity, work.start, work.end
    distinct = distinct_shapes(work.versions)
    if not activity.effective:
        version = distinct[-1]
        window = window_of(work, version, start, end)
        mode: Mode = "describe" if work.described else "alter"
        return [Step(silver_table(version, work.settings), window, mode, folded=False)]
    truncated = activity.truncated
    if truncated is not None and activity.snapshot is not None and truncated[0] <= activity.snapshot:
        truncated = None
    # Nothing before the newest snapshot or TRUNCATE counts, so earlier shapes do not matter.
    barrier = Lsn(max(start, activity.snapshot or 0, truncated[0] if truncated else 0))
    base_lsn = max(barrier, distinct[0].from_lsn)
    repeated = [] if work.again is None else [Lsn(work.again + 1)]
    # A change of shape splits the window right before the transaction that announced the change.
    later = [lsn for lsn in sorted({*splits(distinct), *repeated}) if base_lsn < lsn <= end]
    steps: list[Step] = []
    low = start
    for since, following in zip([base_lsn, *later], [*later, None], strict=True):
        high = end if following is None else Lsn(following - 1)
        if high <= low:  # an earlier process has already done this part
            continue
        # The transaction at `since` may have rows of several shapes: the table takes the last of these
        # shapes. In a snapshot, or if all rows are after the barrier, only rows of the last shape count.
        split = since > barrier or (truncated is not None and truncated[0] == since)
        holding = shapes_at(distinct, since) if split else shapes_at(distinct, since)[-1:]
        version = holding[-1]
        table = silver_table(version, work.settings)
        check_identity(version, activity)
        window = window_of(work, version, low, high, shapes=shapes_of(table, holding))
        if not steps:
            window = replace(
                window, snapshot=activity.snapshot if truncated is None else None, truncated=truncated
            )
        steps += _steps(table, window, activity)
        low = high
    return steps


def window_of(
    work: Work, version: Relation, start: Lsn, end: Lsn, *, shapes: tuple[ColumnMapping, ...] = ()
) -> Window:
    """Return a part of the work's window, ``start < commit_lsn <= end``, by the fold key of `version`."""
    return Window(
        changes=work.changes,
        relation_id=version.relation_id,
        start=start,
        end=end,
        fold_key=version.fold_key,
        shapes=shapes,
        facts=work.activity.facts,
        announcing=len(shapes) > 1,
    )


def distinct_shapes(versions: Sequence[Relation]) -> list[Relation]:
    """Return the versions, oldest first, that differ from the version before in silver's view."""
    ordered = sorted(versions, key=lambda version: version.place)
    shapes: list[Relation] = []
    for version in ordered:
        # Every shape has the newest name: former names mean this table too.
        named = replace(version, table=ordered[-1].table)
        if not shapes or not same_shape(named, shapes[-1]):
            shapes.append(named)
    return shapes


def splits(distinct: Sequence[Relation]) -> list[Lsn]:
    """Return LSNs right before which the plan splits a window, ascending."""
    places = {version.from_lsn for version in distinct}
    # The content of full rows cannot identify rows of several shapes (`silver.fold.by_content`), so a
    # transaction with such rows is a separate window.
    places |= {
        Lsn(version.from_lsn + 1)
        for version in distinct
        if version.after_lsn and version.replica_identity == "f"
    }
    return sorted(places)


def shapes_at(distinct: Sequence[Relation], lsn: Lsn) -> list[Relation]:
    """Return the shapes that rows of the transaction at `lsn` may have, oldest first."""
    # If all shapes are later than `lsn`, the shapes of the first announcing transaction count.
    lsn = max(lsn, distinct[0].from_lsn)
    before = [version for version in distinct if version.from_lsn < lsn]
    versions = [version for version in distinct if version.from_lsn == lsn]
    return versions if versions and not versions[0].after_lsn else [*before[-1:], *versions]


def check_identity(version: Relation, activity: Activity) -> None:
    """Raise a TableError if the stream does not identify the changed rows."""
    identity = any(column.in_identity for column in version.columns) or version.replica_identity == "f"
    if not version.key or not (identity or not (activity.facts.updates or activity.facts.deletes)):
        raise TableError(
            version.table,
            "rows were updated or deleted, but without a replica identity the stream does not identify "
            "these rows",
            code="identity-missing",
            remedy=resnapshot_remedy(
                version.table,
                f"ALTER TABLE {version.table.quoted} REPLICA IDENTITY DEFAULT or FULL; resnapshot the table",
            ),
        )


def shapes_of(table: SilverTable, versions: Sequence[Relation]) -> tuple[ColumnMapping, ...]:
    """Return the mapping of rows of these versions to the table, newest first."""
    shapes = []
    for version in reversed(versions):
        names = tuple(column.name for column in version.columns)
        by_attnum = {
            column.attnum: at for at, column in enumerate(version.columns) if column.attnum is not None
        }
        by_name = {column.name: at for at, column in enumerate(version.columns)}
        positions = tuple(
            by_name.get(column.name) if column.attnum is None else by_attnum.get(column.attnum)
            for column in table.columns
        )
        missing = tuple(column.missing for column in table.columns)
        shapes.append(
            ColumnMapping((int(version.from_lsn), int(version.after_lsn)), names, positions, missing)
        )
    return tuple(shapes)


def _steps(table: SilverTable, window: Window, activity: Activity) -> list[Step]:
    """Return the steps for a window with a single shape."""
    counts = activity.counts
    stream = counts["insert"] + counts["update"] + counts["delete"]
    inserts_only = only_inserts(table, window, activity)
    unique = snapshot_is_unique(table, window)
    if not window.from_empty:
        return [Step(table, window, "append" if inserts_only else "merge", folded=not inserts_only)]
    snapshot = window.snapshot
    if snapshot is None:
        return [Step(table, window, "load", folded=not inserts_only)]
    quiet = activity.last_change <= snapshot
    # A snapshot much larger than the later changes is loaded without a shuffle; a merge of the changes
    # follows.
    if not quiet and not inserts_only and counts["snapshot"] > max(_SPLIT_ABOVE, _SPLIT_RATIO * stream):
        rows = replace(window, end=snapshot)
        remainder = replace(window, start=snapshot, snapshot=None)
        return [Step(table, rows, "load", folded=not unique), Step(table, remainder, "merge", folded=True)]
    return [Step(table, window, "load", folded=not ((unique and quiet) or inserts_only))]


def only_inserts(table: SilverTable, window: Window, activity: Activity) -> bool:
    """Check whether every change inserts a key that the source itself enforces: no key occurs twice."""
    counts = activity.counts
    return _is_identity(table, window) and not counts["update"] and not counts["delete"]


def snapshot_is_unique(table: SilverTable, window: Window) -> bool:
    """Check whether the source itself allows a key only once, so a snapshot's rows need no fold."""
    return table.relation.key_unique or _is_identity(table, window)


def _is_identity(table: SilverTable, window: Window) -> bool:
    """Check whether the replica identity's own index identifies the rows."""
    relation = table.relation
    return relation.replica_identity in ("d", "i", BY_KEY) and set(window.fold_key) == {
        column.name for column in relation.columns if column.in_identity
    }
