"""Masked values: also in moved columns, and in errors that quote values."""

from __future__ import annotations

import json
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.gold.language.document import load_documents
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.pipelines.quality.examples import failing_rows, visible_form
from deltasmelt.pipelines.quality.expectations import Expectation, Result
from deltasmelt.pipelines.quality.masking import Masks, masks_of
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.pipelines.quality_lake import DOCUMENT, shop_relations

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

OWN = ["_commit_lsn", "_commit_ts", "_unrepresentable", "_deleted"]
COLUMNS = {
    "silver.customers": ["id", "email", "tier", "country", "score", "email__2", "Mail", *OWN],
    "silver.customers__history": ["id", "email", "mail", "former", *OWN, "_valid_from_lsn", "_valid_to"],
    "silver.orders": ["customer_id", "number", "total", "note__4", *OWN],
    "gold.customer": ["id", "email", "orders", "former", "_commit_lsn", "_content_hash"],
    "gold.other": ["id", "_key", "_commit_lsn"],
}


def masks(folder: Path, *names: str, different: Collection[str] = ()) -> Masks:
    """Return the masks of a lake in which silver kept former columns."""
    catalog = silver_catalog(shop_relations({"countries": 1, "customers": 2, "orders": 3}), SilverSettings())
    trees = {}
    for name in ("customer", "other"):
        file = folder / f"{name}.yml"
        file.write_text(DOCUMENT.replace("document: customer", f"document: {name}"))
        trees[name], _ = resolve(load_documents([file])[0], catalog)
    resolved = {name: tree for name, tree in trees.items() if tree is not None}
    return masks_of(names, catalog, resolved, COLUMNS, different)


def test_former_columns_are_masked_with_any_table_column(tmp_path: Path) -> None:
    """Columns left only in silver are masked if any column of the table is masked."""
    masked = masks(tmp_path, "public.customers.email").masked
    of_table = {"email", "email__2", "mail", "former", "_unrepresentable"}
    assert masked["silver.customers"] == masked["silver.customers__history"] == of_table
    assert "silver.orders" not in masked


def test_mask_may_name_column_existing_only_in_silver(tmp_path: Path) -> None:
    for name in ("email__2", "Mail", "former"):
        masked = masks(tmp_path, f"public.customers.{name}").masked
        assert {"email__2", "mail"} <= masked["silver.customers"]
        assert "email" not in masked["silver.customers"]
    for name in ("email__3", "_deleted", "_valid_to"):
        with pytest.raises(ConfigurationError, match="not a column of a table"):
            masks(tmp_path, f"public.customers.{name}")


def test_unknown_document_fields_are_masked(
    tmp_path: Path,
) -> None:
    """A document built by a different definition is masked as a whole."""
    assert masks(tmp_path, "public.customers.email").masked["gold.customer"] == {"email", "former"}
    assert masks(tmp_path, "public.orders.total").masked["gold.customer"] == {"former"}
    changed = masks(tmp_path, "public.orders.total", different={"customer"}).masked
    assert changed["gold.customer"] == set(COLUMNS["gold.customer"])
    assert "gold.other" not in changed
    assert masks(tmp_path, "public.customers.id").masked["gold.other"] == {"id", "_key"}


SECRET = "eve's \"own\"\nO'Hara"


@pytest.mark.parametrize(
    ("error", "left"),
    [
        (f"[CAST_INVALID_INPUT] The value '{SECRET}' of the type", "[CAST_INVALID_INPUT]"),
        (f"[CAST_OVERFLOW] The value {SECRET}L of the type", "[CAST_OVERFLOW]"),
        (f"org.apache.spark.SparkException: [A.B_C] {SECRET}", "[A.B_C]"),
        (f"java.lang.ArithmeticException: {SECRET}", "java.lang.ArithmeticException"),
        (f"ValueError: could not convert {SECRET}", "ValueError"),
        (f"could not convert {SECRET}: no", "error"),
        (SECRET, "error"),
    ],
)
def test_error_over_masked_data_shows_only_class(error: str, left: str) -> None:
    mask = Masks({"silver.t": frozenset({"a"})})
    expectation = Expectation("silver", "t", "s", "expect_column_values_to_be_unique", {"column": "a"})
    message = visible_form(Result(expectation, None, error=error, error_of_data=True), mask).error
    assert message == f"{left} (text left out: masked columns)"
    # What is wrong with a suite quotes the suite; what is raised over other tables quotes nothing masked.
    assert visible_form(Result(expectation, None, error=error), mask).error == error
    assert visible_form(Result(expectation, None, error=error, error_of_data=True), Masks({})).error == error


@pytest.mark.parametrize(
    "query",
    [
        "SELECT max(email) AS id FROM {batch}",
        "SELECT struct(*) AS id FROM {batch}",
        "SELECT map_from_arrays(columns, new)['email'] AS id FROM {bronze.changes}",
        "SELECT email AS id FROM delta.`/lake/silver/t`",
        "SELECT * FROM {batch} WHERE true\nunion SELECT max(email) FROM {batch}",
        "SELECT * FROM {batch} WHERE true |> SELECT email AS id",
        "SELECT * FROM {batch} JOIN {silver.t} WHERE true",
    ],
)
def test_sql_rule_shows_nothing_if_column_is_masked(query: str) -> None:
    mask = Masks({"silver.t": frozenset({"email"})})
    expectation = Expectation(
        "silver", "u", "s", "unexpected_rows_expectation", {"unexpected_rows_query": query}
    )
    result = Result(expectation, success=False, unexpected_count=1, values=({"id": "a@b.c", "none": None},))
    assert json.loads(visible_form(result, mask).samples[0]) == {"id": "***", "none": None}
    assert failing_rows(result, None, ["id"], 5, mask) == ({"id": "***", "none": None},)
    assert visible_form(result, Masks({})).samples != visible_form(result, mask).samples
    plain = "select *\nFROM {batch} WHERE email = 'a@b.c' AND id IN (SELECT id FROM {silver.t})"
    expectation = Expectation(
        "silver", "t", "s", "unexpected_rows_expectation", {"unexpected_rows_query": plain}
    )
    result = Result(expectation, success=False, unexpected_count=1, values=({"id": 7, "Email": "a@b.c"},))
    assert failing_rows(result, None, ["id"], 5, mask) == ({"id": "7", "Email": "***"},), "its own columns"
    error = Result(expectation, None, error="[CAST_INVALID_INPUT] The value 'a@b.c'", error_of_data=True)
    assert "a@b.c" not in str(visible_form(error, mask).error)


def test_map_with_date_or_decimal_keys_shows_text() -> None:
    expectation = Expectation(
        "silver", "t", "s", "unexpected_rows_expectation", {"unexpected_rows_query": ""}
    )
    value: dict[str, Any] = {"m": {date(2026, 1, 2): [{Decimal("1.50"): ({None: 1},)}]}}
    (sample,) = visible_form(Result(expectation, False, values=(value,)), Masks({})).samples
    assert json.loads(sample) == {"m": {"2026-01-02": [{"1.50": [{"None": 1}]}]}}
