"""Gap marks: the time in which silver must not rely on a table in bronze."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from deltalake import Transaction

from deltasmelt.bronze.drift.membership import NOT_CARRIED, fingerprints
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA
from deltasmelt.bronze.store.gaps import (
    gap_marks,
    healed_at,
    healing,
    is_left_out,
    is_open,
    is_whole,
    needs_snapshot,
    note,
    open_gaps,
    request_snapshots,
)
from deltasmelt.bronze.store.marks import gap_app, snapshot_app
from deltasmelt.bronze.stream.timeline import parting
from tests.bronze.replaying import execute, source_of

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.lake.table import Table

ITEMS, OTHERS = TableName("public", "items"), TableName("public", "others")


@pytest.fixture
def changes(tmp_path: Path) -> Table:
    """Create an empty bronze with a snapshot of `items` at 100."""
    table = delta.open_or_create(str(tmp_path / "changes"), CHANGES_SCHEMA, description="")
    commit_marks(table, [Transaction(snapshot_app(ITEMS), 100)])
    return table


def take(changes: Table, lsn: int, table: TableName = ITEMS) -> None:
    """Commit the marks of a snapshot, like the sink."""
    changes.update_incremental()
    marks = [Transaction(snapshot_app(table), lsn), *healing(changes, table, Lsn(lsn))]
    commit_marks(changes, marks)


def test_gapped_table_is_whole_after_snapshot_in_window(
    changes: Table,
) -> None:
    """The snapshot must lie behind the gap and inside silver's window."""
    assert is_whole(changes, ITEMS, Lsn(300))
    commit_marks(changes, gap_marks([ITEMS], Lsn(200)))
    assert needs_snapshot(changes, ITEMS)
    assert not is_whole(changes, ITEMS, Lsn(300)), "however far silver is: it may have passed 200 meanwhile"
    assert is_whole(changes, OTHERS, Lsn(300))
    take(changes, 250)
    assert not needs_snapshot(changes, ITEMS)
    assert not is_whole(changes, ITEMS, Lsn(249)), "the snapshot is not in the window yet"
    assert is_whole(changes, ITEMS, Lsn(250))


def test_table_copied_again_stays_whole_before_newest_snapshot(changes: Table) -> None:
    commit_marks(changes, gap_marks([ITEMS], Lsn(200)))
    take(changes, 250)
    take(changes, 400)
    assert is_whole(changes, ITEMS, Lsn(300))
    commit_marks(changes, gap_marks([ITEMS], Lsn(500)))
    assert not is_whole(changes, ITEMS, Lsn(600))
    take(changes, 500)
    assert not is_whole(changes, ITEMS, Lsn(600)), "a snapshot at the gap may lack what was committed there"
    take(changes, 510)
    assert is_whole(changes, ITEMS, Lsn(600))


def test_snapshot_without_healing_mark_heals_too(changes: Table) -> None:
    commit_marks(changes, gap_marks([ITEMS], Lsn(200)))
    commit_marks(changes, [Transaction(snapshot_app(ITEMS), 250)])
    assert is_whole(changes, ITEMS, Lsn(250))
    assert not is_open(changes, ITEMS)


def test_snapshot_healing_unknown_gap_counts_on_next_request(
    changes: Table,
) -> None:
    """The gap was set during the commit of the snapshot."""
    commit_marks(changes, gap_marks([ITEMS], Lsn(200)))
    commit_marks(changes, [Transaction(snapshot_app(ITEMS), 250)])
    take(changes, 400)
    assert is_whole(changes, ITEMS, Lsn(300)), "silver may be between the two"
    assert healed_at(changes, ITEMS) == Lsn(250)


def test_open_gap_keeps_lsn_on_repeated_sight(changes: Table) -> None:
    uri = changes.table_uri
    open_gaps(uri, [ITEMS], Lsn(200))
    changes.update_incremental()
    version = changes.version()
    open_gaps(uri, [ITEMS], Lsn(300))
    changes.update_incremental()
    assert (changes.version(), is_open(changes, ITEMS)) == (version, True)
    take(changes, 210)
    open_gaps(uri, [ITEMS], Lsn(300))
    changes.update_incremental()
    assert (needs_snapshot(changes, ITEMS), is_open(changes, ITEMS)) == (True, True)


