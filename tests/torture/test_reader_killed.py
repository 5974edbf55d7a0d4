"""kill -9 of the reader between each pair of steps.

After a restart no change is missing or duplicated.
"""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.position import read_position
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    current_lsn,
    execute,
    fetch,
    session,
    source_of,
)
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

TABLES = ("public.accounts", "public.entries")
SCHEMA = (
    "CREATE TABLE accounts (id int PRIMARY KEY, name text, balance numeric)",
    "CREATE TABLE entries (id bigserial PRIMARY KEY, account int, amount numeric, note text)",
    "INSERT INTO accounts SELECT i, 'account ' || i, 0 FROM generate_series(1, 1500) i",
    "INSERT INTO entries (account, amount) SELECT 1 + i % 1500, i FROM generate_series(1, 1500) i",
)
POINTS = [("snapshot-parts-written", 1), ("open-transaction-written", 1), ("committed", 4)]
"""Points in a copy, within a transaction, and between a commit and its confirmation to the slot."""

MORE_POINTS = [
    ("slot-ready", 1),
    ("first-place-committed", 1),
    ("snapshot-exported", 1),
    ("snapshot-block-written", 1),
    ("snapshot-relation-committed", 1),
    ("snapshot-committed", 1),
    ("relations-committed", 1),
    ("parts-written", 3),
    ("committed", 1),
]


class Workload:
    """Changes of every kind from one thread, until the block ends.

    Commits, rollbacks, and from time to time a large transaction.
    """

    def __init__(self, source: SourceSettings, seed: int) -> None:
        self._source = source
        self._random = random.Random(seed)
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            with session(self._source) as connection:
                number = 0
                while not self._done.is_set():
                    number += 1
                    self._one(connection, number)
                    time.sleep(0.01)
        except BaseException as error:  # noqa: BLE001 - raised at the end of the block
            self._error = error

    def _one(self, connection: Any, number: int) -> None:
        pick = self._random.random()
        account = self._random.randint(1, 1500)
        if number % 40 == 10:
            connection.execute(
                "INSERT INTO entries (account, amount, note) "
                "SELECT i, i, repeat('large', 10) FROM generate_series(1, 1000) i"
            )
        elif number == 100:
            connection.execute("ALTER TABLE accounts ADD COLUMN extra text DEFAULT 'd'")
        elif number == 150:
            connection.execute("TRUNCATE entries")
        elif pick < 0.5:
            with connection.transaction(force_rollback=pick < 0.05):
                connection.execute("UPDATE accounts SET balance = balance + 1 WHERE id = %s", [account])
                connection.execute("INSERT INTO entries (account, amount) VALUES (%s, 1)", [account])
        elif pick < 0.7:
            connection.execute("DELETE FROM entries WHERE account = %s", [account])
        elif pick < 0.8:
            connection.execute(
                "UPDATE entries SET id = nextval('entries_id_seq') WHERE account = %s", [account]
            )
        else:
            connection.execute("UPDATE entries SET note = 'changed' WHERE account = %s", [account])

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()
        if self._error is not None:
            raise self._error


def start_reader(source: SourceSettings, lake_path: str, **more: Any) -> subprocess.Popen[bytes]:
    assert source.dsn is not None
    settings = {"dsn": source.dsn.get_secret_value(), "slot": source.slot, "lake": lake_path, **more}
    return subprocess.Popen([sys.executable, "-m", "tests.torture.reader_driver", json.dumps(settings)])


def ending(reader: subprocess.Popen[bytes]) -> int:
    """Return the reader's exit code; kill a reader that hangs, and fail the test."""
    try:
        return reader.wait(60)
    finally:
        reader.kill()
        reader.wait()


def wait_for_stream(source: SourceSettings) -> None:
    query = "SELECT EXISTS (SELECT FROM pg_replication_slots WHERE slot_name = %s AND active)"
    wait_for(lambda: fetch(source, query, source.slot), 60)


def catch_up(source: SourceSettings, lake_path: str) -> None:
    with session(source) as connection:
        until = current_lsn(connection)
    assert ending(start_reader(source, lake_path, until=int(until))) == 0


def assert_nothing_missing_nothing_twice(source: SourceSettings, lake_path: str) -> None:
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, *TABLES)


@pytest.mark.parametrize(
    ("point", "times"),
    [*POINTS, *(pytest.param(*point, marks=pytest.mark.torture) for point in MORE_POINTS)],
)
def test_a_killed_reader_goes_on_where_bronze_ends(
    database: str, lake_path: str, point: str, times: int
) -> None:
    source = source_of(database)
    execute(source, *SCHEMA)
    with Workload(source, seed=times):
        assert ending(start_reader(source, lake_path, point=point, times=times)) == -signal.SIGKILL
    before = read_position(Lake(lake_path))
    catch_up(source, lake_path)
    after = read_position(Lake(lake_path))
    assert after is not None
    assert before is None or before.frontier < after.frontier
    assert_nothing_missing_nothing_twice(source, lake_path)


@pytest.mark.torture
@pytest.mark.parametrize("seed", range(3))
def test_thirty_random_kills_lose_and_double_nothing(database: str, lake_path: str, seed: int) -> None:
    source = source_of(database)
    execute(source, *SCHEMA)
    moments = random.Random(seed)
    with Workload(source, seed):
        for _ in range(30):
            reader = start_reader(source, lake_path)
            if moments.random() < 0.8:
                wait_for_stream(source)
            time.sleep(moments.random() * 1.5)
            reader.kill()
            reader.wait()
    catch_up(source, lake_path)
    assert_nothing_missing_nothing_twice(source, lake_path)
