"""Rules, severities, and examples of failing rows without masked values; all from one run."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING

import psycopg
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.quality import run_quality
from deltasmelt.pipelines.quality.anomalies import Days
from tests.pipelines.quality_lake import QualityLake, build_lake, elements

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.quality.expectations import QualityResult, Result

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.usefixtures("interpreted")]

CUSTOMERS = """\
table: silver.customers
expectations:
  - expectation: expect_column_values_to_match_regex
    column: email
    kwargs: {regex: '@example'}
    severity: warning
  - sql: SELECT * FROM {batch} WHERE email = 'eve@secret.org'
    severity: info
  - sql: SELECT id, upper(email) AS shouted, EMAIL, tier FROM {batch} WHERE id = 7
    severity: warning
  - expectation: expect_column_most_common_value_to_be_in_set
    column: email
    kwargs: {value_set: [a]}
    severity: info
  - sql: SELECT * FROM {batch} WHERE raise_error(concat('[X] \'', email, '\'')) IS NULL
    severity: info
  - expectation: expect_column_pair_values_to_be_equal
    kwargs: {column_A: email, column_B: tier, row_condition: id = 7, condition_parser: spark}
    severity: critical
"""
GOLD = """\
table: gold.customer
expectations:
  - {expectation: expect_column_values_to_be_in_set, column: id, kwargs: {value_set: [1, 2, 3]}}
"""
BRONZE = """\
table: bronze.changes
expectations:
  - {expectation: expect_column_values_to_be_in_set, column: op, kwargs: {value_set: [insert]}}
  - sql: SELECT * FROM {batch} WHERE commit_lsn = 30
    severity: info
