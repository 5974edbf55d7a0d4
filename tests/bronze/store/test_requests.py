"""The cost of bronze in an object store: the server counts requests."""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.comments import CommentsWatch
from deltasmelt.bronze.store.position import read_position
from tests.bronze.store.test_sink import at, open_sink, rows

if TYPE_CHECKING:
    from tests.object_store import ObjectStore, Request

pytestmark = pytest.mark.process

COMMITS = 60
USUAL = {"PUT part": 1, "HEAD entry": 1, "PUT entry": 1, "LIST log": 1, "GET entry": 2}
"""Requests of a commit: check the entry before, put the entry, and refresh the handle, like `deltalake`."""


def operation(request: Request) -> str:
    if "list-type" in request.query:
        return "LIST log"
    if request.path.endswith(".json"):
        return f"{request.method} entry"
    checkpoint = re.search(r"\.checkpoint\.|_last_checkpoint", request.path)
    return f"{request.method} {'checkpoint' if checkpoint else 'part'}"


def test_usual_commit_takes_six_requests_at_any_version(store: ObjectStore, place: str) -> None:
    sink = open_sink(place)
    sink.claim()
    counts: list[Counter[str]] = []
    for number in range(1, COMMITS + 1):
        store.forget()
        sink.write(rows(number, 3))
        sink.commit(at(number))
        counts.append(Counter(map(operation, store.requests())))
    bursts = [
        count for count in counts if "PUT checkpoint" in count or count["PUT part"] > 1 or count["GET part"]
    ]
    usual = [count for count in counts if count not in bursts]
    assert [count for count in usual if count != USUAL] == []
    assert len(bursts) <= COMMITS / 10 + 1, "checkpoints and compactions are few"
    assert sum(count.total() for count in counts) <= 12 * COMMITS, "with checkpoints and compaction"
    position = read_position(Lake(place))
    assert position is not None
    assert position.frontier == at(COMMITS).frontier


def test_poll_with_same_comments_takes_no_request(store: ObjectStore, place: str) -> None:
    """Neither the reader's poll nor silver's takes a request."""
    sink, watch = open_sink(place), CommentsWatch(Lake(place))
    comments = {TableName("public", "t"): Comments(1, "orders", {2: "in cents"})}
    sink.tables.record_comments(comments)
    changes = open_existing(Lake(place).uri("bronze", "changes"))
    assert watch.read(changes) == {1: Comments(1, "orders", {2: "in cents"})}
    store.forget()
    for _ in range(3):
        sink.tables.record_comments(comments)
        assert watch.read(changes)
    assert store.requests() == []
