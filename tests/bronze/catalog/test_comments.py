"""Comments in a catalog poll: comments of replicated columns alone."""

from __future__ import annotations

import psycopg
import pytest

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.comments import LONGEST, Comments
from deltasmelt.bronze.postgres.connection import connect
from tests.bronze.replaying import execute, source_of
from tests.fix_postgres import drop_database, make_database

pytestmark = pytest.mark.postgres


def test_poll_reads_comments_of_published_columns(database: str) -> None:
    """The catalog poll reads comments of tables and of their published columns."""
    source = source_of(database, publication="narrow", manage=False)
    execute(
        source,
        "CREATE TABLE t (id int PRIMARY KEY, gone int, kept text, secret text)",
        "ALTER TABLE t DROP gone",
        "CREATE INDEX by_kept ON t (kept)",
        "COMMENT ON INDEX by_kept IS 'of an index'",
        "COMMENT ON CONSTRAINT t_pkey ON t IS 'of a constraint'",
        "COMMENT ON TABLE t IS $$it's 😀\n$$",
        "COMMENT ON COLUMN t.kept IS 'kept'",
        "COMMENT ON COLUMN t.secret IS 'where the secret comes from'",
        "CREATE TABLE parted (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE part PARTITION OF parted DEFAULT",
        "COMMENT ON TABLE parted IS 'of the root'",
        "COMMENT ON TABLE part IS 'of a partition'",
        "CREATE TABLE silent (id int PRIMARY KEY)",
        f"COMMENT ON TABLE silent IS '{'ä' * (LONGEST + 5)}'",
        "CREATE PUBLICATION narrow FOR TABLE t (id, kept), parted, silent",
    )
    with connect(source) as connection:
        plain = select_tables(connection, source)
        tables = {table.table.name: table for table in select_tables(connection, source, storage=True)}
    assert {table.comments for table in plain} == {None}
    oids = {name: table.relation.relation_id for name, table in tables.items()}
    assert {name: table.comments for name, table in tables.items()} == {
        "t": Comments(oids["t"], "it's 😀\n", {3: "kept"}),
        "parted": Comments(oids["parted"], "of the root"),
        "silent": Comments(oids["silent"], f"{'ä' * (LONGEST - 1)}…"),
    }


def test_unreadable_comment_does_not_fail_poll(server_dsn: str, caplog: pytest.LogCaptureFixture) -> None:
    dsn = make_database(server_dsn, "TEMPLATE template0 ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C'")
    try:
        source = source_of(dsn, manage=False)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id int PRIMARY KEY)")
            connection.execute(b"COMMENT ON TABLE t IS 'caf\xe9'")
            connection.execute("UPDATE pg_database SET encoding = 6 WHERE datname = current_database()")
        with connect(source) as connection:
            for _ in range(2):
                tables = select_tables(connection, source, storage=True)
                assert [(table.table.name, table.comments) for table in tables] == [("t", None)]
                assert tables[0].storage is not None
        assert [record.levelname for record in caplog.records if "are skipped" in record.message] == [
            "WARNING"
        ]
    finally:
        drop_database(server_dsn, dsn)
