"""Suggestions after Tab, for given tables and words."""

from __future__ import annotations

import pytest

from deltasmelt.pipelines.sql_shell.completion import Names, candidates

NAMES = Names(
    {
        "silver.orders": ("id", "total", "Größe"),
        "silver.order lines": ("id", "note"),
        "gold.customer": ("id", "name"),
    },
    ("concat", "count"),
)


def offered(before: str) -> list[str]:
    return candidates(before, NAMES)[0]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ("SEL", ["SELECT"]),
        ("sel", ["select"]),
        ("SELECT * FROM ", ["gold.", "silver.", "silver.orders", "silver.`order lines`", "gold.customer"]),
        ("SELECT * FROM silver.", ["orders", "`order lines`"]),
        ("SELECT * FROM silver.o", ["orders", "`order lines`"]),
        ("SELECT * FROM silver.`order l", ["`order lines`"]),
        ("SELECT * FROM silver.orders JOIN g", ["gold.", "gold.customer"]),
        ("SELECT * FROM silver.orders o, gold", ["gold.", "gold.customer"]),
        ("SELECT * FROM silver.orders WHERE ta", ["table", "tables", "tablesample"]),
        ("SELECT * FROM silver.orders WHERE tot", ["total"]),
        ("SELECT * FROM silver.orders AS o WHERE o.", ["id", "total", "`Größe`"]),
        ("SELECT * FROM silver.orders WHERE orders.to", ["total"]),
        ("SELECT * FROM silver.`order lines` l WHERE l.n", ["note"]),
        ("SELECT silver.orders.t", ["total"]),
        ("SELECT 1; SELECT conc", ["concat"]),
        ("SELECT 'sel", []),
        ("SELECT /* sel", []),
        ("\\ti", ["\\timing"]),
        ("\\d silver.ord", ["silver.orders", "silver.order lines"]),
        ("\\o c", ["csv"]),
        ("\\cut ", ["newest"]),
    ],
)  # fmt: skip
def test_words_before_cursor_select_completions(before: str, expected: list[str]) -> None:
    assert offered(before) == expected


def test_only_text_after_last_dot_is_replaced() -> None:
    assert candidates("SELECT * FROM silver.ord", NAMES)[1] == 3
    assert candidates("SELECT * FROM silver.`ord", NAMES)[1] == 4
    assert candidates("SELECT ", NAMES)[1] == 0


def test_columns_of_the_named_table_come_before_keywords() -> None:
    assert offered("SELECT id FROM gold.customer ORDER BY ")[:2] == ["id", "name"]
