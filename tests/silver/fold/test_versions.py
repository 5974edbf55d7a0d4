"""Test history and soft deletes, story by story, in two windows that end at 40 and 70.

Stories share tables, because a table costs more than a story; each story has a hundred keys of a table. An
event of a table as a whole (a TRUNCATE, a snapshot, a gap, another shape) happens to all of its stories.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.silver.histories import INT, TEXT, change, relation, time_of
from tests.silver.lakes import Lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.shapes import PgType, Relation

Change = dict[str, Any]
Tuple = list[str | None]
COLUMNS = [("id", INT), ("note", TEXT), ("big", TEXT)]
LAST = 70
"""Where the second window ends. A fresh read shows its result before the cycle, for the table of most stories."""


def insert(*values: str | None) -> Change:
    return {"op": "insert", "new": list(values)}


def update(*values: str | None, was: str | None = None, toast: str = "") -> Change:
    sent: Change = {"op": "update", "new": list(values), "unchanged": toast.split() or None}
    return sent if was is None else {**sent, "old": [was, None, None], "old_is_key": True}


def delete(key: str) -> Change:
    return {"op": "delete", "old": [key, None, None], "old_is_key": True}


TRUNCATE: Change = {"op": "truncate"}


@dataclass
class Story:
    """Changes by commit LSN, and the required result.

    Attributes:
        history: (id and other columns, from, to) of each version.
        soft: (id and other columns, deleted, LSN) of each row.
        first: rows of the first snapshot, at 10.
        snapshots: the story's rows in later snapshots, by LSN.
        table: the story's table.
    """

    commits: dict[int, list[Change]]
    history: list[tuple[Any, ...]]
    soft: list[tuple[Any, ...]]
    first: list[Tuple] = field(default_factory=list)
    snapshots: dict[int, list[Tuple]] = field(default_factory=dict)
    table: str = "rows"


@dataclass
class Shape:
    """A table's shape from an LSN on; before, the table has `COLUMNS`.

    Attributes:
        columns: name, type, number, and the text in rows older than the column.
        key: the column of the table's key.
        made_again: whether the shape belongs to a new table with this name.
    """

    lsn: int
    columns: list[tuple[str, PgType, int, str | None]]
    key: str = "id"
    made_again: bool = False


A, B, C = ["1", "a", None], ["2", "b", None], ["3", "c", None]

LATER_SHAPES = {
    "reshaped": Shape(60, [("id", INT, 1, None), ("was", TEXT, 2, None), ("note", TEXT, 4, None), ("v", INT, 5, "7")]),
    "rekeyed": Shape(60, [("id", INT, 1, None), ("note", TEXT, 2, None), ("big", TEXT, 3, None)], key="note"),
    "retyped": Shape(52, [("id", INT, 1, None), ("note", INT, 2, None), ("big", TEXT, 3, None)]),
    "emptied_and_reshaped": Shape(
        60, [("id", INT, 1, None), ("was", TEXT, 2, None), ("note", TEXT, 4, None), ("v", INT, 5, "7")]
    ),
    "recreated": Shape(
        52, [("note", INT, 1, None), ("id", INT, 2, None), ("big", TEXT, 3, None)], made_again=True
    ),
}  # fmt: skip
GAPS = {"gapped": 45}
"""Changes up to this LSN may be missing."""

READ = {
    "reshaped": "id, was, note, big, v",
    "emptied_and_reshaped": "id, was, note, big, v",
    "retyped": "id, note, note__2_string",
    "recreated": "id, big, note__2_string, note",
}
"""Compared columns, if not `COLUMNS`."""

# ruff: noqa: E501 - a window or a list of versions a line
STORIES = {
    "several changes in one transaction give one version": Story(
        {20: [insert("1", "a", None), update("1", "b", None), update("1", "c", None)]},
        [(1, "c", None, 20, None)],
        [(1, "c", None, False, 20)],
    ),
    "each commit of a window gives a version": Story(
        {20: [insert("1", "a", None)], 30: [update("1", "b", None)], 60: [update("1", "c", None)]},
        [(1, "a", None, 20, 30), (1, "b", None, 30, 60), (1, "c", None, 60, None)],
        [(1, "c", None, False, 60)],
    ),
    "a row that came and went in one transaction was never there": Story(
        {20: [insert("1", "a", None), delete("1")], 50: [insert("2", "b", None), delete("2")]}, [], []
    ),
    "a row that came and went between two cycles was there": Story(
        {20: [insert("1", "a", None)], 30: [delete("1")]}, [(1, "a", None, 20, 30)], [(1, "a", None, True, 30)]
    ),
    "a row that was changed and deleted keeps its last values": Story(
        {50: [update("1", "z", None, toast="big")], 60: [delete("1")]},
        [(1, "a", "BIG", 10, 50), (1, "z", "BIG", 50, 60)],
        [(1, "z", "BIG", True, 60)],
        first=[["1", "a", "BIG"]],
    ),
    "deleted, and later there again": Story(
        {20: [delete("1")], 60: [insert("1", "z", None)]},
        [(1, "a", None, 10, 20), (1, "z", None, 60, None)],
        [(1, "z", None, False, 60)],
        first=[A],
    ),
    "deleted and inserted again in one transaction": Story(
        {60: [delete("1"), insert("1", "z", None)]},
        [(1, "a", None, 10, 60), (1, "z", None, 60, None)],
        [(1, "z", None, False, 60)],
        first=[A],
    ),
    "a key change ends the row at the old key": Story(
        {20: [update("2", None, None, was="1", toast="note big")], 60: [update("3", "z", None, was="2", toast="big")]},
        [(1, "a", "BIG", 10, 20), (2, "a", "BIG", 20, 60), (3, "z", "BIG", 60, None)],
        [(1, "a", "BIG", True, 20), (2, "a", "BIG", True, 60), (3, "z", "BIG", False, 60)],
        first=[["1", "a", "BIG"]],
    ),
    "two rows swapped their keys": Story(
        {60: [update("2", "a", None, was="1", toast="big"), update("1", "b", None, was="2", toast="big")]},
        [(1, "a", "X", 10, 60), (1, "b", "Y", 60, None), (2, "a", "X", 60, None), (2, "b", "Y", 10, 60)],
        [(1, "b", "Y", False, 60), (2, "a", "X", False, 60)],
        first=[["1", "a", "X"], ["2", "b", "Y"]],
    ),
    "unchanged TOAST after each change": Story(
        {20: [update("1", "b", None, toast="big")], 30: [update("1", "c", "NEW")], 50: [update("1", "d", None, toast="big")],
         60: [update("1", "e", None, toast="big")]},
        [(1, "a", "BIG", 10, 20), (1, "b", "BIG", 20, 30), (1, "c", "NEW", 30, 50), (1, "d", "NEW", 50, 60),
         (1, "e", "NEW", 60, None)],
        [(1, "e", "NEW", False, 60)],
        first=[["1", "a", "BIG"]],
    ),
    "taken again: equal rows go on, others begin, what is not there any more ends": Story(
        {70: [update("1", "z", None)]},
        [(1, "a", None, 10, 70), (1, "z", None, 70, None), (2, "b", None, 10, 55), (2, "bb", None, 55, None),
         (3, "c", None, 10, 55), (4, "d", None, 55, None)],
        [(1, "z", None, False, 70), (2, "bb", None, False, 55), (3, "c", None, True, 55), (4, "d", None, False, 55)],
        first=[A, B, C],
        snapshots={lsn: [A, ["2", "bb", None], ["4", "d", None]] for lsn in (55, 65)},
        table="taken_again",
    ),
    "taken again twice, with changes around it": Story(
        {50: [update("1", "x", None)], 60: [update("1", "y", None)]},
        [(1, "a", None, 10, 50), (1, "x", None, 50, 60), (1, "y", None, 60, None), (2, "b", None, 55, 65)],
        [(1, "y", None, False, 60), (2, "b", None, True, 65)],
        first=[A],
        snapshots={55: [["1", "x", None], B], 65: [["1", "y", None]]},
        table="taken_again",
    ),
    "taken again, emptied twice before it and twice after it; what cannot be folded is left out alone": Story(
        {42: [TRUNCATE, insert("1", "a", None)], 44: [update("9", "?", None)], 46: [TRUNCATE, insert("1", "a", None)],
         55: [update("2", "bb", None, toast="big")],
         60: [update("4", None, None, was="1", toast="note big"), TRUNCATE, insert("2", "z", "NEW")],
         65: [update("5", None, None, was="2", toast="note big")], 70: [TRUNCATE, insert("1", "y", None)]},
        [(1, "a", None, 10, 46), (1, "a", None, 46, 60), (1, "y", None, 70, None), (2, "b", "BIG", 50, 55),
         (2, "bb", "BIG", 55, 60), (2, "z", "NEW", 60, 65), (3, "c", None, 10, 46), (5, "z", "NEW", 65, 70)],
        [(1, "y", None, False, 70), (2, "z", "NEW", True, 65), (3, "c", None, True, 46), (5, "z", "NEW", True, 70)],
        first=[A, C],
        snapshots={50: [A, ["2", "b", "BIG"]]},
        table="taken_again_and_emptied",
    ),
    "emptied twice before another shape, with it, and after it": Story(
        {45: [TRUNCATE, insert("1", "n", None)], 50: [update("1", "m", None), TRUNCATE, insert("1", "o", "X")],
         60: [update("1", "p", "new", "7"), TRUNCATE, insert("3", "q", "new", "8")],
         65: [delete("3"), TRUNCATE, insert("3", "r", None, "9")], 70: [update("3", "s", None, "9")]},
        [(1, "a", None, None, None, 10, 45), (1, "n", None, None, None, 45, 50), (1, "o", None, "X", 7, 50, 60),
         (2, "b", None, "X", None, 10, 45), (3, "q", "new", None, 8, 60, 65), (3, "r", None, None, 9, 65, 70),
         (3, "s", None, None, 9, 70, None)],
        [(1, "o", None, "X", 7, True, 60), (2, "b", None, "X", None, True, 45), (3, "s", None, None, 9, False, 70)],
        first=[A, ["2", "b", "X"]],
        table="emptied_and_reshaped",
    ),
    "what lies between a gap and its snapshot is left out": Story(
        {50: [update("1", "x", None)], 60: [update("1", "z", None)]},
        [(1, "a", None, 10, 55), (1, "y", None, 55, 60), (1, "z", None, 60, None)],
        [(1, "z", None, False, 60)],
        first=[A],
        snapshots={55: [["1", "y", None]]},
        table="gapped",
    ),
    "a column added with a value: rows that were gone before have none": Story(
        {20: [delete("2")], 60: [insert("3", "c", None, "8")]},
        [(1, "a", None, None, 7, 10, None), (2, "b", None, None, None, 10, 20), (3, "c", None, None, 8, 60, None)],
        [(1, "a", None, None, 7, False, 10), (2, "b", None, None, None, True, 20), (3, "c", None, None, 8, False, 60)],
        first=[A, B],
        table="reshaped",
    ),
    "a column renamed and another added under its name": Story(
        {50: [update("1", "b", None)], 60: [update("1", "c", "new", "7")]},
        [(1, "a", None, None, None, 10, 50), (1, "b", None, None, 7, 50, 60), (1, "c", "new", None, 7, 60, None)],
        [(1, "c", "new", None, 7, False, 60)],
        first=[A],
        table="reshaped",
    ),
    "a column dropped: versions from before keep its values": Story(
        {50: [update("1", "b", "Y")], 60: [update("1", "c", None, "7"), insert("2", "d", None, "7")]},
        [(1, "a", None, "X", None, 10, 50), (1, "b", None, "Y", 7, 50, 60), (1, "c", None, None, 7, 60, None),
         (2, "d", None, None, 7, 60, None)],
        [(1, "c", None, "Y", 7, False, 60), (2, "d", None, None, 7, False, 60)],
        first=[["1", "a", "X"]],
        table="reshaped",
    ),
    "another key: versions of a row go on under it": Story(
        {
            50: [update("1", "10", "x")],
            60: [update("5", "10", None), {"op": "delete", "old": [None, "20", None], "old_is_key": True}],
        },
        [(1, "10", None, 10, 50), (1, "10", "x", 50, 60), (2, "20", None, 10, 60), (5, "10", None, 60, None)],
        [(2, "20", None, True, 60), (5, "10", None, False, 60)],
        first=[["1", "10", None], ["2", "20", None]],
        table="rekeyed",
    ),
    "a column of another type, taken again: the old value stays beside it, but not in later versions": Story(
        {20: [delete("2")], 70: [update("1", "6", None)]},
        [(1, None, "4", 10, 55), (1, 5, None, 55, 70), (1, 6, None, 70, None), (2, None, "9", 10, 20)],
        [(1, 6, "4", False, 70), (2, None, "9", True, 20)],
        first=[["1", "4", None], ["2", "9", None]],
        snapshots={55: [["1", "5", None]]},
        table="retyped",
    ),
    "what cannot be folded before a snapshot is left out": Story(
        {50: [update("7", "1", None, toast="big"), update("1", "1", None)], 60: [update("1", "3", None)]},
        [(1, None, "0", 10, 55), (1, 2, None, 55, 60), (1, 3, None, 60, None)],
        [(1, 3, "0", False, 60)],
        first=[["1", "0", None]],
        snapshots={55: [["1", "2", None]]},
        table="retyped",
    ),
    "recreated with other columns: those of the same name and type go on": Story(
        {20: [delete("2")], 70: [insert("6", "3", "new")]},
        [(1, "X", "a", None, 10, 55), (1, "X", None, 5, 55, None), (2, "Y", "b", None, 10, 20), (3, "new", None, 6, 70, None)],
        [(1, "X", "a", 5, False, 55), (2, "Y", "b", None, True, 20), (3, "new", None, 6, False, 70)],
        first=[["1", "a", "X"], ["2", "b", "Y"]],
        snapshots={55: [["5", "1", "X"]]},
        table="recreated",
    ),
}  # fmt: skip

TABLES = list(dict.fromkeys(story.table for story in STORIES.values()))


def offset(name: str) -> int:
    """Return the offset of a story's keys; 0 if the table has no other story."""
    stories = [other_name for other_name, story in STORIES.items() if story.table == STORIES[name].table]
    return 100 * stories.index(name)


