"""History and soft deletes, one story after the other, in two windows: they end at 40 and 70.

Stories of rows share one table, in which each has a hundred keys of its own; stories of a table have their
own.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import pytest

from tests.silver.histories import INT, TEXT, change, relation, time_of
from tests.silver.lakes import Lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from bronze.shapes import Relation

Change = dict[str, Any]
Tuple = list[str | None]
COLUMNS = [("id", INT), ("note", TEXT), ("big", TEXT)]


def ins(*values: str | None) -> Change:
    return {"op": "insert", "new": list(values)}


def upd(*values: str | None, was: str | None = None, toast: str = "") -> Change:
    sent: Change = {"op": "update", "new": list(values), "unchanged": toast.split() or None}
    return sent if was is None else {**sent, "old": [was, None, None], "old_is_key": True}


def gone(key: str) -> Change:
    return {"op": "delete", "old": [key, None, None], "old_is_key": True}


TRUNCATE: Change = {"op": "truncate"}


@dataclass
class Story:
    """What happens, by commit LSN, and what must come of it.

    Attributes:
        first: rows of the first snapshot, at 10.
        snapshots: later ones, by LSN.
        gap: changes up to this LSN may be missing.
        made_again: LSN from which the shapes are those of another table of this name.
        keys: the key of shapes, where it is not the column id.
        shapes: columns and texts of missing values, by the LSN from which they are; else `COLUMNS`.
        history: (first and other columns, from, to) of each version.
        soft: (the same columns, deleted, LSN).
    """

    commits: dict[int, list[Change]]
    history: list[tuple[Any, ...]]
    soft: list[tuple[Any, ...]]
    first: list[Tuple] = field(default_factory=list)
    snapshots: dict[int, list[Tuple]] = field(default_factory=dict)
    gap: int | None = None
    shapes: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)
    keys: dict[int, list[str]] = field(default_factory=dict)
    made_again: int = 1000
    columns: str = "id, note, big"

    @property
    def alone(self) -> bool:
        """Whether it needs a table of its own."""
        said = any(TRUNCATE in changes for changes in self.commits.values())
        return said or bool(self.snapshots or self.shapes or self.gap)


A, B, C = ["1", "a", None], ["2", "b", None], ["3", "c", None]

# ruff: noqa: E501 - a window or a list of versions a line
STORIES = {
    "several changes in one transaction give one version": Story(
        {20: [ins("1", "a", None), upd("1", "b", None), upd("1", "c", None)]},
        [(1, "c", None, 20, None)],
        [(1, "c", None, False, 20)],
    ),
    "each commit of a window gives a version": Story(
        {20: [ins("1", "a", None)], 30: [upd("1", "b", None)], 60: [upd("1", "c", None)]},
        [(1, "a", None, 20, 30), (1, "b", None, 30, 60), (1, "c", None, 60, None)],
        [(1, "c", None, False, 60)],
    ),
    "a row that came and went in one transaction was never there": Story(
        {20: [ins("1", "a", None), gone("1")], 50: [ins("2", "b", None), gone("2")]}, [], []
    ),
    "a row that came and went between two cycles was there": Story(
        {20: [ins("1", "a", None)], 30: [gone("1")]}, [(1, "a", None, 20, 30)], [(1, "a", None, True, 30)]
    ),
    "a row that was changed and deleted keeps its last values": Story(
        {50: [upd("1", "z", None, toast="big")], 60: [gone("1")]},
        [(1, "a", "BIG", 10, 50), (1, "z", "BIG", 50, 60)],
        [(1, "z", "BIG", True, 60)],
        first=[["1", "a", "BIG"]],
    ),
    "deleted, and later there again": Story(
        {20: [gone("1")], 60: [ins("1", "z", None)]},
        [(1, "a", None, 10, 20), (1, "z", None, 60, None)],
        [(1, "z", None, False, 60)],
        first=[A],
    ),
    "deleted and inserted again in one transaction": Story(
        {60: [gone("1"), ins("1", "z", None)]},
        [(1, "a", None, 10, 60), (1, "z", None, 60, None)],
        [(1, "z", None, False, 60)],
        first=[A],
    ),
    "a key change ends the row at the old key": Story(
        {20: [upd("2", None, None, was="1", toast="note big")], 60: [upd("3", "z", None, was="2", toast="big")]},
        [(1, "a", "BIG", 10, 20), (2, "a", "BIG", 20, 60), (3, "z", "BIG", 60, None)],
        [(1, "a", "BIG", True, 20), (2, "a", "BIG", True, 60), (3, "z", "BIG", False, 60)],
        first=[["1", "a", "BIG"]],
    ),
    "two rows swapped their keys": Story(
        {60: [upd("2", "a", None, was="1", toast="big"), upd("1", "b", None, was="2", toast="big")]},
        [(1, "a", "X", 10, 60), (1, "b", "Y", 60, None), (2, "a", "X", 60, None), (2, "b", "Y", 10, 60)],
        [(1, "b", "Y", False, 60), (2, "a", "X", False, 60)],
        first=[["1", "a", "X"], ["2", "b", "Y"]],
    ),
    "unchanged TOAST after each change": Story(
        {20: [upd("1", "b", None, toast="big")], 30: [upd("1", "c", "NEW")], 50: [upd("1", "d", None, toast="big")],
         60: [upd("1", "e", None, toast="big")]},
        [(1, "a", "BIG", 10, 20), (1, "b", "BIG", 20, 30), (1, "c", "NEW", 30, 50), (1, "d", "NEW", 50, 60),
         (1, "e", "NEW", 60, None)],
        [(1, "e", "NEW", False, 60)],
        first=[["1", "a", "BIG"]],
    ),
    "a TRUNCATE ends all rows, and what its transaction did before it was never there": Story(
        {60: [ins("2", "never", None), upd("1", "never", None), TRUNCATE, ins("3", "c", None)], 70: [gone("3")]},
        [(1, "a", None, 10, 60), (3, "c", None, 60, 70)],
        [(1, "a", None, True, 60), (3, "c", None, True, 70)],
        first=[A],
    ),
    "two TRUNCATEs in one window": Story(
        {50: [TRUNCATE], 60: [ins("1", "z", None)], 70: [TRUNCATE, ins("2", "b", None)]},
        [(1, "a", None, 10, 50), (1, "z", None, 60, 70), (2, "b", None, 70, None)],
        [(1, "z", None, True, 70), (2, "b", None, False, 70)],
        first=[A],
    ),
    "taken again: equal rows go on, others begin, what is not there any more ends": Story(
        {70: [upd("1", "z", None)]},
        [(1, "a", None, 10, 70), (1, "z", None, 70, None), (2, "b", None, 10, 55), (2, "bb", None, 55, None),
         (3, "c", None, 10, 55), (4, "d", None, 55, None)],
        [(1, "z", None, False, 70), (2, "bb", None, False, 55), (3, "c", None, True, 55), (4, "d", None, False, 55)],
        first=[A, B, C],
        snapshots={55: [A, ["2", "bb", None], ["4", "d", None]]},
    ),
    "taken again twice, with changes around it": Story(
        {50: [upd("1", "x", None)], 60: [upd("1", "y", None)]},
        [(1, "a", None, 10, 50), (1, "x", None, 50, 60), (1, "y", None, 60, None), (2, "b", None, 55, 65)],
        [(1, "y", None, False, 60), (2, "b", None, True, 65)],
        first=[A],
        snapshots={55: [["1", "x", None], B], 65: [["1", "y", None]]},
    ),
    "what cannot be folded before a snapshot is left out": Story(
        {50: [upd("7", "x", None, toast="big")], 60: [upd("1", "z", None)]},
        [(1, "a", None, 10, 55), (1, "y", None, 55, 60), (1, "z", None, 60, None)],
        [(1, "z", None, False, 60)],
        first=[A],
        snapshots={55: [["1", "y", None]]},
    ),
    "what lies between a gap and its snapshot is left out": Story(
        {50: [upd("1", "x", None)], 60: [upd("1", "z", None)]},
        [(1, "a", None, 10, 55), (1, "y", None, 55, 60), (1, "z", None, 60, None)],
        [(1, "z", None, False, 60)],
        first=[A],
        snapshots={55: [["1", "y", None]]},
        gap=45,
    ),
    "a column added with a value: rows that were gone before have none": Story(
        {20: [gone("2")], 60: [ins("3", "c", None, "8")]},
        [(1, None, 7, 10, None), (2, None, None, 10, 20), (3, None, 8, 60, None)],
        [(1, None, 7, False, 10), (2, None, None, True, 20), (3, None, 8, False, 60)],
        first=[A, B],
        shapes={60: [*((*column, None) for column in COLUMNS), ("v", INT, "7")]},
        columns="id, big, v",
    ),
    "a column renamed and another added under its name": Story(
        {50: [upd("1", "b", None)], 60: [upd("1", "c", None, "new")]},
        [(1, "a", None, 10, 50), (1, "b", None, 50, 60), (1, "c", "new", 60, None)],
        [(1, "c", "new", False, 60)],
        first=[A],
        shapes={60: [("id", INT, None), ("was", TEXT, None), ("big", TEXT, None), ("note", TEXT, None)]},
        columns="id, was, note",
    ),
    "another key: versions of a row go on under it": Story(
        {
            50: [upd("1", "10", "x")],
            60: [upd("5", "10", None), {"op": "delete", "old": [None, "20", None], "old_is_key": True}],
        },
        [(1, "10", None, 10, 50), (1, "10", "x", 50, 60), (2, "20", None, 10, 60), (5, "10", None, 60, None)],
        [(2, "20", None, True, 60), (5, "10", None, False, 60)],
        first=[["1", "10", None], ["2", "20", None]],
        shapes={60: [(*column, None) for column in COLUMNS]},
        keys={60: ["note"]},
    ),
    "a column dropped: versions from before keep its values": Story(
        {50: [upd("1", "b", "Y")], 60: [upd("1", "c"), ins("2", "d")]},
        [(1, "a", "X", 10, 50), (1, "b", "Y", 50, 60), (1, "c", None, 60, None), (2, "d", None, 60, None)],
        [(1, "c", "Y", False, 60), (2, "d", None, False, 60)],
        first=[["1", "a", "X"]],
        shapes={60: [("id", INT, None), ("note", TEXT, None)]},
        columns="id, note, big",
    ),
    "a column of another type, taken again: ended rows keep the old value beside it": Story(
        {20: [gone("2")], 70: [upd("1", "6", None)]},
        [(1, None, "4", 10, 55), (1, 5, None, 55, 70), (1, 6, None, 70, None), (2, None, "9", 10, 20)],
        [(1, 6, None, False, 70), (2, None, "9", True, 20)],
        first=[["1", "4", None], ["2", "9", None]],
        snapshots={55: [["1", "5", None]]},
        shapes={52: [("id", INT, None), ("note", INT, None), ("big", TEXT, None)]},
        columns="id, note, IF(note IS NULL, note__2_string, NULL)",
    ),
    "recreated with other columns: those of the same name and type go on": Story(
        {20: [gone("2")], 70: [ins("6", "3", "new")]},
        [(1, "X", "a", None, 10, 55), (1, "X", None, 5, 55, None), (2, "Y", "b", None, 10, 20), (3, "new", None, 6, 70, None)],
        [(1, "X", None, 5, False, 55), (2, "Y", "b", None, True, 20), (3, "new", None, 6, False, 70)],
        first=[["1", "a", "X"], ["2", "b", "Y"]],
        snapshots={55: [["5", "1", "X"]]},
        shapes={52: [("note", INT, None), ("id", INT, None), ("big", TEXT, None)]},
        made_again=52,
        columns="id, big, IF(note IS NULL, note__2_string, NULL), note",
    ),
}  # fmt: skip


SHARED = "rows"


def number(name: str) -> int:
    return list(STORIES).index(name)


def table_of(name: str) -> str:
    return f"story_{number(name)}" if STORIES[name].alone else SHARED


def shapes_of(name: str) -> list[Relation]:
    """The shapes of a story's table, oldest first."""
    story, relation_id = STORIES[name], 100 + number(name) * STORIES[name].alone
    found = [relation(table_of(name), COLUMNS, ["id"], relation_id=relation_id)]
    for lsn, columns in story.shapes.items():
        of = relation_id + 1000 * (lsn >= story.made_again)
        key, names = story.keys.get(lsn, ["id"]), [one[:2] for one in columns]
        shape = relation(table_of(name), names, key, relation_id=of, from_lsn=lsn)
        with_values = (
            replace(column, missing=one[2]) for column, one in zip(shape.columns, columns, strict=True)
        )
        found.append(replace(shape, columns=tuple(with_values)))
    return found


