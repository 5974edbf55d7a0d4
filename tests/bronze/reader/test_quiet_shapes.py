"""Test shapes of tables without writes: the time of the tables' locks, the commits of a catalog poll."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import make_conninfo
from pydantic import SecretStr

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.checks.server import read_server, server_findings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.reader.quiet_shapes import Recorded, record_shapes
from deltasmelt.bronze.shapes import Relation, as_recorded, same_shape
from deltasmelt.bronze.store.relations import ShapeLog, read_relations
from tests.bronze.replaying import execute, fetch, read_all, source_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

NAMES = ("t", "u", "v")


@pytest.fixture
def source(database: str) -> SourceSettings:
    source = source_of(database, timing=Timing(member_lock=0.1, members_lock=0.15))
    execute(source, "CREATE TYPE mood AS ENUM ('low', 'high')", "CREATE PUBLICATION smelt FOR ALL TABLES")
    execute(source, *(f"CREATE TABLE {name} (id int PRIMARY KEY, m mood)" for name in NAMES))
    return source


def relations(source: SourceSettings) -> list[Relation]:
    with connect(source) as connection:
        return [table.relation for table in select_tables(connection, source)]


def record(
    source: SourceSettings,
    shapes: ShapeLog,
    expected: Sequence[Relation],
    stop: threading.Event | None = None,
) -> Recorded:
    return record_shapes(source, shapes, expected, stop or threading.Event())


def messages(source: SourceSettings) -> int:
    options = "'proto_version', '1', 'publication_names', 'smelt', 'messages', 'true'"
    return int(
        fetch(
            source,
            f"SELECT count(*) FROM pg_logical_slot_peek_binary_changes('m', NULL, NULL, {options}) "
            "WHERE get_byte(data, 0) = ascii('M')",
        )
    )


def test_shapes_commit_together_without_table_locks(source: SourceSettings) -> None:
    """Tables stay unlocked during the single commit of all their shapes."""
    execute(source, "SELECT pg_create_logical_replication_slot('m', 'pgoutput')")
    commits: list[int] = []

    def append(new: Sequence[Relation]) -> None:
        commits.append(len(new))
        execute(source, "SET lock_timeout = '1s'", "ALTER TABLE t ADD IF NOT EXISTS x int")

    try:
        shapes, expected = ShapeLog([], append), relations(source)
        recorded = record(source, shapes, expected)
        assert recorded.relations == {relation.relation_id for relation in expected}
        assert commits == [len(NAMES)]
        assert messages(source) == 1
        with connect(source) as connection, connection.transaction():
            connection.execute("LOCK TABLE public.u IN ACCESS EXCLUSIVE MODE")
            second_record = record(source, shapes, expected)
            assert len(second_record.relations) == 1, "t has another shape by now, and u is locked"
        assert not second_record.cut_short
    finally:
        execute(source, "SELECT pg_drop_replication_slot('m')")


def test_shapes_beyond_time_limit_are_reported_and_skipped(
    source: SourceSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.reader.quiet_shapes._GROUP", 1)
    appended: list[Relation] = []
    hasty = source.with_timing(Timing(poll_shapes=0.5))

    def slow(new: Sequence[Relation]) -> None:
        appended.extend(new)
        threading.Event().wait(0.6)

    recorded = record(hasty, ShapeLog([], slow), relations(source))
    assert recorded.cut_short
    assert recorded.relations == {relation.relation_id for relation in appended}
    assert len(appended) == 1


def test_job_ends_with_shapes_of_all_tables(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.reader.quiet_shapes._GROUP", 1)
    read_all(source, lake_path)
    versions = len(read_relations(Lake(lake_path)))
    execute(source, *(f"ALTER TABLE {name} RENAME m TO n" for name in NAMES))
    read_all(source.with_timing(Timing(poll_shapes=1e-3)), lake_path)
    recorded = read_relations(Lake(lake_path))
    assert len(recorded) == versions + len(NAMES)
    newest = {relation.relation_id: relation for relation in recorded}
    assert {relation.columns[1].name for relation in newest.values()} == {"n"}


def test_forbidden_message_leaves_no_version(source: SourceSettings) -> None:
    assert source.dsn is not None
    function = "FUNCTION pg_logical_emit_message(boolean, text, text)"
    role = SecretStr(make_conninfo(source.dsn.get_secret_value(), user="no_message"))
    appended: list[Relation] = []
    execute(source, f"REVOKE EXECUTE ON {function} FROM PUBLIC", "CREATE ROLE no_message LOGIN")
    execute(source, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO no_message")
    try:
        denied = source.model_copy(update={"dsn": role})
        with connect(denied) as connection:
            versions = [
                server_finding
                for server_finding in server_findings(read_server(connection), 160000, None)
                if server_finding.subject == "role no_message"
            ]
        with pytest.raises(SmeltError, match="pg_logical_emit_message"):
            record(denied, ShapeLog([], appended.extend), relations(source))
    finally:
        execute(source, f"GRANT EXECUTE ON {function} TO PUBLIC")
        execute(source, "DROP OWNED BY no_message", "DROP ROLE no_message")
    assert appended == []
    (finding,) = versions
    assert (finding.level, finding.code) == ("error", "permission-denied")
    assert "GRANT EXECUTE ON FUNCTION pg_logical_emit_message(boolean,text,text)" in (finding.remedy or "")


def test_fields_missing_in_older_version_are_no_change(source: SourceSettings) -> None:
    now = relations(source)[0]
    (key, mood) = now.columns
    assert mood.type.numbers
    older = replace(now, columns=(key, replace(mood, type=replace(mood.type, numbers=()))))
    assert not same_shape(older, now)
    assert same_shape(older, as_recorded(now, older))
    assert same_shape(now, as_recorded(now, now))
    renamed = replace(older, columns=(key, replace(older.columns[1], name="n")))
    assert not same_shape(older, as_recorded(renamed, older))
