"""Test the statements for a window by its content, without Spark."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.silver.fold.window import Barrier, Facts
from deltasmelt.silver.plan.activity import Activity, Work, activity_query
from deltasmelt.silver.plan.history_steps import halves, plan_versions
from deltasmelt.silver.plan.steps import Step, plan
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, relation

if TYPE_CHECKING:
    from deltasmelt.bronze.shapes import Relation

SHAPE = relation("t", [("id", INT), ("note", TEXT)], ["id"], relation_id=7)
NOTHING = dict.fromkeys(("insert", "update", "delete", "truncate", "snapshot"), 0)


def activity(
    *, snapshot: int | None = None, truncated: tuple[int, int] | None = None, last: int = 90, **counts: int
) -> Activity:
    facts = Facts(updates="update" in counts, deletes="delete" in counts)
    at = None if snapshot is None else Lsn(snapshot)
    return Activity({**NOTHING, **counts}, at, truncated, Lsn(last), facts)


def steps(activity: Activity, *versions: Relation, start: int = 10, end: int = 100) -> list[Step]:
    settings, shapes = SilverSettings(), versions or (SHAPE,)
    table = silver_table(shapes[-1], settings)
    return plan(Work(table, shapes, "changes", activity, Lsn(start), Lsn(end), settings))


def versions(*versions: Relation, truncates: tuple[int, ...], snapshots: tuple[int, ...] = ()) -> list[Step]:
    """Return the steps of soft deletes over a window (10, 10,000] of updates, TRUNCATEs and snapshots."""
    shapes = versions or (SHAPE,)
    barriers = [Barrier(Lsn(lsn), 3, None) for lsn in truncates]
    barriers += [Barrier(Lsn(lsn), None, None) for lsn in snapshots]
    window_activity = replace(
        activity(update=1, truncate=1), barriers=tuple(sorted(barriers, key=lambda one: one.commit_lsn))
    )
    settings = SilverSettings(deletes="soft")
    table = silver_table(shapes[-1], settings)
    return plan_versions(Work(table, shapes, "changes", window_activity, Lsn(10), Lsn(10_000), settings))


def spans(steps: list[Step]) -> list[tuple[str, int, int]]:
    return [(step.mode, int(step.window.start), int(step.window.end)) for step in steps]


def test_mixed_changes_are_merged() -> None:
    assert spans(steps(activity(insert=5, update=1))) == [("merge", 10, 100)]


def test_inserts_alone_are_appended_without_a_join() -> None:
    (step,) = steps(activity(insert=5))
    assert (step.mode, step.folded) == ("append", False)


@pytest.mark.parametrize("identity", ["f", "n"])
def test_inserts_are_merged_if_key_is_unenforced(identity: str) -> None:
    shape = relation("t", [("id", INT)], ["id"], relation_id=7, identity=identity, identity_columns=["other"])
    assert steps(activity(insert=5), shape)[0].mode == "merge"


def test_a_truncate_starts_from_nothing() -> None:
    (step,) = steps(activity(insert=3, truncate=1, truncated=(50, 2)))
    assert step.mode == "load"
    assert step.window.truncated == (50, 2)
    assert step.window.snapshot is None


def test_a_truncate_before_the_snapshot_does_not_count() -> None:
    (step,) = steps(activity(insert=3, truncate=1, truncated=(50, 2), snapshot=60))
    assert step.window.truncated is None
    assert step.window.snapshot == 60


def test_a_snapshot_before_the_truncate_does_not_count() -> None:
    (step,) = steps(activity(truncate=1, truncated=(70, 0), snapshot=60))
    assert step.window.truncated == (70, 0)
    assert step.window.snapshot is None


def test_unchanged_snapshot_is_loaded_without_shuffle() -> None:
    (step,) = steps(activity(snapshot=60, last=60, update=2))
    assert (step.mode, step.folded) == ("load", False)


def test_large_snapshot_is_loaded_separately_from_later_changes() -> None:
    window_activity = activity(snapshot=60, update=10)
    counts = {**window_activity.counts, "snapshot": 10**6}
    assert spans(steps(replace(window_activity, counts=counts))) == [("load", 10, 60), ("merge", 60, 100)]


def test_changed_shape_splits_window_before_transaction() -> None:
    wider = relation("t", [("id", INT), ("note", TEXT), ("more", TEXT)], ["id"], relation_id=7, from_lsn=40)
    wider = replace(wider, after_lsn=Lsn(33))
    before, after = steps(activity(insert=3, update=1), SHAPE, wider)
    assert spans([before, after]) == [("merge", 10, 39), ("merge", 39, 100)]
    assert len(before.table.columns) == 2
    assert len(after.table.columns) == 3
    # The announcing transaction may hold rows of both shapes.
    assert [shape.names for shape in after.window.shapes] == [("id", "note", "more"), ("id", "note")]
    assert after.window.shapes[1].positions == (0, 1, None)
    assert after.window.shapes[0].after == (40, 33)


def test_shape_covering_transaction_is_only_shape_after() -> None:
    wider = relation("t", [("id", INT), ("note", TEXT), ("more", TEXT)], ["id"], relation_id=7, from_lsn=40)
    _, after = steps(activity(insert=3, update=1), SHAPE, wider)
    assert [shape.names for shape in after.window.shapes] == [("id", "note", "more")]
    assert not after.window.announcing


def test_shapes_of_transaction_form_single_step() -> None:
    versions = [
        replace(
            relation(
                "t", [("id", INT), *((name, INT) for name in names)], ["id"], relation_id=7, from_lsn=40
            ),
            after_lsn=Lsn(after),
        )
        for after, names in ((33, ["a"]), (35, ["a", "b"]), (37, ["b"]))
    ]
    before, after = steps(activity(update=1), SHAPE, *versions)
    assert spans([before, after]) == [("merge", 10, 39), ("merge", 39, 100)]
    assert [column.name for column in after.table.columns] == ["id", "b"]
    assert [shape.after for shape in after.window.shapes] == [(40, 37), (40, 35), (40, 33), (0, 0)]


def test_temporary_rename_keeps_table_identity() -> None:
    away = replace(SHAPE, table=TableName("public", "away"), from_lsn=Lsn(40))
    assert [
        step.table.name for step in steps(activity(update=1), SHAPE, away, replace(SHAPE, from_lsn=Lsn(60)))
    ] == ["t"]
    assert [step.table.name for step in steps(activity(update=1), away, SHAPE)] == ["away"]


def test_copy_is_folded_if_source_key_is_nonunique() -> None:
    override = relation("t", [("id", INT), ("code", INT)], ["code"], relation_id=7, identity="f")
    assert [step.folded for step in steps(activity(snapshot=60, last=50), override)] == [True]
    unique = replace(override, key_unique=True)
    assert [step.folded for step in steps(activity(snapshot=60, last=50), unique)] == [False]
    large = activity(snapshot=60, update=1)
    large = replace(large, counts={**large.counts, "snapshot": 10**6})
    assert [step.folded for step in steps(large, override)] == [True, True]
    assert [step.folded for step in steps(large, unique)] == [False, True]


def test_shape_announced_before_window_is_only_shape() -> None:
    wider = relation("t", [("id", INT), ("note", TEXT), ("more", TEXT)], ["id"], relation_id=7, from_lsn=5)
    (step,) = steps(activity(update=1), SHAPE, wider)
    assert len(step.window.shapes) == 1
    assert len(step.table.columns) == 3


def test_shapes_before_a_snapshot_do_not_matter() -> None:
    wider = relation("t", [("id", INT), ("note", TEXT), ("more", TEXT)], ["id"], relation_id=7, from_lsn=40)
    (step,) = steps(activity(insert=3, snapshot=60), SHAPE, wider)
    assert len(step.table.columns) == 3
    assert len(step.window.shapes) == 1


def test_reannounced_unchanged_shape_splits_nothing() -> None:
    assert len(steps(activity(update=1), SHAPE, replace(SHAPE, from_lsn=Lsn(50)))) == 1


def test_a_renamed_column_is_found_by_its_attnum() -> None:
    swapped = relation("t", [("id", INT), ("b", TEXT), ("a", TEXT)], ["id"], relation_id=7, from_lsn=40)
    swapped = replace(swapped, after_lsn=Lsn(33))
    before = relation("t", [("id", INT), ("a", TEXT), ("b", TEXT)], ["id"], relation_id=7)
    shape = steps(activity(update=1), before, swapped)[1].window.shapes[1]
    assert shape.names == ("id", "a", "b")
    assert shape.positions == (0, 1, 2)
    assert shape.renamed(silver_table(swapped, SilverSettings()).columns) == {"a": "b", "b": "a"}


def test_rows_are_identified_by_key_within_identity() -> None:
    full = relation("t", [("id", INT), ("code", INT)], ["id"], relation_id=7, identity="f")
    index = relation(
        "t", [("id", INT), ("code", INT)], ["id"], relation_id=7, identity="i", identity_columns=["code"]
    )
    assert SHAPE.fold_key == ("id",)
    assert full.fold_key == ("id",)
    assert index.fold_key == ("code",)


def test_updates_without_a_replica_identity_stop_the_table() -> None:
    shape = replace(
        SHAPE,
        columns=tuple(replace(column, in_identity=False) for column in SHAPE.columns),
        replica_identity="n",
    )
    with pytest.raises(TableError) as caught:
        steps(activity(update=1), shape)
    assert caught.value.code == "identity-missing"
    assert 'ALTER TABLE "public"."t" REPLICA IDENTITY' in str(caught.value)
    assert steps(activity(insert=1), shape)[0].mode == "merge"


def test_rows_of_unfinished_snapshot_require_no_work() -> None:
    unfinished = Activity({**NOTHING, "snapshot": 9}, None, None, ZERO, Facts())
    assert not unfinished.effective


def test_activity_query_starts_separately_per_table() -> None:
    query = activity_query("changes", {7: Lsn(10), 8: Lsn(30)}, Lsn(100))
    assert "commit_lsn > 10 AND commit_lsn <= 100" in query
    assert "commit_lsn > CASE relation_id WHEN 7 THEN 10 WHEN 8 THEN 30 END" in query
    assert "CASE relation_id" not in activity_query("changes", {7: Lsn(10), 8: Lsn(10)}, Lsn(100))


def test_shape_without_changes_alters_table_even_late() -> None:
    """The position of the shape may already have passed."""
    wider = relation("t", [("id", INT), ("note", TEXT), ("v", INT)], ["id"], relation_id=7, from_lsn=50)
    for start in (10, 60, 100):
        (step,) = steps(Activity.none(), SHAPE, wider, start=start)
        assert step.mode == "alter"
        assert [column.name for column in step.table.columns] == ["id", "note", "v"]


def test_truncate_in_shape_transaction_leaves_both_row_shapes() -> None:
    wider = relation("t", [("id", INT), ("note", TEXT), ("v", INT)], ["id"], relation_id=7, from_lsn=50)
    wider = replace(wider, after_lsn=Lsn(33))
    (step,) = steps(activity(insert=3, truncate=1, truncated=(50, 2)), SHAPE, wider)
    assert [shape.names for shape in step.window.shapes] == [("id", "note", "v"), ("id", "note")]
    (step,) = steps(activity(insert=3, truncate=1, truncated=(60, 2)), SHAPE, wider)
    assert len(step.window.shapes) == 1


def test_truncates_form_single_step_of_versioned_table() -> None:
    (step,) = versions(truncates=tuple(range(11, 3_011)))
    assert step.mode == "versions"
    assert [int(truncate.commit_lsn) for truncate in step.window.truncates] == list(range(11, 3_011))
    assert not step.window.from_empty


def test_window_of_truncates_splits_at_shape_and_snapshot() -> None:
    wider = relation("t", [("id", INT), ("note", TEXT), ("v", INT)], ["id"], relation_id=7, from_lsn=50)
    parts = versions(SHAPE, wider, truncates=(30, 40, 50, 60, 80, 90), snapshots=(70,))
    assert [(*span[1:], [int(truncate.commit_lsn) for truncate in step.window.truncates], step.optional)
            for step, span in zip(parts, spans(parts), strict=True)] == [
        (10, 49, [30, 40], True),
        (49, 69, [50, 60], True),
        (69, 10_000, [80, 90], False),
    ]  # fmt: skip


def test_step_before_snapshot_is_halved_at_truncates() -> None:
    """Halving ends when no truncate lies inside a step."""
    ahead, finished = [versions(truncates=(11, 30, 40, 50, 60), snapshots=(70,))[0]], []
    while ahead:
        step = ahead.pop()
        parts = halves(step)
        ahead += reversed(parts)
        finished += [] if parts else [step]
    assert spans(finished) == [
        ("versions", low, high) for low, high in ((10, 29), (29, 39), (39, 49), (49, 59), (59, 69))
    ]
    assert [[int(truncate.commit_lsn) for truncate in step.window.truncates] for step in finished] == [
        [11],
        [30],
        [40],
        [50],
        [60],
    ]
    assert all(step.optional for step in finished)
    (needed,) = versions(truncates=(11, 30, 40, 50, 60))
    assert halves(needed) == []
