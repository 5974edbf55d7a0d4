"""Types that are redefined in place: stored values print differently, and the log has no event.

Each case is a table with its types. All cases share a database. First the types change without a reader, and
some rows follow; then a reader runs in parallel.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.retypes import same_text
from deltasmelt.bronze.shapes import PgType
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.replaying import assert_bronze_equals_source, bronze_rows, execute, read_all, source_of
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

INT = {"kind": "base", "name": "int4", "oid": 23}
ENUM = "CREATE TYPE {t}_e AS ENUM ('a', 'b', 'c')"
PAIR = "CREATE TYPE {t}_p AS (x int, y int)"
CIRCLE = (
    "ALTER TYPE {t}_e RENAME VALUE 'a' TO 'x'",
    "ALTER TYPE {t}_e RENAME VALUE 'b' TO 'a'",
    "ALTER TYPE {t}_e RENAME VALUE 'x' TO 'b'",
)
AGAIN = ("ALTER TYPE {t}_p DROP ATTRIBUTE y", "ALTER TYPE {t}_p ADD ATTRIBUTE y int")
STORIES: dict[str, tuple[tuple[str, ...], str, str, tuple[str, ...]]] = {
    "traded": ((ENUM,), "{t}_e", "'a'", CIRCLE),
    "reused": ((ENUM,), "{t}_e", "'a'", (CIRCLE[0], "ALTER TYPE {t}_e ADD VALUE 'a' BEFORE 'x'")),
    "in_array": ((ENUM,), "{t}_e[]", "'{{a,b}}'", CIRCLE),
    "in_domain": ((ENUM, "CREATE DOMAIN {t}_d AS {t}_e"), "{t}_d", "'b'", CIRCLE),
    "in_range": ((ENUM, "CREATE TYPE {t}_r AS RANGE (subtype = {t}_e)"), "{t}_r", "'[a,b)'", CIRCLE[:1]),
    "in_pair": ((ENUM, "CREATE TYPE {t}_q AS (n int, e {t}_e)"), "{t}_q", "'(1,a)'", CIRCLE),
    "attribute": ((PAIR,), "{t}_p", "'(1,2)'", AGAIN),
    "attribute_in_array": ((PAIR,), "{t}_p[]", """'{{"(1,2)"}}'""", AGAIN),
    "row_type": (
        ("CREATE TABLE {t}_p (x int, y int)", "ALTER TABLE {t}_p REPLICA IDENTITY FULL"),
        "{t}_p",
        "'(1,2)'",
        ("ALTER TABLE {t}_p DROP y", "ALTER TABLE {t}_p ADD y int"),
    ),
    "for_a_while": (
        (ENUM,),
        "{t}_e",
        "'a'",
        (
            "ALTER TYPE {t}_e RENAME VALUE 'a' TO 'x'",
            "INSERT INTO {t} VALUES (10, 'x')",
            "ALTER TYPE {t}_e RENAME VALUE 'x' TO 'a'",
        ),
    ),
    "wider_for_a_while": (
        (PAIR,),
        "{t}_p",
        "'(1,2)'",
        (
            "ALTER TYPE {t}_p ADD ATTRIBUTE z int",
            "INSERT INTO {t} VALUES (10, '(1,2,3)')",
            "ALTER TYPE {t}_p DROP ATTRIBUTE z",
        ),
    ),
}
HARMLESS: dict[str, tuple[tuple[str, ...], str, str, tuple[str, ...]]] = {
    "added": (
        (ENUM,),
        "{t}_e",
        "'a'",
        ("ALTER TYPE {t}_e ADD VALUE 'd' BEFORE 'b'", "ALTER TYPE {t}_e ADD VALUE 'e' AFTER 'a'"),
    ),
    "called": (
        (ENUM,),
        "{t}_e",
        "'a'",
        ("ALTER TYPE {t}_e RENAME TO {t}_other", "ALTER TYPE {t}_other SET SCHEMA elsewhere"),
    ),
    "domain": (
        ("CREATE DOMAIN {t}_d AS int",),
        "{t}_d",
        "'1'",
        ("ALTER DOMAIN {t}_d ADD CHECK (VALUE > 0)", "ALTER DOMAIN {t}_d SET DEFAULT 7"),
    ),
}


@pytest.fixture
def source(database: str) -> SourceSettings:
    return source_of(database, tables=["public.*"], exclude=["public.*_p"])


def made(source: SourceSettings, suffix: str) -> list[str]:
    """Create the table of each story; return their names."""
    for name, (types, column, value, _) in (STORIES | HARMLESS).items():
        t = f"{name}{suffix}"
        execute(source, *(type_text.format(t=t) for type_text in types))
        execute(source, f"CREATE TABLE {t} (id int PRIMARY KEY, v {column.format(t=t)})")
        execute(source, f"INSERT INTO {t} SELECT i, {value.format()} FROM generate_series(1, 3) i")
    return [f"public.{name}{suffix}" for name in STORIES | HARMLESS]


def redefined(source: SourceSettings, suffix: str, names: Collection[str]) -> None:
    for name in sorted(names):
        execute(
            source, *(statement.format(t=f"{name}{suffix}") for statement in (STORIES | HARMLESS)[name][3])
        )


def copies(lake_path: str) -> dict[str, int]:
    names = [row["table_name"] for row in bronze_rows(lake_path) if row["op"] == "snapshot_end"]
    return {name: names.count(name) for name in names}


@pytest.mark.parametrize(
    ("before", "now", "same"),
    [
        ({"labels": ["a", "b"], "numbers": [1, 2]}, {"labels": ["b", "a"], "numbers": [1, 2]}, False),
        ({"labels": ["a", "b"], "numbers": [1, 2]}, {"labels": ["b", "a"], "numbers": [2, 1]}, True),
        ({"labels": ["a"], "numbers": [1]}, {"labels": ["c", "a"], "numbers": [2, 1]}, True),
        ({"labels": ["a"]}, {"labels": ["c", "a"], "numbers": [2, 1]}, True),
        ({"labels": ["a"]}, {"labels": ["c", "b"], "numbers": [2, 1]}, False),
        ({"fields": [["x", INT]], "numbers": [1]}, {"fields": [["x", INT]], "numbers": [2]}, False),
        ({"fields": [["x", INT]]}, {"fields": [["x", INT]], "numbers": [2]}, True),
    ],
)
def test_types_recorded_without_oids_are_compared_by_names(
    before: dict[str, object],
    now: dict[str, object],
    same: bool,  # noqa: FBT001
) -> None:
    kind = "enum" if "labels" in before else "composite"
    recorded, current = (
        PgType.from_dict({"kind": kind, "name": "t", "oid": 9, **plain}) for plain in (before, now)
    )
    assert same_text(recorded, current) is same
    assert [PgType.from_json(type_.to_json()) for type_ in (recorded, current)] == [recorded, current]


def test_only_redefined_types_are_snapshotted_again(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE SCHEMA elsewhere")
    tables = made(source, "")
    read_all(source, lake_path)
    redefined(source, "", STORIES.keys() | HARMLESS.keys())
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, *tables)
    copied_again = {name for name, number in copies(lake_path).items() if number > 1}
    assert copied_again == set(STORIES)
    newest = {relation.table: relation for relation in read_relations(Lake(lake_path))}
    assert newest[TableName("public", "added")].column("v").type.labels == ("a", "e", "d", "b", "c")
    read_all(source, lake_path)
    assert sum(copies(lake_path).values()) == len(tables) + len(STORIES), "once, and not again"


def test_running_reader_notices_redefinition_within_seconds(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE SCHEMA elsewhere")
    tables = made(source, "_2")
    read_all(source, lake_path)
    loud = {"for_a_while", "wider_for_a_while"}  # the stream itself makes the reader look at their rows
    with Running(source, lake_path) as running:
        time.sleep(1.5)
        redefined(source, "_2", STORIES.keys() - loud | HARMLESS.keys())
        wait_for(lambda: sum(copies(lake_path).values()) >= len(tables) + len(STORIES) - len(loud), 15)
        redefined(source, "_2", loud)
        wait_for(lambda: sum(copies(lake_path).values()) >= len(tables) + len(STORIES), 15)
        assert running.error is None
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, *tables)
