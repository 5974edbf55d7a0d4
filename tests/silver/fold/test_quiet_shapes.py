"""A table changes its shape without any new row: silver has the shape after the next cycle.

One database has one table for each kind of change. No table gets a row until silver has all shapes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.silver.real_source import RealSource

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(300)]

CHANGES = {
    "added": ("ADD x int", "ALTER a SET NOT NULL"),
    "added_default": ("ADD x int DEFAULT 7",),
    "renamed": ("RENAME a TO title", "DROP c", "DROP v"),
    "swapped": ("RENAME a TO x", "RENAME b TO a", "RENAME x TO b"),
    "passed_on": ("RENAME b TO x", "RENAME a TO b", 'RENAME c TO "C"'),
    "retyped": ("ALTER v TYPE text", "ALTER n TYPE numeric(12,2)"),
    "rekeyed": ("DROP CONSTRAINT rekeyed_pkey", "ADD PRIMARY KEY (code)"),
}
TABLE = """CREATE TABLE {} (id int PRIMARY KEY, code int NOT NULL, a text, b text, c int, v varchar(5),
n numeric(8,2))"""
ROWS = "INSERT INTO {} SELECT i, 10 * i, 'a' || i, 'b' || i, i, 'v', i + 0.25 FROM generate_series(1, 3) i"


def test_silver_follows_shape_of_quiet_table(spark: SparkSession, database: str, tmp_path: Path) -> None:
    world = RealSource(spark, database, f"{tmp_path}/lake", history=["renamed"])
    try:
        for name in CHANGES:
            world.play(TABLE.format(name), ROWS.format(name))
        world.read()
        world.fold()
        before = len(world.control.runs("silver"))
        for name, actions in CHANGES.items():
            world.play(*(f"ALTER TABLE {name} {action}" for action in actions))
        world.play("COMMENT ON COLUMN renamed.title IS 'of the book'")
        world.read()
        world.fold()
        assert world.errors() == {}
        assert world.differences(CHANGES) == {}
        runs = world.control.runs("silver")[:-before]
        assert {run.mode for run in runs} == {"incremental"}, "no table is taken again"
        assert world.silver.cycle() is None, "nothing is left to be done"
        # The next rows give the same result: silver folds no window into the former shape.
        for name in CHANGES:
            world.play(f"UPDATE {name} SET code = code + 1 WHERE id = 2", f"DELETE FROM {name} WHERE id = 1")
        world.play("INSERT INTO swapped (id, code, a, b) VALUES (9, 9, 'of a', 'of b')")
        world.read()
        world.fold()
        assert world.errors() == {}
        assert world.differences(CHANGES) == {}
    finally:
        world.close()
