"""Describe a table's activity in a window: counts by kind, and the barriers that divide the window. Pure.

A large window is counted by one statement (`activity_query`), a small window from its rows in Arrow
(`activities_in`). Both count the same rows in the same way: each relation's rows after the relation's own
start, up to the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.silver.fold.window import Barrier, Facts
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings


@dataclass(frozen=True, slots=True)
class Work:
    """A table's part of a cycle, from which the steps follow (`silver.plan.steps`, `history_steps`).

    Attributes:
        table: the table in its newest shape.
        versions: all versions of the relation's shape that may count.
        changes: `bronze.changes` at a pinned version, or a copy of its rows, as Spark SQL.
        start: LSN up to which the table is done.
        fresh: the table is still empty, so the table begins with a snapshot. Only history and soft deletes
            need this flag.
        again: end of the last window, if silver folds this window again because it lacked rows. The window is
            a step of its own, because the following step begins with its result.
        healed: LSN of the snapshot that healed a gap in bronze, if any. History and soft deletes omit all
            changes before this LSN.
        described: the only work is to take over comments.
    """

    table: SilverTable
    versions: tuple[Relation, ...]
    changes: str
    activity: Activity
    start: Lsn
    end: Lsn
    settings: SilverSettings
    fresh: bool = False
    again: Lsn | None = None
    healed: Lsn | None = None
    described: bool = False


_KINDS: Final = ("insert", "update", "delete", "truncate", "snapshot")


@dataclass(frozen=True, slots=True)
class Activity:
    """The content of a window for one relation.

    Attributes:
        counts: number of rows by `op`.
        snapshot: LSN of the newest complete snapshot; None if none ended in the window.
        truncated: (commit_lsn, seq) of the last TRUNCATE.
        last_change: LSN of the last insert, update or delete.
        barriers: for each LSN the barrier that counts (a snapshot, else the last TRUNCATE), in order.
    """

    counts: Mapping[str, int]
    snapshot: Lsn | None
    truncated: tuple[int, int] | None
    last_change: Lsn
    facts: Facts
    barriers: tuple[Barrier, ...] = ()

    @property
    def changes(self) -> int:
        """Number of all rows."""
        return sum(self.counts.values())

    @property
    def effective(self) -> bool:
        """Check whether the window has work."""
        # Rows of a snapshot that has not ended do not count.
        return self.snapshot is not None or any(self.counts[kind] for kind in _KINDS if kind != "snapshot")

    @classmethod
    def none(cls) -> Activity:
        """Return an activity without changes; only the table's shape may change."""
        return cls(dict.fromkeys(_KINDS, 0), None, None, ZERO, Facts(updates=False, deletes=False))


def activity_query(changes: str, starts: Mapping[int, Lsn], end: Lsn, *, copied: bool = True) -> str:
    """Return a query with a row for each relation that has changes after the relation's own start.

    `starts` has the LSN up to which each table is done, by relation id. With `copied` the query also counts
    the rows of snapshots, which reads them all.
    """
    counts = "".join(f"\n  count_if(op = {literal(kind)}) AS {kind}s," for kind in _KINDS)
    since = " ".join(f"WHEN {relation} THEN {int(start)}" for relation, start in starts.items())
    low = min(starts.values())
    by_path = (
        ""
        if all(start == low for start in starts.values())
        else f"\n  AND commit_lsn > CASE relation_id {since} END"
    )
    streamed = "" if copied else f"\n  AND op <> {literal('snapshot')}"
    return f"""\
SELECT relation_id,{counts}
  max(CASE WHEN op = 'snapshot_end' THEN commit_lsn END) AS snapshot,
  max(CASE WHEN op = 'truncate' THEN struct(commit_lsn, seq) END) AS truncated,
  collect_set(CASE WHEN op IN ('truncate', 'snapshot_end')
    THEN struct(commit_lsn, CASE WHEN op = 'truncate' THEN seq END, unix_micros(commit_ts)) END) AS barriers,
  max(CASE WHEN op IN ('insert', 'update', 'delete') THEN commit_lsn END) AS last_change,
  count_if(op = 'update' AND old IS NOT NULL) AS old_tuples,
  count_if(op = 'update' AND old IS NOT NULL AND unchanged IS NOT NULL) AS moved_unchanged_toast,
  array_distinct(flatten(collect_set(unchanged))) AS unchanged_toast
FROM {changes}
WHERE commit_lsn > {int(low)} AND commit_lsn <= {int(end)}
  AND relation_id IN ({", ".join(str(relation) for relation in starts)}){by_path}{streamed}
GROUP BY relation_id"""


