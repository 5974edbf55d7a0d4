"""Tables whose shape changes under the stream: every value stays in its column, whenever the reader comes.

The stream names columns without attnum, and the catalog may be ahead of it by any number of statements. A
choice of the same stories is played with silver in `tests.pipelines.whole.test_end_to_end`.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bronze.catalog.select import select_tables
from bronze.identifiers import TableName
from bronze.lake import delta
from bronze.lake.location import Lake
from bronze.postgres.connection import connect
from bronze.shapes import same_shape
from bronze.store.gaps import is_open
from bronze.store.position import position_of
from bronze.store.relations import read_relations
from tests.bronze.attnums import Fold
from tests.bronze.replaying import bronze_rows, execute, read_all, session, source_of, source_rows
from tests.bronze.running import Running

if TYPE_CHECKING:
    from bronze.config.sections import SourceSettings

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

STORIES = Path(__file__).parents[1] / "changed_shapes.sql"


@pytest.fixture
def source(database: str) -> SourceSettings:
    return source_of(database, tables=["*.*"])


def stories() -> tuple[str, list[list[str]]]:
    schema, *steps = STORIES.read_text().split("--- step\n")
    return schema, [[one for one in step.split("\n\n") if one.strip()] for step in steps]


def assert_values_are_in_their_columns(source: SourceSettings, lake_path: str) -> None:
    changes, versions = bronze_rows(lake_path), read_relations(Lake(lake_path))
    bronze = delta.open_existing(f"{lake_path}/bronze/changes")
    with connect(source) as connection:
        tables = select_tables(connection, source)
    position = position_of(bronze)
    assert position is not None
    versions = [one for one in versions if one.from_lsn <= position.frontier]
    wrong: dict[str, object] = {}
    for table in tables:
        assert not is_open(bronze, table.table), f"{table.table} waits for a copy"
        newest = [one for one in versions if one.relation_id == table.relation.relation_id][-1]
        if not same_shape(newest, table.relation):
            wrong[f"shape of {table.table}"] = (newest, table.relation)
        found = sorted(Fold(table.relation, versions, changes).rows(), key=repr)
        wanted = sorted(source_rows(source, table.table), key=repr)
        if found != wanted:
            wrong[str(table.table)] = (found, wanted)
    assert wrong == {}


def test_no_reader_ran_meanwhile(source: SourceSettings, lake_path: str) -> None:
    schema, steps = stories()
    execute(source, schema)
    read_all(source, lake_path)
    for step in steps:
        execute(source, *step)
        read_all(source, lake_path)
        assert_values_are_in_their_columns(source, lake_path)


def test_a_reader_runs_meanwhile(source: SourceSettings, lake_path: str) -> None:
    schema, steps = stories()
    execute(source, schema)
    for step in steps:
        with Running(source, lake_path) as running, session(source) as connection:
            for transaction in step:
                connection.execute(transaction.encode())
                time.sleep(0.05)
            assert running.error is None
        read_all(source, lake_path)
        assert_values_are_in_their_columns(source, lake_path)


def test_a_look_that_is_ahead_of_the_stream_hides_no_column(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    read_all(source, lake_path)
    execute(
        source, "ALTER TABLE t ADD a text", "UPDATE t SET a = 'gone' WHERE id < 3", "ALTER TABLE t DROP a"
    )
    stop = threading.Event()

    def end_after_the_look(point: str) -> None:
        if point == "stream-starting":
            stop.set()

    read_all(source, lake_path, reached=end_after_the_look, stop=stop)
    assert stop.is_set()
    execute(source, "ALTER TABLE t ADD a text", "UPDATE t SET a = 'stays' WHERE id = 3")
    read_all(source, lake_path)
    assert_values_are_in_their_columns(source, lake_path)


def test_a_schema_that_is_renamed_before_its_table_is_copied_does_not_end_the_reader(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, "CREATE SCHEMA former", "CREATE TABLE former.t (id int PRIMARY KEY)")
    execute(source, "INSERT INTO former.t VALUES (1)")
    renamed: list[str] = []

    def rename(point: str) -> None:
        if point == "snapshot-exported" and not renamed:
            renamed.append("later")
            execute(source, "ALTER SCHEMA former RENAME TO later")

    read_all(source, lake_path, reached=rename)
    assert renamed
    assert_values_are_in_their_columns(source, lake_path)


def test_rows_in_doubt_are_in_bronze_with_the_gap_that_they_are(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)")
    read_all(source, lake_path)
    # Nobody knows any more which column was called v when the row was written.
    execute(source, "ALTER TABLE t ADD v int", "INSERT INTO t VALUES (1, 8)", "ALTER TABLE t DROP v")
    told: list[bool] = []

    def look(point: str) -> None:
        ops = [row["op"] for row in bronze_rows(lake_path)] if point == "committed" else []
        if "insert" in ops:
            bronze = delta.open_existing(f"{lake_path}/bronze/changes")
            told.append(is_open(bronze, TableName("public", "t")) or ops.count("snapshot_end") == 2)

    read_all(source, lake_path, reached=look)
    assert told
    assert all(told)
    assert_values_are_in_their_columns(source, lake_path)


NAMES, TYPES = ["a", "b", "c", "d"], ["text", "int", "varchar(9)"]


def random_statements(table: str, chance: random.Random, columns: dict[str, str]) -> list[str]:
    """Changes of rows and of the shape in any order; `columns` (types by name) follows."""
    found = []
    for number in range(chance.randint(4, 14)):
        free = [name for name in NAMES if name not in columns]
        kind = chance.choice(["rows", "rows", "rows", "add", "drop", "rename", "retype", "swap"])
        if kind == "add" and free:
            name, type_ = chance.choice(free), chance.choice(TYPES)
            default = chance.choice(["", "", " DEFAULT '7'"])
            columns[name] = type_
            found.append(f"ALTER TABLE {table} ADD {name} {type_}{default}")
        elif kind == "drop" and columns:
            name = chance.choice(sorted(columns))
            del columns[name]
            found.append(f"ALTER TABLE {table} DROP {name}")
        elif kind == "rename" and columns and free:
            name, to = chance.choice(sorted(columns)), chance.choice(free)
            columns[to] = columns.pop(name)
            found.append(f"ALTER TABLE {table} RENAME {name} TO {to}")
        elif kind == "swap" and len(columns) > 1:
            one, other = chance.sample(sorted(columns), 2)
            columns[one], columns[other] = columns[other], columns[one]
            found.append(
                f"BEGIN; ALTER TABLE {table} RENAME {one} TO x; ALTER TABLE {table} RENAME {other} TO {one}; "
                f"ALTER TABLE {table} RENAME x TO {other}; COMMIT"
            )
        elif kind == "retype" and columns:
            name, type_ = chance.choice(sorted(columns)), chance.choice(TYPES)
            columns[name] = type_
            found.append(f"ALTER TABLE {table} ALTER {name} DROP DEFAULT")
            found.append(f"ALTER TABLE {table} ALTER {name} TYPE {type_} USING {name}::text::{type_}")
        elif columns:
            sets = ", ".join(
                f"{name} = '{chance.randint(1, 999)}'" for name in columns if chance.random() < 0.6
            )
            if sets:
                found.append(f"UPDATE {table} SET {sets} WHERE id % 3 = {number % 3}")
            found.append(f"INSERT INTO {table} (id) VALUES ({100 + chance.randint(0, 10**8)})")
    return found


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.torture) for seed in (1, 2))])
def test_any_shapes_in_any_order(source: SourceSettings, lake_path: str, seed: int) -> None:
    chance = random.Random(seed)
    tables: dict[str, dict[str, str]] = {f"t{number}": {"a": "text", "b": "text"} for number in range(25)}
    for table in tables:
        execute(
            source,
            f"CREATE TABLE {table} (id int PRIMARY KEY, a text, b text)",
            f"INSERT INTO {table} SELECT i, i, i FROM generate_series(1, 6) i",
        )
    read_all(source, lake_path)
    for _ in range(2):
        for table, columns in tables.items():
            execute(source, *random_statements(table, chance, columns))
        read_all(source, lake_path)
        assert_values_are_in_their_columns(source, lake_path)
