"""Suite files are strict: an error names file, line and the nearest correct name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.quality import check_suites
from deltasmelt.pipelines.quality.suite_files import load_suite

if TYPE_CHECKING:
    from pathlib import Path

TABLES = {
    "silver.orders": ["customer_id", "number", "total"],
    "silver.customers": ["id", "email"],
    "gold.customer": ["id", "email", "orders"],
}

GOOD = """\
table: silver.orders
expectations:
  - expectation: expect_column_values_to_be_between
    column: total
    kwargs: {min_value: 0}
    severity: warning
    note: A refund that was booked as an order.
  - expectation: expect_foreign_key_to_hold
    kwargs: {columns: [customer_id], references: silver.customers, referenced_columns: [id]}
  - expectation: unexpected_rows_expectation
    kwargs:
      unexpected_rows_query: "SELECT * FROM {batch} LEFT ANTI JOIN {silver.customers} ON id = customer_id"
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "orders.yml"
    path.write_text(text)
    return path


def test_suite_has_file_name_and_expectation_lines(tmp_path: Path) -> None:
    first, second, _ = load_suite(write(tmp_path, GOOD), "orders.yml")
    assert (first.layer, first.table, first.suite) == ("silver", "orders", "orders")
    assert first.kwargs == {"column": "total", "min_value": 0}
    assert (first.severity, first.where) == ("warning", "orders.yml:3")
    assert (second.severity, second.where, second.column) == ("error", "orders.yml:8", "customer_id")


def test_sql_rule_becomes_query_expectation_without_further_keys(tmp_path: Path) -> None:
    rule = GOOD + "  - sql: SELECT * FROM {batch}\n    severity: critical\n    note: why\n"
    expectation = load_suite(write(tmp_path, rule), "orders.yml")[-1]
    assert expectation.kind == "unexpected_rows_expectation"
    assert expectation.kwargs == {"unexpected_rows_query": "SELECT * FROM {batch}"}
    assert (expectation.severity, expectation.note, expectation.where) == ("error", "why", "orders.yml:13")
    with pytest.raises(ConfigurationError, match="sql cannot be combined with column"):
        load_suite(write(tmp_path, f"{rule}    column: total\n"))


def test_right_names_are_no_complaint(tmp_path: Path) -> None:
    assert check_suites([write(tmp_path, GOOD)], tmp_path, TABLES) == []


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        (
            "column: total",
            "column: totl",
            "orders.yml:3: no column 'totl' in silver.orders; did you mean 'total'?",
        ),
        ("column: total", "colum: total", "orders.yml:4: unknown key 'colum'; did you mean 'column'?"),
        (
            "table: silver.orders",
            "table: silver.order",
            "orders.yml:3: no table 'silver.order' in the cut; did you mean 'silver.orders'?",
        ),
        (
            "table: silver.orders",
            "table: orders",
            "orders.yml:1: table: 'orders' is not a table of bronze, silver or gold",
        ),
        ("severity: warning", "severity: grave", "orders.yml:6: expectations.severity: expected"),
        (
            "references: silver.customers",
            "references: silver.customer",
            "orders.yml:8: references: no table 'silver.customer' in the cut; did you mean 'silver.cu",
        ),
        (
            "referenced_columns: [id]",
            "referenced_columns: [idd]",
            "orders.yml:8: no column 'idd' in silver.customers; did you mean 'id'?",
        ),
        (
            "referenced_columns: [id]",
            "referenced_columns: [id, email]",
            "orders.yml:8: Value error, columns, referenced_columns and compare must have equal lengths",
        ),
        ("references:", "reference:", "orders.yml:8: references: Field required"),
        ("{batch}", "orders", "orders.yml:10: unexpected_rows_query does not read {batch}"),
        (
            "{silver.customers}",
            "{silver.custmers}",
            (
                "orders.yml:10: unexpected_rows_query names {silver.custmers}, which is not a table of the "
                "cut; did you mean"
            ),
        ),
        ("expectations:", "expectations: []\nx:", "orders.yml:3: unknown key 'x'"),
        ("kwargs: {min_value: 0}", "kwargs: {column: total}", "column occurs twice"),
        (
            "kwargs: {min_value: 0}",
            "kwargs: {min_value: {$PARAMETER: least}}",
            "orders.yml:5: expectations.kwargs: $PARAMETER has no value here; write the value itself",
        ),
        (
            "kwargs: {min_value: 0}",
            "kwargs: {value_set: [{$PARAMETER: x}]}",
            "$PARAMETER has no value here",
        ),
    ],
)
def test_mistake_is_reported_with_line_and_suggestion(
    tmp_path: Path, old: str, new: str, complaint: str
) -> None:
    assert old in GOOD
    errors = check_suites([write(tmp_path, GOOD.replace(old, new, 1))], tmp_path, TABLES)
    assert any(complaint in error for error in errors), errors


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("table: [")
    wrong = write(tmp_path, GOOD.replace("column: total", "column: totl"))
    syntax, name = check_suites([broken, wrong], tmp_path, TABLES)
    assert syntax.startswith("broken.yml:1")
    assert name.startswith("orders.yml:3: no column 'totl'")


def test_suite_cannot_take_name_of_derived_suite(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="'catalog' is the name of a derived suite"):
        load_suite(write(tmp_path, f"suite: catalog\n{GOOD}"))
    catalog = tmp_path / "catalog.yml"
    catalog.write_text(GOOD)
    assert not any(expectation.derived for expectation in load_suite(catalog))


def test_the_shipped_suites_are_well_formed() -> None:
    files = sorted(conf_folder().glob("**/expectations/*.yml"))
    assert len(files) >= 4
    assert check_suites(files, conf_folder()) == []
