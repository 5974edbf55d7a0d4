"""The first start of a reader with tables that change meanwhile; repeated for each fault."""

from __future__ import annotations

import itertools
import shutil
from typing import TYPE_CHECKING, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deltasmelt.bronze.config.sections import BronzeSettings, SnapshotSettings
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from tests.bronze.enumerated import Case, Killed, SourceAndLake
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
from tests.bronze.standard_history import IMPATIENT, Outcome, assert_every_file_is_named
from tests.fix_postgres import drop_database
from tests.patience import wait_for

if TYPE_CHECKING:
    from pathlib import Path

_SETTINGS: Final = BronzeSettings(flush_interval=0.02, heartbeat=0.1)
_COPIES: Final = SnapshotSettings(workers=2, chunk_rows=1000)
_DOORS: Final = OF_THE_SOURCE | {Effect.COMMIT, Effect.CREATE_TABLE, Effect.OPEN_TABLE}

_LIFE: Final = (
    "INSERT INTO items SELECT i, 'new' FROM generate_series(2001, 2100) i",
    "ALTER TABLE items ADD COLUMN extra int DEFAULT 3",
    "UPDATE items SET extra = id WHERE id % 10 = 0",
    "CREATE TABLE late (id int PRIMARY KEY, note text)",
    "INSERT INTO late SELECT i, 'late' FROM generate_series(1, 100) i",
    "TRUNCATE others",
    "INSERT INTO others VALUES (1, 'again')",
    "ALTER TABLE items RENAME COLUMN note TO said",
    "DELETE FROM items WHERE id > 2090",
    "ALTER TABLE others ALTER COLUMN note TYPE int USING 5",
    "INSERT INTO others VALUES (2, 6)",
)


class FirstStart:
    """A database that each start copies.

    Args:
        dsn: DSN of an empty database.
        folder: parent folder for the lakes.
    """

    def __init__(self, dsn: str, folder: Path) -> None:
        self._dsn = dsn
        self._folder = folder
        self._numbers = itertools.count()
        execute(
            source_of(dsn),
            "CREATE TABLE items (id int PRIMARY KEY, note text)",
            "CREATE TABLE others (id int PRIMARY KEY, note text)",
            "INSERT INTO items SELECT i, repeat('n', 80) FROM generate_series(1, 2000) i",
            "INSERT INTO others VALUES (1, 'one')",
        )
        sound = self.read(None)
        assert sound.error is None, sound.error
        self.seen = sound.guard.seen
        for door in set(Effect) - _DOORS:
            del self.seen[door]
        self._check(sound)

    def read(self, case: Case | None) -> Outcome:
        """Start a reader, change tables meanwhile, and stop the reader unless a kill ended it."""
        number = next(self._numbers)
        name = f"{conninfo_to_dict(self._dsn)['dbname']}_{number}"
        self._admin = make_conninfo(self._dsn, dbname="postgres")
        with psycopg.connect(self._admin, autocommit=True) as connection:
            connection.execute(
                f'CREATE DATABASE "{name}" TEMPLATE "{conninfo_to_dict(self._dsn)["dbname"]}"'.encode()
            )
        self._copy = make_conninfo(self._dsn, dbname=name)
        self._source = source_of(self._copy, timing=IMPATIENT)
        self._lake = self._folder / f"lake-{number}"
        guard = SourceAndLake(self._admin, self._lake / "bronze/changes", case, {})
        with guarded(guard):
            running = Running(self._source, str(self._lake), bronze=_SETTINGS, snapshot=_COPIES)
            with running:
                execute(self._source, *_LIFE)
                wait_for(lambda: running.error is not None or self._copied(running))
        return Outcome(guard, running.error)

    def check(self, outcome: Outcome, case: Case) -> None:
        """Continue without faults to the end of the log; then compare bronze with the source.

        No file, slot or open error of the interrupted reader may remain.
        """
        if outcome.guard.killed:
            # None: it was about to end, and its last words were what the kill met.
            assert outcome.error is None or isinstance(outcome.error, Killed), f"{case}: {outcome.error!r}"
        else:
            assert outcome.error is None, f"{case}: the fault did not heal: {outcome.error!r}"
        self._check(outcome)

    def _check(self, outcome: Outcome) -> None:
        assert outcome.guard.confirmed_too_far == []
        guard = SourceAndLake(self._admin, self._lake / "bronze/changes", None, {})
        lake = str(self._lake)
        with guarded(guard):
            read_all(self._source, lake, bronze=_SETTINGS, snapshot=_COPIES)
        assert guard.confirmed_too_far == []
        assert_each_change_once(bronze_rows(lake))
        assert_bronze_equals_source(self._source, lake, "public.items", "public.others", "public.late")
        assert ControlTables(Lake(lake)).open_errors() == []
        assert_every_file_is_named(lake)
        assert confirmed(self._source) <= guard.durable
        drop_database(self._admin, self._copy)
        shutil.rmtree(lake)

    def _copied(self, running: Running) -> bool:
        """Check whether the added table has its copy."""
        counters = running.reader.progress.read()
        copied = any(
            "late" in str(name) and progress["done"] for name, progress in counters["snapshots"].items()
        )
        return copied and counters["phase"] == "streaming"
