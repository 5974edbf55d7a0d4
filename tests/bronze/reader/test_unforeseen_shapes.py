"""An unforeseen shape of a table is an error of this table, and costs no change."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.catalog.select import _source_table
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.relation_versions import relation_version
from tests.bronze.replaying import assert_bronze_equals_source, execute, fetch, read_all
from tests.bronze.running import Running, confirmed
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.shapes import Relation


class Unforeseen:
    """A switch: while `broken`, each shape of one table with a column of this name fails."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.broken = True
        self.met = 0

    def __call__(self, announced: Any, from_lsn: Lsn, **versions: Any) -> Relation:
        if self.broken and any(column.name == self.name for column in announced.columns):
            self.met += 1
            raise KeyError("a shape of tomorrow")
        return relation_version(announced, from_lsn, **versions)


@pytest.fixture
def unforeseen(monkeypatch: pytest.MonkeyPatch) -> Unforeseen:
    shape = Unforeseen("odd")
    monkeypatch.setattr("deltasmelt.bronze.pgoutput.relation_versions.relation_version", shape)
    return shape


def make_tables(source: SourceSettings) -> None:
    execute(
        source,
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        "CREATE TABLE b (id int PRIMARY KEY, v text)",
        "INSERT INTO a VALUES (1, 'first')",
        "INSERT INTO b VALUES (1, 'first')",
    )


def test_unreadable_table_is_copied_later_and_others_continue(
    source: SourceSettings, lake_path: str, unforeseen: Unforeseen
) -> None:
    source = source.with_timing(Timing(catalog_poll=1.5))
    make_tables(source)
    read_all(source, lake_path)  # a copy under way would yield to ALTER TABLE, with an error of its own
    control = ControlTables(Lake(lake_path))
    with Running(source, lake_path) as running:
        execute(source, "ALTER TABLE b ADD COLUMN odd int", "UPDATE b SET odd = 2")
        wait_for(lambda: bool(control.open_errors()))
        (error,) = control.open_errors()
        assert (error.scope, error.name, error.code) == ("table", "public.b", "table-unreadable")
        assert "KeyError: 'a shape of tomorrow'" in error.message
        execute(source, "INSERT INTO a VALUES (2, 'goes on')", "INSERT INTO b VALUES (2, 'left out', 3)")
        assert_arrives(source)
        wait_for(lambda: not control.open_errors(), 60)  # it is tried again, and copied
        rows = iter(range(100, 10_000))

        def fails_again() -> bool:
            """Insert a row; return whether an error is open, caused by the new session's first change."""
            execute(source, f"INSERT INTO b VALUES ({next(rows)}, 'the same again', 6)")
            return bool(control.open_errors())

        wait_for(fails_again, 60)
        unforeseen.broken = False
        execute(source, "INSERT INTO b VALUES (3, 'while it waits', 4)")
        wait_for(lambda: not control.open_errors(), 60)
        execute(source, "INSERT INTO b VALUES (4, 'streams again', 5)", "DELETE FROM b WHERE id = 1")
        assert_arrives(source)
    assert running.error is None
    read_all(source, lake_path)  # where the copy was not done yet
    assert_bronze_equals_source(source, lake_path, "public.a", "public.b")


def test_ending_run_records_gap_healed_by_next_start(
    source: SourceSettings, lake_path: str, unforeseen: Unforeseen
) -> None:
    """The run ends with an error recorded, and the next start repairs the table."""
    make_tables(source)
    read_all(source, lake_path)
    execute(source, "ALTER TABLE b ADD COLUMN odd int", "UPDATE b SET odd = 2")
    control = ControlTables(Lake(lake_path))
    read_all(source, lake_path)
    assert [error.code for error in control.open_errors()] == ["table-unreadable"]
    execute(source, "INSERT INTO b VALUES (2, 'left out', 3)")
    unforeseen.broken = False
    read_all(source, lake_path)
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.a", "public.b")


def assert_arrives(source: SourceSettings) -> None:
    """Assert that the stream reaches the newest row."""
    end = Lsn.parse(fetch(source, "SELECT pg_current_wal_lsn()::text"))
    wait_for(lambda: confirmed(source) >= end, 30)


def test_unforeseen_catalog_description_affects_single_table(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_tables(source)
    read_all(source, lake_path)
    control = ControlTables(Lake(lake_path))

    def fails(row: Any, *more: Any) -> SourceTable:
        if row.table.name == "b":
            raise KeyError("a type of tomorrow")
        return _source_table(row, *more)

    with monkeypatch.context() as broken:
        broken.setattr("deltasmelt.bronze.catalog.select._source_table", fails)
        execute(
            source,
            "ALTER TABLE b ADD COLUMN more int",
            "INSERT INTO b VALUES (2, 'left out', 3)",
            "INSERT INTO a VALUES (2, 'goes on')",
        )
        read_all(source, lake_path)
    (error,) = control.open_errors()
    assert (error.name, error.code) == ("public.b", "table-unreadable")
    assert "KeyError: 'a type of tomorrow'" in error.message
    assert_bronze_equals_source(source, lake_path, "public.a")
    read_all(source, lake_path)
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.a", "public.b")


def test_a_busy_table_comes_back(
    source: SourceSettings,
    lake_path: str,
    unforeseen: Unforeseen,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The old session still leaves out the table's changes while the new session starts."""
    source = source.with_timing(Timing(catalog_poll=1.5))
    make_tables(source)
    read_all(source, lake_path)
    control = ControlTables(Lake(lake_path))
    ended = threading.Event()

    def keep_busy() -> None:
        number = 10
        while not ended.wait(0.05):
            execute(source, f"INSERT INTO b VALUES ({number}, 'busy', 1)")
            number += 1

    with Running(source, lake_path) as running:
        execute(source, "ALTER TABLE b ADD COLUMN odd int", "UPDATE b SET odd = 2")
        wait_for(lambda: bool(control.open_errors()))
        busy = threading.Thread(target=keep_busy)
        busy.start()
        try:
            unforeseen.broken = False
            wait_for(lambda: not control.open_errors(), 60)
            came = confirmed(source)
            wait_for(lambda: confirmed(source) > came + 2000, 30)
        finally:
            ended.set()
            busy.join()
    assert sum("are left out from" in message for message in caplog.messages) == 1
    assert running.error is None
    read_all(source, lake_path)
    assert control.open_errors() == []
    assert_bronze_equals_source(source, lake_path, "public.a", "public.b")
