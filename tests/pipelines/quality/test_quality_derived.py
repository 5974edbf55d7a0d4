"""Expectations follow from the source's guarantees, and never exceed them."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.pipelines.quality.constraints import Constraints, ForeignKeyConstraint
from deltasmelt.pipelines.quality.derived import from_catalog
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.pipelines.quality_lake import shop_relations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.pipelines.quality.expectations import Expectation

TABLES = {
    "silver.countries": ["code", "name"],
    "silver.customers": ["id", "email", "tier", "country", "score"],
    "silver.orders": ["customer_id", "number", "total"],
}
OIDS = {"countries": 1, "customers": 2, "orders": 3, "type tier": 9}
ORDERS_TO_CUSTOMERS = ForeignKeyConstraint(
    "orders_customer",
    TableName("public", "orders"),
    ("customer_id",),
    TableName("public", "customers"),
    ("id",),
    ("int8",),
)


def constraints(**changes: Any) -> Constraints:
    promised = Constraints(
        datetime.now(UTC),
        (ORDERS_TO_CUSTOMERS,),
        {9: ("free", "plus")},
        {1: frozenset({1, 2}), 2: frozenset({1, 2, 5}), 3: frozenset({1, 2, 3})},
    )
    return dataclasses.replace(promised, **changes)


def derive(
    promised: Constraints | None,
    relations: Sequence[Relation] | None = None,
    tables: dict[str, list[str]] = TABLES,
) -> tuple[list[Expectation], list[str]]:
    catalog = silver_catalog(relations or shop_relations(OIDS), SilverSettings())
    expectations, left_out = from_catalog(catalog.values(), promised, tables)
    return expectations, [f"{item.subject}: {item.why}" for item in left_out]


def of(expectations: list[Expectation], table: str) -> list[tuple[str, str | None]]:
    return [
        (expectation.kind.removeprefix("expect_").removeprefix("column_"), expectation.column)
        for expectation in expectations
        if expectation.table == table
    ]


def test_keys_not_null_enums_and_foreign_keys_become_expectations() -> None:
    expectations, left_out = derive(constraints())
    assert of(expectations, "orders") == [
        ("compound_columns_to_be_unique", "customer_id, number"),
        ("values_to_not_be_null", "customer_id"),
        ("values_to_not_be_null", "number"),
        ("values_to_not_be_null", "total"),
        ("foreign_key_to_hold", "customer_id"),
    ]
    assert of(expectations, "customers") == [
        ("values_to_be_unique", "id"),
        ("values_to_not_be_null", "id"),
        ("values_to_not_be_null", "email"),
        ("values_to_be_in_set", "tier"),
        ("values_to_not_be_null", "score"),
    ]
    assert left_out == []


def test_not_null_dropped_at_the_source_but_not_yet_announced_by_the_stream_is_not_expected() -> None:
    dropped, _ = derive(constraints(not_null={2: frozenset({1})}))
    assert ("values_to_not_be_null", "email") not in of(dropped, "customers")


def test_an_enum_label_added_at_the_source_is_allowed_before_the_stream_announces_the_shape_again() -> None:
    expectations, _ = derive(constraints(enum_labels={9: ("free", "plus", "business")}))
    (allowed,) = [
        expectation.kwargs["value_set"] for expectation in expectations if "value_set" in expectation.kwargs
    ]
    assert allowed == ["free", "plus", "business"]


def test_an_enum_behind_a_domain_is_checked_like_the_enum() -> None:
    tier = PgType("enum", "tier", "public", 9, labels=("free",))
    domain = PgType("domain", "paying", "public", 10, element=tier)
    relation = Relation(7, TableName("public", "t"), (Column("a", 1, domain, "paying"),), (), "d", Lsn(1))
    expectations, _ = derive(constraints(enum_labels={}), [relation], {"silver.t": ["a"]})
    assert [expectation.kwargs["value_set"] for expectation in expectations] == [["free"]]


def test_while_the_source_was_never_reached_recorded_shapes_alone_give_expectations() -> None:
    expectations, _ = derive(None)
    assert ("values_to_not_be_null", "email") in of(expectations, "customers")
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]


def test_a_foreign_key_that_postgresql_itself_does_not_hold_is_left_out_and_said() -> None:
    weak = dataclasses.replace(
        ORDERS_TO_CUSTOMERS, weak="NOT VALID: PostgreSQL has not checked its older rows"
    )
    expectations, left_out = derive(constraints(foreign_keys=(weak,)))
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert left_out == [
        "foreign key orders_customer of public.orders: NOT VALID: PostgreSQL has not checked its older rows"
    ]


def test_a_foreign_key_to_a_table_outside_the_pipeline_is_left_out_and_said() -> None:
    tables = {name: columns for name, columns in TABLES.items() if name != "silver.customers"}
    _, left_out = derive(constraints(), tables=tables)
    assert left_out == ["foreign key orders_customer of public.orders: public.customers is not in the cut"]


def test_a_foreign_key_over_a_column_that_the_cut_does_not_have_yet_waits_for_it() -> None:
    tables = TABLES | {"silver.orders": ["number", "total"]}
    expectations, left_out = derive(constraints(), tables=tables)
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert left_out == [
        "foreign key orders_customer of public.orders: the cut does not contain customer_id yet"
    ]


def test_columns_that_postgresql_compares_in_its_own_way_are_compared_so() -> None:
    key = dataclasses.replace(ORDERS_TO_CUSTOMERS, types=("citext",))
    expectations, _ = derive(constraints(foreign_keys=(key,)))
    (reference,) = [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert reference.kwargs["compare"] == ["ignore case"]


@pytest.mark.parametrize(
    ("child", "parent", "compare"),
    [
        ("varchar", "bpchar", ["ignore trailing spaces"]),
        ("bpchar", "text", ["ignore trailing spaces"]),
        ("int4", "numeric", ["as numbers"]),
        ("text", "citext", ["ignore case"]),
        ("int4", "int8", None),
    ],
)
def test_where_the_parents_type_is_another_one_the_looser_comparison_counts(
    child: str, parent: str, compare: list[str] | None
) -> None:
    key = dataclasses.replace(ORDERS_TO_CUSTOMERS, types=(child,), referenced_types=(parent,))
    expectations, _ = derive(constraints(foreign_keys=(key,)))
    (reference,) = [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert reference.kwargs.get("compare") == compare


@pytest.mark.parametrize(("child", "parent"), [("citext", "bpchar"), ("numeric", "float8")])
def test_types_that_are_compared_in_no_way_known_here_are_left_out_and_said(child: str, parent: str) -> None:
    key = dataclasses.replace(ORDERS_TO_CUSTOMERS, types=(child,), referenced_types=(parent,))
    expectations, left_out = derive(constraints(foreign_keys=(key,)))
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert left_out == [
        f"foreign key orders_customer of public.orders: the foreign key compares {child} with {parent}"
    ]


def test_without_snapshots_foreign_keys_are_left_out_and_said() -> None:
    catalog = silver_catalog(shop_relations(OIDS), SilverSettings())
    expectations, left_out = from_catalog(catalog.values(), constraints(), TABLES, whole=False)
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert ("values_to_not_be_null", "email") in of(expectations, "customers")
    (entry,) = left_out
    assert (entry.subject, "snapshot.mode is never" in entry.why) == ("foreign keys", True)


def test_a_table_without_a_recorded_shape_is_said_to_have_none_but_a_history_table_is_not() -> None:
    tables = TABLES | {"silver.unknown": ["a"], "silver.orders__history": ["a"]}
    _, left_out = derive(constraints(), tables=tables)
    assert left_out == [
        "silver.unknown: bronze.relations has no shape of the table: only the table's own suites were run"
    ]


def test_of_numerics_that_a_decimal_may_not_hold_none_is_expected_to_be_left_out() -> None:
    tables = {name: [*columns, "_unrepresentable"] for name, columns in TABLES.items()}
    assert not any(
        expectation.column == "_unrepresentable" for expectation in derive(constraints(), tables=tables)[0]
    )
    relations = [
        dataclasses.replace(
            relation,
            columns=tuple(
                dataclasses.replace(column, type=PgType("base", "numeric"))
                if column.name == "total"
                else column
                for column in relation.columns
            ),
        )
        for relation in shop_relations(OIDS)
    ]
    [fits] = [
        expectation
        for expectation in derive(None, relations, tables)[0]
        if expectation.column == "_unrepresentable"
    ]
    assert (fits.table, fits.kind, fits.severity) == ("orders", "expect_column_values_to_be_null", "warning")
