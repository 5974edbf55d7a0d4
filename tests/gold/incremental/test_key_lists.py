"""Keys as literals: the literals of each type, and no effect on results except the pages read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq
import pytest
from pyspark.sql.functions import expr

from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.incremental.key_lists import LOOKED_UP, MOST_LISTED, lists_of, lists_query
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.silver.spark.tuning import FINE_PAGES, settings
from tests.gold.shop import catalog
from tests.gold.shop_documents import CUSTOMER, document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TYPES = ["BIGINT", "STRING", "SMALLINT", "DECIMAL(12,2)", "INT"]


def test_numbers_and_texts_are_listed_unlike_other_types() -> None:
    query = lists_query(TYPES, "affected")
    assert query is not None
    assert [f"AS k{i}" in query for i in range(5)] == [True, True, True, False, True]
    row = {"k0": ["-7", "9223372036854775807"], "k1": ["it's", "a\\b"], "k2": ["3"], "k4": ["1"]}
    assert lists_of(TYPES, row) == {
        "k0": "-7L, 9223372036854775807L", "k1": r"'it\'s', 'a\\b'", "k2": "3S", "k4": "1",
    }  # fmt: skip
    assert lists_query(["DATE"], "affected") is None


def test_keyed_tables_use_key_list_unlike_tables_below() -> None:
    tree, problems = resolve(document(CUSTOMER), catalog())
    assert tree is not None, problems
    plain = compile_tree(tree, str, roots="affected")
    listed = compile_tree(tree, str, roots="affected", listed={"k0": "1, 2"})
    by_list = {
        step.name
        for step, plain_step in zip(listed.rows, plain.rows, strict=True)
        if step.sql != plain_step.sql
    }
    assert by_list == {step.name for step in listed.rows if " IN (1, 2)" in step.sql}
    tables = {step.name.partition("_")[2] for step in listed.rows if step.name in by_list}
    assert tables == {"customers", "orders", "customer_tags"}
    assert all(
        step.sql == f"{plain_step.sql}\nWHERE {step.sql.partition('WHERE ')[2]}"
        for step, plain_step in zip(listed.rows, plain.rows, strict=True)
        if step.name in by_list
    )


@pytest.mark.spark
def test_least_and_largest_values_round_trip(spark: SparkSession) -> None:
    values = "(-9223372036854775808L, 'a\\'b', 1S), (9223372036854775807L, '\\\\', -32768S)"
    types = ["BIGINT", "STRING", "SMALLINT"]
    keys = f"(SELECT * FROM VALUES {values} AS v(k0, k1, k2))"
    row = spark.sql(str(lists_query(types, keys))).collect()[0].asDict()
    within = " AND ".join(f"{name} IN ({listed})" for name, listed in lists_of(types, row).items())
    rows = spark.sql(f"SELECT count(*) FROM {keys} WHERE {within}").collect()
    assert rows[0][0] == 2


@pytest.mark.spark
def test_twice_listed_limit_of_keys_passes_through_parquet(spark: SparkSession, tmp_path: Path) -> None:
    path, keys = str(tmp_path / "rows"), range(0, 6 * MOST_LISTED, 3)
    spark.range(0, 6 * MOST_LISTED, 1, 1).withColumn("text", expr("sha2(string(id), 256)")).write.parquet(
        path
    )
    row = spark.sql(
        str(
            lists_query(
                ["BIGINT", "STRING"], f"(SELECT id AS k0, text AS k1 FROM parquet.`{path}` WHERE id % 3 = 0)"
            )
        )
    ).collect()[0]
    key_lists = lists_of(["BIGINT", "STRING"], row.asDict())
    with settings(spark, {**LOOKED_UP, "spark.sql.parquet.pushdown.inFilterThreshold": str(2 * MOST_LISTED)}):
        matches = spark.sql(
            f"SELECT id FROM parquet.`{path}` WHERE id IN ({key_lists['k0']}) AND text IN ({key_lists['k1']})"
        )
        assert sorted(row["id"] for row in matches.collect()) == list(keys)


@pytest.mark.spark
def test_few_keys_among_many_rows_read_few_pages(spark: SparkSession, tmp_path: Path) -> None:
    path = str(tmp_path / "rows")
    with settings(spark, FINE_PAGES):
        spark.range(0, 60_000, 1, 1).withColumn("text", expr("sha2(string(id), 256)")).write.parquet(path)
    (file,) = Path(path).glob("*.parquet")
    assert pq.ParquetFile(file).metadata.num_rows == 60_000
    keys = [7, 31_000, 59_999]
    listed = ", ".join(f"{key}L" for key in keys)
    with settings(spark, LOOKED_UP):
        frame = spark.sql(f"SELECT id, text FROM parquet.`{path}` WHERE id IN ({listed})")
        assert sorted(row["id"] for row in frame.collect()) == keys
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves().apply(0)
    assert scan.metrics().apply("numOutputRows").value() == 3 * 500, "rows of the pages that were read"
