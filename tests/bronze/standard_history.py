"""One history of every situation a reader meets: played once, read many times.

The log holds the history after a slot that never advances. Each reading copies the slot and the lake of that
moment, so each reading receives the same log again in about a second. The copy of a table in the middle needs
a live server; the reader makes this copy anew in each reading.
"""

from __future__ import annotations

import itertools
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import psycopg
from deltalake import DeltaTable

from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.effects import guarded
from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from tests.bronze.enumerated import PATIENCE_SECONDS, Case, Killed, SourceAndLake
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    execute,
    make_reader,
    read_all,
    source_of,
)
from tests.bronze.running import confirmed
from tests.bronze.written_log import plain
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

TABLES: Final = ("public.items", "public.others", "public.large", "public.late")
_SETTINGS: Final = BronzeSettings(flush_interval=0.02, heartbeat=0.1)
_COPIES: Final = SnapshotSettings(workers=2, chunk_rows=1000)
_LONGEST_SECONDS: Final = 40.0

IMPATIENT: Final = Timing(
    answer=PATIENCE_SECONDS,
    session_settings=PATIENCE_SECONDS,
    line_silence=PATIENCE_SECONDS,
    watch_answer=PATIENCE_SECONDS,
    poll_answer=PATIENCE_SECONDS,
    copy_silence=PATIENCE_SECONDS,
    copy_lookout=PATIENCE_SECONDS,
    copy_plan=PATIENCE_SECONDS,
    copy_command=PATIENCE_SECONDS,
    retry_first=0.05,
    retry_longest=0.2,
    catalog_poll=0.5,
    last_words=1.0,
)
"""Timeouts that every answer of a *late* fault exceeds."""

_SMALL: Final = {
    "deltasmelt.bronze.stream.session.WRITE_BYTES": 40_000,
    "deltasmelt.bronze.stream.session.FEED_BYTES": 16_384,
    "deltasmelt.bronze.stream.replication._INPUT_BUFFER": 1,
    "deltasmelt.bronze.stream.replication._DRAIN_BYTES": 8_192,
    "deltasmelt.bronze.lake.parquet.FILE_BYTES": 150_000,
    "deltasmelt.bronze.lake.place.Folder.checkpoint_interval": 8,
    "deltasmelt.bronze.store.sink._COMPACT_AFTER_COMMITS": 5,
    "deltasmelt.bronze.store.sink._MANY_FILES": 4,
    "deltasmelt.bronze.store.sink._TIDY_EVERY": 12,
}