def shapes_of(table: str) -> list[Relation]:
    """Return the shapes of a table, oldest first."""
    relation_id = 100 + TABLES.index(table)
    first = relation(table, COLUMNS, ["id"], relation_id=relation_id)
    later = LATER_SHAPES.get(table)
    if later is None:
        return [first]
    shape = relation(
        table,
        [(name, type_) for name, type_, _, _ in later.columns],
        [later.key],
        relation_id=relation_id + 1000 * later.made_again,
        from_lsn=later.lsn,
        attnums=[number for _, _, number, _ in later.columns],
    )
    with_values = [
        replace(column, missing=later_column[3])
        for column, later_column in zip(shape.columns, later.columns, strict=True)
    ]
    return [first, replace(shape, columns=tuple(with_values))]


SHAPES = {table: shapes_of(table) for table in TABLES}


def shape_at(table: str, lsn: int) -> Relation:
    return [shape for shape in SHAPES[table] if shape.from_lsn <= lsn][-1]


def placed(name: str, values: Tuple | None) -> Tuple | None:
    """Return a tuple with the story's offset added to the key."""
    if not values or not (apart := offset(name)):
        return values
    return [str(apart + int(values[0] or 0)), *values[1:]]


def changes_at(lsn: int) -> list[Change]:
    """Return the changes of all stories in one transaction."""
    changes = []
    for name, story in STORIES.items():
        for part in story.commits.get(lsn, []):
            cells: Change = {key: placed(name, part[key]) for key in ("new", "old") if key in part}
            changes.append(change(shape_at(story.table, lsn), **(part | cells)))
    return changes


