"""Hints that clustering would help: from statistics of files, for large tables alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pytest
from deltalake import write_deltalake

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.health import clustering
from deltasmelt.pipelines.health.clustering import ClusteringHint, clustering_hints, files_per_value
from deltasmelt.pipelines.settings import load_pipeline
from tests.silver.histories import relation
from tests.silver.verify.test_compare import INT

if TYPE_CHECKING:
    from pathlib import Path

ORDERS = relation("orders", [("id", INT), ("customer_id", INT)], ["id"], relation_id=7)


@pytest.mark.parametrize(
    ("ranges", "read"),
    [
        ([(0, 9), (10, 19), (20, 29), (30, 39)], 1.0),
        ([(0, 99), (0, 99), (0, 99), (0, 99)], 4.0),
        ([(0, 20), (10, 30)], 1.5),
        ([(5, 5)], 1.0),
    ],
)
def test_how_many_files_may_hold_a_value(ranges: list[tuple[int, int]], read: float) -> None:
    lows, highs = zip(*ranges, strict=True)
    assert files_per_value(pa.table({"min.k": lows, "max.k": highs}), "k") == read


def test_without_statistics_nothing_is_said() -> None:
    assert files_per_value(pa.table({"min.k": [1, None], "max.k": [1, None]}), "k") is None
    assert files_per_value(pa.table({"path": ["x"]}), "k") is None


def test_large_table_joined_by_spread_column_gets_hint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "customer.yml").write_text(
        "document: customer\nroot: public.customers\n"
        "fields: [id, {orders: {many: public.orders, on: {customer_id: id}, fields: [id]}}]\n"
    )
    file = tmp_path / "pipeline.yml"
    file.write_text(
        "pipeline: p\nsource: {dsn: 'host=127.0.0.1 port=1', slot: s, publication: s}\n"
        "lake: {path: ./lake}\ngold: {documents: [customer.yml]}\n"
    )
    pipeline = load_pipeline(file)
    uri = Lake(path=str(tmp_path / "lake")).uri("silver", "orders")
    for start in range(0, 8000, 1000):
        ids = np.arange(start, start + 1000, dtype=np.int32)
        write_deltalake(uri, pa.table({"id": ids, "customer_id": ids % 100}), mode="append")

    def hints() -> tuple[ClusteringHint, ...]:
        return clustering_hints(pipeline, [ORDERS], {"orders": 7})

    assert hints() == (), "no checksum file says that it is large"
    monkeypatch.setattr(clustering, "_bytes_of", lambda *_: 2**30)
    (hint,) = hints()
    assert (hint.table, hint.column, hint.files, hint.files_read) == ("orders", "customer_id", 8, 8.0)
    assert hint.bytes > 0
    file.write_text(file.read_text().replace("gold: {documents: [customer.yml]}\n", ""))
    assert clustering_hints(load_pipeline(file), [ORDERS], {"orders": 7}) == (), "rows lie by their key"
