"""The server's record of a slot's lake, and marks with the LSN of another server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.catalog.publication import is_made_by_us
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.setup.slot_mark import lakes_of_slots
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.gaps import (
    gap_of,
    move_back,
    needs_snapshot,
    open_gaps,
    request_snapshots,
    resnapshot_of,
)
from deltasmelt.bronze.store.marks import gap_app
from tests.bronze.replaying import bronze_rows, execute, fetch, read_all, source_of
from tests.bronze.store.test_sink import open_sink

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings

ITEMS = "CREATE TABLE items (id int PRIMARY KEY)"
COMMENT = "SELECT obj_description(oid, 'pg_publication') FROM pg_publication WHERE pubname = 'smelt'"
_ID = "0f1e2d3c-0000-4000-8000-123456789abc"


@pytest.fixture
def source(database: str) -> SourceSettings:
    settings = source_of(database)
    execute(settings, ITEMS, "INSERT INTO items VALUES (1)")
    return settings


def lake_id(lake_path: str) -> str:
    return str(delta.open_existing(f"{lake_path}/bronze/changes").metadata().id)


def refused(source: SourceSettings, folder: Path) -> str:
    """Return the message that refuses an empty lake, and check that nothing was created."""
    with pytest.raises(DefiniteError) as caught:
        read_all(source, str(folder))
    assert caught.value.code == "slot-of-another-lake"
    assert not folder.exists()
    return caught.value.message


@pytest.mark.parametrize(
    ("comment", "lakes", "made"),
    [
        (None, {}, False),
        ("orders for the warehouse", {}, False),
        (f"slot a of lake {_ID}", {}, False),
        ("made by deltasmelt", {}, True),
        ("made by deltasmelters", {}, False),
        (f"made by deltasmelt: slot a of lake {_ID}, slot b_2 of lake {_ID}", {"a": _ID, "b_2": _ID}, True),
        (f"read by deltasmelt: slot a of lake {_ID}", {"a": _ID}, False),
    ],
)
def test_the_comment_of_a_publication_names_lakes(
    comment: str | None, lakes: dict[str, str], *, made: bool
) -> None:
    assert (lakes_of_slots(comment), is_made_by_us(comment)) == (lakes, made)


@pytest.mark.postgres
def test_empty_lake_refuses_slot_of_populated_lake(
    source: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    read_all(source, lake_path)
    assert fetch(source, COMMENT) == (f"made by deltasmelt: slot {source.slot} of lake {lake_id(lake_path)}")
    assert "belongs to another lake" in refused(source, tmp_path / "empty")
    # An earlier release left no name: the server's count of what the slot has sent tells.
    execute(source, "COMMENT ON PUBLICATION smelt IS 'made by deltasmelt'", "INSERT INTO items VALUES (2)")
    read_all(source, lake_path)
    assert lake_id(lake_path) in fetch(source, COMMENT), "a lake of an earlier release is named"
    execute(source, "COMMENT ON PUBLICATION smelt IS 'orders'", "INSERT INTO items VALUES (3)")
    read_all(source, lake_path)
    assert fetch(source, COMMENT) == "orders", "a comment of somebody else stays"
    assert "transactions to a reader; this lake is empty" in refused(source, tmp_path / "empty")
    execute(source, f"SELECT pg_drop_replication_slot('{source.slot}')")
    read_all(source, str(tmp_path / "empty"))


@pytest.mark.postgres
def test_unmanaged_source_is_unchanged_and_refuses_empty_lake(
    source: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    """Without `manage` nothing is written, and an empty lake is still refused."""
    execute(
        source,
        "CREATE PUBLICATION smelt FOR TABLE items WITH (publish_via_partition_root = true)",
        f"SELECT pg_create_logical_replication_slot('{source.slot}', 'pgoutput')",
        "INSERT INTO items VALUES (2)",
    )
    unmanaged = source.model_copy(update={"manage": False})
    read_all(unmanaged, lake_path)
    read_all(unmanaged, lake_path)
    assert fetch(source, COMMENT) is None
    assert "transactions to a reader" in refused(unmanaged, tmp_path / "empty")


@pytest.mark.postgres
def test_mark_beyond_server_log_costs_single_snapshot(source: SourceSettings, lake_path: str) -> None:
    """A mark beyond the server's log costs a single snapshot, and the reader moves the mark back."""
    read_all(source, lake_path)
    uri, items = f"{lake_path}/bronze/changes", TableName("public", "items")
    for mark in (request_snapshots, open_gaps):
        before = len([row for row in bronze_rows(lake_path) if row["op"] == "snapshot_end"])
        mark(uri, [items], Lsn(1 << 60))
        assert needs_snapshot(delta.open_existing(uri), items)
        for _ in range(2):
            read_all(source, lake_path)
            assert not needs_snapshot(delta.open_existing(uri), items)
        after = len([row for row in bronze_rows(lake_path) if row["op"] == "snapshot_end"])
        assert after == before + 1


def test_a_request_that_came_meanwhile_is_left(lake_path: str) -> None:
    open_sink(lake_path)
    uri, items, second_table = (
        f"{lake_path}/bronze/changes",
        TableName("public", "items"),
        TableName("a", "b"),
    )
    request_snapshots(uri, [items, second_table], Lsn(500))
    positions = {items: Lsn(500), second_table: Lsn(500)}
    request_snapshots(uri, [second_table], Lsn(510))
    assert move_back(uri, positions, Lsn(100)) == [items]
    changes = delta.open_existing(uri)
    assert (resnapshot_of(changes, items), resnapshot_of(changes, second_table)) == (100, 510)
    # The first rules of a table open a gap without a request.
    commit_marks(changes, [Transaction(gap_app(items), 700)])
    assert move_back(uri, {items: Lsn(700)}, Lsn(650)) == [items]
    changes = delta.open_existing(uri)
    assert (resnapshot_of(changes, items), gap_of(changes, items)) == (100, 650)