def snapshot_of(table: str, lsn: int) -> list[Tuple] | None:
    """Return the rows of all stories of a table in a snapshot at this LSN; None without a snapshot."""
    stories = {name: story.snapshots.get(lsn) for name, story in STORIES.items() if story.table == table}
    if all(rows is None for rows in stories.values()):
        return None
    return [placed(name, row) or [] for name, rows in stories.items() for row in rows or []]


def play(lakes: Lakes, begin: int, end: int) -> None:
    """Write everything in (begin, end] into bronze, and run a cycle."""
    bronze = lakes.bronze
    for lsn in range(begin + 1, end + 1):
        for table in TABLES:
            if GAPS.get(table) == lsn:
                bronze.gap(shape_at(table, lsn), lsn)
            if (rows := snapshot_of(table, lsn)) is not None:
                bronze.snapshot(shape_at(table, lsn), lsn, rows)
        bronze.add(lsn, changes_at(lsn))
    bronze.commit(end)
    lakes.cycle(end, look=end == LAST)


OWN = {
    "": "_deleted, _commit_lsn",
    "__history": "_valid_from_lsn, _valid_to_lsn, _valid_from, _valid_to, _commit_lsn, _commit_ts",
}
"""Columns to read after a story's own columns, by the suffix of the table."""


