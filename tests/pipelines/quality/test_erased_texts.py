"""Texts of control and quality tables without the values of a subject."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from deltasmelt.bronze.lake.control import ERRORS_SCHEMA
from deltasmelt.bronze.lake.traces import Search
from deltasmelt.pipelines.quality.erasing import without_examples, without_keys, without_texts
from deltasmelt.pipelines.quality.results import RESULTS_SCHEMA

NAME = 'Zoë "Zed" Quagga'


def rows_of(schema: pa.Schema, **columns: list[Any]) -> pa.Table:
    (count,) = {len(values) for values in columns.values()}
    return pa.table({**{name: [None] * count for name in schema.names}, **columns}, schema)


def test_values_are_replaced_in_every_spelling() -> None:
    rows = rows_of(
        RESULTS_SCHEMA,
        observed=[json.dumps(NAME), None, f"{NAME} jr"],
        partial_unexpected=[[NAME, None, "x"], [], None],
        kwargs=["plain", "plain", "plain"],
    )
    left = without_texts(rows, Search([NAME, NAME + " jr"]))
    assert left["observed"].to_pylist() == ['"[erased]"', None, "[erased]"]
    assert left["partial_unexpected"].to_pylist() == [["[erased]", None, "x"], [], None]
    assert without_texts(rows, Search(["nobody-else"])) == rows


def test_keys_go_from_own_errors_alone() -> None:
    rows = rows_of(ERRORS_SCHEMA, name=["a", "a", "b"], message=["row 42 was", "142 4.2 42x", "row 42"])
    assert without_keys(rows, {"a"}, {"42"})["message"].to_pylist() == [
        "row [erased] was", "142 4.2 42x", "row 42",
    ]  # fmt: skip


def test_examples_go_and_counts_stay() -> None:
    rows = rows_of(
        RESULTS_SCHEMA,
        layer=["silver", "silver", "gold"],
        table_name=["a", "a", "a"],
        expectation=["expect_table_row_count_to_equal", "expect_column_max", "expect_column_max"],
        observed=["7", "42", "42"],
        partial_unexpected=[["42"], [], ["42"]],
    )
    left = without_examples(rows, {"silver.a"})
    assert left["observed"].to_pylist() == ["7", None, "42"]
    assert left["partial_unexpected"].to_pylist() == [[], [], ["42"]]