"""
SECRETS = ("secret.org", "SECRET.ORG")


NOW = datetime(2026, 11, 21, 14, 0, tzinfo=UTC)


def past_days(lake: QualityLake) -> None:
    """Write steady days of orders without changes today, and very many changes of customers today."""
    lake.commit_ts = NOW
    for day in range(1, 9):
        at = NOW - timedelta(days=day, hours=1)
        lake.transaction(90 - day, 20, commit_ts=at)
        lake.log({"commit_lsn": 90 - day, "seq": 20, "commit_ts": at, "op": "snapshot"})
    lake.transaction(75, 5, commit_ts=NOW - timedelta(days=8.5), table_name="customers")
    lake.transaction(92, 10_001, commit_ts=NOW - timedelta(hours=2), table_name="customers")


def test_days_without_a_past_raise_no_alarm() -> None:
    assert Days((0, *[20] * 7)).silent
    assert not Days((0, *[20] * 6)).silent  # too young
    assert not Days((0, 20, 20, 0, 20, 20, 20, 20)).silent  # it rests now and then
    assert not Days((1, *[20] * 7)).silent
    assert Days((0, 0, 0, *[20] * 7)).silent  # it goes on
    assert not Days((0, 0, 0, *[20] * 6)).silent
    assert not Days((0, 0, *[20] * 5, 0, 0, *[20] * 5)).silent  # it rests at weekends
    assert not Days((0,) * 14).silent
    assert Days((10_001, *[1000] * 7)).flooded
    assert not Days((10_001, *[1000] * 6)).flooded  # too young
    assert not Days((10_000, *[1000] * 7)).flooded
    assert not Days((9_999, *[1] * 7)).flooded  # not much, whatever it was before


@dataclass(frozen=True)
class Harmed:
    """A lake with every kind of damage, and the results of a run."""

    lake: QualityLake
    result: QualityResult
    page: str

    def of(self, table: str, text: str) -> Result:
        """Return the only failed result of a table whose kind or arguments contain a text."""
        (result,) = [
            row
            for row in self.result.failed
            if row.expectation.qualified == table
            and text in f"{row.expectation.kind} {row.expectation.kwargs_json()}"
        ]
        return result


@pytest.fixture(scope="module")
def harmed(spark: SparkSession, source: str, tmp_path_factory: pytest.TempPathFactory) -> Harmed:
    """Run once over all damage, with failing rows and a masked column."""
    folder = tmp_path_factory.mktemp("harmed")
    with psycopg.connect(source, autocommit=True) as connection:
        lake = build_lake(folder / "shop", source, connection)
    lake.insert(
        "silver.customers",
        {"id": 7, "email": "eve@secret.org", "tier": "gold", "country": "DE", "score": Decimal(1)},
        {"id": 8, "tier": "free", "score": Decimal(1)},
    )
    lake.insert("silver.orders", {"customer_id": 9, "number": 1, "total": Decimal(1)})
    lake.insert("gold.customer", {"id": 99, "email": "eve@secret.org", "orders": []})
    lake.insert("gold.customer", {"id": 7, "orders": elements((1, 1), (7, 77), (1, 2))})
    lake.transaction(30, 3, columns=["email"], new=["eve@secret.org"])
    lake.log({"commit_lsn": 30, "seq": 1})  # twice
    lake.transaction(40, 2)
    lake.log({"commit_lsn": 40, "seq": 3, "end_of_tx": True})  # a hole, and a second end
    lake.log({"commit_lsn": 50, "seq": 0})  # no end
    lake.log({"commit_lsn": 60, "seq": 1, "end_of_tx": True})  # begins too late
    lake.log({"commit_lsn": 70, "seq": 0, "end_of_tx": True}, {"commit_lsn": 70, "seq": 1})  # ends too early
    past_days(lake)
    lake.cut_all()
    stopped = OpenError("table", "public.audit", "value-odd", "'eve@secret.org' is odd", "mend it")
    ControlTables(lake.lake).open_error(stopped)
    for name, text in {"customers.yml": CUSTOMERS, "gold.yml": GOLD, "bronze.yml": BRONZE}.items():
        lake.suite(name, text)
    quality = lake.pipeline.quality.model_copy(
        update={"failing_rows": 3, "masked": ["public.customers.email"]}
    )
    report = folder / "report.html"
    result = run_quality(spark, lake.pipeline.model_copy(update={"quality": quality}), report=report)
    return Harmed(lake, result, report.read_text(encoding="utf-8"))


def test_doubled_changes_and_broken_transactions_are_found(harmed: Harmed) -> None:
    twice = harmed.of("bronze.changes", "expect_each_change_once")
    changes = 15 + 8 * 20 + 5 + 10_001
    assert (twice.unexpected_count, twice.element_count, twice.counted) == (1, changes, "changes")
    assert twice.failing_rows == ({"commit_lsn": "0/1E", "seq": "1", "copies": "2"},)
    broken = harmed.of("bronze.changes", "expect_whole_transactions")
    assert (broken.unexpected_count, broken.element_count, broken.counted) == (4, 17, "transactions")
    assert [json.loads(sample)["commit_lsn"] for sample in broken.samples] == ["0/28", "0/32", "0/3C", "0/46"]


def test_a_silent_table_and_a_flood_are_warnings(harmed: Harmed) -> None:
    silent = harmed.of("silver.orders", "keep_changing")
    assert (silent.observed, silent.expectation.severity) == (0, "warning")
    assert "20 a day in the 8 days before" in str(silent.expectation.note)
    flood = harmed.of("silver.customers", "usual_number")
    assert (flood.observed, flood.expectation.severity) == (10_001, "warning")
    kinds = {(row.expectation.table, row.expectation.kind) for row in harmed.result.rows}
    assert ("customers", "expect_table_to_keep_changing") not in kinds


def test_missing_documents_and_orphan_elements_are_found(harmed: Harmed) -> None:
    documents = harmed.of("gold.customer", "document_for_each")
    assert (documents.unexpected_count, documents.element_count) == (2, 5)
    assert documents.failing_rows == (
        {"id": "8", "document": "missing"},
        {"id": "99", "document": "without a root row"},
    )
    orphans = harmed.of("gold.customer", "elements_to_have")
    assert (orphans.unexpected_count, orphans.element_count, orphans.counted) == (1, 6, "elements")
    rows = {table.qualified: table.rows for table in harmed.result.tables}
    assert (rows["gold.customer"], rows["silver.customers"]) == (5, 5)
    assert orphans.samples == ('{"customer_id": 7, "number": 77}',)


def test_failing_rows_are_whole(harmed: Harmed) -> None:
    missing = harmed.of("silver.customers", "not_be_null")
    assert missing.failing_rows == (
        {"id": "8", "email": None, "tier": "free", "country": None, "score": "1.00"},
    )
    label = harmed.of("silver.customers", '"free"')
    assert label.samples == ("gold",)
    assert label.failing_rows[0]["email"] == "***"
    orphan = harmed.of("silver.orders", "foreign_key")
    assert orphan.failing_rows == ({"customer_id": "9", "number": "1", "total": "1.00"},)
    pair = harmed.of("silver.customers", "pair")
    assert (pair.expectation.severity, [row["id"] for row in pair.failing_rows]) == ("error", ["7"])


def test_masked_values_are_nowhere(harmed: Harmed) -> None:
    regex = harmed.of("silver.customers", "regex")
    assert (regex.samples, regex.expectation.severity) == (("***",), "warning")
    assert [(row["id"], row["email"]) for row in regex.failing_rows] == [("7", "***")]
    assert harmed.of("silver.customers", "WHERE email =").failing_rows[0]["id"] == "7"
    assert harmed.of("silver.customers", "shouted").failing_rows == (
        {"id": "***", "shouted": "***", "EMAIL": "***", "tier": "***"},
    )
    assert harmed.of("silver.customers", "most_common").observed == "***"
    documents = {row["id"]: row["email"] for row in harmed.of("gold.customer", "[1, 2, 3]").failing_rows}
    assert documents == {"99": "***", "7": None}
    assert harmed.of("bronze.changes", "SELECT").failing_rows[0]["new"] == "***"
    (raised,) = harmed.result.unchecked
    assert raised.error == "[USER_RAISED_EXCEPTION] (text left out: masked columns)"
    left_out = {item.subject: item.why for item in harmed.result.left_out}
    assert left_out["table public.audit"] == "stopped: value-odd; remedy: mend it"

    stored = DeltaTable(f"{harmed.lake.lake.path}/quality/results").to_pyarrow_table().to_pylist()
    for text in (harmed.page, json.dumps(harmed.result.to_dict()), str(stored), repr(harmed.result)):
        without_rule = re.sub("WHERE email = .{1,6}eve@secret.org", "", text)  # the suite's own words
        assert not [secret for secret in SECRETS if secret in without_rule]


def test_only_errors_and_wrong_masks_fail(spark: SparkSession, lake: QualityLake) -> None:
    lake.suite(
        "orders.yml",
        "table: silver.orders\nexpectations:\n"
        "  - {sql: 'SELECT * FROM {batch} WHERE total < 6', severity: warning}\n"
        "  - {sql: 'SELECT * FROM {batch}', severity: info}\n",
    )
    result = run_quality(spark, lake.alone("silver.orders"))
    assert result.success
    assert result.summary() == f"no error among {len(result.rows)} expectations, 1 warning, 1 info"
    assert [row.unexpected_count for row in result.failed] == [1, 3]
    wrong = lake.pipeline.quality.model_copy(update={"masked": ["public.customers.emial"]})
    with pytest.raises(ConfigurationError, match=r"did you mean 'public\.customers\.email'") as caught:
        run_quality(spark, lake.pipeline.model_copy(update={"quality": wrong}))
    assert caught.value.code == "mask-unknown"
