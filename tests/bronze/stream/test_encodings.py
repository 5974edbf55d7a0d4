"""In databases of other encodings convertible texts arrive; an unconvertible text is its table's error."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.conversion import server_encoding, to_utf8
from deltasmelt.bronze.store.gaps import is_open
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    read_all,
    source_of,
)
from tests.bronze.running import Running
from tests.fix_postgres import drop_database
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

BAD = {"WIN1252": r"\x41815a", "SQL_ASCII": r"\x41e95a", "EUC_JP": r"\x41f5a15a"}
"""A text per encoding without a counterpart in UTF-8, as bytes between an A and a Z."""

GOOD = {"WIN1252": r"\x4180e95a", "SQL_ASCII": r"\x41c3a95a", "EUC_JP": r"\x41a4a25a"}


@pytest.fixture(params=BAD)
def source(request: pytest.FixtureRequest, server_dsn: str) -> Iterator[SourceSettings]:
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        connection.execute(
            f"CREATE DATABASE {name} TEMPLATE template0 ENCODING '{request.param}' "
            "LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    dsn = make_conninfo(server_dsn, dbname=name)
    yield source_of(dsn)
    drop_database(server_dsn, dsn)


def run(source: SourceSettings, *statements: str) -> None:
    """Run statements, with ``{bad}`` and ``{good}`` replaced by texts in the database's encoding."""
    assert source.dsn is not None
    with psycopg.connect(source.dsn.get_secret_value(), autocommit=True) as connection:
        name = server_encoding(connection)
        texts = {
            kind: f"convert_from('{text}'::bytea, '{name}')"
            for kind, text in (("bad", BAD[name]), ("good", GOOD[name]))
        }
        for statement in statements:
            connection.execute(statement.format(**texts).encode())


@pytest.mark.parametrize(
    "source", ["WIN1252", "SQL_ASCII", pytest.param("EUC_JP", marks=pytest.mark.torture)], indirect=True
)
def test_unconvertible_text_stops_its_table_until_healed(source: SourceSettings, lake_path: str) -> None:
    run(
        source,
        "CREATE TABLE bad (id int PRIMARY KEY, note text)",
        "CREATE TABLE worse (id int PRIMARY KEY, note text)",
        'CREATE TABLE good (id int PRIMARY KEY, "né" text)',
        "INSERT INTO good VALUES (1, {good})",
        "INSERT INTO bad VALUES (1, 'plain'), (2, {good})",
        "INSERT INTO worse VALUES (1, {bad})",
    )
    control = ControlTables(Lake(lake_path))
    read_all(source, lake_path)
    assert [(error.name, error.code) for error in control.open_errors()] == [
        ("public.worse", "character-not-convertible")
    ]
    assert_bronze_equals_source(source, lake_path, "public.good", "public.bad")

    run(
        source,
        "BEGIN; INSERT INTO good VALUES (2, {good}); INSERT INTO bad VALUES (3, 'kept'), (4, {bad}); "
        "UPDATE bad SET note = {good} WHERE id = 1; INSERT INTO good VALUES (3, 'last'); COMMIT",
        "UPDATE worse SET note = 'mended' WHERE id = 1",
        "DELETE FROM good WHERE id = 1",
    )
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.good")
    assert {(error.name, error.code) for error in control.open_errors()} == {
        ("public.bad", "character-not-convertible")
    }
    assert "smelt explain-error character-not-convertible" in str(control.open_errors()[0].remedy)
    changes = open_existing(f"{lake_path}/bronze/changes")
    assert is_open(changes, TableName.parse("public.bad")), "silver leaves it out"
    assert not is_open(changes, TableName.parse("public.good"))

    with Running(source, lake_path) as running:
        run(
            source,
            "INSERT INTO good VALUES (4, {good})",
            "INSERT INTO bad VALUES (5, {bad})",
            "INSERT INTO good VALUES (5, {good})",
        )
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] >= 2)
        tables = running.reader._copies.tables  # type: ignore[union-attr]
        requested = tables.request_count
        for number in range(6, 12):
            run(source, f"INSERT INTO bad VALUES ({number}, {{bad}})")
            time.sleep(0.1)
        assert tables.request_count == requested, "one gap, one look"
        run(source, "UPDATE bad SET note = 'mended' WHERE id >= 4")
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] >= 4)
        assert running.error is None
    read_all(source, lake_path)
    assert control.open_errors() == []
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.good", "public.bad", "public.worse")
    assert not is_open(open_existing(f"{lake_path}/bronze/changes"), TableName.parse("public.bad"))


def test_texts_convert_as_on_server_and_check_warns(
    source: SourceSettings,
) -> None:
    """`smelt check` reports the encoding of the database."""
    with connect(source) as connection:
        name = server_encoding(connection)
        good, bad = (bytes.fromhex(literal[name][2:]) for literal in (GOOD, BAD))
        texts = [good, b"plain", bad, good + b"2", bad + b"3"]
        converted = to_utf8(connection, name, texts)
        assert [None if text is None else text.decode() for text in converted] == [
            (expected := convert(connection, name, good)), "plain", None, expected + "2", None,
        ]  # fmt: skip
        assert to_utf8(connection, name, []) == []
        reported = [
            finding for finding in inspect(connection, source) if finding.subject == "server_encoding"
        ]
    assert [(finding.level, finding.code) for finding in reported] == [("warning", "encoding-not-utf8")]
    assert name in reported[0].message


