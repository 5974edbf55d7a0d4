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


def test_a_table_with_a_gap_is_not_whole_until_a_snapshot_behind_it_lies_in_the_window(
    changes: Table,
) -> None:
    assert is_whole(changes, ITEMS, Lsn(300))
    commit_marks(changes, gap_marks([ITEMS], Lsn(200)))
    assert needs_snapshot(changes, ITEMS)
    assert not is_whole(changes, ITEMS, Lsn(300)), "however far silver is: it may have passed 200 meanwhile"
    assert is_whole(changes, OTHERS, Lsn(300))
    take(changes, 250)
    assert not needs_snapshot(changes, ITEMS)
    assert not is_whole(changes, ITEMS, Lsn(249)), "the snapshot is not in the window yet"
    assert is_whole(changes, ITEMS, Lsn(250))


def test_a_table_that_is_taken_once_more_stays_whole_before_the_newest_snapshot(changes: Table) -> None:
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


def test_a_snapshot_from_before_healing_was_marked_heals_as_well(changes: Table) -> None:
    commit_marks(changes, gap_marks([ITEMS], Lsn(200)))
    commit_marks(changes, [Transaction(snapshot_app(ITEMS), 250)])
    assert is_whole(changes, ITEMS, Lsn(250))
    assert not is_open(changes, ITEMS)


def test_a_snapshot_that_healed_a_gap_it_did_not_know_of_counts_when_the_table_is_taken_again(
    changes: Table,
) -> None:
    """The gap was set during the commit of the snapshot."""
    commit_marks(changes, gap_marks([ITEMS], Lsn(200)))
    commit_marks(changes, [Transaction(snapshot_app(ITEMS), 250)])
    take(changes, 400)
    assert is_whole(changes, ITEMS, Lsn(300)), "silver may be between the two"
    assert healed_at(changes, ITEMS) == Lsn(250)


def test_a_gap_that_is_open_is_not_moved_on_by_being_seen_again(changes: Table) -> None:
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


def test_a_first_sight_is_no_gap_and_each_difference_is_one_gap(changes: Table) -> None:
    uri = changes.table_uri
    assert note(uri, {ITEMS: 7, OTHERS: 7}, [], Lsn(200)) == []
    assert note(uri, {ITEMS: 7, OTHERS: 7}, [], Lsn(210)) == []
    assert note(uri, {ITEMS: 8, OTHERS: 8}, [], Lsn(220)) == [ITEMS, OTHERS]
    assert note(uri, {ITEMS: 8, OTHERS: 8}, [], Lsn(230)) == []
    changes.update_incremental()
    assert not is_whole(changes, ITEMS, Lsn(300))


def test_a_first_copy_from_before_a_change_of_the_publication_is_not_enough(changes: Table) -> None:
    uri = changes.table_uri
    note(uri, {OTHERS: 7}, [], Lsn(200))
    assert note(uri, {OTHERS: 8}, [], Lsn(220)) == [OTHERS]
    take(changes, 210, OTHERS)
    assert needs_snapshot(changes, OTHERS)
    assert not is_whole(changes, OTHERS, Lsn(300))
    take(changes, 230, OTHERS)
    assert not needs_snapshot(changes, OTHERS)
    assert is_whole(changes, OTHERS, Lsn(230))