def test_first_sight_opens_nothing_and_difference_opens_gap(changes: Table) -> None:
    uri = changes.table_uri
    assert note(uri, {ITEMS: 7, OTHERS: 7}, [], Lsn(200)) == []
    assert note(uri, {ITEMS: 7, OTHERS: 7}, [], Lsn(210)) == []
    assert note(uri, {ITEMS: 8, OTHERS: 8}, [], Lsn(220)) == [ITEMS, OTHERS]
    assert note(uri, {ITEMS: 8, OTHERS: 8}, [], Lsn(230)) == []
    changes.update_incremental()
    assert not is_whole(changes, ITEMS, Lsn(300))


def test_first_copy_before_publication_change_is_insufficient(changes: Table) -> None:
    uri = changes.table_uri
    note(uri, {OTHERS: 7}, [], Lsn(200))
    assert note(uri, {OTHERS: 8}, [], Lsn(220)) == [OTHERS]
    take(changes, 210, OTHERS)
    assert needs_snapshot(changes, OTHERS)
    assert not is_whole(changes, OTHERS, Lsn(300))
    take(changes, 230, OTHERS)
    assert not needs_snapshot(changes, OTHERS)
    assert is_whole(changes, OTHERS, Lsn(230))


def test_requested_table_is_whole_once_window_holds_snapshot(
    changes: Table,
) -> None:
    request_snapshots(changes.table_uri, [ITEMS], Lsn(200))
    changes.update_incremental()
    assert not is_whole(changes, ITEMS, Lsn(300)), "else silver is past the snapshot before it comes"
    take(changes, 200)
    assert not is_whole(changes, ITEMS, Lsn(300)), "a snapshot at the mark may lack what was committed there"
    take(changes, 250)
    assert not is_whole(changes, ITEMS, Lsn(249))
    assert is_whole(changes, ITEMS, Lsn(250))
    take(changes, 400)
    assert is_whole(changes, ITEMS, Lsn(300)), "settled long ago"
    assert healed_at(changes, ITEMS) is None, "nothing was missing: a history keeps what came before"


def test_request_settled_without_settling_mark_is_settled(changes: Table) -> None:
    """An older release took the snapshot but recorded no mark for the settled request."""
    request_snapshots(changes.table_uri, [ITEMS], Lsn(200))
    changes.update_incremental()
    commit_marks(changes, [Transaction(snapshot_app(ITEMS), 250)])
    assert is_whole(changes, ITEMS, Lsn(250))


def test_omitted_table_gets_gap_on_return(changes: Table) -> None:
    uri = changes.table_uri
    note(uri, {ITEMS: 7}, [], Lsn(200))
    assert note(uri, {}, [ITEMS], Lsn(210)) == []
    changes.update_incremental()
    assert is_whole(changes, ITEMS, Lsn(300))
    assert is_left_out(changes, ITEMS)
    assert note(uri, {ITEMS: 7}, [], Lsn(220)) == [ITEMS]
    changes.update_incremental()
    assert not is_left_out(changes, ITEMS)


def test_later_change_moves_gap_but_not_past_copy(changes: Table) -> None:
    uri, snapshot_lsn = changes.table_uri, 100
    open_gaps(uri, [ITEMS], Lsn(90), beyond=True)
    changes.update_incremental()
    assert is_whole(changes, ITEMS, Lsn(300)), f"the copy at {snapshot_lsn} has the change"
    open_gaps(uri, [ITEMS], Lsn(200))
    open_gaps(uri, [ITEMS], Lsn(250), beyond=True)
    open_gaps(uri, [ITEMS], Lsn(240), beyond=True)
    changes.update_incremental()
    assert changes.transaction_version(gap_app(ITEMS)) == 250