SHAPES = {table_of(name): shapes_of(name) for name in STORIES}


def shape_at(name: str, lsn: int) -> Relation:
    found = (shape for shape in SHAPES[table_of(name)] if shape.from_lsn <= lsn)
    return max(found, key=lambda shape: shape.from_lsn)


def placed(name: str, values: Tuple | None) -> Tuple | None:
    """A tuple among its story's keys."""
    if values is None or STORIES[name].alone:
        return values
    return [str(100 * number(name) + int(values[0] or 0)), *values[1:]]


def changes_at(lsn: int) -> list[Change]:
    """What all stories do in one transaction."""
    found = []
    for name, story in STORIES.items():
        for one in story.commits.get(lsn, []):
            cells: Change = {key: placed(name, one[key]) for key in ("new", "old") if key in one}
            found.append(change(shape_at(name, lsn), **(one | cells)))
    return found


def tell(lakes: Lakes, begin: int, end: int) -> None:
    """Everything in (begin, end], and a cycle."""
    bronze = lakes.bronze
    for lsn in range(begin + 1, end + 1):
        for name, story in STORIES.items():
            if story.gap == lsn:
                bronze.gap(shape_at(name, lsn), lsn)
            if lsn in story.snapshots:
                bronze.snapshot(shape_at(name, lsn), lsn, story.snapshots[lsn])
        bronze.add(lsn, changes_at(lsn))
    bronze.commit(end)
    lakes.cycle(end)


