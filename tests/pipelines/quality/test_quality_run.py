"""Quality runs over a real lake: each damage is found, nothing sound is reported, all at one cut."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from decimal import Decimal
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.quality import run_quality
from deltasmelt.pipelines.quality.constraints import read_constraints, record_constraints
from deltasmelt.pipelines.quality.results import history, identity
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.sql import literal
from tests.pipelines.quality_lake import DOCUMENT, ROWS, SCHEMAS, build_lake

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.pipelines.quality.expectations import QualityResult, Result
    from deltasmelt.pipelines.settings import Pipeline
    from tests.pipelines.quality_lake import QualityLake

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.usefixtures("interpreted")]


def failures(result: QualityResult) -> dict[tuple[str, str, str | None], tuple[int | None, tuple[str, ...]]]:
    """Return count and samples of each failed expectation, by table, kind and column."""
    return {
        (row.expectation.qualified, row.expectation.kind, row.expectation.column): (
            row.unexpected_count,
            row.samples,
        )
        for row in result.failed
    }


@dataclass(frozen=True)
class Runs:
    """Two runs over one lake, and what the first run left.

    Attributes:
        lake: the lake.
        common: the newest common cut of the first run.
        sound: the run over sound rows, with wrong rows after the newest common cut.
        printed: what the first run wrote to the terminal.
        report: the first run's report.
        breached: the run over rows with each kind of breach.
    """

    lake: QualityLake
    common: int
    sound: QualityResult
    printed: tuple[str, str]
    report: str
    breached: QualityResult


@pytest.fixture(scope="module")
def runs(spark: SparkSession, source: str, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """Run over a sound lake, then over each kind of breach."""
    folder = tmp_path_factory.mktemp("runs")
    with psycopg.connect(source, autocommit=True) as connection:
        lake = build_lake(folder / "shop", source, connection)
    common, report = lake.lsn, folder / "report.html"
    lake.lsn += 1
    lake.insert("silver.orders", {"customer_id": 999, "number": 1, "total": Decimal(1)})
    lake.cut(*(name for name in ROWS if name.startswith("silver.")))  # gold has not come so far yet
    lake.insert("gold.customer", {"id": 999})
    with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error:
        sound = run_quality(spark, lake.pipeline, report=report)
    printed = out.getvalue(), error.getvalue()
    lake.restore()
    lake.insert("silver.orders", {"customer_id": 9, "number": 1, "total": Decimal(1)})
    lake.insert("silver.orders", {"customer_id": 1, "number": 1, "total": Decimal(1)})
    lake.insert("silver.orders", {"number": 7, "total": Decimal(1)})
    lake.insert("silver.customers", {"id": 7, "tier": "gold", "country": "XX", "score": Decimal(1)})
    lake.insert("silver.customers", {"id": 8, "email": ""})
    lake.insert("gold.customer", {"id": 7}, {"id": 7}, {"id": 99})
    lake.cut_all()
    narrower = SilverSettings(types={"public.customers.score": "decimal(8,2)"})
    breached = run_quality(spark, lake.pipeline.model_copy(update={"silver": narrower}))
    return Runs(lake, common, sound, printed, report.read_text(encoding="utf-8"), breached)


def test_a_sound_lake_passes_without_a_word(runs: Runs) -> None:
    """Rows after the newest common cut are not seen."""
    result = runs.sound
    assert result.success, result.to_dict()
    assert result.commit_lsn == runs.common
    assert (result.left_out, result.errors, result.failed) == ((), (), ())
    kinds = [row.expectation.kind for row in result.rows]
    assert kinds.count("expect_column_values_to_not_be_null") == 8
    assert kinds.count("expect_foreign_key_to_hold") == 3
    assert not [row for row in result.rows if row.expectation.suite == "volume"]  # a young lake
    assert {table.qualified: table.rows for table in result.tables} == {
        "bronze.changes": None, "bronze.relations": None,
        "silver.countries": 2, "silver.customers": 3, "silver.orders": 3, "gold.customer": 3,
    }  # fmt: skip
    assert runs.printed == ("", "")
    assert f"All {len(result.rows)} expectations hold" in runs.report


def test_each_kind_of_breach_is_found(runs: Runs) -> None:
    result = runs.breached
    assert not result.success
    assert not result.errors
    assert {row.expectation.column for row in result.failed} - {
        row.expectation.column for row in result.broken
    } == {"_unrepresentable"}
    assert failures(result) == {
        ("silver.customers", "expect_column_values_to_be_null", "_unrepresentable"): (1, ("score",)),
        ("silver.orders", "expect_compound_columns_to_be_unique", "customer_id, number"): (
            2,
            ('{"customer_id": 1, "number": 1}',),
        ),
        ("silver.orders", "expect_column_values_to_not_be_null", "customer_id"): (1, ("NULL",)),
        ("silver.orders", "expect_foreign_key_to_hold", "customer_id"): (1, ("9",)),
        ("silver.customers", "expect_column_values_to_not_be_null", "email"): (1, ("NULL",)),
        # Customer 3's score is NaN at the source: NULL in silver, but not missing. Customer 8's is missing.
        ("silver.customers", "expect_column_values_to_not_be_null", "score"): (1, ("NULL",)),
        ("silver.customers", "expect_column_values_to_be_in_set", "tier"): (1, ("gold",)),
        ("silver.customers", "expect_foreign_key_to_hold", "country"): (1, ("XX",)),
        ("gold.customer", "expect_column_values_to_be_unique", "id"): (2, ("7",)),
        ("gold.customer", "expect_foreign_key_to_hold", "id"): (1, ("99",)),
        ("gold.customer", "expect_a_document_for_each_root_row", None): (
            2,
            ('{"id": 8, "document": "missing"}', '{"id": 99, "document": "without a root row"}'),
        ),
    }


def test_results_and_history_are_rows_of_the_lake(runs: Runs) -> None:
    lake, first, result = runs.lake, runs.sound, runs.breached
    rows = DeltaTable(f"{lake.lake.path}/quality/results").to_pyarrow_table().to_pylist()
    of_run = [row for row in rows if row["run_id"] == first.run_id]
    assert len(of_run) == len(first.rows) == len(rows) - len(result.rows)
    (unique,) = [row for row in of_run if row["expectation"] == "expect_compound_columns_to_be_unique"]
    expected = {
        "layer": "silver", "table_name": "orders", "column": "customer_id, number", "suite": "catalog",
        "success": True, "element_count": 3, "unexpected_count": 0, "commit_lsn": int(first.commit_lsn),
        "kwargs": '{"column_list": ["customer_id", "number"]}', "error": None, "delta_version": 0,
    }  # fmt: skip
    assert {name: unique[name] for name in expected} == expected
    stored = history(lake.lake, 99)
    assert [(run.run_id, run.passed, run.failed) for run in stored.runs] == [
        (first.run_id, len(first.rows), 0),
        (result.run_id, len(result.passed), len(result.broken)),
    ]
    (trend,) = [
        stored.trends[identity(row.expectation)]
        for row in result.rows
        if row.expectation.kind == "expect_compound_columns_to_be_unique"
    ]
    assert [(point.run_id, point.success) for point in trend] == [
        (first.run_id, True),
        (result.run_id, False),
    ]
    assert trend[0].value == 100.0
    assert [run.run_id for run in history(lake.lake, 1).runs] == [result.run_id]


def test_misspelt_names_spoil_nothing_else(spark: SparkSession, lake: QualityLake) -> None:
    lake.suite(
        "orders.yml",
        """\