@pytest.fixture
def source(database: str) -> SourceSettings:
    source = source_of(database)
    execute(
        source,
        "CREATE TABLE items (id int PRIMARY KEY)",
        "CREATE TABLE others (id int PRIMARY KEY)",
        "CREATE PUBLICATION smelt FOR TABLE items",
    )
    return source


def gaps_of(source: SourceSettings) -> dict[TableName, int]:
    with connect(source) as connection:
        return fingerprints(connection, source.publication, [ITEMS, OTHERS])


@pytest.mark.postgres
@pytest.mark.parametrize(
    "acts",
    [
        ["DROP TABLE items", "ADD TABLE items"],
        ["SET (publish = 'insert')", "SET (publish = 'insert, update, delete, truncate')"],
        ["SET TABLE items WHERE (id > 1)", "SET TABLE items"],
        ["SET (publish_via_partition_root = true)"],
    ],
)
def test_undone_publication_change_still_changes_number(source: SourceSettings, acts: list[str]) -> None:
    before = gaps_of(source)
    execute(source, *(f"ALTER PUBLICATION smelt {act}" for act in acts))
    after = gaps_of(source)
    assert before[ITEMS] != after[ITEMS] != NOT_CARRIED
    assert before[OTHERS] == after[OTHERS] == NOT_CARRIED


@pytest.mark.postgres
def test_recreated_publication_changes_every_number(
    source: SourceSettings,
) -> None:
    """Adding a table changes no number of the remaining tables."""
    before = gaps_of(source)
    execute(
        source, "ALTER PUBLICATION smelt ADD TABLE others", "VACUUM FREEZE pg_publication", "ANALYZE items"
    )
    between = gaps_of(source)
    assert before[ITEMS] == between[ITEMS]
    assert between[OTHERS] not in (NOT_CARRIED, before[ITEMS])
    execute(source, "DROP PUBLICATION smelt", "CREATE PUBLICATION smelt FOR TABLE items, others")
    after = gaps_of(source)
    assert not {before[ITEMS], between[OTHERS]} & set(after.values())


@pytest.mark.postgres
def test_tables_published_by_schema_or_all_are_carried(source: SourceSettings) -> None:
    execute(source, "DROP PUBLICATION smelt", "CREATE PUBLICATION smelt FOR TABLES IN SCHEMA public")
    schema = gaps_of(source)
    assert NOT_CARRIED not in schema.values()
    execute(
        source,
        "ALTER PUBLICATION smelt DROP TABLES IN SCHEMA public",
        "ALTER PUBLICATION smelt ADD TABLES IN SCHEMA public",
    )
    assert not set(schema.values()) & set(gaps_of(source).values())
    execute(source, "DROP PUBLICATION smelt", "CREATE PUBLICATION smelt FOR ALL TABLES")
    assert NOT_CARRIED not in gaps_of(source).values()


HISTORY = "1\t0/3000060\tno recovery target specified\n\n2\t0/5000108\tno recovery target specified\n"


@pytest.mark.parametrize(("timeline", "lsn"), [(1, Lsn(0x3000060)), (2, Lsn(0x5000108)), (3, None)])
def test_timeline_history_names_parting_from_ancestors(timeline: int, lsn: Lsn | None) -> None:
    assert parting(HISTORY, timeline) == lsn


def test_older_poll_does_not_move_gap_back(changes: Table) -> None:
    """A snapshot between the two positions would heal the gap without the missing change."""
    uri = changes.table_uri
    assert note(uri, {ITEMS: 7}, [], Lsn(110)) == []
    open_gaps(uri, [ITEMS], Lsn(300), beyond=True)
    assert note(uri, {ITEMS: 8}, [], Lsn(200)) == [ITEMS]
    take(changes, 250)
    assert not is_whole(changes, ITEMS, Lsn(400))
    take(changes, 310)
    assert is_whole(changes, ITEMS, Lsn(400))


def test_gap_does_not_withdraw_later_request(changes: Table) -> None:
    uri = changes.table_uri
    request_snapshots(uri, [ITEMS], Lsn(500))
    open_gaps(uri, [ITEMS], Lsn(300), beyond=True)
    take(changes, 400)
    assert needs_snapshot(changes, ITEMS)
