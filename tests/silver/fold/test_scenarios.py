"""Test possible changes of a row, story by story; all stories share one table and three windows.

Each story has a separate key space. Columns are unchanged TOAST if a change names them as `toast`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.shapes import PgType
from tests.silver.histories import INT, TEXT, change, relation
from tests.silver.lakes import Lakes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DAYS = PgType("array", "_date", element=PgType("base", "date"))
NAMES = ("space", "id", "note", "big", "days")
SHAPE = relation(
    "stories",
    [("space", INT), ("id", INT), ("note", TEXT), ("big", TEXT), ("days", DAYS)],
    ["space", "id"],
    relation_id=5,
)
Change = dict[str, Any]
Transaction = list[Change]


def insert(key: int, note: str | None = None, big: str | None = None, days: str | None = None) -> Change:
    return {"op": "insert", "new": [str(key), note, big, days]}


def update(key: int, *, was: int | None = None, toast: str = "", **values: str | None) -> Change:
    names = toast.split()
    new = [str(key), *(values.get(name) for name in NAMES[2:])]
    sent: Change = {"op": "update", "new": new, "unchanged": names or None}
    return sent if was is None else {**sent, "old": [str(was), None, None, None], "old_is_key": True}


def delete(key: int) -> Change:
    return {"op": "delete", "old": [str(key), None, None, None], "old_is_key": True}


@dataclass
class Story:
    """Three windows of transactions, and the rows at the end: id to (note, big, days' text if lost)."""

    first: list[Transaction] = field(default_factory=list)
    second: list[Transaction] = field(default_factory=list)
    third: list[Transaction] = field(default_factory=list)
    rows: dict[int, tuple[str | None, ...]] = field(default_factory=dict)


LOST = "{infinity}"

# ruff: noqa: E501 - a window a line
STORIES = {
    "inserted, updated, deleted, each in its window": Story(
        [[insert(1, "a"), insert(2, "b")]], [[update(1, note="c")]], [[delete(2)]], {1: ("c", None)}
    ),
    "inserted and deleted in one window": Story([[insert(1, "a")], [delete(1)]], rows={}),
    "inserted and deleted in one transaction": Story([[insert(1, "a"), delete(1)]], rows={}),
    "deleted and inserted again in one window": Story(
        [[insert(1, "old", "BIG")]], [[delete(1)], [insert(1, "new")]], rows={1: ("new", None)}
    ),
    "unchanged TOAST in the window of its insert": Story(
        [[insert(1, "a", "BIG")], [update(1, note="b", toast="big")]], rows={1: ("b", "BIG")}
    ),
    "unchanged TOAST in a later window": Story(
        [[insert(1, "a", "BIG")]], [[update(1, note="b", toast="big")]], [[update(1, note="c", toast="big")]], {1: ("c", "BIG")}
    ),
    "unchanged TOAST after one that was sent": Story(
        [[insert(1, "a", "OLD")]], [[update(1, big="NEW")], [update(1, note="b", toast="big")]], rows={1: ("b", "NEW")}
    ),
    "a value set to NULL, not unchanged TOAST": Story([[insert(1, "a", "BIG")]], [[update(1, note="b")]], rows={1: ("b", None)}),
    "unchanged TOAST does not come from the deleted row before": Story(
        [[insert(1, "a", "OLD")]], [[delete(1), insert(1, "b", "NEW")], [update(1, note="c", toast="big")]], rows={1: ("c", "NEW")}
    ),
    "moved": Story([[insert(1, "a", "BIG")]], [[update(2, was=1, note="b", big="X")]], rows={2: ("b", "X")}),
    "moved with unchanged TOAST": Story(
        [[insert(1, "a", "BIG")]], [[update(2, was=1, note="b", toast="big")]], rows={2: ("b", "BIG")}
    ),
    "moved twice with unchanged TOAST": Story(
        [[insert(1, "a", "BIG")]],
        [[update(2, was=1, toast="big")], [update(3, was=2, note="c", toast="big")]],
        rows={3: ("c", "BIG")},
    ),
    "moved five times in one transaction with unchanged TOAST": Story(
        [[insert(1, "a", "BIG")]],
        [[update(number + 1, was=number, note=str(number), toast="big") for number in range(1, 6)]],
        rows={6: ("5", "BIG")},
    ),
    "moved away and back with unchanged TOAST": Story(
        [[insert(1, "a", "BIG")]],
        [[update(2, was=1, toast="big")], [update(1, was=2, note="c", toast="big")]],
        rows={1: ("c", "BIG")},
    ),
    "moved after the value was set in the same window": Story(
        [[insert(1, "a", "OLD")]],
        [[update(1, big="NEW")], [update(2, was=1, note="b", toast="big")]],
        rows={2: ("b", "NEW")},
    ),
    "inserted and moved in one window with unchanged TOAST": Story(
        [[insert(1, "a", "BIG")], [update(2, was=1, note="b", toast="big")]], rows={2: ("b", "BIG")}
    ),
    "moved, and another row inserted where it was": Story(
        [[insert(1, "a", "BIG")]],
        [[update(2, was=1, note="b", toast="big"), insert(1, "other", "OTHER")]],
        rows={1: ("other", "OTHER"), 2: ("b", "BIG")},
    ),
    "moved onto the key of a deleted row": Story(
        [[insert(1, "a", "BIG"), insert(2, "b", "GONE")]],
        [[delete(2), update(2, was=1, note="c", toast="big")]],
        rows={2: ("c", "BIG")},
    ),
    "moved and then deleted": Story(
        [[insert(1, "a", "BIG")]], [[update(2, was=1, toast="big")], [delete(2)]], rows={}
    ),
    "moved in one window, changed in the next": Story(
        [[insert(1, "a", "BIG")]],
        [[update(2, was=1, toast="big")]],
        [[update(2, note="c", toast="big")]],
        {2: ("c", "BIG")},
    ),
    "two rows swapped under a deferred constraint": Story(
        [[insert(1, "a"), insert(2, "b")]], [[update(2, was=1, note="a"), update(1, was=2, note="b")]], rows={1: ("b", None), 2: ("a", None)}
    ),
    "two rows swapped with unchanged TOAST": Story(
        [[insert(1, "a", "BIG A"), insert(2, "b", "BIG B")]],
        [[update(2, was=1, note="a", toast="big"), update(1, was=2, note="b", toast="big")]],
        rows={1: ("b", "BIG B"), 2: ("a", "BIG A")},
    ),
    "swapped and swapped back with unchanged TOAST": Story(
        [[insert(1, "a", "BIG A"), insert(2, "b", "BIG B")]],
        [
            [update(2, was=1, note="a", toast="big"), update(1, was=2, note="b", toast="big")],
            [update(2, was=1, note="b", toast="big"), update(1, was=2, note="a", toast="big")],
        ],
        rows={1: ("a", "BIG A"), 2: ("b", "BIG B")},
    ),
    "swapped in the window of their insert": Story(
        [[insert(1, "a", "A"), insert(2, "b", "B")], [update(2, was=1, toast="big"), update(1, was=2, toast="big")]],
        rows={1: (None, "B"), 2: (None, "A")},
    ),
    "three rows rotated with unchanged TOAST": Story(
        [[insert(1, "a", "A"), insert(2, "b", "B"), insert(3, "c", "C")]],
        [[update(2, was=1, toast="big"), update(3, was=2, toast="big"), update(1, was=3, toast="big")]],
        rows={1: (None, "C"), 2: (None, "A"), 3: (None, "B")},
    ),
    "all keys raised by one, lowest first": Story(
        [[insert(1, "a", "A"), insert(2, "b", "B")]],
        [[update(2, was=1, toast="big"), update(3, was=2, toast="big")]],
        rows={2: (None, "A"), 3: (None, "B")},
    ),
    "all keys raised by one, highest first": Story(
        [[insert(1, "a", "A"), insert(2, "b", "B")]],
        [[update(3, was=2, toast="big"), update(2, was=1, toast="big")]],
        rows={2: (None, "A"), 3: (None, "B")},
    ),
    "inserted onto a key whose row is deleted after it": Story(
        [[insert(1, "old", "OLD")]], [[insert(1, "new", "NEW"), delete(1)]], rows={1: ("new", "NEW")}
    ),
    "a text that its type cannot hold stays when it is not sent": Story(
        [[insert(1, "a", None, LOST)]], [[update(1, note="b", toast="days")]], rows={1: ("b", None, LOST)}
    ),
    "a text that its type cannot hold moves with its row": Story(
        [[insert(1, "a", None, LOST)]], [[update(2, was=1, note="b", toast="days")]], rows={2: ("b", None, LOST)}
    ),
    "a text that its type cannot hold is replaced by one that it can": Story(
        [[insert(1, "a", None, LOST)]], [[update(1, note="b", days="{2024-01-01}")]], rows={1: ("b", None)}
    ),
    "a key that lies out of line comes with the old tuple": Story(
        [[insert(1, "a")]],
        [[{**update(1, note="b"), "new": [None, "b", None, None], "unchanged": ["id"], "old": ["1", None, None, None],
           "old_is_key": True}]],
        rows={1: ("b", None)},
    ),
}  # fmt: skip


def placed(space: int, given: Change) -> Change:
    """Return a change in its story's key space."""
    cells = {name: [str(space), *given[name]] for name in ("new", "old") if given.get(name) is not None}
    return change(SHAPE, **{**given, **cells})


COLUMNS = "space, id, note, big, _unrepresentable['days']"


@dataclass
class Played:
    """All stories, run at once.

    Attributes:
        rows: after each window, by its LSN.
    """

    lakes: Lakes
    rows: dict[int, list[tuple[Any, ...]]]


@pytest.fixture(scope="module")
def played(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Run all stories at once; one window carries the lake with history over all three."""
    lakes = Lakes(spark, str(tmp_path_factory.mktemp("lakes")), [SHAPE])
    bronze = lakes.bronze
    bronze.relations([SHAPE])
    bronze.snapshot(SHAPE, 10, [])
    lsn, rows = 10, {}
    for window in ("first", "second", "third"):
        for space, story in enumerate(STORIES.values()):
            for transaction in getattr(story, window):
                lsn += 10
                bronze.add(lsn, [placed(space, text) for text in transaction])
        bronze.commit(lsn)
        lakes.cycle(lsn, kept=window == "third")
        rows[lsn] = lakes.read(lakes.plain, "stories", COLUMNS)
    return Played(lakes, rows)


@pytest.fixture(scope="module")
def outcome(played: Played) -> dict[str, dict[int, tuple[str | None, ...]]]:
    """Return the rows at the end by story."""
    rows_by_lsn: dict[str, dict[int, tuple[str | None, ...]]] = {name: {} for name in STORIES}
    names = list(STORIES)
    for space, key, note, big, lost in played.rows[max(played.rows)]:
        assert key not in rows_by_lsn[names[space]], "two rows of one key"
        rows_by_lsn[names[space]][key] = (note, big) if lost is None else (note, big, lost)
    return rows_by_lsn


@pytest.mark.spark
@pytest.mark.parametrize("name", STORIES)
def test_row(name: str, outcome: dict[str, dict[int, tuple[str | None, ...]]]) -> None:
    assert outcome[name] == STORIES[name].rows


@pytest.mark.spark
def test_versions_as_of_each_window_are_its_rows(played: Played) -> None:
    lakes = played.lakes
    assert {lsn: lakes.as_of("stories", lsn, COLUMNS) for lsn in played.rows} == played.rows


@pytest.mark.spark
def test_rows_that_are_not_deleted_are_the_rows(played: Played) -> None:
    lakes = played.lakes
    assert lakes.read(lakes.kept, "stories", COLUMNS, "NOT _deleted") == played.rows[max(played.rows)]
    deleted = lakes.read(lakes.kept, "stories", "space, id", "_deleted")
    living = lakes.read(lakes.kept, "stories", "space, id", "NOT _deleted")
    was = lakes.read(lakes.kept, "stories__history", "DISTINCT space, id")
    assert sorted([*deleted, *living]) == sorted(was), "each key that ever was, once"
