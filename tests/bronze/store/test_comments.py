"""Comments apart from shapes: recorded if new, and announced by a mark, wherever the reader is killed."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store import catalog_log
from deltasmelt.bronze.store.comments import CommentLog, CommentsWatch, comments_mark
from tests.bronze.store.test_sink import open_sink

if TYPE_CHECKING:
    import pytest

    from deltasmelt.bronze.lake.table import Table

T, OTHER = TableName("public", "t"), TableName("public", "other")


def changes(lake_path: str) -> Table:
    return open_existing(f"{lake_path}/bronze/changes")


def test_source_without_comments_has_no_table_or_commit(lake_path: str) -> None:
    sink = open_sink(lake_path)
    before = changes(lake_path).version()
    sink.tables.record_comments({T: Comments(1), OTHER: Comments(2)})
    assert not Path(lake_path, "control", "comments").exists()
    assert changes(lake_path).version() == before
    assert CommentsWatch(Lake(lake_path)).read(changes(lake_path)) == {}


def test_new_comments_alone_are_recorded_and_silver_follows(lake_path: str) -> None:
    """Silver reads the new comments once the mark has moved."""
    sink, watch = open_sink(lake_path), CommentsWatch(Lake(lake_path))
    first, plain = Comments(1, "it's\n😀", {2: "x" * 2000}), Comments(2)
    sink.tables.record_comments({T: first, OTHER: plain})
    assert watch.read(changes(lake_path)) == {1: first}
    versions = changes(lake_path).version(), DeltaTable(f"{lake_path}/control/comments").version()
    for each_sink in (sink, open_sink(lake_path)):
        each_sink.tables.record_comments({T: first, OTHER: plain})
    assert versions == (
        changes(lake_path).version(),
        DeltaTable(f"{lake_path}/control/comments").version(),
    )

    # Dropped and recreated with another comment, which then goes: what the first one had is known as former.
    sink.tables.record_comments({T: Comments(3, "anew")})
    sink.tables.record_comments({T: Comments(3)})
    comments = watch.read(changes(lake_path))
    assert comments == {1: first, 3: Comments(3)}
    assert comments[3].former == {"it's\n😀", "anew"}
    assert not comments[3]


def test_missing_mark_is_set_by_next_poll(lake_path: str) -> None:
    """The former reader died between the comments and the mark."""
    open_sink(lake_path)
    died = CommentLog(f"{lake_path}/control/comments")
    died.note({T: Comments(1, "orders")})
    watch = CommentsWatch(Lake(lake_path))
    assert watch.read(changes(lake_path)) == {}
    open_sink(lake_path).tables.record_comments({T: Comments(1, "orders")})
    assert comments_mark(changes(lake_path)) == died.mark
    assert watch.read(changes(lake_path)) == {1: Comments(1, "orders")}


def test_clock_moved_back_hides_no_newer_comment(lake_path: str) -> None:
    log = CommentLog(f"{lake_path}/control/comments")
    log.note({T: Comments(1, "orders")})
    ahead = datetime.now(UTC) + timedelta(days=1)
    log.recorded_at = ahead
    log.note({T: Comments(1, "all orders")})
    log.note({T: Comments(1, "every order")})
    second_log = CommentLog(f"{lake_path}/control/comments")
    assert second_log.known(T) == Comments(1, "every order")
    assert second_log.recorded_at == ahead + timedelta(microseconds=2)


def test_unreadable_comments_stop_nothing_and_are_read_later(lake_path: str) -> None:
    open_sink(lake_path).tables.record_comments({T: Comments(1, "orders")})
    log, away = Path(lake_path, "control", "comments", "_delta_log"), Path(lake_path, "away")
    entry = log / f"{1:020}.json"
    entry.rename(away)
    entry.write_text('{"add": 1}')  # JSON: nobody takes it for a torn entry
    watch = CommentsWatch(Lake(lake_path))
    assert watch.read(changes(lake_path)) == {}
    away.rename(entry)
    assert watch.read(changes(lake_path)) == {1: Comments(1, "orders")}


def test_comment_lost_with_table_name_is_recorded(lake_path: str) -> None:
    sink, watch = open_sink(lake_path), CommentsWatch(Lake(lake_path))
    sink.tables.record_comments({T: Comments(1, "orders")})
    for each_sink in (sink, sink, open_sink(lake_path)):
        each_sink.tables.record_comments({OTHER: Comments(1)})
    comments = watch.read(changes(lake_path))[1]
    assert (comments, set(comments.former)) == (Comments(1), {"orders"})
    assert DeltaTable(f"{lake_path}/control/comments").version() == 2


def test_unwritable_comments_stop_no_reader_and_follow_later(
    lake_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_sink(lake_path).tables.record_comments({T: Comments(1, "orders")})
    log, away = Path(lake_path, "control", "comments", "_delta_log"), Path(lake_path, "away")
    entry = log / f"{0:020}.json"
    entry.rename(away)
    entry.write_text("{}\n")
    sink = open_sink(lake_path)
    caplog.clear()
    for _ in range(2):
        sink.tables.record_comments({T: Comments(1, "all orders")})
    assert [record.levelname for record in caplog.records if "cannot be stored" in record.message] == [
        "WARNING"
    ]
    away.rename(entry)
    sink.tables.record_comments({T: Comments(1, "all orders")})
    assert CommentsWatch(Lake(lake_path)).read(changes(lake_path)) == {1: Comments(1, "all orders")}


def test_malformed_comment_counts_as_unreadable(lake_path: str) -> None:
    open_sink(lake_path).tables.record_comments({T: Comments(1, "orders")})
    row = {"table_schema": "public", "table_name": "t", "recorded_at": datetime.now(UTC), "comments": "{}"}
    write_deltalake(f"{lake_path}/control/comments", pa.Table.from_pylist([row]), mode="append")
    assert CommentsWatch(Lake(lake_path)).read(changes(lake_path)) == {}
    open_sink(lake_path).tables.record_comments({T: Comments(1, "all orders")})


def test_former_comments_and_gone_tables_end(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that writes a new comment each night, and a table that it drops."""
    monkeypatch.setattr(catalog_log, "COMPACT_ABOVE", 20)
    log, table = CommentLog(f"{lake_path}/control/comments"), f"{lake_path}/control/comments"
    log.note({OTHER: Comments(2, "of a table that goes")})
    for night in range(150):
        log.note({T: Comments(1, f"night {night}")})
        if night == 3:
            log.forget([OTHER])
    stored = open_existing(table)
    rows = pa.concat_tables([stored.read_file(path) for path in stored.paths()])
    assert 100 <= rows.num_rows <= 120
    assert set(rows["table_name"].to_pylist()) == {"t"}
    newest = CommentLog(table)
    assert newest.known(T) == Comments(1, "night 149")
    assert newest.known(OTHER) is None
