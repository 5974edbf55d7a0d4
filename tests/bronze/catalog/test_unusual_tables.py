"""Rare kinds of tables: the reader carries each correctly, or reports an error with a remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.catalog.one_snapshot import DamagedError
from deltasmelt.bronze.catalog.problems import unreadable
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    execute,
    read_all,
    read_snapshot,
    replay,
    source_of,
)

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

GENERATED = "a int GENERATED ALWAYS AS (b * 2) STORED"


@pytest.fixture
def source18(database18: str) -> SourceSettings:
    return source_of(database18)


def problems(source: SourceSettings) -> dict[str, tuple[str, str | None]]:
    with connect(source) as connection:
        tables = select_tables(connection, source)
    return {
        table.table.name: (table.problem.code, table.problem.remedy) if table.problem else ("", None)
        for table in tables
    }


def test_key_of_unpublished_generated_columns_is_table_error(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        f"CREATE TABLE by_primary_key (b int, {GENERATED} PRIMARY KEY)",
        f"CREATE TABLE by_index (b int, {GENERATED} NOT NULL UNIQUE)",
        "ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_index_a_key",
        f"CREATE TABLE by_both (b int PRIMARY KEY, {GENERATED} NOT NULL UNIQUE)",
        "ALTER TABLE by_both REPLICA IDENTITY USING INDEX by_both_a_key",
        f"CREATE TABLE by_another (b int NOT NULL UNIQUE, {GENERATED} PRIMARY KEY)",
        "ALTER TABLE by_another REPLICA IDENTITY USING INDEX by_another_b_key",
        "CREATE TABLE plain (id int PRIMARY KEY)",
        *(f"INSERT INTO {name} (b) VALUES (1), (2)" for name in ("by_primary_key", "by_index", "by_another")),
        "INSERT INTO plain VALUES (1)",
    )
    reported = problems(source)
    assert {name: code for name, (code, _) in reported.items()} == {
        "by_primary_key": "key-generated",
        "by_index": "key-generated",
        "by_both": "key-generated",
        "by_another": "",
        "plain": "",
    }
    read_all(source, lake_path)
    execute(
        source,
        *(f"UPDATE {name} SET b = b + 10 WHERE b = 1" for name in ("by_primary_key", "by_index")),
        "UPDATE by_another SET b = 11 WHERE b = 1",
        "DELETE FROM by_primary_key",
        "DELETE FROM by_another WHERE b = 2",
        "INSERT INTO plain VALUES (2)",
    )
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.plain", "public.by_another")
    codes = {error.name: error.code for error in ControlTables(Lake(lake_path)).open_errors()}
    assert codes["public.by_primary_key"] == codes["public.by_index"] == "key-generated"


def test_key_becoming_generated_stops_single_running_table(source: SourceSettings, lake_path: str) -> None:
    """The reader continues with all other tables."""
    execute(source, "CREATE TABLE t (b int PRIMARY KEY)", "CREATE TABLE plain (id int PRIMARY KEY)")
    read_all(source, lake_path)
    execute(
        source,
        f"ALTER TABLE t DROP CONSTRAINT t_pkey, ADD COLUMN {GENERATED} PRIMARY KEY",
        "INSERT INTO t (b) VALUES (1), (2)",
        "INSERT INTO plain VALUES (1)",
    )
    read_all(source, lake_path)
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.plain")
    assert [(error.name, error.code) for error in ControlTables(Lake(lake_path)).open_errors()] == [
        ("public.t", "key-generated")
    ]


def test_generated_identity_columns_do_not_stop_application(source18: SourceSettings, lake_path: str) -> None:
    execute(
        source18,
        f"CREATE TABLE stored (b int PRIMARY KEY, {GENERATED})",
        "CREATE TABLE virtual (b int PRIMARY KEY, a int GENERATED ALWAYS AS (b * 2) VIRTUAL)",
        f"CREATE TABLE parts (b int PRIMARY KEY, {GENERATED}) PARTITION BY RANGE (b)",
        "CREATE TABLE parts_1 PARTITION OF parts FOR VALUES FROM (0) TO (100)",
        *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("stored", "virtual", "parts", "parts_1")),
        *(f"INSERT INTO {name} (b) VALUES (1), (2)" for name in ("stored", "virtual", "parts")),
    )
    reported = problems(source18)
    assert {name: code for name, (code, _) in reported.items()} == dict.fromkeys(
        reported, "identity-generated"
    )
    assert "publish_generated_columns" in str(reported["stored"][1])
    assert "publish_generated_columns" not in str(reported["virtual"][1])
    read_all(source18, lake_path)
    for name in ("stored", "virtual", "parts"):
        execute(source18, f"UPDATE {name} SET b = 5 WHERE b = 1", f"DELETE FROM {name} WHERE b = 2")
    cures = [str(reported[name][1]).rpartition(" or ")[2] for name in ("stored", "virtual", "parts")]
    execute(source18, *cures)
    read_all(source18, lake_path)
    for name in ("stored", "virtual", "parts"):
        execute(source18, f"UPDATE {name} SET b = 6 WHERE b = 5")
    read_all(source18, lake_path)
    assert_bronze_equals_source(source18, lake_path, "public.stored", "public.virtual", "public.parts")
    assert ControlTables(Lake(lake_path)).open_errors() == []
    execute(source18, "ALTER TABLE stored REPLICA IDENTITY FULL")
    with connect(source18) as connection:
        by_code = {finding.code: finding for finding in inspect(connection, source18)}
    assert by_code["publication-blocks-updates"].subject == "public.stored"


def test_published_generated_columns_form_key(source18: SourceSettings, lake_path: str) -> None:
    execute(
        source18,
        f"CREATE TABLE t (b int, {GENERATED} PRIMARY KEY)",
        "INSERT INTO t (b) VALUES (1), (2)",
    )
    assert "publish_generated_columns" in str(problems(source18)["t"][1])
    read_all(source18, lake_path)
    execute(source18, "ALTER PUBLICATION smelt SET (publish_generated_columns = stored)")
    assert problems(source18)["t"] == ("", None)
    read_all(source18, lake_path)
    execute(source18, "UPDATE t SET b = 5 WHERE b = 1", "DELETE FROM t WHERE b = 2")
    read_all(source18, lake_path)
    assert replay(lake_path, TableName("public", "t"), bronze_rows(lake_path)) == [{"b": "5", "a": "10"}]


def test_partitioned_table_without_leaf_is_empty(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        "CREATE TABLE bare (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE nested (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE nested_1 PARTITION OF nested FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
        "CREATE TABLE emptied (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE emptied_1 PARTITION OF emptied FOR VALUES FROM (0) TO (10)",
        "INSERT INTO emptied VALUES (1)",
    )
    read_all(source, lake_path)
    for name in ("bare", "nested", "emptied"):
        assert read_snapshot(Lake(lake_path), TableName("public", name)) is not None, name
    execute(
        source,
        "ALTER TABLE emptied DETACH PARTITION emptied_1",
        "CREATE TABLE bare_1 PARTITION OF bare FOR VALUES FROM (0) TO (10)",
        "INSERT INTO bare VALUES (1)",
        "CREATE TABLE nested_2 PARTITION OF nested_1 FOR VALUES FROM (0) TO (5)",
        "INSERT INTO nested VALUES (2)",
    )
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.bare", "public.nested", "public.emptied")
    assert ControlTables(Lake(lake_path)).open_errors() == []


def test_default_with_deleted_label_stops_only_its_table(source: SourceSettings, lake_path: str) -> None:
    """The label was deleted by hand. At the reader's start the stream is at a change of the damaged table.

    An earlier reader recorded the damage as seen by the stream; the catalog poll knows the true cause.
    """
    execute(
        source,
        "CREATE TYPE mood AS ENUM ('calm', 'odd')",
        "CREATE TABLE bad (id int PRIMARY KEY)",
        "CREATE TABLE good (id int PRIMARY KEY)",
        "INSERT INTO bad VALUES (1)",
        "ALTER TABLE bad ADD m mood DEFAULT 'odd'",
    )
    read_all(source, lake_path)
    execute(
        source,
        "DELETE FROM pg_enum WHERE enumlabel = 'odd'",
        "INSERT INTO bad VALUES (2, 'calm')",
        "INSERT INTO good VALUES (1)",
    )
    table_error = unreadable(
        TableName("public", "bad"), "its changes cannot be read", DamagedError("as the server says")
    )
    assert table_error.message == (
        "its changes cannot be read: the server cannot print its catalog's description of the table: "
        "as the server says"
    )
    assert "an enum label was deleted by hand" in str(table_error.remedy)
    control = ControlTables(Lake(lake_path))
    control.record_errors(
        [OpenError("table", "public.bad", table_error.code, table_error.message, table_error.remedy)]
    )
    read_all(source, lake_path)
    assert [row["new"] for row in bronze_rows(lake_path) if row["table_name"] == "good" and row["new"]] == [
        ["1"]
    ]
    errors = control.open_errors()
    assert [(error.name, error.code) for error in errors] == [("public.bad", "table-unreadable")]
    assert errors[0].message.startswith("the server cannot print its catalog's description of the table: ")
    assert "invalid internal value for enum" in errors[0].message
