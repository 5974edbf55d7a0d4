"""Altered, emptied or dropped publications: the reader detects unpublished changes and copies again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from tests.bronze.replaying import (
    bronze_rows,
    execute,
    read_all,
    source_of,
)
from tests.bronze.running import Running
from tests.patience import wait_for
from tests.torture.two_tables import SCHEMA, assert_whole

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres
LONG = pytest.mark.torture

UNSEEN = (
    "INSERT INTO items VALUES (3, 'unseen')",
    "UPDATE items SET note = 'x'",
    "DELETE FROM items WHERE id = 1",
)

GAPS = {
    "removed and added again": (
        "ALTER PUBLICATION smelt DROP TABLE items",
        *UNSEEN,
        "ALTER PUBLICATION smelt ADD TABLE ONLY items",
    ),
    "removed": ("ALTER PUBLICATION smelt DROP TABLE items", *UNSEEN),
    "operations narrowed and widened": (
        "ALTER PUBLICATION smelt SET (publish = 'insert')",
        *UNSEEN,
        "ALTER PUBLICATION smelt SET (publish = 'insert, update, delete, truncate')",
    ),
    "operations narrowed": ("ALTER PUBLICATION smelt SET (publish = 'insert')", *UNSEEN),
    "a row filter that came and went": (
        "ALTER PUBLICATION smelt SET TABLE ONLY items WHERE (id > 100), ONLY others",
        "INSERT INTO items VALUES (3, 'unseen')",
        "ALTER PUBLICATION smelt SET TABLE ONLY items, ONLY others",
    ),
    "emptied": (
        "ALTER PUBLICATION smelt DROP TABLE items, others",
        *UNSEEN,
        "INSERT INTO others VALUES (2, 'unseen')",
    ),
}
QUICK = ("removed and added again",)


@pytest.fixture
def source(database: str) -> SourceSettings:
    return source_of(database, timing=Timing(catalog_poll=0.2))


def snapshots(lake_path: str, table: str) -> int:
    return sum(row["op"] == "snapshot_end" and row["table_name"] == table for row in bronze_rows(lake_path))


@pytest.mark.parametrize(
    "gap",
    [gap if gap in QUICK else pytest.param(gap, marks=LONG) for gap in GAPS],
)
def test_publication_gap_without_reader_causes_new_copy(
    source: SourceSettings, lake_path: str, gap: str
) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    execute(source, *GAPS[gap])
    read_all(source, lake_path)
    assert snapshots(lake_path, "items") == 2
    assert gap not in QUICK or snapshots(lake_path, "others") == 1, "a gap of one table alone"
    assert_whole(source, lake_path)
    execute(source, "INSERT INTO items VALUES (9, 'after')")
    read_all(source, lake_path)
    assert snapshots(lake_path, "items") == 2, "once is enough"
    assert_whole(source, lake_path)


@pytest.mark.parametrize(
    "gap",
    [
        "removed and added again",
        *(pytest.param(gap, marks=LONG) for gap in ("operations narrowed", "removed")),
    ],
)
def test_publication_gap_is_noticed_while_streaming(source: SourceSettings, lake_path: str, gap: str) -> None:
    execute(source, *SCHEMA)
    with Running(source, lake_path) as running:
        wait_for(lambda: snapshots(lake_path, "items") == 1 == snapshots(lake_path, "others"))
        execute(source, *GAPS[gap])
        wait_for(lambda: running.error is not None or snapshots(lake_path, "items") == 2)
        execute(source, "INSERT INTO items VALUES (9, 'after')")
    assert running.error is None
    read_all(source, lake_path)
    assert_whole(source, lake_path)


def test_table_added_to_publication_causes_no_other_copy(source: SourceSettings, lake_path: str) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    execute(source, "CREATE TABLE late (id int PRIMARY KEY)", "INSERT INTO late VALUES (1)")
    read_all(source, lake_path)
    assert (snapshots(lake_path, "items"), snapshots(lake_path, "late")) == (1, 1)


@LONG
def test_temporarily_excluded_table_is_copied_on_return(source: SourceSettings, lake_path: str) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    read_all(source.model_copy(update={"exclude": ["public.items"]}), lake_path)
    execute(source, *UNSEEN)
    read_all(source.model_copy(update={"exclude": ["public.items"]}), lake_path)
    read_all(source, lake_path)
    assert_whole(source, lake_path)


def test_temporarily_keyless_table_is_copied_by_running_reader(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, *SCHEMA)
    with Running(source, lake_path) as running:
        wait_for(lambda: snapshots(lake_path, "items") == 1 == snapshots(lake_path, "others"))
        control = ControlTables(Lake(lake_path))
        execute(source, "ALTER TABLE items REPLICA IDENTITY NOTHING")
        wait_for(lambda: "public.items" in {error.name for error in control.open_errors()})
        execute(source, "INSERT INTO items VALUES (3, 'left out')")
        execute(source, "ALTER TABLE items REPLICA IDENTITY DEFAULT", "INSERT INTO items VALUES (4, 'early')")
        wait_for(lambda: running.error is not None or snapshots(lake_path, "items") == 2)
        execute(source, "INSERT INTO items VALUES (5, 'after')")
    assert running.error is None
    assert control.open_errors() == []
    read_all(source, lake_path)
    assert_whole(source, lake_path)


def test_revoked_select_affects_table_and_changes_continue(source: SourceSettings, lake_path: str) -> None:
    role = source.slot
    execute(
        source,
        *SCHEMA,
        f"CREATE ROLE {role} LOGIN REPLICATION",
        f"GRANT CREATE ON DATABASE {source.slot.removeprefix('smelt_')} TO {role}",
        f"GRANT {role} TO CURRENT_USER",
        "CREATE PUBLICATION smelt FOR TABLE items, others WITH (publish_via_partition_root = true)",
        f"GRANT SELECT ON items, others TO {role}",
    )
    assert source.dsn is not None
    plain = source.model_copy(update={"user": role, "manage": True})
    try:
        with Running(plain, lake_path) as running:
            wait_for(lambda: snapshots(lake_path, "items") == 1 == snapshots(lake_path, "others"))
            control = ControlTables(Lake(lake_path))
            execute(source, f"REVOKE SELECT ON items FROM {role}", "INSERT INTO items VALUES (7, 'streamed')")
            wait_for(
                lambda: (
                    [(error.name, error.code) for error in control.open_errors()]
                    == [("public.items", "table-privilege")]
                )
            )
            execute(
                source, "INSERT INTO items VALUES (8, 'streamed')", "INSERT INTO others VALUES (8, 'too')"
            )
            wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] == 3)
            execute(source, f"GRANT SELECT ON items TO {role}")
            wait_for(lambda: control.open_errors() == [])
            assert running.error is None
        assert snapshots(lake_path, "items") == 1
        assert_whole(source, lake_path)
    finally:
        execute(source, f"DROP OWNED BY {role}")


def test_forbidden_publication_change_is_error_with_healing_sql(
    source: SourceSettings, lake_path: str
) -> None:
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    unmanaged = source.model_copy(update={"manage": False})
    execute(source, "ALTER PUBLICATION smelt SET (publish = 'insert')", *UNSEEN)
    with pytest.raises(DefiniteError, match=r"ALTER PUBLICATION .* SET \(publish = ") as caught:
        read_all(unmanaged, lake_path)
    assert caught.value.code == "publication-incomplete"
    execute(source, "ALTER PUBLICATION smelt SET (publish = 'insert, update, delete, truncate')")
    read_all(unmanaged, lake_path)
    assert snapshots(lake_path, "items") == 2
    assert_whole(source, lake_path)


def test_table_removed_from_foreign_publication_stops_alone(source: SourceSettings, lake_path: str) -> None:
    """The error carries the SQL."""
    execute(source, *SCHEMA)
    read_all(source, lake_path)
    unmanaged = source.model_copy(update={"manage": False})
    control = ControlTables(Lake(lake_path))
    with Running(unmanaged, lake_path) as running:
        execute(source, "ALTER PUBLICATION smelt DROP TABLE items", *UNSEEN)
        wait_for(lambda: running.error is not None or control.open_errors() != [])
        [error] = control.open_errors()
        assert (error.scope, error.name, error.code) == ("table", "public.items", "table-not-published")
        execute(source, "INSERT INTO others VALUES (2, 'goes on')")
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] == 1)
        execute(source, str(error.remedy).partition(": ")[2].partition(" or leave")[0])
        wait_for(lambda: running.error is not None or snapshots(lake_path, "items") == 2)
        wait_for(lambda: running.error is not None or control.open_errors() == [])
        execute(source, "INSERT INTO items VALUES (9, 'after')")
        assert running.error is None
    read_all(unmanaged, lake_path)
    assert snapshots(lake_path, "others") == 1
    assert_whole(source, lake_path)


def test_start_with_unpublished_table_carries_others(source: SourceSettings, lake_path: str) -> None:
    execute(
        source,
        *SCHEMA,
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE PUBLICATION smelt FOR TABLE others, parts",
        f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')",
    )
    unmanaged = source.model_copy(update={"manage": False})
    read_all(unmanaged, lake_path)
    errors = {(error.name, error.code) for error in ControlTables(Lake(lake_path)).open_errors()}
    assert errors == {
        ("public.items", "table-not-published"),
        ("public.parts", "publication-partition-root"),
    }
    assert snapshots(lake_path, "others") == 1
    execute(
        source,
        "ALTER PUBLICATION smelt ADD TABLE ONLY items",
        "ALTER PUBLICATION smelt SET (publish_via_partition_root = true)",
    )
    read_all(unmanaged, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert_whole(source, lake_path)
