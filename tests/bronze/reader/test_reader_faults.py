"""A real reader loses and doubles nothing on a lake with random failures of every kind of effect."""

from __future__ import annotations

import errno
import random
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from deltalake.exceptions import DeltaError

from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.reader.recovery import start_over
from deltasmelt.bronze.store.position import read_position
from tests.bronze.faults import OF_THE_SOURCE
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    execute,
    read_all,
    source_of,
)
from tests.bronze.running import Running, confirmed
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.postgres


class NowAndThen:
    """A guard that fails each kind of effect about equally often, before or after the effect."""

    def __init__(self, seed: int, share: float) -> None:
        self._random = random.Random(seed)
        self._share = share
        self._lock = threading.Lock()
        self.failed: list[str] = []

    def __call__(self, door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        of_the_test = threading.current_thread() is threading.main_thread()  # it looks at the lake
        if of_the_test or door in OF_THE_SOURCE:
            return effect()
        with self._lock:
            share = self._share / 5 if door in (Effect.FLUSH, Effect.REFRESH) else self._share
            fails, before = self._random.random() < share, self._random.random() < 0.5
        if fails and before:
            self._fail(door, where, "before")
        result = effect()
        if fails:
            self._fail(door, where, "after")
        return result

    def _fail(self, door: Effect, where: str, when: str) -> None:
        self.failed.append(f"{when} {door}")
        if door in (Effect.COMMIT, Effect.REFRESH):
            raise DeltaError(f"injected {when} {door} at {where}")
        raise OSError(errno.EIO, f"injected {when} {door} at {where}")


@pytest.mark.parametrize(
    ("seed", "rounds"),
    [(1, 60), *(pytest.param(seed, 250, marks=pytest.mark.torture) for seed in range(2, 8))],
)
def test_intermittent_lake_failures_lose_no_change(
    database: str, lake_path: str, monkeypatch: pytest.MonkeyPatch, seed: int, rounds: int
) -> None:
    monkeypatch.setattr("deltasmelt.bronze.stream.session.WRITE_BYTES", 20_000)
    monkeypatch.setattr("deltasmelt.bronze.stream.session.FEED_BYTES", 16_384)
    monkeypatch.setattr("deltasmelt.bronze.lake.parquet.FILE_BYTES", 100_000)
    monkeypatch.setattr("deltasmelt.bronze.lake.place.Folder.checkpoint_interval", 10)
    monkeypatch.setattr("deltasmelt.bronze.store.sink._COMPACT_AFTER_COMMITS", 5)
    monkeypatch.setattr("deltasmelt.bronze.store.sink._MANY_FILES", 5)
    source = source_of(database, timing=Timing(retry_longest=0.2, catalog_poll=0.5))
    execute(
        source,
        "CREATE TABLE items (id int PRIMARY KEY, note text)",
        "CREATE TABLE others (id int PRIMARY KEY, note text)",
        "INSERT INTO items SELECT i, repeat('n', 50) FROM generate_series(1, 5000) i",
    )
    settings = BronzeSettings(flush_interval=0.02, heartbeat=0.1)
    copies = SnapshotSettings(workers=2, chunk_rows=1500)
    guard = NowAndThen(seed, 0.03)
    with guarded(guard), Running(source, lake_path, bronze=settings, snapshot=copies) as running:
        for number in range(rounds):
            execute(
                source,
                f"UPDATE items SET note = 'round {number}' WHERE id % 50 = {number % 50}",
                f"INSERT INTO others VALUES ({number}, 'one')",
            )
            if number % 20 == 10:
                execute(
                    source,
                    f"ALTER TABLE others ADD COLUMN c{number} int DEFAULT {number}",
                    f"UPDATE items SET note = repeat('m', {number + 100}) WHERE id % 2 = 0",
                )
            time.sleep(0.02)
            if number % 10 == 0:
                at, position = confirmed(source), read_position(Lake(lake_path))
                assert position is not None
                assert at <= position.confirm
        wait_for(lambda: running.error is not None or len(guard.failed) >= 5, 60)
    assert running.error is None
    read_all(source, lake_path)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items", "public.others")


def test_unsendable_change_costs_slot_and_copies_all(database: str, lake_path: str) -> None:
    """A type's output function fails, as with a missing library or a bytea of 540 MB, but at less cost."""
    source = source_of(database)
    output = "CREATE OR REPLACE FUNCTION odd_out(odd) RETURNS cstring LANGUAGE internal STRICT IMMUTABLE AS "
    execute(
        source,
        "CREATE TYPE odd",
        "CREATE FUNCTION odd_in(cstring) RETURNS odd LANGUAGE internal STRICT IMMUTABLE AS 'textin'",
        f"{output} 'textout'",
        "CREATE TYPE odd (INPUT = odd_in, OUTPUT = odd_out, LIKE = text)",
        "CREATE TABLE strange (id int PRIMARY KEY, o odd)",
        "CREATE TABLE plain (id int PRIMARY KEY)",
    )
    read_all(source, lake_path)
    with Running(source, lake_path) as running:
        wait_for(lambda: running.reader.progress.read()["phase"] == "streaming")
        execute(source, f"{output} 'shell_out'", "INSERT INTO plain VALUES (1)")
        execute(source, "INSERT INTO strange VALUES (1, 'x')", "INSERT INTO plain VALUES (2)")
        wait_for(lambda: running.error is not None)
    ops = [row["op"] for row in bronze_rows(lake_path)]
    assert ops.count("insert") == 1, "what came before that change is in bronze"
    lake, control = Lake(lake_path), ControlTables(Lake(lake_path))
    for _ in range(2):
        with pytest.raises(DefiniteError, match=r"SQLSTATE 0A000, at [0-9A-F]+/") as caught:
            read_all(source, lake_path)
        assert caught.value.code == "stream-undecodable"
        assert "snapshot FILE --all" in str(caught.value.remedy)
        assert [error.code for error in control.open_errors()] == ["stream-undecodable"]
    before = read_position(lake)
    lost = start_over(source, lake, "shop")
    assert lost is not None
    assert before is not None
    assert lost.before == before.confirm < lost.lsn
    assert start_over(source, lake, "shop") is None, "once is enough"
    read_all(source, lake_path)
    assert [error.key for error in control.open_errors()] == [("table", "public.strange", "server-error")]
    assert_bronze_equals_source(source, lake_path, "public.plain")
    execute(source, f"{output} 'textout'", "INSERT INTO strange VALUES (2, 'y')")
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.plain", "public.strange")
    assert control.open_errors() == []
