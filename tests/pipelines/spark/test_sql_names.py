"""Names in a statement that Spark's catalog rejects; texts that resemble names stay unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltasmelt.pipelines.spark.sql_names import odd_views, with_views
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.location import Layer

ODD = [
    "Order Details", "Größe", "a/b", "back`tick", "it's", 'in "quotes"', "a.b", "--", "/*", "-orders", "${x}",
    "\U0001f642",
]  # fmt: skip
TABLES: list[tuple[Layer, str]] = [
    ("silver", "plain"), ("silver", "orders"), ("silver", "Orders"), ("gold", "Plain"),
    *(("silver", name) for name in ODD),
]  # fmt: skip
VIEWS = odd_views(TABLES)


def test_only_names_unusable_in_catalog_get_views() -> None:
    assert {name for _, name in VIEWS} == {*ODD, "orders", "Orders"}
    assert VIEWS["silver", "a.b"] == "`silver.a.b`"
    assert VIEWS["silver", "Orders"] == "`silver/-orders`"
    assert len({view.lower() for view in VIEWS.values()}) == len(VIEWS)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SELECT * FROM silver.`Order Details` d", "SELECT * FROM `silver.Order Details` d"),
        ("SELECT * FROM SILVER . `order details`", "SELECT * FROM `silver.Order Details`"),
        ("SELECT * FROM `silver`.`back``tick`", "SELECT * FROM `silver.back``tick`"),
        ("FROM silver.orders a JOIN silver.Orders b", "FROM `silver/orders` a JOIN `silver/-orders` b"),
        ("FROM silver.ORDERS", "FROM silver.ORDERS"),  # which of the two, nobody says
        ("FROM silver.plain JOIN gold.Plain", "FROM silver.plain JOIN gold.Plain"),
        ("SELECT 'silver.`a/b`', \"it's silver.`a/b`\"", "SELECT 'silver.`a/b`', \"it's silver.`a/b`\""),
        ("SELECT r'\\', silver.`a/b`.x", "SELECT r'\\', `silver.a/b`.x"),
        ("-- it's silver.`a/b`\nFROM silver.`a/b`", "-- it's silver.`a/b`\nFROM `silver.a/b`"),
        ("/* ' */ FROM silver.Größe", "/* ' */ FROM `silver.Größe`"),
        ("SELECT t.silver.`a/b` FROM t", "SELECT t.silver.`a/b` FROM t"),
    ],
)
def test_a_statement_names_the_view(written: str, meant: str) -> None:
    assert with_views(written, VIEWS) == meant


@given(st.text(max_size=30), st.sampled_from(ODD), st.text(max_size=30))
def test_texts_and_quoted_columns_around_a_name_stay(before: str, name: str, after: str) -> None:
    table = ("silver", name)
    head, tail = (
        f"SELECT {literal(before)} AS {quote(after + '.')} FROM",
        f"WHERE {quote('c', before)} = 'it''s'",
    )
    statement = f"{head} {quote(*table)} {tail}"
    assert with_views(statement, VIEWS) == f"{head} {VIEWS['silver', name]} {tail}"