COUNTED: Final = pa.schema(
    {
        "relation_id": pa.int64(), "commit_lsn": pa.int64(), "seq": pa.int64(), "op": pa.string(),
        "commit_ts": pa.timestamp("us", tz="UTC"), "old": pa.bool_(), "unchanged": pa.list_(pa.string()),
    }
)  # fmt: skip
"""Rows of `counted_columns`, which needs the columns of `bronze.changes` with these names."""


def counted_columns(rows: pa.Table) -> pa.Table:
    """Return what `activities_in` counts: whether an old tuple exists, in place of its values."""
    place = rows.schema.get_field_index("old")
    return rows.set_column(place, "old", pc.is_valid(rows["old"])).select(COUNTED.names).cast(COUNTED)


def activities_in(rows: pa.Table, starts: Mapping[int, Lsn], end: Lsn) -> dict[int, Activity]:
    """Return what `activity_query` returns, from rows of `counted_columns`."""
    # One slice for each relation that occurs. A filter of all rows for each of 1,000 tables took 3.7 s with
    # 60 files, the slices take 1.2 s.
    known = pc.is_in(rows["relation_id"], pa.array(starts, pa.int64()))
    rows = rows.filter(pc.and_(known, pc.less_equal(rows["commit_lsn"], int(end)))).combine_chunks()
    rows = rows.take(pc.sort_indices(rows["relation_id"]))
    found, place = {}, 0
    for each in pc.value_counts(rows["relation_id"]).to_pylist():
        relation, own = each["values"], rows.slice(place, each["counts"])
        place += len(own)
        later = own.filter(pc.greater(own["commit_lsn"], int(starts[relation])))
        if len(later):
            found[relation] = activity_of(_counts(later))
    return found


def _counts(rows: pa.Table) -> dict[str, Any]:
    """Return the row of `activity_query` for the rows of one relation."""

    def of(*kinds: str) -> pa.Table:
        return rows.filter(pc.is_in(rows["op"], pa.array(kinds, pa.string())))

    updates = of("update")
    old = updates.filter(updates["old"])
    truncates, stops = of("truncate"), of("truncate", "snapshot_end")
    places = zip(truncates["commit_lsn"].to_pylist(), truncates["seq"].to_pylist(), strict=True)
    columns = (stops["op"], stops["commit_lsn"], stops["seq"], stops["commit_ts"].cast(pa.int64()))
    entries = zip(*(column.to_pylist() for column in columns), strict=True)
    return {
        **{f"{kind}s": len(of(kind)) for kind in _KINDS},
        "snapshot": pc.max(of("snapshot_end")["commit_lsn"]).as_py(),
        "truncated": max(places, default=None),
        "barriers": {(lsn, seq if op == "truncate" else None, time) for op, lsn, seq, time in entries},
        "last_change": pc.max(of("insert", "update", "delete")["commit_lsn"]).as_py(),
        "old_tuples": len(old),
        "moved_unchanged_toast": len(old) - old["unchanged"].null_count,
        "unchanged_toast": pc.unique(pc.list_flatten(rows["unchanged"])).to_pylist(),
    }


def activity_of(row: Mapping[str, Any], copied: int = 0) -> Activity:
    """Return the activity from a row of `activity_query`, which left out `copied` rows of snapshots."""
    truncated = row["truncated"]
    facts = Facts(
        inserts=row["inserts"] > 0 or row["snapshots"] + copied > 0,
        updates=row["updates"] > 0,
        deletes=row["deletes"] > 0,
        old_tuples=row["old_tuples"],
        unchanged_toast=frozenset(row["unchanged_toast"] or ()),
        moved_unchanged_toast=row["moved_unchanged_toast"],
    )
    return Activity(
        counts={kind: row[f"{kind}s"] + (copied if kind == "snapshot" else 0) for kind in _KINDS},
        snapshot=None if row["snapshot"] is None else Lsn(row["snapshot"]),
        truncated=None if truncated is None else (truncated[0], truncated[1]),
        last_change=Lsn(row["last_change"] or ZERO),
        facts=facts,
        barriers=_barriers(row["barriers"]),
    )


def _barriers(entries: Iterable[tuple[int, int | None, int | None]]) -> tuple[Barrier, ...]:
    chosen: dict[int, Barrier] = {}
    # A snapshot includes the TRUNCATEs at its LSN, so the snapshot comes last and counts.
    snapshots_last = sorted(entries, key=lambda entry: (entry[0], entry[1] is None, entry[1] or 0))
    for lsn, seq, commit_ts in snapshots_last:
        chosen[lsn] = Barrier(Lsn(lsn), seq, commit_ts)
    return tuple(chosen.values())