OWN = {
    "": "_deleted, _commit_lsn",
    "__history": "_valid_from_lsn, _valid_to_lsn, _valid_from, _valid_to, _commit_lsn, _commit_ts",
}
"""Columns that are read after a story's own, by the suffix of the table."""


class Told:
    """All stories, at their ends. Each table is read once."""

    def __init__(self, lakes: Lakes) -> None:
        self.lakes = lakes
        self._read: dict[str, list[tuple[Any, ...]]] = {}

    def rows(self, table: str, suffix: str) -> list[tuple[Any, ...]]:
        if table + suffix not in self._read:
            columns = next(story.columns for name, story in STORIES.items() if table_of(name) == table)
            read = self.lakes.read(self.lakes.kept, table + suffix, f"{columns}, {OWN[suffix]}")
            self._read[table + suffix] = read
        return self._read[table + suffix]

    def of(self, name: str, suffix: str) -> list[tuple[Any, ...]]:
        """A story's rows, by its own keys."""
        rows, at = self.rows(table_of(name), suffix), 100 * number(name)
        if STORIES[name].alone:
            return rows
        return [(row[0] - at, *row[1:]) for row in rows if row[0] // 100 == number(name)]


@pytest.fixture(scope="module")
def told(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Told:
    every = [shape for shapes in SHAPES.values() for shape in shapes]
    lakes = Lakes(
        spark, str(tmp_path_factory.mktemp("lakes")), [shapes[0] for shapes in SHAPES.values()], plain=False
    )
    first: dict[str, list[Tuple]] = {name: [] for name in SHAPES}
    for name, story in STORIES.items():
        first[table_of(name)] += [placed(name, row) or [] for row in story.first]
    for name, rows in first.items():
        lakes.bronze.snapshot(SHAPES[name][0], 10, rows)
    lakes.bronze.relations([shape for shape in every if shape.from_lsn <= 40])
    tell(lakes, 10, 40)
    lakes.bronze.relations([shape for shape in every if shape.from_lsn > 40])
    tell(lakes, 40, 70)
    return Told(lakes)


@pytest.mark.spark
@pytest.mark.parametrize("name", STORIES)
def test_history(name: str, told: Told) -> None:
    versions = sorted((row[:-4] for row in told.of(name, "__history")), key=repr)
    assert versions == sorted(STORIES[name].history, key=repr)


@pytest.mark.spark
@pytest.mark.parametrize("name", STORIES)
def test_soft_deletes(name: str, told: Told) -> None:
    assert sorted(told.of(name, ""), key=repr) == sorted(STORIES[name].soft, key=repr)


@pytest.mark.spark
@pytest.mark.parametrize("table", SHAPES)
def test_times_of_versions(table: str, told: Told) -> None:
    for *_, begin, end, begin_ts, end_ts, lsn, lsn_ts in told.rows(table, "__history"):
        assert (begin, begin_ts) == (lsn, lsn_ts)
        assert begin_ts.astimezone() == time_of(begin)
        assert (None if end_ts is None else end_ts.astimezone()) == (None if end is None else time_of(end))


@pytest.mark.spark
def test_changes_that_were_left_out_are_told(told: Told) -> None:
    name = f"{table_of('what cannot be folded before a snapshot is left out')}__history"
    details = [str(run.details) for run in told.lakes.controls[1].runs("silver") if run.name == name]
    assert any("big, row 7" in text for text in details)
