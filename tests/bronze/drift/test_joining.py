"""Tables that join the publication of a server that forgets: the order of session and copy."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.checks.server import forgetting_findings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.drift.joining import Joining, may_forget
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    execute,
    read_all,
    read_snapshot,
    session,
)
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

A, B = TableName("public", "a"), TableName("public", "b")


@pytest.mark.parametrize(
    ("version", "forgets"),
    [
        (140017, True), (140018, False), (150012, True), (150013, False), (160008, True), (160009, False),
        (170004, True), (170005, False), (180000, False), (190000, False),
    ],
)  # fmt: skip
def test_the_minor_version_says_whether_a_server_forgets(version: int, forgets: bool) -> None:  # noqa: FBT001
    assert may_forget(version) is forgets
    assert [finding.level for finding in forgetting_findings(version)] == ["warning"] * forgets


def test_joining_table_waits_for_transactions_then_later_session() -> None:
    """A joining table waits for older transactions, then for a session begun after their end."""
    joining = Joining()
    joining.session(Lsn(100))
    joining.record_poll({A: 7}, oldest_xid=50, next_xid=60, end=Lsn(200))
    assert (joining.may_copy(A), joining.start_position([A])) == (False, None), "transaction 50 still runs"
    joining.record_poll({A: 7}, oldest_xid=59, next_xid=80, end=Lsn(300))
    assert joining.start_position([A]) is None, "59 may have written it before it was published"
    joining.record_poll({A: 7}, oldest_xid=60, next_xid=90, end=Lsn(400))
    assert (joining.may_copy(A), joining.start_position([A])) == (False, 400)
    joining.session(Lsn(399))
    assert not joining.may_copy(A), "it may meet a transaction of that time once more"
    joining.session(Lsn(400))
    assert (joining.may_copy(A), joining.start_position([A])) == (True, None)
    joining.record_poll({A: 7}, oldest_xid=95, next_xid=99, end=Lsn(500))
    assert joining.may_copy(A), "the end of its time does not move on"


def test_rejoining_table_waits_alone() -> None:
    joining = Joining()
    joining.record_poll({A: 7, B: 8}, oldest_xid=60, next_xid=60, end=Lsn(100))
    joining.session(Lsn(150))
    assert (joining.may_copy(A), joining.may_copy(B)) == (True, True)
    joining.record_poll({A: 9, B: 8}, oldest_xid=70, next_xid=70, end=Lsn(200))
    assert (joining.may_copy(A), joining.may_copy(B), joining.start_position([A, B])) == (False, True, 200)
    joining.forget()
    assert joining.may_copy(A), "another server, which does not forget"


@pytest.mark.postgres
def test_stream_restarts_before_copy_of_joined_table(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test's server does not forget, so the test checks the order of session and copy."""
    monkeypatch.setattr("deltasmelt.bronze.reader.carried_tables.may_forget", lambda _: True)
    source = source.with_timing(Timing(catalog_poll=0.3))
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    points: list[str] = []
    with Running(source, lake_path, reached=points.append) as running:
        wait_for(lambda: running.error is not None or read_snapshot(Lake(lake_path), A) is not None)
        assert points.count("stream-starting") == 1, "its slot was made after the look"
        with session(source) as older:
            execute(source, "CREATE TABLE b (id int PRIMARY KEY)")
            older.execute("BEGIN")
            older.execute("INSERT INTO b VALUES (1)")
            wait_message = f"copying public.b waits for open transactions: pid {older.info.backend_pid} ("
            wait_for(lambda: wait_message in str(running.reader.progress.read()["copies_wait"]))
            execute(source, "INSERT INTO b VALUES (2)", "INSERT INTO a VALUES (2)")
            wait_for(lambda: any(row["new"] == ["2"] for row in bronze_rows(lake_path)))
            assert points.count("snapshot-exported") == 1
            assert points.count("stream-starting") == 1
            older.execute("INSERT INTO b VALUES (3)")
            older.execute("COMMIT")
        wait_for(lambda: running.error is not None or read_snapshot(Lake(lake_path), B) is not None)
        assert [point for point in points if point in ("stream-starting", "snapshot-exported")] == [
            "stream-starting",
            "snapshot-exported",
            "stream-starting",
            "snapshot-exported",
        ]
        execute(source, "INSERT INTO b VALUES (4)")
    assert running.error is None
    execute(source, "CREATE TABLE c (id int PRIMARY KEY)", "INSERT INTO c VALUES (1)")
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.a", "public.b", "public.c")


def test_table_out_of_the_publication_is_forgotten() -> None:
    joining = Joining()
    joining.record_poll({A: 1, B: 1}, 5, 5, Lsn(100))
    joining.record_poll({B: 1}, 6, 6, Lsn(200))
    assert set(joining._members) == {B}
    joining.record_poll({A: 1, B: 1}, 7, 9, Lsn(300))
    assert joining.held_up([A, B]) == [A], "a table that returns begins at step 1"
