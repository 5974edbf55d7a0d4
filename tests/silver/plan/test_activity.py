"""A small window is counted in Arrow exactly as a large window by its statement."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES, OPERATIONS
from deltasmelt.silver.plan.activity import activities_in, activity_of, activity_query
from deltasmelt.silver.run.bronze_window import files_after, rows_here, whole
from tests.fix_spark import rows_of
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPES = [
    relation(f"t{number}", [("id", INT), ("big", TEXT)], ["id"], relation_id=number) for number in (1, 2, 3)
]


def row(random: Random, operations: list[str]) -> dict[str, Any]:
    return change(
        random.choice(SHAPES),
        random.choice(operations),
        old=random.choice([None, ["1", None]]),
        unchanged=random.choice([None, ["big"], ["big", "note"]]),
    )


@pytest.mark.spark
def test_activity_in_arrow_equals_statement(spark: SparkSession, tmp_path: object) -> None:
    lake, random = Lake(path=f"{tmp_path}/lake"), Random(7)
    writer = BronzeWriter(lake)
    for lsn in range(10, 40):
        operations = random.sample(sorted(OPERATIONS), random.randint(1, 3))
        writer.add(lsn, [row(random, operations) for _ in range(random.randint(1, 4))])
        if lsn % 10 == 9:
            writer.commit(lsn)
    bronze = open_existing(lake.uri("bronze", CHANGES))
    for starts in ({1: Lsn(9), 2: Lsn(9), 3: Lsn(9)}, {1: Lsn(12), 2: Lsn(31), 9: Lsn(9)}, {3: Lsn(30)}):
        end = Lsn(36)
        rows = rows_here(bronze, files_after(bronze, min(starts.values()), end))
        assert rows is not None
        asked = rows_of(spark, activity_query(whole(lake, bronze), starts, end))
        assert activities_in(rows, starts, end) == {
            one["relation_id"]: activity_of(one.asDict()) for one in asked
        }
