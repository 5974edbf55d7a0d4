"""Faults that need a person: the slot is lost or moved, or the server's history is a different history.

Each fault stops the reader with the missing range, the cause and the remedy. The remedy is one command that
copies every table again, deletes included. A kill at any point of the command leaves the earlier error or a
complete request.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.reader.recovery import start_over
from deltasmelt.bronze.store.gaps import is_open, is_whole
from deltasmelt.bronze.store.position import read_position
from tests.bronze.replaying import (
    bronze_rows,
    execute,
    fetch,
    make_reader,
    read_all,
    source_of,
)
from tests.bronze.twin import Twin
from tests.torture import two_tables
from tests.torture.test_reader_killed import ending, start_reader
from tests.torture.two_tables import SCHEMA

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres
LONG = pytest.mark.torture

LOST = (
    "INSERT INTO items VALUES (3, 'lost')",
    "UPDATE items SET note = 'x'",
    "DELETE FROM items WHERE id = 1",
)


def drop(source: SourceSettings) -> None:
    execute(source, f"SELECT pg_drop_replication_slot('{source.slot}')")


def make(source: SourceSettings) -> None:
    execute(source, f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')")


def recreate(source: SourceSettings) -> None:
    drop(source)
    make(source)


def advance(source: SourceSettings) -> None:
    execute(source, f"SELECT pg_replication_slot_advance('{source.slot}', pg_current_wal_lsn())")


BREAKS = {
    "dropped": (drop, "slot-lost"),
    "recreated": (recreate, "slot-gap"),
    "advanced": (advance, "slot-gap"),
}


def stopped(source: SourceSettings, lake_path: str) -> DefiniteError:
    """Return the error that stops a reader; the recorded error must have its code and remedy."""
    with pytest.raises(DefiniteError) as caught:
        read_all(source, lake_path)
    [error] = ControlTables(Lake(lake_path)).open_errors()
    assert (error.scope, error.code, error.remedy) == ("pipeline", caught.value.code, caught.value.remedy)
    return caught.value


def assert_whole(source: SourceSettings, lake_path: str) -> None:
    assert ControlTables(Lake(lake_path)).open_errors() == []
    two_tables.assert_whole(source, lake_path)


def test_a_table_dropped_meanwhile_is_not_awaited(source: SourceSettings, lake_path: str) -> None:
    execute(
        source, *SCHEMA, "CREATE TABLE gone (id int PRIMARY KEY)", "CREATE TABLE away (id int PRIMARY KEY)"
    )
    read_all(source, lake_path)
    execute(source, "DROP TABLE gone", "ALTER TABLE away RENAME TO there", *LOST)
    drop(source)
    lost = start_over(source, Lake(lake_path), "shop")
    assert lost is not None
    assert [str(table) for table in lost.tables] == ["public.items", "public.others"]
    read_all(source, lake_path)
    assert_whole(source, lake_path)
    changes = open_existing(f"{lake_path}/bronze/changes")
    position = read_position(Lake(lake_path))
    assert position is not None
    for name in ("items", "others", "gone", "there"):
        assert is_whole(changes, TableName("public", name), position.frontier), name
        assert not is_open(changes, TableName("public", name)), name


@pytest.mark.parametrize(
    "how", ["dropped", *(pytest.param(how, marks=LONG) for how in ("recreated", "advanced"))]
)
def test_a_foreign_slot_stops_until_all_is_resnapshotted(
    source: SourceSettings, lake_path: str, how: str
) -> None:
    breaking, code = BREAKS[how]
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    end = read_position(Lake(lake_path))
    assert end is not None
    execute(source, *LOST)
    breaking(source)
    error = stopped(source, lake_path)
    assert error.code == code
    assert str(end.confirm) in str(error)
    assert "smelt snapshot FILE --all" in str(error)
    slots = fetch(source, "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s", source.slot)
    assert slots == (how != "dropped"), "a start makes no slot again"
    assert start_over(source, Lake(lake_path), "shop") is not None
    execute(source, "INSERT INTO items VALUES (4, 'after')", "DELETE FROM others")
    read_all(source, lake_path)
    assert_whole(source, lake_path)
    assert start_over(source, Lake(lake_path), "shop") is None, "nothing is wrong now"


def test_a_slot_given_up_names_the_setting(own_server: EmbeddedServer, lake_path: str) -> None:
    source = source_of(own_server.dsn(), slot="smelt_given_up")
    execute(
        source,
        *SCHEMA,
        "CREATE TABLE noise (n int, t text)",
        "ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'",
        "ALTER SYSTEM SET min_wal_size = '32MB'",
        "ALTER SYSTEM SET max_wal_size = '32MB'",
        "SELECT pg_reload_conf()",
    )
    source = source.model_copy(update={"exclude": ["public.noise"]})
    read_all(source, lake_path)
    execute(source, *LOST)
    for _ in range(6):
        execute(source, "INSERT INTO noise SELECT i, repeat('x', 200) FROM generate_series(1, 20000) i")
        execute(source, "SELECT pg_switch_wal()", "CHECKPOINT")
    assert (
        fetch(source, "SELECT wal_status FROM pg_replication_slots WHERE slot_name = %s", source.slot)
        == "lost"
    )
    error = stopped(source, lake_path)
    assert error.code == "slot-lost"
    assert "max_slot_wal_keep_size" in str(error)
    assert start_over(source, Lake(lake_path), "shop") is not None
    read_all(source, lake_path)
    assert_whole(source, lake_path)


@pytest.mark.parametrize(
    "how", ["dropped", *(pytest.param(how, marks=LONG) for how in ("recreated", "advanced"))]
)
@pytest.mark.parametrize(
    "point", ["slot-made", *(pytest.param(point, marks=LONG) for point in ("slot-dropped", "started-over"))]
)
def test_a_killed_remedy_leaves_error_or_request(
    source: SourceSettings, lake_path: str, how: str, point: str
) -> None:
    breaking, _ = BREAKS[how]
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    before = read_position(Lake(lake_path))
    execute(source, *LOST)
    breaking(source)
    killed = start_reader(source, lake_path, start_over=True, point=point)
    assert ending(killed) == -signal.SIGKILL
    if point != "started-over":
        assert read_position(Lake(lake_path)) == before
        assert stopped(source, lake_path).code in ("slot-lost", "slot-gap")
        assert start_over(source, Lake(lake_path), "shop") is not None
    read_all(source, lake_path)
    assert_whole(source, lake_path)


def ends(lake_path: str) -> list[dict[str, object]]:
    return [row for row in bronze_rows(lake_path) if row["op"] == "snapshot_end"]


@pytest.fixture
def twin(tmp_path: Path) -> Twin:
    return Twin(tmp_path)


def grow_past(source: SourceSettings, lsn: Lsn) -> None:
    while Lsn.parse(fetch(source, "SELECT pg_current_wal_lsn()::text")) <= lsn:
        execute(
            source,
            "INSERT INTO others VALUES ((SELECT max(id) + 1 FROM others), 'x')",
            "SELECT pg_switch_wal()",
        )


@pytest.mark.parametrize(
    "grown",
    [pytest.param(False, id="log behind bronze", marks=LONG), pytest.param(True, id="log grown past bronze")],
)
def test_a_promoted_lagging_standby_is_refused_until_resnapshotted(
    twin: Twin, lake_path: str, *, grown: bool
) -> None:
    source = source_of(twin.server.dsn(), slot="smelt_twin")
    try:
        execute(source, *SCHEMA)
        read_all(source, lake_path)
        twin.copy()
        execute(source, "INSERT INTO items VALUES (10, 'never replicated')", *LOST)
        read_all(source, lake_path)
        end = read_position(Lake(lake_path))
        assert end is not None
        twin.put_back(promoted=True)
        execute(source, "INSERT INTO items VALUES (11, 'on the other timeline')")
        if grown:
            grow_past(source, end.frontier)
        error = stopped(source, lake_path)
        assert error.code == "server-behind"
        assert str(end.confirm) in str(error)
        if not grown:
            with pytest.raises(DefiniteError, match="let the server's log grow beyond"):
                start_over(source, Lake(lake_path), "shop")
            grow_past(source, end.frontier)
        assert start_over(source, Lake(lake_path), "shop") is not None
        read_all(source, lake_path)
        assert_whole(source, lake_path)
        assert not any(row["new"] and row["new"][0] == "10" for row in bronze_rows(lake_path)[-4:])
    finally:
        twin.server.close()


@LONG
def test_a_promoted_standby_that_had_everything_is_followed(twin: Twin, lake_path: str) -> None:
    source = source_of(twin.server.dsn(), slot="smelt_twin")
    try:
        execute(source, *SCHEMA)
        read_all(source, lake_path)
        twin.copy()
        twin.put_back(promoted=True)
        execute(source, "INSERT INTO items VALUES (11, 'on the other timeline')")
        read_all(source, lake_path)
        assert_whole(source, lake_path)
        assert len(ends(lake_path)) == 2, "nothing was resnapshotted"
    finally:
        twin.server.close()


@LONG
def test_a_server_restored_to_the_past_is_refused(twin: Twin, lake_path: str) -> None:
    source = source_of(twin.server.dsn(), slot="smelt_twin")
    try:
        execute(source, *SCHEMA)
        read_all(source, lake_path)
        twin.copy()
        execute(source, *LOST)
        read_all(source, lake_path)
        end = read_position(Lake(lake_path))
        assert end is not None
        twin.put_back(promoted=False)
        with pytest.raises(DefiniteError) as caught:
            make_reader(source, lake_path).run()
        assert caught.value.code == "server-behind"
        assert str(end.confirm) in str(caught.value)
        assert read_position(Lake(lake_path)) == end
    finally:
        twin.server.close()