table: silver.orders
expectations:
  - expectation: expect_column_values_to_be_between
    column: totl
    kwargs: {min_value: 0}
  - expectation: expect_column_values_to_be_betwen
    column: total
  - expectation: expect_column_values_to_be_between
    column: total
    kwargs: {minvalue: 0}
  - expectation: expect_column_values_to_be_between
    column: total
  - expectation: expect_column_values_to_match_regex
    column: total
    kwargs: {regex: "["}
  - expectation: expect_column_values_to_not_match_regex
    column: total
    kwargs: {regex: "^-"}
  - expectation: expect_column_values_to_be_in_set
    column: number
    kwargs: {value_set: [1, 2]}
  - expectation: expect_column_kl_divergence_to_be_less_than
    column: number
    kwargs: {partition_object: {x: 1}, threshold: 1}
  - sql: DROP VIEW {batch}
  - sql: SELECT * FROM {batch} WHERE number = {
  - expectation: unexpected_rows_expectation
    kwargs: {unexpected_rows_query: "SELECT * FROM {batch}", mostly: 0.5}
  - expectation: expect_query_results_to_match_comparison
    kwargs: {base_query: SELECT 1, comparison_data_source_name: lake, comparison_query: SELECT 1}
""",
    )
    lake.suite("broken.yml", "table: [")
    lake.document.write_text(DOCUMENT + "  - tier\n")  # gold has not been built by it yet
    next(Path(f"{lake.lake.path}/bronze/changes").glob("*.parquet")).unlink()
    result = run_quality(spark, lake.pipeline)
    left_out = {item.subject: item.why for item in result.left_out}
    assert "the changes could not be counted: " in left_out["freshness and volume"]
    assert "built with another definition" in left_out["document customer"]
    assert not [row for row in result.rows if row.expectation.layer == "gold"]
    assert not result.failed
    assert not result.success
    syntax, once, whole, *errors, regex, divergence, no_select, brace, of_query, of_sources = result.errors
    assert syntax.startswith("expectations/broken.yml:1")
    assert [entry.partition(":")[0] for entry in (once, whole)] == ["contract of bronze.changes"] * 2
    assert divergence.startswith("expectations/orders.yml:22: ")
    assert no_select.startswith("expectations/orders.yml:25: [PARSE_SYNTAX_ERROR]")
    assert "expected a SELECT with paired braces" in brace
    assert "unknown argument 'mostly'" in of_query
    assert "reads no table of the cut" in of_sources
    table, name = "expectations/orders.yml", "expect_column_values_to_be_between"
    assert errors == [
        f"{table}:3: no column 'totl' in silver.orders; did you mean 'total'?",
        f"{table}:6: unknown expectation 'expect_column_values_to_be_betwen'; did you mean {name!r}?",
        f"{table}:8: {name}: unknown argument 'minvalue'; did you mean 'min_value'?",
        f"{table}:11: {name}: min_value and max_value cannot both be None",
    ]
    assert regex.startswith("expectations/orders.yml:13: ")
    assert "regex" in regex.lower()
    holding = {
        (row.expectation.kind, row.expectation.column) for row in result.passed if not row.expectation.derived
    }
    assert holding == {
        ("expect_column_values_to_not_match_regex", "total"),
        ("expect_column_values_to_be_in_set", "number"),
    }


def views_of(spark: SparkSession) -> set[str]:
    """Return the names of the session's temporary views."""
    return {row.tableName for row in spark.sql("SHOW TABLES").collect() if row.isTemporary}


HOSTILE = "${env:HOME} ${x} it's \\ --;/* \u202e\U0001f642"
"""A text that no statement may interpret: used as a value, a suite's name and part of a rule."""


def foreign_keys(result: QualityResult) -> dict[tuple[str, str | None], Result]:
    """Return the checked foreign keys of the catalog and of documents, by table and column."""
    return {
        (row.expectation.qualified, row.expectation.column): row
        for row in result.rows
        if row.expectation.kind == "expect_foreign_key_to_hold" and row.expectation.derived
    }


def test_suites_of_every_form_are_evaluated(spark: SparkSession, lake: QualityLake) -> None:
    """Soft-deleted rows are in no expectation. The source is down, and no run recorded its foreign keys."""
    odd = pa.schema([(name, pa.int32()) for name in ("a.b", "a_b", "select")])
    lake.write("silver.odd", [{"a.b": 1, "a_b": 2, "select": 3}, {"a.b": 1, "a_b": -2, "select": 3}], odd)
    lake.write("gold.customer", [{"id": 1, "email": "a"}])
    deleted = {"customer_id": 1, "number": 1, "total": None, "_deleted": True}
    live_rows = [{**row, "_deleted": False} for row in ROWS["silver.orders"]]
    schema = SCHEMAS["silver.orders"].append(pa.field("_deleted", pa.bool_()))
    lake.write("silver.orders", [*live_rows, deleted], schema)
    ControlTables(lake.lake).open_error(OpenError("table", "public.audit", "no-key", "it has no key"))
    lake.lsn += 1
    lake.cut(*ROWS, "silver.odd")
    lake.suite(
        "odd.yml",
        """\
table: silver.odd
expectations:
  - {expectation: expect_column_values_to_be_unique, column: a.b}
  - {expectation: expect_column_values_to_be_between, column: a_b, kwargs: {min_value: 0}}
  - {expectation: expect_column_values_to_be_between, column: select, kwargs: {min_value: 3, max_value: 3}}
  - sql: "SELECT `a.b`, a_b FROM {batch} WHERE `a.b` = 1 AND a_b < 0 -- that is no number"
  - expectation: expect_column_values_to_be_between
    column: a.b
    kwargs: {min_value: 2, row_condition: '`a.b` = 1 AND a_b = 2', condition_parser: spark}
  - expectation: unexpected_rows_expectation
    kwargs: {unexpected_rows_query: "SELECT * FROM {batch} ORDER BY 1;", row_condition: '`a.b` > 1'}
""",
    )
    hostile_literal = literal(HOSTILE).replace("{", "{{").replace("}", "}}")
    condition = f"number = 1 and customer_id = 1 and {literal(HOSTILE)} like '$%'"
    lake.suite(
        "orders.yml",
        f"""\
table: silver.orders
suite: {json.dumps("of the " + HOSTILE, ensure_ascii=False)}
expectations:
  - expectation: expect_column_values_to_be_between
    column: total
    kwargs: {{min_value: 6, mostly: 0.6}}
  - expectation: expect_column_values_to_be_between
    column: total
    kwargs: {{min_value: 6, mostly: 0.9}}
    severity: warning
  - expectation: expect_column_values_to_be_between
    column: total
    kwargs:
      min_value: 10
      row_condition: {json.dumps(condition, ensure_ascii=False)}
      condition_parser: spark
  - expectation: expect_column_mean_to_be_between
    column: total
    kwargs: {{min_value: 100}}
    severity: info
  - expectation: unexpected_rows_expectation
    kwargs:
      unexpected_rows_query: >
        SELECT o.*, {hostile_literal} AS said
        FROM {{batch}} AS o LEFT ANTI JOIN {{gold.customer}} AS d ON d.id = o.customer_id;
  - expectation: expect_foreign_key_to_hold
    kwargs: {{columns: [number], references: silver.odd, referenced_columns: [a.b]}}
""",
    )
    lake.suite(
        "undeleted.yml",
        """\
table: silver.orders
expectations:
  - {expectation: expect_column_values_to_not_be_null, column: total}
  - {expectation: expect_table_row_count_to_equal, kwargs: {value: 3}}
  - sql: SELECT * FROM {batch} AS o LEFT ANTI JOIN {silver.orders} AS p ON p.total = o.total
""",
    )
    before = views_of(spark)
    result = run_quality(spark, without_source(lake))
    assert result.errors == ()
    left_out = {item.subject: item.why for item in result.left_out}
    assert left_out["table public.audit"] == "stopped: it has no key"
    assert "the source could not be read" in left_out["foreign keys"]
    assert foreign_keys(result).keys() == {("gold.customer", "id")}
    of_suites = [row for row in result.rows if not row.expectation.derived]
    undeleted = [row for row in of_suites if "/undeleted.yml" in str(row.expectation.where)]
    of_suites = of_suites[: -len(undeleted)]
    assert [(row.success, row.element_count) for row in undeleted] == [(True, 3)] * 3
    assert [(row.expectation.where, row.success) for row in of_suites] == [
        ("expectations/odd.yml:3", False),
        ("expectations/odd.yml:4", False),
        ("expectations/odd.yml:5", True),
        ("expectations/odd.yml:6", False),
        ("expectations/odd.yml:7", False),
        ("expectations/odd.yml:10", True),
        ("expectations/orders.yml:4", True),
        ("expectations/orders.yml:7", False),
        ("expectations/orders.yml:11", True),
        ("expectations/orders.yml:17", False),
        ("expectations/orders.yml:21", False),
        ("expectations/orders.yml:26", False),
    ]
    duplicate, negative, _, rule, condition_of_own, _, _, tolerated, *_, mean, query, reference = of_suites
    assert (rule.unexpected_count, rule.samples) == (1, ('{"a.b": 1, "a_b": -2}',))
    assert (condition_of_own.unexpected_count, condition_of_own.samples) == (1, ("1",))
    assert (duplicate.unexpected_count, duplicate.samples) == (2, ("1",))
    assert (negative.unexpected_count, negative.samples) == (1, ("-2",))
    assert (tolerated.unexpected_count, tolerated.expectation.suite) == (1, f"of the {HOSTILE}")
    assert mean.observed == pytest.approx(35 / 3)
    example = {"customer_id": 2, "number": 1, "total": "5.00", "_deleted": False, "said": HOSTILE}
    assert (query.unexpected_count, query.samples) == (
        1,
        (json.dumps(example, ensure_ascii=False),),
    )
    assert (reference.unexpected_count, reference.samples) == (1, ("2",))
    severities = [row.expectation.severity for row in result.failed]
    assert severities == sorted(severities, key=["error", "warning", "info"].index)
    assert views_of(spark) == before


def test_a_lake_without_a_cut_is_refused(spark: SparkSession, lake: QualityLake, tmp_path: Path) -> None:
    empty = lake.pipeline.lake.model_copy(update={"path": str(tmp_path / "empty")})
    with pytest.raises(ConfigurationError, match="--until-caught-up"):
        run_quality(spark, lake.pipeline.model_copy(update={"lake": empty}))


def test_the_package_loads_no_spark() -> None:
    code = (
        "import deltasmelt.pipelines.quality, sys; "
        "print([name for name in ('pyspark', 'great_expectations', 'jinja2') if name in sys.modules])"
    )
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert process.stdout.strip() == "[]"


def without_source(lake: QualityLake) -> Pipeline:
    """Return the lake's pipeline while no server listens."""
    down = lake.pipeline.source.model_copy(update={"dsn": None, "host": "127.0.0.1", "port": 1})
    return lake.pipeline.model_copy(update={"source": down})


def test_an_uncomputable_foreign_key_spoils_no_other(
    spark: SparkSession, lake: QualityLake, source: str
) -> None:
    """An override of types makes the key a text, and one value is no number.

    The source is down, so the run uses the recorded foreign keys. (The run of the test above has no record.)
    """
    schema = SCHEMAS["silver.customers"]
    at = schema.get_field_index("id")
    customers = [{**row, "id": str(row["id"])} for row in ROWS["silver.customers"]]
    lake.write("silver.customers", [*customers, {"id": "abc"}], schema.set(at, pa.field("id", pa.string())))
    lake.cut_all()
    with psycopg.connect(source, autocommit=True) as connection:
        record_constraints(lake.lake, read_constraints(connection))
    result = run_quality(spark, without_source(lake))
    left_out = {item.subject: item.why for item in result.left_out}
    assert "using its catalog as of" in left_out["newer constraints"]
    keys = foreign_keys(result)
    assert len(keys) == 3
    broken = [("silver.orders", "customer_id"), ("gold.customer", "id")]
    for name in broken:
        assert keys[name].success is None
        assert "CAST_INVALID_INPUT" in str(keys[name].error)
    assert keys["silver.customers", "country"].success is True
    assert {name for name, row in keys.items() if row.success is None} == set(broken)
