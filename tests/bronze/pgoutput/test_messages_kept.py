"""An application's pg_logical_emit_message becomes a row of bronze; deltasmelt's heartbeat does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.heartbeat import HEARTBEAT_PREFIX
from tests.bronze.replaying import assert_each_change_once, bronze_rows, execute, read_all, session, source_of

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres


@pytest.fixture
def source(database: str) -> SourceSettings:
    source = source_of(database)
    execute(source, "CREATE TABLE items (id int PRIMARY KEY)")
    return source


def test_transactional_message_is_ordered_row(source: SourceSettings, lake_path: str) -> None:
    read_all(source, lake_path)
    with session(source) as connection, connection.transaction():
        connection.execute("INSERT INTO items VALUES (1)")
        connection.execute("SELECT pg_logical_emit_message(true, 'outbox', '{\"é\": 1}')")
        connection.execute("INSERT INTO items VALUES (2)")
        connection.execute("SELECT pg_logical_emit_message(true, 'raw', '\\x00ff'::bytea)")
    read_all(source, lake_path)
    rows = [row for row in bronze_rows(lake_path) if not row["op"].startswith("snapshot")]
    assert [(row["op"], row["columns"], row["new"]) for row in rows] == [
        ("insert", ["id"], ["1"]),
        ("message", ["outbox", '{"é": 1}'], None),
        ("insert", ["id"], ["2"]),
        ("message", ["raw", "\\x00ff"], None),
    ]
    assert {row["commit_lsn"] for row in rows} == {rows[0]["commit_lsn"]}
    assert {row["xid"] for row in rows} == {rows[0]["xid"]} != {None}
    assert rows[1]["table_name"] is rows[1]["relation_id"] is None
    assert_each_change_once(rows)


def test_nontransactional_message_survives_rollback(source: SourceSettings, lake_path: str) -> None:
    read_all(source, lake_path)
    with session(source) as connection, connection.transaction(force_rollback=True):
        connection.execute("SELECT pg_logical_emit_message(true, 'lost', 'x')")
        row = connection.execute("SELECT pg_logical_emit_message(false, 'kept', 'y')::text").fetchone()
    assert row is not None
    read_all(source, lake_path)
    [message] = [row for row in bronze_rows(lake_path) if row["op"] == "message"]
    assert message["columns"] == ["kept", "y"]
    assert message["commit_lsn"] == Lsn.parse(row[0]) - 1
    assert message["xid"] is message["commit_ts"] is None
    assert (message["seq"], message["end_of_tx"]) == (0, True)


def test_our_own_heartbeat_leaves_no_row(source: SourceSettings, lake_path: str) -> None:
    read_all(source, lake_path)
    execute(source, f"SELECT pg_logical_emit_message(true, '{HEARTBEAT_PREFIX}', 'x')")
    execute(source, f"SELECT pg_logical_emit_message(true, '{HEARTBEAT_PREFIX} of another', 'x')")
    read_all(source, lake_path)
    assert [row["columns"] for row in bronze_rows(lake_path) if row["op"] == "message"] == [
        [f"{HEARTBEAT_PREFIX} of another", "x"]
    ]
