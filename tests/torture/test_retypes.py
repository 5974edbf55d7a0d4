"""Every pair of types that `ALTER TABLE … ALTER COLUMN … TYPE` accepts without USING, through a pipeline.

Each type has a table, with a column for each type after the change. The test alters all columns while no
reader runs, carries all changes at once, and compares value by value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from psycopg import sql

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.retypes import same_text
from deltasmelt.silver.schema.types import reading
from tests.pipelines.whole.test_end_to_end import Flow
from tests.silver.retypes import SCHEMA, kinds, lasting, pairs, sql_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.shapes import PgType

pytestmark = [pytest.mark.torture, pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(3000)]


@pytest.mark.parametrize("all_pairs", [False, True], ids=["one of each class", "every pair"])
def test_every_retype_ends_with_silver_as_the_source(
    spark: SparkSession, database: str, tmp_path: Path, *, all_pairs: bool
) -> None:
    flow = Flow(spark, database, Lake(path=str(tmp_path / "lake")))
    flow.connection.execute(SCHEMA)
    all_kinds = kinds(flow.connection)
    chosen = pairs(flow.connection, all_kinds)
    assert sum(map(len, chosen.values())) > 1500
    if not all_pairs:
        chosen = one_of_each_class({kind.name: kind.type for kind in all_kinds}, chosen)
    columns = {before: lasting(flow.connection, before, afters) for before, afters in chosen.items()}
    for at, (before, values) in enumerate(columns.items()):
        make(flow, f"t{at}", before, values)
    flow.play(["CREATE TABLE calm (id int PRIMARY KEY, a int)", "INSERT INTO calm VALUES (1, 1)"])
    flow.note_tables("retyped")
    flow.compare(0, flow.carry())
    for at, values in enumerate(columns.values()):
        alter(flow, f"t{at}", values)
    flow.play(["INSERT INTO calm VALUES (2, 2)"])
    flow.compare(1, flow.carry())
    flow.silver.close()
    flow.connection.close()
    assert flow.differences == {}
    assert flow.control.open_errors() == []


def one_of_each_class(types: Mapping[str, PgType], taken: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return one pair per class: pairs differ in silver's type before or after, or in the need for a copy."""
    chosen: dict[str, list[str]] = {}
    classes = set()
    for before, afters in taken.items():
        for after in afters:
            then, now = types[before], types[after]
            class_ = (reading(then).ddl, reading(now).ddl, same_text(then, now), then.oid == now.oid)
            if class_ not in classes:
                classes.add(class_)
                chosen.setdefault(before, []).append(after)
    return chosen


def make(flow: Flow, name: str, before: str, values: Mapping[str, Sequence[str]]) -> None:
    """Create the table of a type, with rows of values that the changes accept."""
    names = ", ".join(f"{sql_name(after)} {before}" for after in values)
    flow.connection.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, {names})".encode())
    flow.connection.execute(f"COMMENT ON TABLE {name} IS {sql.quote(before)}".encode())
    for row in range(max(map(len, values.values()))):
        cells = [sql.quote(texts[row]) if row < len(texts) else "NULL" for texts in values.values()]
        statement = f"INSERT INTO {name} VALUES ({row}, {', '.join(cells)})"
        flow.connection.execute(statement.encode())


def alter(flow: Flow, name: str, values: Mapping[str, Sequence[str]]) -> None:
    """Alter all columns of the table, then insert a row."""
    actions = ", ".join(f"ALTER {sql_name(after)} TYPE {after}" for after in values)
    flow.connection.execute(f"ALTER TABLE {name} {actions}".encode())
    listed = ", ".join(map(sql_name, values))
    flow.connection.execute(f"INSERT INTO {name} SELECT 9, {listed} FROM {name} WHERE id = 0".encode())