def test_a_table_that_is_asked_for_is_not_whole_until_its_snapshot_lies_in_the_window(
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


def test_a_request_that_was_settled_before_that_was_marked_is_settled(changes: Table) -> None:
    request_snapshots(changes.table_uri, [ITEMS], Lsn(200))
    changes.update_incremental()
    commit_marks(changes, [Transaction(snapshot_app(ITEMS), 250)])
    assert is_whole(changes, ITEMS, Lsn(250))


def test_a_table_that_is_left_out_has_its_gap_when_it_comes_back(changes: Table) -> None:
    uri = changes.table_uri
    note(uri, {ITEMS: 7}, [], Lsn(200))
    assert note(uri, {}, [ITEMS], Lsn(210)) == []
    changes.update_incremental()
    assert is_whole(changes, ITEMS, Lsn(300))
    assert is_left_out(changes, ITEMS)
    assert note(uri, {ITEMS: 7}, [], Lsn(220)) == [ITEMS]
    changes.update_incremental()
    assert not is_left_out(changes, ITEMS)


def test_an_open_gap_is_moved_on_by_a_change_behind_it_but_not_past_a_copy(changes: Table) -> None:
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


def seen(source: SourceSettings) -> dict[TableName, int]:
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
def test_what_was_done_to_a_publication_and_undone_changes_the_number(
    source: SourceSettings, acts: list[str]
) -> None:
    before = seen(source)
    execute(source, *(f"ALTER PUBLICATION smelt {act}" for act in acts))
    after = seen(source)
    assert before[ITEMS] != after[ITEMS] != NOT_CARRIED
    assert before[OTHERS] == after[OTHERS] == NOT_CARRIED


@pytest.mark.postgres
def test_a_publication_made_again_changes_every_number_and_one_more_table_none(
    source: SourceSettings,
) -> None:
    before = seen(source)
    execute(
        source, "ALTER PUBLICATION smelt ADD TABLE others", "VACUUM FREEZE pg_publication", "ANALYZE items"
    )
    between = seen(source)
    assert before[ITEMS] == between[ITEMS]
    assert between[OTHERS] not in (NOT_CARRIED, before[ITEMS])
    execute(source, "DROP PUBLICATION smelt", "CREATE PUBLICATION smelt FOR TABLE items, others")
    after = seen(source)
    assert not {before[ITEMS], between[OTHERS]} & set(after.values())


@pytest.mark.postgres
def test_tables_of_a_schema_and_of_all_tables_are_carried(source: SourceSettings) -> None:
    execute(source, "DROP PUBLICATION smelt", "CREATE PUBLICATION smelt FOR TABLES IN SCHEMA public")
    schema = seen(source)
    assert NOT_CARRIED not in schema.values()
    execute(
        source,
        "ALTER PUBLICATION smelt DROP TABLES IN SCHEMA public",
        "ALTER PUBLICATION smelt ADD TABLES IN SCHEMA public",
    )
    assert not set(schema.values()) & set(seen(source).values())
    execute(source, "DROP PUBLICATION smelt", "CREATE PUBLICATION smelt FOR ALL TABLES")
    assert NOT_CARRIED not in seen(source).values()


HISTORY = "1\t0/3000060\tno recovery target specified\n\n2\t0/5000108\tno recovery target specified\n"


@pytest.mark.parametrize(("timeline", "lsn"), [(1, Lsn(0x3000060)), (2, Lsn(0x5000108)), (3, None)])
def test_the_history_of_a_timeline_tells_where_it_left_its_ancestors(timeline: int, lsn: Lsn | None) -> None:
    assert parting(HISTORY, timeline) == lsn


def test_a_look_from_before_a_gap_does_not_move_it_back(changes: Table) -> None:
    """A snapshot between the two positions would heal the gap without the missing change."""
    uri = changes.table_uri
    assert note(uri, {ITEMS: 7}, [], Lsn(110)) == []
    open_gaps(uri, [ITEMS], Lsn(300), beyond=True)
    assert note(uri, {ITEMS: 8}, [], Lsn(200)) == [ITEMS]
    take(changes, 250)
    assert not is_whole(changes, ITEMS, Lsn(400))
    take(changes, 310)
    assert is_whole(changes, ITEMS, Lsn(400))


def test_a_gap_does_not_take_back_a_later_request(changes: Table) -> None:
    uri = changes.table_uri
    request_snapshots(uri, [ITEMS], Lsn(500))
    open_gaps(uri, [ITEMS], Lsn(300), beyond=True)
    take(changes, 400)
    assert needs_snapshot(changes, ITEMS)