class Played:
    """All stories, at their ends. The class reads each table once."""

    def __init__(self, lakes: Lakes) -> None:
        self.lakes = lakes
        self._read: dict[str, list[tuple[Any, ...]]] = {}

    def rows(self, table: str, suffix: str) -> list[tuple[Any, ...]]:
        if table + suffix not in self._read:
            columns = f"{READ.get(table, ', '.join(name for name, _ in COLUMNS))}, {OWN[suffix]}"
            rows = self.lakes.held(self.lakes.kept, table + suffix)
            self._read[table + suffix] = [tuple(row[name] for name in columns.split(", ")) for row in rows]
        return self._read[table + suffix]

    def of(self, name: str, suffix: str) -> list[tuple[Any, ...]]:
        """Return a story's rows, by the story's own keys."""
        rows, apart = self.rows(STORIES[name].table, suffix), offset(name)
        return [(row[0] - apart, *row[1:]) for row in rows if 0 <= row[0] - apart < 100]


@pytest.fixture(scope="module")
def played(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Played:
    every = [shape for shapes in SHAPES.values() for shape in shapes]
    first: dict[str, list[Tuple]] = {table: [] for table in TABLES}
    for name, story in STORIES.items():
        first[story.table] += [placed(name, row) or [] for row in story.first]
    shapes = [shapes[0] for shapes in SHAPES.values()]
    lakes = Lakes(spark, str(tmp_path_factory.mktemp("lakes")), shapes, plain=False, looked=True)
    lakes.seen = {"rows", "rows__history"}
    for table, rows in first.items():
        lakes.bronze.snapshot(SHAPES[table][0], 10, rows)
    lakes.bronze.relations([shape for shape in every if shape.from_lsn <= 40])
    play(lakes, 10, 40)
    lakes.bronze.relations([shape for shape in every if shape.from_lsn > 40])
    play(lakes, 40, LAST)
    return Played(lakes)


@pytest.mark.spark
@pytest.mark.parametrize("name", STORIES)
def test_history(name: str, played: Played) -> None:
    versions = sorted((row[:-4] for row in played.of(name, "__history")), key=repr)
    assert versions == sorted(STORIES[name].history, key=repr)


@pytest.mark.spark
@pytest.mark.parametrize("name", STORIES)
def test_soft_deletes(name: str, played: Played) -> None:
    assert sorted(played.of(name, ""), key=repr) == sorted(STORIES[name].soft, key=repr)


@pytest.mark.spark
@pytest.mark.parametrize("table", SHAPES)
def test_times_of_versions(table: str, played: Played) -> None:
    for *_, begin, end, begin_ts, end_ts, lsn, lsn_ts in played.rows(table, "__history"):
        assert (begin, begin_ts) == (lsn, lsn_ts)
        assert begin_ts == time_of(begin).replace(tzinfo=None)
        assert end_ts == (None if end is None else time_of(end).replace(tzinfo=None))


@pytest.mark.spark
def test_changes_that_were_left_out_are_told(played: Played) -> None:
    story = "what cannot be folded before a snapshot is left out"
    runs = played.lakes.controls[1].runs("silver")
    details = [str(run.details) for run in runs if run.name == f"{STORIES[story].table}__history"]
    assert any(f"big, row {offset(story) + 7}" in text for text in details)
