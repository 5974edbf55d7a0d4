"""A primary that dies under load, and the promoted standby with the slot that the standby kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect, identify
from tests.bronze.replaying import bronze_rows, execute, fetch, read_all, session, source_of
from tests.bronze.running import Running
from tests.fix_postgres import CopiedServer
from tests.patience import wait_for
from tests.torture.two_tables import SCHEMA, assert_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres

STANDBY_SETTINGS = {"sync_replication_slots": "on", "hot_standby_feedback": "on"}


@pytest.fixture
def standby(primary: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """Create a standby that will copy the primary's failover slots; do not start the standby yet.

    A standby polls more and more rarely while the primary has no slots.
    """
    server = CopiedServer(version=18, settings=STANDBY_SETTINGS)
    owner = server.data.stat()
    shutil.rmtree(server.data)
    source = f"host=127.0.0.1 port={primary.port} user=postgres dbname=postgres"
    copy = [str(server.bin / "pg_basebackup"), "-d", source, "-D", str(server.data), "-C", "-S", "standby1"]
    subprocess.run([*copy, "-R", "-c", "fast", "--no-sync"], check=True)
    for folder, _, names in os.walk(server.data):
        for name in [folder, *(os.path.join(folder, name) for name in names)]:  # noqa: PTH118
            os.chown(name, owner.st_uid, owner.st_gid)
    execute(
        source_of(primary.dsn()),
        "ALTER SYSTEM SET synchronized_standby_slots = 'standby1'",
        "SELECT pg_reload_conf()",
    )
    yield server
    server.close()


def has_slot(standby: EmbeddedServer, slot: str) -> bool:
    """Check whether the standby has a copy of the slot that survives a promotion."""
    query = "SELECT count(*) FROM pg_replication_slots WHERE slot_name = %s AND synced AND NOT temporary"
    with psycopg.connect(standby.dsn()) as connection:
        return connection.execute(query, [slot]).fetchone() == (1,)


def insert_until_the_end(source: SourceSettings) -> None:
    """Insert in single transactions until the server is down."""
    with session(source) as connection:
        for number in range(1_000_000, 2_000_000):
            try:
                connection.execute("INSERT INTO items VALUES (%s, 'under load')", [number])
            except psycopg.OperationalError:
                return


def test_reader_continues_at_promoted_standby_exactly(
    primary: EmbeddedServer, standby: EmbeddedServer, lake_path: str
) -> None:
    old, new = source_of(primary.dsn(), slot="kept"), source_of(standby.dsn(), slot="kept")
    hosts = make_conninfo(
        host="127.0.0.1,127.0.0.1", port=f"{primary.port},{standby.port}", user="postgres", dbname="postgres"
    )
    source: SourceSettings = source_of(hosts, slot="kept", failover=True, target_session_attrs="primary")
    execute(old, *SCHEMA)
    with Running(source, lake_path) as running:
        execute(old, "INSERT INTO items SELECT i, 'before' FROM generate_series(10, 1000) i")
        time.sleep(1)
        assert running.reader.progress.read()["changes"] == 0, "no standby has them yet"
        standby.start()
        updates = 0
        while not has_slot(standby, "kept"):
            updates += 1
            assert updates < 300
            execute(old, "UPDATE others SET note = 'moves the slot on'", "SELECT pg_log_standby_snapshot()")
            time.sleep(0.2)
        wait_for(lambda: running.reader.progress.read()["changes"] == 991 + updates)
        load = threading.Thread(target=insert_until_the_end, args=[old])
        load.start()
        wait_for(lambda: running.reader.progress.read()["changes"] > 1010 + updates, 60)
        primary.stop("immediate")
        load.join()
        execute(new, "SELECT pg_promote(true)")
        survived = fetch(new, "SELECT count(*) FROM items WHERE note = 'under load'")
        assert survived > 9
        execute(new, "INSERT INTO items VALUES (3000, 'after')", "DELETE FROM items WHERE id = 1")
        wait_for(
            lambda: (
                running.error is not None
                or running.reader.progress.read()["changes"] == 991 + updates + survived + 2
            ),
            90,
        )
        assert running.error is None
    assert ControlTables(Lake(lake_path)).open_errors() == []
    read_all(new.model_copy(update={"failover": True}), lake_path)
    assert_whole(new, lake_path)
    assert sum(row["op"] == "snapshot_end" for row in bronze_rows(lake_path)) == 2, (
        "nothing was resnapshotted"
    )
    with connect(source) as connection:
        assert identify(connection).timeline == 2


def test_standby_at_primary_address_is_awaited_until_promoted(
    own_server: EmbeddedServer, lake_path: str
) -> None:
    source = source_of(own_server.dsn(), timing=Timing(catalog_poll=0.1), slot="moved")
    execute(source, *SCHEMA)
    with Running(source, lake_path) as running:
        wait_for(lambda: sum(row["op"] == "snapshot_end" for row in bronze_rows(lake_path)) == 2)
        own_server.stop()
        signal_file = own_server.data / "standby.signal"
        signal_file.touch()
        owner = own_server.data.stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        own_server.start()
        wait_for(lambda: "is a standby" in running.reader.progress.read()["said"])
        execute(source, "SELECT pg_promote(true)", "INSERT INTO items VALUES (3, 'after')")
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] == 1, 40)
        assert running.error is None
    read_all(source, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert_whole(source, lake_path)
