"""A small window is counted in Arrow exactly as a large window by its statement."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES, CHANGES_SCHEMA, OPERATIONS
from deltasmelt.silver.plan import activity
from deltasmelt.silver.plan.activity import activities_in, activity_of, activity_query, counted_columns
from deltasmelt.silver.run.bronze_window import files_after, rows_here, whole
from tests.fix_spark import rows_of
from tests.silver.histories import INT, TEXT, BronzeWriter, change, placed, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SHAPES = [
    relation(f"t{number}", [("id", INT), ("big", TEXT)], ["id"], relation_id=number) for number in (1, 2, 3)
]


def row(random: Random, operations: list[str]) -> dict[str, Any]:
    operation = random.choice(operations)
    return change(
        random.choice(SHAPES),
        operation,
        old=random.choice([None, ["1", None]]),
        unchanged=random.choice([None, ["big"], ["big", "note"]]),
        **({"relation_id": None} if operation == "message" else {}),
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
        low = min(starts.values())
        rows = rows_here(bronze, files_after(bronze, low, end), low)
        assert rows is not None
        asked = rows_of(spark, activity_query(whole(lake, bronze), starts, end))
        assert activities_in(rows, starts, end) == {
            one["relation_id"]: activity_of(one.asDict()) for one in asked
        }


def test_only_relations_with_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand tables in many small files; each column of the counted rows is one chunk."""
    counted: list[pa.Table] = []
    count = activity._counts

    def counts(rows: pa.Table) -> dict[str, Any]:
        counted.append(rows)
        return count(rows)

    monkeypatch.setattr(activity, "_counts", counts)
    relations = [one for _ in range(30) for one in (5, 900, 5000, 7)]
    one_by_one = [
        counted_columns(
            pa.Table.from_pylist(
                placed(lsn, [change(SHAPES[0], "insert", relation_id=relation)]), schema=CHANGES_SCHEMA
            )
        )
        for lsn, relation in enumerate(relations, 10)
    ]
    starts = dict.fromkeys(range(1000), Lsn(10)) | {7: Lsn(900)}
    found = activities_in(pa.concat_tables(one_by_one), starts, Lsn(100))
    assert {relation: one.changes for relation, one in found.items()} == {5: 22, 900: 23}
    assert [rows["op"].num_chunks for rows in counted] == [1, 1]
