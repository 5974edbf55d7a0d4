"""Test the reader from end to end: a real server in, Delta tables out."""

from __future__ import annotations

import shutil
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings, SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.shapes import same_shape
from deltasmelt.bronze.store.position import read_position
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    current_lsn,
    execute,
    fetch,
    make_reader,
    read_all,
    session,
    source_of,
)
from tests.bronze.running import Running, confirmed
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres

LATE = TableName("public", "late")
ITEMS = "CREATE TABLE items (id int PRIMARY KEY, name text, note text)"


def test_rows_around_the_first_start_are_there_once(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS, "INSERT INTO items VALUES (1, 'one', NULL), (2, 'two', '')")
    read_all(source, lake_path)
    execute(
        source,
        "INSERT INTO items VALUES (3, 'three', 'x')",
        "UPDATE items SET note = 'changed' WHERE id = 1",
        "DELETE FROM items WHERE id = 2",
        "UPDATE items SET id = 10 WHERE id = 3",
    )
    read_all(source, lake_path)
    rows = bronze_rows(lake_path)
    assert [row["op"] for row in rows] == [
        "snapshot", "snapshot", "snapshot_end", "insert", "update", "delete", "update",
    ]  # fmt: skip
    assert_each_change_once(rows)
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_the_position_names_frontier_end_and_time(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    read_all(source, lake_path)
    execute(source, "INSERT INTO items VALUES (1, 'one', NULL)")
    until = Lsn.parse(fetch(source, "SELECT pg_current_wal_lsn()::text"))
    read_all(source, lake_path)
    position = read_position(Lake(lake_path))
    assert position is not None
    assert until <= position.frontier < position.confirm
    assert position.commit_ts is not None
    assert position.version == DeltaTable(f"{lake_path}/bronze/changes").version()
    assert confirmed(source) == position.confirm


def test_statistics_hold_lsns_and_tables_of_files(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    read_all(source, lake_path)
    execute(source, *(f"INSERT INTO items VALUES ({number}, 'n', NULL)" for number in range(5)))
    read_all(source, lake_path)
    actions = DeltaTable(f"{lake_path}/bronze/changes").get_add_actions(flatten=True)
    files = DeltaTable(f"{lake_path}/bronze/changes").to_pyarrow_dataset().get_fragments()
    by_name = {fragment.path.rpartition("/")[2]: fragment.to_table() for fragment in files}
    assert len(by_name) >= 2
    import pyarrow as pa  # noqa: PLC0415

    for action in pa.table(actions).to_pylist():
        rows = by_name[action["path"]]
        lsns = rows["commit_lsn"].to_pylist()
        assert action["num_records"] == rows.num_rows
        assert (action["min.commit_lsn"], action["max.commit_lsn"]) == (min(lsns), max(lsns))
        assert action["min.table_name"] == action["max.table_name"] == "items"


def test_changed_shapes_are_recorded_before_their_rows(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS, "INSERT INTO items VALUES (1, 'one', NULL)")
    read_all(source, lake_path)
    execute(source, "INSERT INTO items VALUES (2, 'two', NULL)")
    read_all(source, lake_path)
    assert [[column.name for column in relation.columns] for relation in read_relations(Lake(lake_path))] == [
        ["id", "name", "note"]
    ]
    execute(
        source,
        "ALTER TABLE items ADD COLUMN extra int",
        "INSERT INTO items VALUES (3, 'c', 'd', 8)",
    )
    read_all(source, lake_path)
    before, after, shapes = read_relations(Lake(lake_path))
    assert [column.name for column in after.columns] == ["id", "name", "note", "extra"]
    assert after.column("extra").attnum == 4
    assert before.from_lsn < after.from_lsn == bronze_rows(lake_path)[-1]["commit_lsn"] < shapes.from_lsn
    assert same_shape(after, shapes), "the look's, which was ahead of the stream"
    read_all(source, lake_path)
    assert len(read_relations(Lake(lake_path))) == 3


def test_a_huge_transaction_appears_in_one_version(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.stream.session.WRITE_BYTES", 100_000)
    monkeypatch.setattr("deltasmelt.bronze.stream.session.FEED_BYTES", 50_000)
    monkeypatch.setattr("deltasmelt.bronze.stream.replication._INPUT_BUFFER", 1)
    monkeypatch.setattr("deltasmelt.bronze.stream.replication._DRAIN_BYTES", 50_000)
    monkeypatch.setattr("deltasmelt.bronze.lake.parquet.FILE_BYTES", 300_000)
    execute(source, ITEMS)
    read_all(source, lake_path)
    execute(
        source,
        "INSERT INTO items VALUES (-1, 'small', NULL)",
        "INSERT INTO items SELECT i, 'name ' || i, repeat('x', 50) FROM generate_series(1, 20000) i",
        "INSERT INTO items VALUES (-2, 'small', NULL)",
    )
    points: list[str] = []
    read_all(source, lake_path, reached=points.append, bronze=BronzeSettings(flush_interval=3600))
    assert points.count("open-transaction-written") >= 2
    table = DeltaTable(f"{lake_path}/bronze/changes")
    newest = max(row["commit_lsn"] for row in bronze_rows(lake_path) if row["seq"] > 10)
    for version in range(1, table.version() + 1):
        table.load_as_version(version)
        lsns = table.to_pyarrow_dataset().to_table(columns=["commit_lsn"])["commit_lsn"].to_pylist()
        assert lsns.count(newest) in (0, 20000)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_commits_beside_a_first_start_are_there_once(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    with Running(source, lake_path):
        for number in range(60):
            execute(source, f"INSERT INTO items VALUES ({number}, 'n', NULL)")
    read_all(source, lake_path)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_changes_beside_copies_are_there_once(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        ITEMS,
        "INSERT INTO items SELECT i, 'name', 'note' FROM generate_series(1, 20000) i",
    )

    def change(point: str) -> None:
        if point == "snapshot-block-written":
            execute(
                source,
                "DELETE FROM items WHERE id % 7 = 0",
                "UPDATE items SET note = note || '!', id = id + 100000 WHERE id % 11 = 0 AND id < 100000",
                "INSERT INTO items SELECT max(id) + 1 FROM items",
            )

    read_all(source, lake_path, reached=change, snapshot=SnapshotSettings(chunk_rows=3000, workers=2))
    read_all(source, lake_path)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_an_idle_published_table_lets_the_slot_move(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS, "CREATE TABLE other (id int PRIMARY KEY)")
    idle = source.model_copy(update={"tables": ["public.items"]})
    with Running(idle, lake_path, bronze=BronzeSettings(heartbeat=0.2)):
        execute(source, "INSERT INTO other SELECT generate_series(1, 1000)")
        end = Lsn.parse(fetch(source, "SELECT pg_current_wal_lsn()::text"))
        wait_for(lambda: confirmed(source) >= end)
    assert {row["op"] for row in bronze_rows(lake_path)} == {"snapshot_end"}


def test_until_is_reached_on_an_idle_server(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    for _ in range(3):
        started = time.monotonic()
        read_all(source, lake_path)
        assert time.monotonic() - started < 10


def test_stopping_commits_and_confirms_what_was_received(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    read_all(source, lake_path)
    with Running(source, lake_path, bronze=BronzeSettings(flush_interval=3600)) as running:
        execute(source, "INSERT INTO items VALUES (1, 'one', NULL)")
        end = Lsn.parse(fetch(source, "SELECT pg_current_wal_lsn()::text"))
        wait_for(lambda: running.reader.progress.read()["received"] >= end)
        time.sleep(0.1)
    assert [row["op"] for row in bronze_rows(lake_path)] == ["snapshot_end", "insert"]
    position = read_position(Lake(lake_path))
    assert position is not None
    assert confirmed(source) == position.confirm >= end


def test_a_new_table_is_copied_beside_the_stream(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later table of the name is copied, too, after a drop of the first and of its recorded state."""
    monkeypatch.setattr("deltasmelt.bronze.store.catalog_log.COMPACT_ABOVE", 1)
    source = source.with_timing(Timing(catalog_poll=0.1))

    def looked_at() -> set[str]:
        return set(DeltaTable(f"{lake_path}/control/storage").to_pyarrow_table()["table_name"].to_pylist())

    def is_forgotten() -> bool:
        landing = running.reader._landing
        return landing is not None and landing.sink.tables.observed_storage(LATE) is None

    execute(source, ITEMS)
    with Running(source, lake_path) as running:
        execute(source, "CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1), (2)")
        wait_for(lambda: "public.late" in running.reader.progress.read()["snapshots"])
        execute(source, "INSERT INTO late VALUES (3)")
        wait_for(lambda: "late" in looked_at())
        execute(source, "DROP TABLE late", "INSERT INTO items VALUES (1, 'the stream moves on', NULL)")
        wait_for(is_forgotten)
        execute(source, "CREATE TABLE later (id int PRIMARY KEY)", "INSERT INTO later VALUES (7)")
        wait_for(lambda: "later" in looked_at() and "late" not in looked_at())
        execute(source, "CREATE TABLE late (id int PRIMARY KEY, n int)", "INSERT INTO late VALUES (3, 4)")
        wait_for(lambda: "late" in looked_at())
        execute(source, "INSERT INTO late VALUES (5, 6)")
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.late", "public.items", "public.later")


def test_without_snapshots_a_table_starts_empty(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS, "INSERT INTO items VALUES (1, 'before', NULL)")
    never = SnapshotSettings(mode="never")
    read_all(source, lake_path, snapshot=never)
    execute(source, "INSERT INTO items VALUES (2, 'after', NULL)")
    read_all(source, lake_path, snapshot=never)
    end, insert = bronze_rows(lake_path)
    assert (end["op"], insert["op"]) == ("snapshot_end", "insert")
    assert end["commit_lsn"] < insert["commit_lsn"]


def test_a_table_without_a_key_waits_and_heals(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS, "CREATE TABLE keyless (n int)", "INSERT INTO items VALUES (1, 'one', NULL)")
    read_all(source, lake_path)
    control = ControlTables(Lake(lake_path))
    assert [(error.name, error.code) for error in control.open_errors()] == [
        ("public.keyless", "table-without-key")
    ]
    execute(source, "INSERT INTO keyless VALUES (1)", "UPDATE keyless SET n = 2")
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.items")
    execute(source, "ALTER TABLE keyless ADD PRIMARY KEY (n)")
    read_all(source, lake_path)
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.keyless")


def test_an_error_ends_with_its_table(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS, "CREATE TABLE keyless (n int)")
    read_all(source, lake_path)
    control = ControlTables(Lake(lake_path))
    assert [error.code for error in control.open_errors()] == ["table-without-key"]
    execute(source, "DROP TABLE keyless")
    read_all(source, lake_path)
    assert control.open_errors() == []


def test_another_pipelines_lake_is_refused_and_unchanged(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    read_all(source, lake_path)
    version = DeltaTable(f"{lake_path}/bronze/changes").version()
    with pytest.raises(DefiniteError, match="of pipeline 'shop', not of 'other'") as caught:
        read_all(source, lake_path, pipeline="other")
    assert caught.value.code == "lake-of-another-pipeline"
    assert DeltaTable(f"{lake_path}/bronze/changes").version() == version


def test_a_lake_of_another_server_is_refused(source: SourceSettings, lake_path: str, database18: str) -> None:
    execute(source, ITEMS)
    read_all(source, lake_path)
    with pytest.raises(DefiniteError) as caught:
        read_all(source_of(database18), lake_path)
    assert caught.value.code == "lake-of-another-server"


def test_a_second_reader_of_a_slot_is_refused(
    source: SourceSettings,
    lake_path: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    source = source.with_timing(Timing(slot_release=0.5))
    execute(source, ITEMS)
    with Running(source, lake_path) as running:
        copy = shutil.copytree(lake_path, tmp_path_factory.mktemp("second") / "lake")
        with pytest.raises(DefiniteError, match=r"in use by backend .*deltasmelt shop") as caught:
            read_all(source, str(copy))
        assert caught.value.code == "slot-in-use"
        assert running.error is None
        execute(source, "INSERT INTO items VALUES (1, 'one', NULL)")
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_two_slots_on_one_lake_cannot_interleave(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    second_source = source.model_copy(update={"slot": f"{source.slot}_b"})
    with Running(source, lake_path) as running:
        execute(source, "INSERT INTO items VALUES (1, 'one', NULL)")
        wait_for(lambda: running.reader.progress.read()["changes"] == 1)
        with Running(second_source, lake_path) as second:
            execute(source, "INSERT INTO items VALUES (2, 'two', NULL)")
            wait_for(lambda: running.error is not None or second.error is not None)
            failed = running.error or second.error
    assert isinstance(failed, DefiniteError)
    assert failed.code in ("lake-in-use", "slot-lost")
    read_all(source, lake_path)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")


@pytest.mark.parametrize("how", ["recreated", "advanced"])
def test_a_moved_slot_names_the_missing_range(source: SourceSettings, lake_path: str, how: str) -> None:
    execute(source, ITEMS)
    read_all(source, lake_path)
    end = read_position(Lake(lake_path))
    assert end is not None
    execute(source, "INSERT INTO items VALUES (1, 'lost', NULL)")
    if how == "recreated":
        execute(
            source,
            f"SELECT pg_drop_replication_slot('{source.slot}')",
            f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')",
        )
    else:
        execute(source, f"SELECT pg_replication_slot_advance('{source.slot}', pg_current_wal_lsn())")
    begins = confirmed(source)
    with pytest.raises(DefiniteError) as caught:
        read_all(source, lake_path)
    assert caught.value.code == "slot-gap"
    assert str(end.confirm) in str(caught.value)
    assert str(begins) in str(caught.value)
    assert read_position(Lake(lake_path)) == end


def test_a_terminated_walsender_is_a_fault_that_heals(source: SourceSettings, lake_path: str) -> None:
    execute(source, ITEMS)
    with Running(source, lake_path) as running:
        for number in range(5):
            execute(
                source,
                f"INSERT INTO items VALUES ({number}, 'n', NULL)",
                "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots "
                f"WHERE slot_name = '{source.slot}'",
            )
            wait_for(lambda number=number: running.reader.progress.read()["connections"] > number + 1)  # type: ignore[misc]
        wait_for(lambda: running.reader.progress.read()["changes"] == 5)
        assert running.error is None
    assert ControlTables(Lake(lake_path)).open_errors() == []
    errors = DeltaTable(f"{lake_path}/control/errors").to_pyarrow_table()
    assert set(errors["code"].to_pylist()) == {"connection-lost"}
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_a_restarted_server_heals_without_waiting(
    own_server: EmbeddedServer, lake_path: str, mode: Any
) -> None:
    source = source_of(own_server.dsn(), slot="smelt_restart")
    execute(source, ITEMS)
    with Running(source, lake_path) as running:
        execute(source, "INSERT INTO items VALUES (1, 'one', NULL)")
        started = time.monotonic()
        own_server.stop(mode)
        assert time.monotonic() - started < 10
        wait_for(lambda: running.reader.progress.read()["phase"] == "waiting")
        wait_for(lambda: len(ControlTables(Lake(lake_path)).open_errors()) > 0)
        own_server.start()
        wait_for(lambda: running.reader.progress.read()["phase"] == "streaming", 60)
        execute(source, "INSERT INTO items VALUES (2, 'two', NULL)")
        wait_for(lambda: running.reader.progress.read()["changes"] == 2)
        assert running.error is None
    assert ControlTables(Lake(lake_path)).open_errors() == []
    read_all(source, lake_path)  # the first copy, should the stop have come before it
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_an_unreachable_server_is_reported_in_time(lake_path: str) -> None:
    source = source_of("postgresql://nobody@127.0.0.1:1/nowhere", timing=Timing(first_contact=0.5))
    with pytest.raises(TransientError) as caught:
        make_reader(source, lake_path).run()
    assert caught.value.code == "server-unreachable"


def test_a_server_behind_bronze_is_refused(source: SourceSettings, lake_path: str) -> None:
    from deltasmelt.bronze.postgres.connection import identify  # noqa: PLC0415
    from deltasmelt.bronze.store.position import Position  # noqa: PLC0415
    from deltasmelt.bronze.store.sink import DeltaSink  # noqa: PLC0415

    execute(source, ITEMS)
    read_all(source, lake_path)
    with connect(source) as connection:
        sink = DeltaSink(Lake(lake_path), "shop", identify(connection))
        ahead = Lsn(current_lsn(connection) + 2**40)
    sink.commit(Position(Lsn(ahead - 1), ahead, 0, None))
    with pytest.raises(DefiniteError) as caught:
        make_reader(source, lake_path).run(stop=threading.Event())
    assert caught.value.code == "server-behind"


def test_feedback_goes_on_beside_slow_commits(own_server: EmbeddedServer, lake_path: str) -> None:
    source = source_of(own_server.dsn(), slot="smelt_slow")
    execute(source, ITEMS, "ALTER SYSTEM SET wal_sender_timeout = '1s'", "SELECT pg_reload_conf()")

    def slowly(point: str) -> None:
        if point == "parts-written":
            time.sleep(2)

    with Running(source, lake_path, reached=slowly) as running:
        execute(source, "INSERT INTO items VALUES (1, 'n', NULL)")
        wait_for(lambda: running.reader.progress.read()["changes"] == 1)
        assert running.reader.progress.read()["connections"] == 1
    assert_bronze_equals_source(source, lake_path, "public.items")


def test_snapshot_and_stream_give_the_same_texts(source: SourceSettings, lake_path: str) -> None:
    name = source.slot.removeprefix("smelt_")
    execute(
        source,
        f"ALTER DATABASE {name} SET timezone = 'America/New_York'",
        f"ALTER DATABASE {name} SET datestyle = 'German'",
        f"ALTER DATABASE {name} SET intervalstyle = 'sql_standard'",
        f"ALTER DATABASE {name} SET extra_float_digits = -10",
        f"ALTER DATABASE {name} SET bytea_output = 'escape'",
        f"ALTER DATABASE {name} SET statement_timeout = '1ms'",
    )
    insert = r"""
        INSERT INTO kinds SELECT
            g, 'it''s "quoted", with
newline' || chr(13) || chr(10) || E'tab\t and \\N and \\.', '', NULL, 'null', 'pad', g = 1, 0.1::float4 + g,
            'NaN', '-Infinity', 'infinity'::timestamptz, '2026-11-21 12:00:00.5+02', '0044-03-15 BC',
            interval '1 year -2 days 03:04:05.6', '\x00ff5c'::bytea, '{"a": [1, null]}',
            ARRAY['a,b', NULL, 'NULL', '"'], 'grün 数据 🚀', 123456789.123456789
        FROM generate_series(%s::int, %s::int) g
    """
    with session(source) as connection:
        connection.execute("SET statement_timeout = 0")
        connection.execute("SET standard_conforming_strings = on")
        connection.execute(
            """
            CREATE TABLE kinds (id int PRIMARY KEY, t text, empty text, nothing text, word text, fixed
            char(6), b boolean,
                f4 float4, f8 float8, n numeric, ts timestamptz, ts2 timestamptz, d date, i interval, raw
                bytea, j jsonb, a text[], u text, exact float8)
            """
        )
        connection.execute(insert, [1, 5])
        read_all(source, lake_path)
        connection.execute(insert, [6, 10])
    read_all(source, lake_path)
    rows = {row["new"][0]: row for row in bronze_rows(lake_path) if row["new"] is not None}
    assert len(rows) == 10
    for number in range(1, 6):
        from_snapshot, from_stream = rows[str(number)], rows[str(number + 5)]
        differing = {"id", "b", "f4"}
        for column, copied, streamed in zip(
            from_snapshot["columns"], from_snapshot["new"], from_stream["new"], strict=True
        ):
            assert column in differing or copied == streamed, column
    assert_bronze_equals_source(source, lake_path, "public.kinds")
