"""A reader follows a former reader that is still active; a silence has an unknown cause."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.connection import connect, identify
from deltasmelt.bronze.postgres.liveness import CopyLine, Liveness, walsender_liveness
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.bronze.stream.receiver import Receiver
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    current_lsn,
    execute,
    make_reader,
    read_all,
    session,
    source_of,
)
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

TABLE = "CREATE TABLE a (id int PRIMARY KEY)"


@pytest.mark.postgres
def test_reader_continues_at_final_position_of_predecessor(database: str, lake_path: str) -> None:
    """The position counts as of the predecessor's end, not as of the successor's first read."""
    source = source_of(database)
    execute(source, TABLE)
    messages: list[str] = []
    errors: list[BaseException] = []
    successor = make_reader(source, lake_path, progress=lambda told: messages.append(told["said"]))
    stop = threading.Event()

    def run() -> None:
        try:
            successor.run(stop=stop)
        except BaseException as error:  # noqa: BLE001 - looked at below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    with Running(source, lake_path) as running:
        wait_for(lambda: "public.a" in running.reader.progress.read()["snapshots"])
        thread.start()
        wait_for(lambda: any("to release slot" in message for message in messages))
        execute(
            source,
            "INSERT INTO a VALUES (1)",
            "ALTER TABLE a ADD n int DEFAULT 7",
            "INSERT INTO a VALUES (2, 2)",
        )
        wait_for(lambda: running.reader.progress.read()["changes"] == 2)
    execute(source, "INSERT INTO a VALUES (3, 3)")
    wait_for(lambda: bool(errors) or successor.progress.read()["changes"] == 1)
    stop.set()
    thread.join(30)
    assert errors == []
    read_all(source, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.a")


@pytest.mark.postgres
@pytest.mark.parametrize("confirmed", [True, False])
def test_position_moving_during_stream_start_is_adopted(
    database: str, lake_path: str, *, confirmed: bool
) -> None:
    source = source_of(database)
    execute(source, TABLE, "INSERT INTO a VALUES (1)")
    read_all(source, lake_path)
    points: list[str] = []

    def reached(point: str) -> None:
        points.append(point)
        if point != "stream-starting" or points.count(point) > 1:
            return
        with connect(source) as connection:  # as a child does whose parent was killed
            sink, end = DeltaSink(Lake(lake_path), "shop", identify(connection)), current_lsn(connection)
            position = sink.position
            assert position is not None
            sink.commit(replace(position, frontier=Lsn(end - 1), confirm=end))
            if confirmed:
                connection.execute("SELECT pg_replication_slot_advance(%s, %s)", [source.slot, str(end)])

    execute(source, "SELECT pg_switch_wal()")
    read_all(source, lake_path, reached=reached)
    assert points.count("stream-starting") == 2
    execute(source, "INSERT INTO a VALUES (2)")
    read_all(source, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.a")


@pytest.mark.postgres
def test_server_hears_from_reader_opening_lake_slowly(own_server: EmbeddedServer, lake_path: str) -> None:
    source = source_of(own_server.dsn(), slot="smelt_slow")
    execute(source, TABLE, "ALTER SYSTEM SET wal_sender_timeout = '1s'", "SELECT pg_reload_conf()")
    read_all(source, lake_path)
    execute(source, "INSERT INTO a VALUES (1)")
    slow = iter([3.0])

    def slowly(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is Effect.LIST_FILES and where.rstrip("/").endswith("/bronze/changes"):
            time.sleep(next(slow, 0.0))
        return effect()

    with guarded(slowly):
        reader = read_all(source, lake_path)
    assert next(slow, None) is None
    assert reader.progress.read()["connections"] == 1
    assert ControlTables(Lake(lake_path))._errors.rows().num_rows == 0
    assert_bronze_equals_source(source, lake_path, "public.a")


@pytest.mark.postgres
def test_silent_server_differs_from_server_reporting_death(database: str) -> None:
    """A server without an answer does not prove that the connection is dead."""
    source = source_of(database)
    role = source.slot.removeprefix("smelt_")
    execute(source, f"CREATE ROLE {role} LOGIN CONNECTION LIMIT 0")
    try:
        with session(source) as working:
            pid = working.info.backend_pid
            full = source.model_copy(update={"user": role})
            assert walsender_liveness(full, pid) is Liveness.UNKNOWN
            brief = Timing(copy_silence=0.01, copy_poll=0.01, refused=0.03)
            line = CopyLine(full.with_timing(brief), working)
            for _ in range(2):
                time.sleep(0.02)
                line.nothing_came()
            time.sleep(0.02)
            with pytest.raises(TransientError, match="does not report the state"):
                line.nothing_came()
        with session(source) as working:
            pid = working.info.backend_pid
            assert walsender_liveness(source, pid) is Liveness.WORKS
        wait_for(lambda: walsender_liveness(source, pid) is Liveness.OVER)
        away = source_of("postgresql://nobody@127.0.0.1:1/none")
        assert walsender_liveness(away, pid) is Liveness.OVER
    finally:
        execute(source, f"DROP ROLE {role}")


def test_connection_of_unknown_state_is_left_alone() -> None:
    answers = [Liveness.UNKNOWN] * 5 + [Liveness.OVER, Liveness.WORKS, Liveness.OVER, Liveness.OVER]
    answer = iter(answers)
    silent: Any = SimpleNamespace(silent_for=100.0)
    receiver = Receiver(
        silent, capacity=1, durable=ZERO, feedback_seconds=1.0, silence_seconds=3.0, line=lambda: next(answer)
    )
    for _ in answers[:-1]:
        assert receiver._watch()
    with pytest.raises(TransientError, match="although the server is idle"):
        receiver._watch()
    silent.silent_for = 600.0
    receiver._line = lambda: Liveness.UNKNOWN
    with pytest.raises(TransientError, match="does not report the state"):
        receiver._watch()
