"""Test which keys pass a bitmap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.gold.incremental.key_lists import bitmap, in_bitmap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_bitmap_passes_all_keys_and_few_others(spark: SparkSession) -> None:
    key_query = "SELECT id * 7 AS a, string(id) AS b FROM range(1000)"
    (row,) = spark.sql(bitmap(["a", "b"], f"({key_query})", 1000)).collect()
    spark.sql(f"{key_query} UNION ALL SELECT id, 'other' FROM range(20000)").createOrReplaceTempView("tested")
    passing = in_bitmap(["t.a", "t.b"], row["bitmap"], 1000)
    rows = spark.sql(f"SELECT b = 'other', count(*) FROM tested AS t WHERE {passing} GROUP BY 1").collect()
    counts = {row[0]: row[1] for row in rows}
    assert counts[False] == 1000
    assert counts[True] < 1000


def test_an_empty_bitmap_lets_nothing_through(spark: SparkSession) -> None:
    (row,) = spark.sql(bitmap(["id"], "range(0)", 0)).collect()
    passing = in_bitmap(["t.id"], row["bitmap"], 0)
    assert spark.sql(f"SELECT * FROM range(100) AS t WHERE {passing}").collect() == []
