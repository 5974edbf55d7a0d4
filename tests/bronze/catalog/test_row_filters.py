"""Row filters of the pipeline file on real servers: stable print, no wait for locks, read-only sessions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from deltasmelt.bronze.catalog import publication, row_filters
from deltasmelt.bronze.catalog.publication import read_publication
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.setup.publication import ensure_publication
from tests.bronze.replaying import execute, source_of

if TYPE_CHECKING:
    from deltasmelt.bronze.errors import TableError

pytestmark = pytest.mark.postgres

FILTERS = {
    "public.a": "val IN ('a', 'b')",
    "public.b": "id BETWEEN 1 AND 5 AND n = 3 AND (val LIKE 'x%' OR NOT val = 'y')",
    "public.c": "c.id IN (1, 2) AND c.val NOT IN ('a', 'b') -- and a comment",
    "public.d": "val::text = 'a' AND n::bigint BETWEEN SYMMETRIC 1 AND 9 AND num > 1.5 AND at > '2024-01-01'",
}
TABLES = "".join(
    f"CREATE TABLE {name} (id int, val varchar(20), n smallint, num numeric(9, 2), at date, gone int, "
    f"kind mood, PRIMARY KEY (id)); ALTER TABLE {name} REPLICA IDENTITY FULL; ALTER TABLE {name} DROP gone;"
    for name in "abcd"
)


def poll(source: Any) -> tuple[list[str], dict[str, str]]:
    """Select the tables and change the publication as a catalog poll does; return SQL and errors."""
    refused: list[TableError] = []
    with connect(source) as connection:
        tables = select_tables(connection, source)
        members = [table.table for table in tables if table.problem is None]
        wanted = {table.table: table.wanted for table in tables if table.wanted is not None}
        changed = ensure_publication(connection, source, members, refused, wanted=wanted)
    problems = {table.table.name: table.problem.code for table in tables if table.problem}
    return changed, problems | {error.table.name: error.code for error in refused}


def test_the_print_of_a_filter_is_stable(dsn: str) -> None:
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where=FILTERS)
    assert poll(source)[1] == {}
    assert poll(source) == ([], {})


def test_a_locked_table_stops_no_other(dsn: str) -> None:
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where=FILTERS, timing=Timing(member_lock=0.2, members_lock=0.2))
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        assert poll(source)[1] == {"a": "publication-rules"}
        assert time.monotonic() - began < 9
    assert poll(source)[1] == {}
    row_filters._PRINTED.clear()
    with psycopg.connect(dsn) as holder:
        holder.execute("LOCK TABLE a IN ACCESS EXCLUSIVE MODE")
        assert poll(source) == ([], {})
        publication._PRINTS.clear()
        assert poll(source) == ([], {"a": "publication-rules"})


def test_a_filter_that_the_server_changes_is_refused(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is rewritten at each poll, whatever the server prints."""
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where={"public.a": FILTERS["public.a"]})
    monkeypatch.setattr(row_filters, "_PRINTS", 1)
    assert poll(source)[1] == {"a": "row-filter-invalid"}
    assert poll(source) == ([], {"a": "row-filter-invalid"})
    with connect(source) as connection:
        stored = read_publication(connection, source.publication)
    assert stored is not None
    assert "a" not in {table.name for table in stored.members}


def test_a_read_only_session_checks_filters(dsn: str) -> None:
    execute(dsn, "CREATE TYPE mood AS ENUM ('ok')", TABLES)
    source = source_of(dsn, where=FILTERS)
    with connect(source) as connection:
        connection.execute("SET default_transaction_read_only = on")
        assert [table.problem for table in select_tables(connection, source)] == [None] * 4
