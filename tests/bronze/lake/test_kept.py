"""A cached table handle sees new commits, costs little, and detects a recreated table."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake import cached_table, objects
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.position import PositionWatch, read_position
from deltasmelt.bronze.store.relations import RelationsWatch, read_relations
from tests.bronze.store.test_sink import at, open_sink, rows, shape

if TYPE_CHECKING:
    from pathlib import Path

    from tests.object_store import ObjectStore

pytestmark = pytest.mark.process


def written(lake_path: str, *lsns: int) -> None:
    sink = open_sink(lake_path)
    for lsn in lsns:
        sink.write(rows(lsn, 1))
        sink.commit(at(lsn))


def test_what_others_commit_is_seen(lake_path: str) -> None:
    watch = PositionWatch(Lake(lake_path))
    assert watch.read() is None
    for lsn in (10, 20, 30):
        written(lake_path, lsn)
        assert watch.read() == read_position(Lake(lake_path))


@pytest.mark.parametrize("lsns", [(1,), (1, 2, 3), (1, 2, 3, 4, 5)])
def test_recreated_local_table_is_noticed(lake_path: str, tmp_path: Path, lsns: tuple[int, ...]) -> None:
    watch = PositionWatch(Lake(lake_path))
    written(lake_path, 10, 20, 30)
    assert watch.read() is not None
    shutil.move(f"{lake_path}/bronze", tmp_path / "aside")
    assert watch.read() is None
    written(lake_path, *lsns)
    assert watch.read() == read_position(Lake(lake_path))


def test_store_table_with_fewer_versions_is_noticed(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    root = place
    watch = PositionWatch(Lake(root))
    written(root, 10, 20, 30)
    assert watch.read() is not None
    objects.delete_below(root, "bronze")
    written(root, 1)
    monkeypatch.setattr(cached_table, "LISTED_AFTER", 0)
    assert watch.read() == read_position(Lake(root))


def test_poll_without_news_takes_single_request(store: ObjectStore, place: str) -> None:
    root = place
    written(root, *range(1, 12))
    open_sink(root).add_relations([shape(1, "id")])
    position, relations = PositionWatch(Lake(root)), RelationsWatch(Lake(root))
    first_read = position.read(), relations.read()
    store.forget()
    assert (position.read(), relations.read()) == first_read
    assert [(request.method, request.status) for request in store.requests()] == [("GET", 404)] * 2


def test_poll_with_new_commit_reads_marks_once(store: ObjectStore, place: str) -> None:
    root = place
    watch, sink = PositionWatch(Lake(root)), open_sink(root)
    sink.commit(at(10))
    assert watch.read() is not None
    sink.commit(at(20))
    store.forget()
    assert watch.read() is not None
    assert len(store.requests()) == 4, "the entry; then the handle lists, and reads it twice"
    kept_table = watch.changes
    sink.commit(at(30))
    store.forget()
    newest = kept_table.newest(within=60.0)
    assert (newest.version() if newest else None, store.requests()) == (2, [])
    assert watch.read() == read_position(Lake(root))


def test_next_poll_sees_new_commit_in_store(place: str) -> None:
    root = place
    watch, sink = PositionWatch(Lake(root)), open_sink(root)
    for lsn in (10, 20, 30):
        sink.commit(at(lsn))
        position = watch.read()
        assert position is not None
        assert (position.frontier, position.version) == (at(lsn).frontier, lsn // 10)


def test_shapes_are_those_that_are_read_anew(lake_path: str) -> None:
    watch, sink = RelationsWatch(Lake(lake_path)), open_sink(lake_path)
    assert watch.read() == []
    for lsn in (5, 3, 9):
        sink.add_relations([shape(lsn, "id")])
        assert watch.read() == read_relations(Lake(lake_path))
    assert [int(relation.from_lsn) for relation in watch.read()] == [3, 5, 9]
