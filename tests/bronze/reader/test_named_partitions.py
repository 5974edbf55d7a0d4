"""Test how often the source is queried for rows of partitions named by the stream."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from deltasmelt.bronze.drift.storage import Part, Storage
from deltasmelt.bronze.drift.streamed import Named, StreamedParts
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.reader.named_partitions import NamedPartitions

if TYPE_CHECKING:
    import psycopg
    import pytest

    from deltasmelt.bronze.catalog.source_table import SourceTable

ROOT = TableName("public", "p")


def test_refusal_is_cached_and_ends_queries_of_table(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[str] = []
    missing = {"p2"}

    def has_all_rows(_connection: object, part: Part, _named: Named) -> bool:
        checked.append(part.name)
        return part.name not in missing

    monkeypatch.setattr("deltasmelt.bronze.reader.named_partitions.has_all_rows", has_all_rows)
    connection = cast("psycopg.Connection[Any]", None)
    storage = Storage(1, {}, {oid: Part(f"p{oid}", oid, attached=7) for oid in (1, 2, 3)})
    table = cast("SourceTable", SimpleNamespace(table=ROOT, storage=storage))
    streamed = {ROOT: StreamedParts({oid: Named(Lsn(9), 7, 1) for oid in (1, 2, 3)})}
    partitions = NamedPartitions()

    assert partitions.prove(connection, [table], streamed, {ROOT})[ROOT].whole == set()
    assert checked == [], "the table is copied anyway"
    for _ in range(2):
        assert partitions.prove(connection, [table], streamed, ())[ROOT].whole == {1}
    assert checked == ["p1", "p2"]
    partitions.prove(connection, [table], {}, ())
    missing.clear()
    assert partitions.prove(connection, [table], streamed, ())[ROOT].whole == {1, 2, 3}
    monkeypatch.setattr("deltasmelt.bronze.reader.named_partitions._SECONDS", 0.0)
    partitions = NamedPartitions()
    assert partitions.prove(connection, [table], streamed, ())[ROOT].whole == set()
