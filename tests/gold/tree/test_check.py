"""Checks of documents against the catalog: every mistake has its line and the nearest known name."""

from __future__ import annotations

import pytest

from deltasmelt.gold.tree.check import checked_tree
from deltasmelt.gold.tree.nodes import Aggregate
from deltasmelt.gold.tree.resolve import resolve
from tests.gold.shop import SHAPES, catalog
from tests.gold.shop_documents import COUNTRY, CUSTOMER, PARCEL_LINE, document


@pytest.mark.parametrize("text", [CUSTOMER, PARCEL_LINE, COUNTRY])
def test_documents_over_existing_tables_are_fine(text: str) -> None:
    assert checked_tree(document(text), catalog())[1] == []


ORDERS = "many: public.orders, on: {customer_id: id}"
LINK = "table: public.customer_tags, on: {customer_id: id}, to: {tag_id: id}"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("emial", "public.customers has no column 'emial'; did you mean 'email'?"),
        ("x: {column: Email}", "has no column 'Email'; did you mean 'email'?"),
        (
            "x: {many: public.order, on: {customer_id: id}, fields: [id]}",
            "unknown table public.order; did you mean 'public.orders'?",
        ),
        (
            "x: {many: public.orders, on: {custmer_id: id}, fields: [id]}",
            "public.orders has no column 'custmer_id'; did you mean 'customer_id'?",
        ),
        (
            "x: {many: public.orders, on: {customer_id: uid}, fields: [id]}",
            "public.customers has no column 'uid'",
        ),
        (f"x: {{{ORDERS}, fields: [totl]}}", "public.orders has no column 'totl'; did you mean 'total'?"),
        (f"x: {{{ORDERS}, where: 'totl > 1', fields: [id]}}", "public.orders has no column 'totl'"),
        (f"x: {{{ORDERS}, where: 'now() > placed_at', fields: [id]}}", "the clock"),
        (f"x: {{{ORDERS}, order_by: [placed], fields: [id]}}", "public.orders has no column 'placed'"),
        (
            "x: {many: public.orders, on: {status: id}, fields: [id]}",
            "public.orders.status is STRING and public.customers.id is BIGINT: these types cannot be equal",
        ),
        (
            f"x: {{{ORDERS}, fields: [{{y: {{one: public.tags, on: {{name: id}}, fields: [id]}}}}]}}",
            "public.tags.name is STRING and public.orders.id is BIGINT",
        ),
        (
            "x: {sum: public.orders.status, on: {customer_id: id}}",
            "sum of public.orders.status, which is STRING: not a number",
        ),
        ("x: {max: public.orders.tags, on: {customer_id: id}}", "public.orders has no column 'tags'"),
        (
            "x: {column: balance, default: none}",
            "default 'none' does not fit 'balance', which is DECIMAL(12,2)",
        ),
        (
            "x: {column: country_id, default: 40000}",
            "default 40000 does not fit 'country_id', which is SMALLINT",
        ),
        (
            "x: {column: created_at, default: soon}",
            "default 'soon' does not fit 'created_at', which is TIMESTAMP",
        ),
        ("x: {sql: 'lower(emial)'}", "public.customers has no column 'emial'"),
        (
            f"x: {{many: public.tags, values: nam, through: {{{LINK}}}}}",
            "public.tags has no column 'nam'; did you mean 'name'?",
        ),
        (
            f"x: {{many: public.tags, values: name, through: {{{LINK.replace('_tags', '_tag')}}}}}",
            "unknown table public.customer_tag; did you mean 'public.customer_tags'?",
        ),
        (
            f"x: {{many: public.tags, fields: [id], through: {{{LINK}, where: activ}}}}",
            "public.customer_tags has no column 'activ'; did you mean 'active'?",
        ),
    ],
)
def test_unknown_name_or_unfit_type_names_line(field: str, message: str) -> None:
    errors = checked_tree(
        document(f"document: d\nroot: public.customers\nfields:\n  - id\n  - {field}\n"), catalog()
    )[1]
    assert [error.where for error in errors] == ["document.yml:5"], errors
    assert message in errors[0].message


def test_numbers_of_different_widths_can_be_joined() -> None:
    field = "x: {one: public.countries, on: {id: referred_by}, fields: [id]}"
    text = f"document: d\nroot: public.customers\nfields:\n  - {field}\n"
    assert checked_tree(document(text), catalog())[1] == []


def test_several_mistakes_are_reported_in_line_order() -> None:
    field = "b: {one: public.z, on: {id: id}, fields: [id]}"
    text = f"document: d\nroot: public.customers\nwhere: 'x = 1'\nfields:\n  - a\n  - {field}\n"
    assert [error.where for error in checked_tree(document(text), catalog())[1]] == [
        "document.yml:3", "document.yml:5", "document.yml:6",
    ]  # fmt: skip


def test_a_root_without_a_key_cannot_have_documents() -> None:
    shapes = {**SHAPES, "public.tags": (SHAPES["public.tags"][0], ())}
    errors = checked_tree(document("document: d\nroot: public.tags\nfields: [id]\n"), catalog(shapes))[1]
    assert [error.message for error in errors] == [
        "public.tags has no key, so its rows cannot have documents"
    ]


def test_map_is_unordered_and_not_joinable() -> None:
    shapes = {**SHAPES, "public.tags": ({"id": "int4", "name": "hstore"}, ("id",))}
    field = "n: {many: public.tags, on: {name: name}, order_by: [name], fields: [id]}"
    text = f"document: d\nroot: public.tags\nfields:\n  - {field}\n"
    messages = [error.message for error in checked_tree(document(text), catalog(shapes))[1]]
    assert any("which has no order" in message for message in messages)
    assert any("these types cannot be equal" in message for message in messages)


def test_aggregates_over_the_same_rows_are_one_pass() -> None:
    tree, _ = resolve(document(CUSTOMER), catalog())
    assert tree is not None
    aggregates = [
        node for node in tree.nodes() if isinstance(node, Aggregate) and node.scope.table.name == "orders"
    ]
    assert [len(node.measures) for node in aggregates] == [5]


def test_each_node_of_table_reads_own_columns() -> None:
    tree, _ = resolve(document(CUSTOMER), catalog())
    assert tree is not None
    reads = {node.scope.label: node.scope.reads for node in tree.nodes()}
    assert reads["billing"] == {"id", "city", "country_id"}
    assert reads["shipping"] == {"id", "city"}
    assert reads["referrer"] == {"id", "email"}
    assert tree.reads(tree.root.table.table) >= {"deleted_at", "email", "billing_id"}
    assert "notes" not in tree.reads(tree.root.table.table)
