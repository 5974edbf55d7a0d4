"""The plans for large tables give the same documents: nothing counts as little here."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from gold import build
from gold.sieve import bitmap, sieve
from tests.gold.shop_documents import COUNTRY, PARCEL_LINE
from tests.gold.world import World, mutate

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from tests.gold.shop import Shop

pytestmark = pytest.mark.spark


def test_a_random_history(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SMALL_ROWS", "_FEW", "_WALKED"):
        monkeypatch.setattr(build, name, -1)
    world = World(spark, str(tmp_path / "lake"), [COUNTRY, PARCEL_LINE])
    world.step(lambda _: None)
    source = random.Random(1)

    def change(shop: Shop) -> None:
        for _ in range(15):
            mutate(shop, source)

    for sent in (1_000_000, -1):  # keys sent to every task; tables shuffled to meet them
        monkeypatch.setattr(build, "_SENT", sent)
        runs = world.step(change)
        assert {run.mode for run in runs.values()} == {"incremental"}


def test_a_sieve_lets_all_of_its_keys_through_and_few_others(spark: SparkSession) -> None:
    wanted = "SELECT id * 7 AS a, string(id) AS b FROM range(1000)"
    (row,) = spark.sql(bitmap(["a", "b"], f"({wanted})", 1000)).collect()
    spark.sql(f"{wanted} UNION ALL SELECT id, 'other' FROM range(20000)").createOrReplaceTempView("sieved")
    passing = sieve(["t.a", "t.b"], row["bitmap"], 1000)
    rows = spark.sql(f"SELECT b = 'other', count(*) FROM sieved AS t WHERE {passing} GROUP BY 1").collect()
    found = {row[0]: row[1] for row in rows}
    assert found[False] == 1000
    assert found[True] < 1000


def test_an_empty_sieve_lets_nothing_through(spark: SparkSession) -> None:
    (row,) = spark.sql(bitmap(["id"], "range(0)", 0)).collect()
    passing = sieve(["t.id"], row["bitmap"], 0)
    assert spark.sql(f"SELECT * FROM range(100) AS t WHERE {passing}").collect() == []
