"""The reader removes old changes in parallel with a stream, whatever fails at each of the commits.

One database and one lake: each round adds changes and snapshots, moves the boundary to the oldest snapshot,
meets a fault, and continues without a fault.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltalake import DeltaTable
from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import LAST
from deltasmelt.bronze.store.gaps import is_whole, request_snapshots
from deltasmelt.bronze.store.marks import base_of, snapshot_of
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.bronze.store.retention import Need, files_of, keep_from, request_renewals, snapshot_needs
from tests.bronze.enumerated import Case, Killed, SourceAndLake
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    current_lsn,
    execute,
    read_all,
    session,
    source_of,
)
from tests.bronze.standard_history import IMPATIENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.lsn import Lsn
    from tests.bronze.enumerated import Kind

TABLES = [TableName("public", name) for name in ("items", "others")]
# From the last commit of a reader backwards: of the removal, of the property, and of the stream.
CASES: Final[tuple[tuple[int, Kind, bool], ...]] = (
    (2, "after", True),
    (1, "before", True),
    (1, "late", False),
    (0, "before", True),
    (0, "after", True),
    (0, "late", False),
)
# The reader waits two seconds for the size of a locked table.
HASTY = replace(IMPATIENT, group_locks=1.0, poll_answer=60.0)
SETTINGS = BronzeSettings(flush_interval=0.02, heartbeat=0.1)


class World:
    """A source with two tables, and a lake that keeps only what the newest snapshots need."""

    def __init__(
        self, dsn: str, lake_path: str, reached: Callable[[World, str], None] = lambda *_: None
    ) -> None:
        self.source: SourceSettings = source_of(dsn, timing=IMPATIENT)
        self.admin = make_conninfo(dsn, dbname="postgres")
        self.lake, self.uri = lake_path, f"{lake_path}/bronze/changes"
        self.round = 0
        execute(
            self.source,
            "CREATE TABLE items (id int PRIMARY KEY, note text)",
            "CREATE TABLE others (id int PRIMARY KEY, note text)",
            "INSERT INTO items SELECT i, 'n' FROM generate_series(1, 20) i",
        )
        self.read(lambda point: reached(self, point))

    def read(self, reached: Callable[[str], None] | None = None) -> None:
        read_all(self.source, self.lake, bronze=SETTINGS, reached=reached)

    def change(self) -> None:
        self.round += 1
        execute(
            self.source,
            f"INSERT INTO items VALUES ({100 + self.round}, 'new')",
            f"UPDATE items SET note = 'round {self.round}' WHERE id < 4",
            f"INSERT INTO others VALUES ({self.round}, 'o')",
        )

    def needs(self) -> list[Need]:
        return snapshot_needs(open_existing(self.uri), read_relations(Lake(self.lake)))

    def boundary(self) -> Lsn:
        """Take the tables again, and move the boundary to the oldest snapshot."""
        for need in self.needs():
            request_snapshots(self.uri, [TableName.parse(need.name)], need.first)
        self.read()
        self.change()
        DeltaTable(self.uri).alter.set_table_properties({"delta.appendOnly": "true"})
        kept = min(need.first for need in self.needs())
        keep_from(self.uri, kept)
        return kept

    def read_with(self, case: Case | None) -> SourceAndLake:
        guard = SourceAndLake(self.admin, Path(self.uri), case, {})
        with guarded(guard):
            try:
                self.read()
            except Killed:
                assert guard.killed
        assert guard.confirmed_too_far == []
        return guard

    def check(self, kept: Lsn) -> None:
        """Nothing needed is gone, nothing is there twice, and no whole file is older than the boundary."""
        assert_bronze_equals_source(self.source, self.lake, *map(str, TABLES))
        assert all(file.last is None or file.last >= kept for file in files_of(open_existing(self.uri)))
        places = [(row["table_name"], row["commit_lsn"], row["seq"]) for row in bronze_rows(self.lake)]
        assert len(places) == len(set(places))
        assert ControlTables(Lake(self.lake)).open_errors() == []


def test_removal_meets_faults_at_every_commit(database: str, lake_path: str) -> None:
    world = World(database, lake_path)
    world.change()
    kept = world.boundary()
    commits = world.read_with(None).seen[Effect.COMMIT]
    world.check(kept)
    first = kept
    for back, kind, kill in CASES:
        kept = world.boundary()
        world.read_with(Case(Effect.COMMIT, commits - back, kind, kill))
        world.change()
        world.read()
        world.check(kept)
    assert kept > first
    assert len(bronze_rows(lake_path)) < 150  # of about 400 rows


def test_first_copies_hold_and_repeat_past_mark(database: str, lake_path: str) -> None:
    """The shapes of running first copies hold the changes; a mark past a copy fails the copy alone."""
    held: list[set[str]] = []
    marks: list[Lsn] = []

    def reached(world: World, point: str) -> None:
        if point == "snapshot-block-written" and not held:
            assert [snapshot_of(open_existing(world.uri), table) for table in TABLES] == [None, None]
            held.append({need.name for need in world.needs()})
        if point == "snapshot-parts-written" and not marks:
            with session(world.source) as connection:
                marks.append(current_lsn(connection))
            keep_from(world.uri, marks[0])

    world = World(database, lake_path, reached)
    assert held == [set(map(str, TABLES))]
    assert all(need.first >= marks[0] for need in world.needs())
    world.check(marks[0])
    old_snapshots_are_renewed(world)


def old_snapshots_are_renewed(world: World) -> None:
    """Each session copies a healthy table; no request, no gap and no record of a storage follows."""
    before = {table: snapshot_of(open_existing(world.uri), table) for table in TABLES}
    request_renewals(world.uri, {table: lsn for table, lsn in before.items() if lsn is not None})
    locked_table_delays_no_job(world)
    assert {table: base_of(open_existing(world.uri), table) for table in TABLES} == before
    for renewed in (1, 2):
        world.change()
        world.read()
        changes = open_existing(world.uri)
        assert [base_of(changes, table) != before[table] for table in TABLES].count(True) == renewed
        assert all(is_whole(changes, table, LAST) for table in TABLES)
    assert {table: snapshot_of(changes, table) for table in TABLES} == before
    assert ControlTables(Lake(world.lake)).open_errors() == []
    assert_bronze_equals_source(world.source, world.lake, *map(str, TABLES))


def locked_table_delays_no_job(world: World) -> None:
    """A renewal waits briefly for a lock, or for the transaction that locks another table."""
    patient, world.source = world.source, world.source.with_timing(HASTY)
    for table in TABLES:
        with session(world.source) as holder, holder.transaction():
            holder.execute(f"LOCK TABLE {table.quoted} IN ACCESS EXCLUSIVE MODE")
            started = time.monotonic()
            world.read()
            assert time.monotonic() - started < 30
        assert ControlTables(Lake(world.lake)).open_errors() == []
    world.source = patient
