"""Test the explanation of how changes reach a document, read from gold's own data."""

from __future__ import annotations

import pytest

from deltasmelt.gold.explain import ExplainedNode, JoinStep, explain
from deltasmelt.gold.tree.resolve import resolve
from tests.gold.shop import catalog
from tests.gold.shop_documents import CUSTOMER, FAMILY, PROFILE, document


def places(text: str) -> list[ExplainedNode]:
    tree, problems = resolve(document(text), catalog())
    assert tree is not None, problems
    return explain(tree)


def test_nested_node_explains_columns_order_and_joins() -> None:
    (items,) = (place for place in places(CUSTOMER) if place.path == "orders.items")
    assert items == ExplainedNode(
        path="orders.items",
        other_paths=(),
        kind="many",
        table="public.order_items",
        key=("order_id", "line"),
        columns=("order_id", "line", "product_id", "sku", "qty"),
        where=None,
        order_by=("order_id", "line"),
        join_path=(
            JoinStep("public.order_items.order_id", "public.orders.id"),
            JoinStep("public.orders.customer_id", "public.customers.id"),
        ),
    )


def test_root_explains_filter_and_omits_unused_columns() -> None:
    root = places(CUSTOMER)[0]
    assert (root.path, root.kind, root.join_path, root.where) == ("", "root", (), "deleted_at is null")
    assert "notes" not in root.columns


def test_aggregates_over_the_same_rows_are_one_place() -> None:
    (count_place,) = (place for place in places(CUSTOMER) if place.path == "order_count")
    assert count_place.other_paths == ("paid_total", "average_order", "last_order", "statuses")
    assert count_place.kind == "count, sum, avg, max, count_distinct"
    assert count_place.where is None, "the count takes all rows"


def test_condition_shared_by_all_aggregates_is_explained() -> None:
    text = (
        "document: d\nroot: public.customers\nfields:\n  - id\n"
        "  - a: {count: public.orders, on: {customer_id: id}, where: \"status = 'paid'\"}\n"
        "  - b: {sum: public.orders.total, on: {customer_id: id}, where: total > 5}\n"
    )
    assert places(text)[1].where == "(status = 'paid') or (total > 5)"


def test_tables_on_the_way_stand_before_theirs() -> None:
    bought = [place for place in places(PROFILE) if place.path == "bought"]
    assert [(place.kind, place.table, len(place.join_path)) for place in bought] == [
        ("through", "public.orders", 1),
        ("through", "public.order_items", 2),
        ("many", "public.products", 3),
    ]
    assert bought[1].join_path[0] == JoinStep("public.order_items.order_id", "public.orders.id")


@pytest.mark.parametrize(("path", "levels"), [("referrer", 2), ("referred", 3)])
def test_recursion_explains_maximum_depth(path: str, levels: int) -> None:
    (join_place,) = (place for place in places(FAMILY) if place.path == path)
    assert [hop.max_times for hop in join_place.join_path] == [levels, 1]