def convert(connection: psycopg.Connection[tuple[str]], name: str, text: bytes) -> str:
    row = connection.execute("SELECT convert_from(%s, %s)", [text, name]).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.parametrize("source", ["WIN1252"], indirect=True)
def test_connection_break_before_unconvertible_text_costs_single_session(
    source: SourceSettings, lake_path: str
) -> None:
    run(source, "CREATE TABLE t (id int PRIMARY KEY, note text)", "CREATE TABLE u (id int PRIMARY KEY)")
    read_all(source, lake_path)
    run(source, "INSERT INTO t VALUES (1, {bad})", "INSERT INTO u VALUES (1)")
    points: list[str] = []

    def break_the_line(point: str) -> None:
        points.append(point)
        if points.count("stream-starting") == 2 and point == "stream-starting":
            run(
                source,
                "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
                "WHERE application_name LIKE 'deltasmelt shop%' AND datname = current_database()",
            )

    read_all(source, lake_path, reached=break_the_line)
    assert points.count("stream-starting") == 3, "met, broken off, converted"
    assert_bronze_equals_source(source, lake_path, "public.u")
    with Running(source, lake_path, reached=points.append) as running:
        run(source, "UPDATE t SET note = 'mended'", "INSERT INTO u VALUES (2)")
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] >= 2)
    assert running.error is None
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.t", "public.u")


@pytest.mark.parametrize("source", ["WIN1252", "SQL_ASCII"], indirect=True)
def test_unconvertible_name_stops_its_table_until_healed(source: SourceSettings, lake_path: str) -> None:
    def execute(*statements: str) -> None:
        """Execute statements, with ``%I`` replaced by the name."""
        run(
            source,
            *(f"DO $$ BEGIN EXECUTE format('{statement}', {{bad}}); END $$" for statement in statements),
        )

    run(
        source,
        "CREATE TABLE good (id int PRIMARY KEY)",
        "CREATE TABLE renamed (id int PRIMARY KEY, note text)",
        "INSERT INTO good VALUES (1)",
        "INSERT INTO renamed VALUES (1, 'one'), (2, 'two')",
        "CREATE PUBLICATION smelt FOR ALL TABLES WITH (publish_via_partition_root = true)",
    )
    execute("CREATE TABLE %I (id int PRIMARY KEY)", "CREATE VIEW v AS SELECT 1 AS %I")
    control = ControlTables(Lake(lake_path))
    read_all(source, lake_path)
    (error,) = control.open_errors()
    assert (error.scope, error.code) == ("table", "character-not-convertible")
    assert error.name.startswith("public.A\\x")
    assert "smelt explain-error character-not-convertible" in str(error.remedy)

    with Running(source, lake_path) as running:
        execute(
            "INSERT INTO %I VALUES (1)",
            "ALTER TABLE renamed RENAME note TO %I",
            "UPDATE renamed SET %I = ''gone'' WHERE id = 1",
        )
        run(source, "INSERT INTO good VALUES (2)")
        execute("TRUNCATE good, %I", "INSERT INTO %I VALUES (2)", "UPDATE %I SET id = 3", "DELETE FROM %I")
        run(source, "INSERT INTO good VALUES (3)")
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] >= 3)
        broken_names = {error.name, "public.renamed"}
        wait_for(
            lambda: (
                running.error is not None
                or {open_error.name for open_error in control.open_errors()} == broken_names
            )
        )
    assert running.error is None
    assert {open_error.name for open_error in control.open_errors()} == broken_names
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.good")

    execute("ALTER TABLE renamed RENAME %I TO note", "ALTER TABLE %I RENAME TO mended")
    read_all(source, lake_path)
    (error,) = control.open_errors()
    assert error.name == "public.mended"
    assert "Z_pkey (of the table" in error.message
    run(
        source, "DO $$ BEGIN EXECUTE format('ALTER INDEX %I RENAME TO mended_pkey', {bad} || '_pkey'); END $$"
    )
    run(source, "INSERT INTO mended VALUES (4)")
    read_all(source, lake_path)
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.good", "public.renamed", "public.mended")
    assert_each_change_once(bronze_rows(lake_path))


def test_unconvertible_comment_shows_bytes_and_stops_nothing(source: SourceSettings) -> None:
    comment = "DO $do$ BEGIN EXECUTE format('COMMENT ON {} IS %L', {}); END $do$"
    run(
        source,
        "CREATE TABLE t (id int PRIMARY KEY)",
        comment.format("TABLE t", "{bad}"),
        comment.format("COLUMN t.id", "{good}"),
    )
    with connect(source) as connection:
        (table,) = select_tables(connection, source, storage=True)
        name = server_encoding(connection)
    bad, good = (bytes.fromhex(texts[name][2:]) for texts in (BAD, GOOD))
    codec = {"WIN1252": "cp1252", "SQL_ASCII": "utf-8", "EUC_JP": "euc_jp"}[name]
    assert table.comments is not None
    assert table.comments.table == bad.decode("ascii", "backslashreplace")
    assert table.comments.columns == {1: good.decode(codec)}
