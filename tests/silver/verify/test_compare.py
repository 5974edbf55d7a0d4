"""Test comparisons of both sides' rows: promises of a table of versions, and values that hashes ignore."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.schema.catalog import history_of, silver_table
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.verify.compare import Cell, compare, different_cells
from tests.silver.histories import relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.silver.schema.catalog import SilverTable

INT, TEXT = PgType("base", "int4"), PgType("base", "text")
SHAPE = relation("t", [("id", INT), ("v", TEXT)], ["id"], relation_id=7)
AT = 50


def test_different_cells_are_distinguished_as_written() -> None:
    left_text = '{"a":0.0,"b":1.10,"c":null,"d":[1,null],"e":"1"}'
    right = '{"a":-0.0,"b":1.1,"c":null,"d":[null,1],"e":1}'
    assert different_cells(left_text, right) == (
        Cell("a", "0.0", "-0.0"), Cell("b", "1.10", "1.1"), Cell("d", "[1, null]", "[null, 1]"),
        Cell("e", '"1"', "1"),
    )  # fmt: skip
    assert different_cells(left_text, left_text) == ()


def view(spark: SparkSession, rows: str) -> str:
    name = f"v_{uuid.uuid4().hex}"
    spark.sql(rows).createOrReplaceGlobalTempView(name)
    return f"global_temp.{name}"


def wrong_keys(spark: SparkSession, table: SilverTable, source: str, silver: str) -> dict[str, set[str]]:
    """Return the wrong keys by kind."""
    own_columns = "1L AS _commit_lsn, CAST(NULL AS MAP<STRING, STRING>) AS _unrepresentable"
    left_view = view(spark, f"SELECT *, {own_columns} FROM VALUES {source} AS r(id, v)")
    names = "id, v, _deleted" if table.soft else "id, v, _valid_from_lsn, _valid_to_lsn"
    right = view(spark, f"SELECT *, {own_columns} FROM VALUES {silver} AS r({names})")
    comparison = compare(spark, table, left_view, right, AT, most=20)
    kinds: dict[str, set[str]] = {}
    for row in comparison.first:
        kinds.setdefault(row.kind, set()).add(row.key)
    assert comparison.counts == {kind: len(keys) for kind, keys in kinds.items()}
    return kinds


@pytest.mark.spark
def test_soft_deletes_keep_one_row_for_each_key(spark: SparkSession) -> None:
    table = silver_table(SHAPE, SilverSettings(deletes="soft"))
    right = "(1, 'a', false), (2, 'gone', true)"
    assert wrong_keys(spark, table, "(1, 'a')", right) == {}
    assert wrong_keys(spark, table, "(1, 'a'), (1, 'a')", right) == {"doubled": {'{"id":1}'}}
    wrong = (
        "(1, 'a', true), (2, 'b', false), (3, 'c', false), (3, 'old', true), (4, 'x', true), (4, 'y', true)"
    )
    assert wrong_keys(spark, table, "(1, 'a'), (3, 'c')", wrong) == {
        "missing": {'{"id":1}'}, "surplus": {'{"id":2}'}, "twice": {'{"id":3}', '{"id":4}'},
    }  # fmt: skip


@pytest.mark.spark
def test_history_has_single_current_version_without_overlaps(spark: SparkSession) -> None:
    table = history_of(silver_table(SHAPE, SilverSettings()))
    right = "(1, 'a', 1L, 5L), (1, 'b', 5L, NULL), (2, 'gone', 1L, 9L), (2, 'again', 12L, 20L)"
    assert wrong_keys(spark, table, "(1, 'b')", right) == {}
    wrong = (
        "(1, 'a', 1L, 6L), (1, 'b', 5L, NULL), (2, 'c', 1L, NULL), (2, 'd', 5L, NULL), (3, 'e', 5L, 5L), "
        "(4, 'f', 7L, 8L), (5, 'g', 2L, NULL)"
    )
    assert wrong_keys(spark, table, "(1, 'b'), (2, 'd'), (4, 'f'), (5, 'other')", wrong) == {
        "versions": {'{"id":1}', '{"id":2}', '{"id":3}'}, "twice": {'{"id":2}'}, "missing": {'{"id":4}'},
        "differs": {'{"id":5}'},
    }  # fmt: skip