def shorten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower thresholds so that rare events happen within a hundred transactions."""
    for name, value in _SMALL.items():
        monkeypatch.setattr(name, value)


def _statements() -> Iterator[str]:
    for number in range(30):
        yield f"INSERT INTO items VALUES ({number + 100}, 'n {number}', repeat('x', {number * 20}))"
        yield f"UPDATE items SET note = 'changed' WHERE id = {number + 1}"
    yield "UPDATE items SET id = id + 1000 WHERE id BETWEEN 1 AND 20"
    yield "INSERT INTO large SELECT i, repeat('l', 80) FROM generate_series(1001, 4000) i"
    yield "ALTER TABLE others ADD COLUMN extra int DEFAULT 7"
    yield "UPDATE others SET extra = id WHERE id % 3 = 0"
    yield "CREATE TABLE late (id int PRIMARY KEY, note text)"
    yield "INSERT INTO late SELECT i, 'late' FROM generate_series(1, 1500) i"
    yield "SELECT pg_logical_emit_message(true, 'app', 'a message')"
    for number in range(20):
        yield f"INSERT INTO others (id, note, extra) VALUES ({number + 500}, NULL, {number})"
        yield f"DELETE FROM items WHERE id = {number + 100}"
    yield "ALTER TABLE others RENAME COLUMN note TO said"
    yield "TRUNCATE others"
    for number in range(15):
        yield f"INSERT INTO others (id, said) VALUES ({number}, 'after')"
    yield "UPDATE large SET note = id::text WHERE id % 4 = 0"
    yield "DELETE FROM items WHERE id > 1010"


@dataclass
class Outcome:
    """The result of a reading under a fault."""

    guard: SourceAndLake
    error: BaseException | None


class History:
    """The history in a database, and readings of the history.

    Args:
        dsn: DSN of an empty database.
        folder: parent folder for the lakes.
    """

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._numbers = itertools.count()
        self._source = source_of(dsn, timing=IMPATIENT)
        execute(
            self._source,
            "CREATE TABLE items (id int PRIMARY KEY, name text, note text)",
            "CREATE TABLE others (id int PRIMARY KEY, note text)",
            "CREATE TABLE large (id int PRIMARY KEY, note text)",
            "INSERT INTO items SELECT i, 'name', 'note' FROM generate_series(1, 50) i",
            "INSERT INTO others SELECT i, 'o' FROM generate_series(1, 50) i",
            "INSERT INTO large SELECT i, repeat('b', 80) FROM generate_series(1, 1000) i",
        )
        read_all(self._source, str(folder / "begin"), bronze=_SETTINGS, snapshot=_COPIES)
        self._begin = confirmed(self._source)
        execute(self._source, *_statements())
        self.end = Lsn.parse(self._ask("SELECT pg_current_wal_insert_lsn()::text"))
        sound = self.read(None)
        assert sound.error is None, sound.error
        self.seen = sound.guard.seen
        lake = self.newest
        assert_each_change_once(bronze_rows(lake))
        self._assert_tables(lake)
        self._expected = self._streamed(lake)
        self._drop()

    @property
    def newest(self) -> str:
        """Return the lake of the newest reading."""
        return str(self._lake)

    def read(self, case: Case | None) -> Outcome:
        """Read the history into a new lake, until its end or a kill."""
        number = next(self._numbers)
        self._lake = self._folder / f"lake-{number}"
        shutil.copytree(self._folder / "begin", self._lake)
        self._of = self._source.model_copy(update={"slot": f"{self._source.slot}_{number}"})
        self._ask(
            "SELECT slot_name::text FROM pg_copy_logical_replication_slot(%s, %s)",
            self._source.slot,
            self._of.slot,
        )
        guard = SourceAndLake(self._dsn, self._lake / "bronze/changes", case, {9: self._reconnect})
        with guarded(guard):
            error = self._run()
        return Outcome(guard, error)

    def check(self, outcome: Outcome, case: Case) -> None:
        """Continue without faults to the end; then compare bronze with the log and find no leftovers."""
        assert outcome.guard.confirmed_too_far == []
        if outcome.guard.killed:
            # None: it was about to end, and its last words were what the kill met.
            assert outcome.error is None or isinstance(outcome.error, Killed), outcome.error
        else:
            assert outcome.error is None, f"{case}: the fault did not heal: {outcome.error!r}"
        guard = SourceAndLake(self._dsn, self._lake / "bronze/changes", None, {})
        with guarded(guard):
            error = self._run()
        assert error is None, f"{case}: {error!r}"
        assert guard.confirmed_too_far == []
        lake = self.newest
        assert_each_change_once(bronze_rows(lake))
        assert self._streamed(lake) == self._expected
        self._assert_tables(lake)
        assert confirmed(self._of) <= guard.durable
        self._drop()

    def _run(self) -> BaseException | None:
        stop = threading.Event()
        timer = threading.Timer(_LONGEST_SECONDS, stop.set)
        timer.start()
        try:
            make_reader(self._of, self.newest, bronze=_SETTINGS, snapshot=_COPIES).run(
                until=self.end, stop=stop
            )
        except (SmeltError, Killed) as error:
            return error
        finally:
            timer.cancel()
        return TimeoutError("the reader did not reach the end") if stop.is_set() else None

    def _reconnect(self) -> None:
        self._ask(
            "SELECT pg_terminate_backend(active_pid)::text FROM pg_replication_slots WHERE slot_name = %s",
            self._of.slot,
        )

    def _streamed(self, lake: str) -> list[tuple[Any, ...]]:
        return plain(
            [
                row
                for row in bronze_rows(lake)
                if self._begin < row["commit_lsn"] <= self.end and not row["op"].startswith("snapshot")
            ]
        )

    def _assert_tables(self, lake: str) -> None:
        assert_bronze_equals_source(self._of, lake, *TABLES)
        assert ControlTables(Lake(lake)).open_errors() == []
        assert_every_file_is_named(lake)

    def _drop(self) -> None:
        query = "SELECT count(*)::text FROM pg_replication_slots WHERE active AND slot_name = %s"
        wait_for(lambda: self._ask(query, self._of.slot) == "0")
        self._ask("SELECT pg_drop_replication_slot(%s)::text", self._of.slot)
        shutil.rmtree(self._lake)

    def _ask(self, query: str, *parameters: str) -> str:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            row = connection.execute(query.encode(), parameters).fetchone()
        assert row is not None
        return str(row[0])


def assert_every_file_is_named(lake: str) -> None:
    """Check that a current or older version names each parquet file of `bronze.changes`."""
    table = DeltaTable(f"{lake}/bronze/changes")
    file_names = {Path(uri).name for uri in table.file_uris()}
    joined = set(table.vacuum(0, dry_run=True, enforce_retention_duration=False))
    stored = {path.name for path in Path(lake, "bronze/changes").glob("*.parquet")}
    assert file_names <= stored <= file_names | joined
    assert not list(Path(lake).glob("*/_*")), "a table that was given up in the making is left"
