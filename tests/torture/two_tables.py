"""Two small tables shared by the fault tests, and the check of their final rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.bronze.replaying import assert_bronze_equals_source, assert_each_change_once, bronze_rows

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

SCHEMA = (
    "CREATE TABLE items (id int PRIMARY KEY, note text)",
    "CREATE TABLE others (id int PRIMARY KEY, note text)",
    "INSERT INTO items VALUES (1, 'one'), (2, 'two')",
    "INSERT INTO others VALUES (1, 'one')",
)


def assert_whole(source: SourceSettings, lake_path: str) -> None:
    """Check that bronze equals the source: no change is missing or duplicated."""
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items", "public.others")
