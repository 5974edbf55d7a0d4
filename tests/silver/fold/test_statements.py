"""Compare the statements for a small table with golden files; ``SMELT_GOLDEN=1`` rewrites them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.fold import write_sql
from deltasmelt.silver.fold.column_mapping import ColumnMapping
from deltasmelt.silver.fold.fold import Fold, fold, moves, unfolded
from deltasmelt.silver.fold.upsert import as_merge
from deltasmelt.silver.fold.window import Facts, Window
from deltasmelt.silver.plan.activity import activity_query
from deltasmelt.silver.run.key_ranges import range_query
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, NUMERIC, TEXT, relation

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = Path(__file__).parents[1] / "golden"
SETTINGS = SilverSettings()
DAYS = PgType("array", "_date", element=PgType("base", "date"))
SHAPE = relation(
    "orders",
    [("id", INT), ("status", TEXT), ("total", NUMERIC), ("days", DAYS)],
    ["id"],
    relation_id=16384,
)  # fmt: skip
TABLE = silver_table(SHAPE, SETTINGS)
FULL = silver_table(replace(SHAPE, replica_identity="f"), SETTINGS)
CHANGES, TARGET = "delta.`/lake/bronze/changes` VERSION AS OF 9", "delta.`/lake/silver/orders`"
BEFORE = f"{TARGET} VERSION AS OF 3"
STRAIGHT = ColumnMapping((150, 140), ("id", "status", "total", "days"), (0, 1, 2, 3), (None,) * 4)
OLDER = ColumnMapping((20, 0), ("id", "state", "total"), (0, 1, 2, None), (None,) * 4)


def window(
    facts: Facts,
    *,
    snapshot: int | None = None,
    truncated: tuple[int, int] | None = None,
    shapes: tuple[ColumnMapping, ...] = (STRAIGHT,),
) -> Window:
    at = None if snapshot is None else Lsn(snapshot)
    several = len(shapes) > 1
    return Window(CHANGES, 16384, Lsn(100), Lsn(200), ("id",), shapes, facts, several, at, truncated)


def folded(window: Window, origins: str | None = None) -> Fold:
    return fold(TABLE, window, target=BEFORE, origins=origins)


def moved() -> str:
    statements = moves(TABLE, window(MOVING), target=BEFORE)
    assert statements is not None
    return f"{statements[0]}\n\n-- each round\n{statements[1]('smelt_origins')}"


PLAIN = Facts(updates=True, deletes=True)
LATE = Facts(updates=True, deletes=False, unchanged_toast=frozenset({"days"}))
RENAMED = Facts(updates=True, deletes=False, unchanged_toast=frozenset({"days", "state"}))
MOVING = Facts(
    updates=True, deletes=True, old_tuples=2, unchanged_toast=frozenset({"days"}), moved_unchanged_toast=2
)

STATEMENTS: dict[str, Callable[[], str]] = {
    "create": lambda: ddl.create(TARGET, TABLE)[0],
    "activity": lambda: activity_query(CHANGES, {16384: Lsn(100), 16390: Lsn(150)}, Lsn(200)),
    "merge_plain": lambda: as_merge(
        TARGET, write_sql.merge(TABLE, folded(window(PLAIN)), {0: ("17", "4711")})
    ),
    "merge_unchanged_toast": lambda: as_merge(TARGET, write_sql.merge(TABLE, folded(window(LATE)), {})),
    "merge_moved": lambda: as_merge(
        TARGET, write_sql.merge(TABLE, folded(window(MOVING), "smelt_origins"), {})
    ),
    "moves": moved,
    "load_snapshot": lambda: write_sql.rows(TABLE, unfolded(TABLE, window(PLAIN, snapshot=150))).into(
        TARGET, replaces=True
    ),
    "load_truncated": lambda: write_sql.rows(
        TABLE, folded(window(PLAIN, truncated=(160, 4))), [("gone", "STRING")]
    ).into(TARGET, replaces=True),
    "append": lambda: write_sql.rows(
        TABLE, unfolded(TABLE, window(Facts(updates=False, deletes=False)))
    ).into(TARGET, replaces=False),
    "two_shapes": lambda: folded(window(RENAMED, shapes=(STRAIGHT, OLDER))).query,
    "merge_full_identity": lambda: as_merge(
        TARGET, write_sql.merge(FULL, fold(FULL, window(MOVING), target=BEFORE), {0: ("17", "4711")})
    ),
    "key_ranges": lambda: range_query("SELECT * FROM smelt_folded", {0: "key_0"}),
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_statement(name: str) -> None:
    text = STATEMENTS[name]() + "\n"
    path = GOLDEN / f"{name}.sql"
    if os.environ.get("SMELT_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()
