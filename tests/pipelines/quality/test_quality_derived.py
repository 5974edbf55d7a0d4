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


def test_keys_nulls_enums_and_references_become_expectations() -> None:
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


def test_unannounced_drop_of_not_null_ends_expectation() -> None:
    """The source dropped NOT NULL, and the stream has not announced the new shape yet."""
    dropped, _ = derive(constraints(not_null={2: frozenset({1})}))
    assert ("values_to_not_be_null", "email") not in of(dropped, "customers")


def test_unannounced_enum_label_is_already_allowed() -> None:
    """The source added the label before the stream announces the shape again."""
    expectations, _ = derive(constraints(enum_labels={9: ("free", "plus", "business")}))
    (allowed,) = [
        expectation.kwargs["value_set"] for expectation in expectations if "value_set" in expectation.kwargs
    ]
    assert allowed == ["free", "plus", "business"]


def test_enum_behind_domain_is_checked_like_enum() -> None:
    tier = PgType("enum", "tier", "public", 9, labels=("free",))
    domain = PgType("domain", "paying", "public", 10, element=tier)
    relation = Relation(7, TableName("public", "t"), (Column("a", 1, domain, "paying"),), (), "d", Lsn(1))
    expectations, _ = derive(constraints(enum_labels={}), [relation], {"silver.t": ["a"]})
    assert [expectation.kwargs["value_set"] for expectation in expectations] == [["free"]]


def test_recorded_shapes_give_expectations_without_reachable_source() -> None:
    expectations, _ = derive(None)
    assert ("values_to_not_be_null", "email") in of(expectations, "customers")
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]


def test_foreign_key_not_held_by_postgresql_is_omitted() -> None:
    """The run states the reason."""
    weak = dataclasses.replace(
        ORDERS_TO_CUSTOMERS, weak="NOT VALID: PostgreSQL has not checked its older rows"
    )
    expectations, left_out = derive(constraints(foreign_keys=(weak,)))
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert left_out == [
        "foreign key orders_customer of public.orders: NOT VALID: PostgreSQL has not checked its older rows"
    ]


def test_foreign_key_to_external_table_is_omitted() -> None:
    """The run states the reason."""
    tables = {name: columns for name, columns in TABLES.items() if name != "silver.customers"}
    _, left_out = derive(constraints(), tables=tables)
    assert left_out == ["foreign key orders_customer of public.orders: public.customers is not in the cut"]


def test_foreign_key_waits_for_column_in_cut() -> None:
    tables = TABLES | {"silver.orders": ["number", "total"]}
    expectations, left_out = derive(constraints(), tables=tables)
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert left_out == [
        "foreign key orders_customer of public.orders: the cut does not contain customer_id yet"
    ]


def test_special_comparisons_of_postgresql_are_applied() -> None:
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
def test_looser_comparison_counts_for_different_parent_type(
    child: str, parent: str, compare: list[str] | None
) -> None:
    key = dataclasses.replace(ORDERS_TO_CUSTOMERS, types=(child,), referenced_types=(parent,))
    expectations, _ = derive(constraints(foreign_keys=(key,)))
    (reference,) = [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert reference.kwargs.get("compare") == compare


@pytest.mark.parametrize(("child", "parent"), [("citext", "bpchar"), ("numeric", "float8")])
def test_types_with_unknown_comparison_are_omitted(child: str, parent: str) -> None:
    """The run states the reason."""
    key = dataclasses.replace(ORDERS_TO_CUSTOMERS, types=(child,), referenced_types=(parent,))
    expectations, left_out = derive(constraints(foreign_keys=(key,)))
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert left_out == [
        f"foreign key orders_customer of public.orders: the foreign key compares {child} with {parent}"
    ]


def test_foreign_keys_without_snapshots_are_omitted() -> None:
    """The run states the reason."""
    catalog = silver_catalog(shop_relations(OIDS), SilverSettings())
    expectations, left_out = from_catalog(catalog.values(), constraints(), TABLES, whole=False)
    assert not [expectation for expectation in expectations if "references" in expectation.kwargs]
    assert ("values_to_not_be_null", "email") in of(expectations, "customers")
    (entry,) = left_out
    assert (entry.subject, "snapshot.mode is never" in entry.why) == ("foreign keys", True)


def test_table_without_recorded_shape_is_reported_unlike_history() -> None:
    tables = TABLES | {"silver.unknown": ["a"], "silver.orders__history": ["a"]}
    _, left_out = derive(constraints(), tables=tables)
    assert left_out == [
        "silver.unknown: bronze.relations has no shape of the table: only the table's own suites were run"
    ]


def test_unrepresentable_numerics_are_expected_absent() -> None:
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
