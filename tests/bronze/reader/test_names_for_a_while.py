"""No change of a temporarily renamed table is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.sections import BronzeSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.gaps import is_open
from deltasmelt.bronze.store.marks import gap_app
from deltasmelt.bronze.store.position import read_position
from tests.bronze.replaying import assert_bronze_equals_source, execute, fetch, read_all, source_of
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

TABLES = ("moved", "excluded", "shadowed", "shadow", "hidden", "cover", "within", "down", "down_first")


@pytest.fixture
def source(database: str) -> SourceSettings:
    source = source_of(database, tables=["public.*"], exclude=["public.away_*"])
    execute(
        source,
        "CREATE SCHEMA other",
        *(f"CREATE TABLE {table} (id int PRIMARY KEY, n int)" for table in TABLES),
        *(f"INSERT INTO {table} VALUES (1, 1), (2, 1)" for table in TABLES),
    )
    return source


def gaps(lake_path: str) -> dict[str, bool]:
    """Return tables with a gap mark, and whether the gap is open."""
    changes = open_existing(f"{lake_path}/bronze/changes")
    names = [TableName("public", table) for table in TABLES]
    return {
        table.name: is_open(changes, table)
        for table in names
        if changes.transaction_version(gap_app(table)) is not None
    }


def test_changes_under_temporary_name_are_recovered(source: SourceSettings, lake_path: str) -> None:
    """Changes under a temporary table name reach bronze after the former name returns."""
    # Nobody looks at the catalog between two steps, unless the stream asks for it.
    source = source.with_timing(Timing(watch=3600.0, catalog_poll=3600.0))
    read_all(source, lake_path)
    assert gaps(lake_path) == {}
    execute(
        source,
        "ALTER TABLE down RENAME TO away_down",
        "UPDATE away_down SET n = 2 WHERE id = 1",
        "ALTER TABLE away_down RENAME TO down",
        "ALTER TABLE down_first RENAME TO away_down_first",
        "UPDATE away_down_first SET n = 2 WHERE id = 1",
    )
    with Running(source, lake_path, bronze=BronzeSettings(flush_interval=0.02, heartbeat=0.05)) as running:

        def apply(*statements: str) -> None:
            execute(source, *statements)
            end = Lsn.parse(fetch(source, "SELECT pg_current_wal_insert_lsn()::text"))

            def is_read() -> bool:
                position = read_position(Lake(lake_path))
                return running.error is not None or (position is not None and position.confirm >= end)

            wait_for(is_read)

        apply()
        apply(
            "ALTER TABLE moved SET SCHEMA other",
            "ALTER TABLE excluded RENAME TO away_excluded",
            "ALTER TABLE shadowed RENAME TO away_shadowed",
            "ALTER TABLE shadow RENAME TO shadowed",
            "ALTER TABLE hidden RENAME TO away_hidden",
            "ALTER TABLE cover RENAME TO hidden",
            "ALTER TABLE within RENAME TO within_too",
            "UPDATE other.moved SET n = 2 WHERE id = 1",
            "TRUNCATE away_excluded",
            "UPDATE away_shadowed SET n = 2 WHERE id = 1",
            "UPDATE shadowed SET n = 3 WHERE id = 1",
            "UPDATE hidden SET n = 3 WHERE id = 1",
            "DELETE FROM within_too WHERE id = 1",
        )
        open_gaps = gaps(lake_path)
        assert set(open_gaps) >= {"moved", "excluded", "shadowed", "hidden", "within", "down_first"}
        assert "down" not in open_gaps, "its name is known by now, so its changes came under it"
        apply(
            "ALTER TABLE other.moved SET SCHEMA public",
            "ALTER TABLE away_excluded RENAME TO excluded",
            "ALTER TABLE shadowed RENAME TO shadow",
            "ALTER TABLE away_shadowed RENAME TO shadowed",
            "ALTER TABLE hidden RENAME TO cover",
            "ALTER TABLE away_hidden RENAME TO hidden",
            "ALTER TABLE within_too RENAME TO within",
            "ALTER TABLE away_down_first RENAME TO down_first",
        )
        assert running.error is None
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, *(f"public.{table}" for table in TABLES))
    assert not any(gaps(lake_path).values())
