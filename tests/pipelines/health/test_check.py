"""`smelt check` on real servers and lakes: its findings, all reported at once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect, identify, log_end
from deltasmelt.bronze.rules import OUR_LIST
from deltasmelt.bronze.setup.create_slot import ensure_slot
from deltasmelt.bronze.setup.publication import ensure_publication
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import rules_app
from deltasmelt.bronze.store.position import Position, SentTransaction
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.init.command import run_init
from deltasmelt.pipelines.quality.run import _constraints
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.silver.settings import SilverSettings
from tests.bronze.enumerated import swallow
from tests.bronze.replaying import execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltasmelt.bronze.checks.finding import Finding
    from deltasmelt.bronze.postgres.connection import SourceConnection

DOCUMENT = """
document: customer
root: public.customers
fields:
  - id
  - email
  - orders: {many: public.orders, on: {customer_id: id}, fields: [id, total]}
"""
SHOP = """
    CREATE TABLE customers (id int PRIMARY KEY, email text NOT NULL);
    CREATE TABLE orders (id int PRIMARY KEY, customer_id int REFERENCES customers, total numeric(12,2));
"""


def pipeline_of(
    folder: Path, dsn: str, *, document: str = DOCUMENT, more: str = "", name: str = "shop"
) -> Pipeline:
    (folder / "customer.yml").write_text(document)
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: {name}\nsource:\n  dsn: {dsn}\n  slot: check_{name}\n  publication: smelt_pub\n"
        f"lake: {{path: ./lake}}\ngold: {{documents: ['*customer.yml']}}\n{more}"
    )
    return load_pipeline(file)


def codes(found: list[Finding], level: str = "error") -> list[str]:
    return [finding.code for finding in found if finding.level == level]


def finding_of(found: list[Finding], code: str) -> Finding:
    [finding] = [candidate for candidate in found if candidate.code == code]
    return finding


@pytest.fixture
def shop(database: str) -> str:
    execute(database, SHOP)
    return database


def lake_of(
    pipeline: Pipeline,
    at: Lsn,
    *,
    name: str = "shop",
    database: str | None = None,
    sent: SentTransaction | None = None,
) -> None:
    """Create a lake as the reader leaves it: marks, owner, one shape."""
    with connect(pipeline.source) as connection:
        identity = identify(connection)
    if database is not None:
        identity = type(identity)(identity.system_identifier, identity.timeline, identity.version, database)
    sink = DeltaSink(pipeline.lake_address(), name, identity)
    integer = PgType(kind="base", name="int4", oid=23)
    columns = (Column("id", 1, integer, "integer", not_null=True, in_identity=True),)
    sink.add_relations([Relation(1, TableName("public", "customers"), columns, ("id",), "d", Lsn(5))])
    sink.commit(Position(Lsn(at - 1), at, 0, None, sent))


def test_a_sound_pipeline_has_no_error(tmp_path: Path, shop: str) -> None:
    findings = run_check(pipeline_of(tmp_path, shop))
    assert codes(findings) == []
    assert "documents-unchecked" not in codes(findings, "info")


def test_findings_come_errors_first(tmp_path: Path, shop: str) -> None:
    execute(shop, "CREATE TABLE bare (a money)")
    levels = [finding.level for finding in run_check(pipeline_of(tmp_path, shop))]
    assert levels == sorted(levels, key=["error", "warning", "info"].index)
    assert levels[0] == "error"


def test_unknown_document_names_are_reported_with_line(tmp_path: Path, shop: str) -> None:
    wrong = DOCUMENT.replace("- email", "- emial").replace("public.orders", "public.order")
    (tmp_path / "a_customer.yml").write_text("document: a\nroot: public.orders\nfields: {id: id}\n")
    (tmp_path / "b_customer.yml").write_text("document: [\n")
    findings = run_check(pipeline_of(tmp_path, shop, document=wrong))
    assert [
        (finding.code, finding.subject.rpartition("/")[2]) for finding in findings if finding.level == "error"
    ] == [
        ("yaml-content", "a_customer.yml:3"),
        ("yaml-syntax", "b_customer.yml:2"),
        ("document-invalid", "customer.yml:6"),
        ("document-invalid", "customer.yml:7"),
    ]
    assert "email" in findings[2].message


def test_suite_names_are_checked_against_silver_and_documents(tmp_path: Path, shop: str) -> None:
    (tmp_path / "suite.yml").write_text(
        "table: gold.customer\nexpectations:\n"
        "  - {expectation: expect_column_values_to_not_be_null, column: emial}\n"
        "  - {expectation: expect_column_values_to_not_be_null, column: _content_hash}\n"
    )
    (tmp_path / "other_suite.yml").write_text(
        "table: silver.custmers\nexpectations:\n"
        "  - {expectation: expect_column_values_to_not_be_null, column: id}\n"
    )
    findings = run_check(pipeline_of(tmp_path, shop, more="quality: {suites: ['*suite.yml']}\n"))
    faults = {finding.subject: finding.message for finding in findings if finding.code == "suite-invalid"}
    messages = " ".join(faults.values())
    assert "no column 'emial' in gold.customer; did you mean 'email'?" in messages
    assert "did you mean 'silver.customers'?" in messages
    assert [subject.rpartition("/")[2] for subject in sorted(faults)] == ["other_suite.yml:3", "suite.yml:3"]


def test_a_mask_that_hides_nothing_is_an_error(tmp_path: Path, shop: str) -> None:
    findings = run_check(pipeline_of(tmp_path, shop, more="quality: {masked: [public.customers.emial]}\n"))
    assert "did you mean 'public.customers.email'" in finding_of(findings, "mask-unknown").message
    findings = run_check(pipeline_of(tmp_path, shop, more="quality: {masked: [public.customers.email]}\n"))
    assert "mask-unknown" not in codes(findings)


def test_mask_of_column_only_in_silver_is_valid(tmp_path: Path, shop: str) -> None:
    shop_pipeline = pipeline_of(tmp_path, shop, more="quality: {masked: [public.customers.mail__9]}\n")
    assert "mask-unknown" in codes(run_check(shop_pipeline))
    silver = shop_pipeline.lake_address().uri("silver", "customers")
    write_deltalake(silver, pa.table({"id": [1], "mail__9": ["a"]}))
    assert "mask-unknown" not in codes(run_check(shop_pipeline))


def test_broken_document_does_not_hide_source_problems(tmp_path: Path, shop: str) -> None:
    execute(shop, "CREATE TABLE bare (a int)")
    findings = run_check(
        pipeline_of(tmp_path, shop, document="document: customer\nroots: public.customers\n")
    )
    assert codes(findings)[-1] == "table-without-key"
    assert any("customer.yml:2" in finding.subject + finding.message for finding in findings)


def test_unreachable_source_is_single_error_without_password(tmp_path: Path, shop: str) -> None:
    dsn = make_conninfo(shop, host="127.0.0.1", port=1, password="op3n-s3same")
    findings = run_check(pipeline_of(tmp_path, f'"{dsn}"'))
    assert codes(findings) == ["server-unreachable"]
    assert findings[0].remedy
    assert not any("s3same" in str(finding) for finding in findings)
    assert codes(findings, "info") == ["documents-unchecked"]


def test_offline_no_server_is_asked(tmp_path: Path) -> None:
    unreachable = pipeline_of(tmp_path, "postgresql://nobody@127.0.0.1:1/nothing")
    assert [finding.code for finding in run_check(unreachable, offline=True)] == ["documents-unchecked"]


def test_offline_check_uses_shapes_of_lake(tmp_path: Path, shop: str) -> None:
    shop_pipeline = pipeline_of(tmp_path, shop)
    lake_of(shop_pipeline, Lsn(100))
    findings = run_check(shop_pipeline, offline=True)
    assert {finding.code for finding in findings} == {"document-invalid"}
    assert any("public.orders" in finding.message for finding in findings)
    assert any("email" in finding.message for finding in findings)


def test_a_lost_list_of_former_rules_is_named(tmp_path: Path, shop: str) -> None:
    shop_pipeline = pipeline_of(tmp_path, shop)
    execute(shop, "CREATE PUBLICATION smelt_pub FOR TABLE orders WITH (publish_via_partition_root = true)")
    lake_of(shop_pipeline, Lsn(100))
    changes = delta.open_existing(shop_pipeline.lake_address().uri("bronze", CHANGES))
    commit_marks(changes, [Transaction(rules_app(TableName("public", "customers")), OUR_LIST)])
    found = finding_of(run_check(shop_pipeline), "publication-rules")
    assert "public.customers" in str(found)


def silver(pipeline: Pipeline, **values: object) -> Pipeline:
    """Return the pipeline with a different section `silver`, which the file need not support yet."""
    return pipeline.model_copy(update={"silver": SilverSettings.model_validate(values)})


def test_unmatched_settings_suggest_nearest_name(tmp_path: Path, shop: str) -> None:
    shop_pipeline = pipeline_of(tmp_path, shop)
    types, history = {"public.orders.totl": "decimal(38,9)"}, ["public.order"]
    cluster = {'"public"."orders"': ["id", "customer"], "public.ordres": ["id"]}
    findings = run_check(silver(shop_pipeline, types=types, history=history, cluster=cluster))
    assert codes(findings) == []
    assert "public.orders.total?" in str(finding_of(findings, "type-override-unused").remedy)
    assert "public.orders?" in str(finding_of(findings, "history-unused").remedy)
    unused = [finding.message for finding in findings if finding.code == "cluster-unused"]
    assert unused == ["public.orders.customer is not a column of a selected table",
                      "public.ordres is not a selected table"]  # fmt: skip


def test_impossible_type_override_is_error(tmp_path: Path, shop: str) -> None:
    findings = run_check(
        pipeline_of(tmp_path, shop, more="silver: {types: {public.orders.total: nonsense}}\n")
    )
    [finding] = [
        candidate
        for candidate in findings
        if candidate.level == "error" and candidate.code != "document-invalid"
    ]
    assert "nonsense" in finding.message + str(finding.remedy)


def test_names_that_silver_settings_make_clash_are_errors(tmp_path: Path, shop: str) -> None:
    execute(shop, "CREATE TABLE orders__history (id int PRIMARY KEY, _deleted boolean)")
    shop_pipeline = pipeline_of(tmp_path, shop)
    findings = run_check(silver(shop_pipeline, deletes="soft", history=["public.orders"]))
    assert codes(findings) == ["silver-settings-clash", "silver-settings-clash"]
    assert codes(run_check(shop_pipeline)) == []


def test_lake_of_other_pipeline_or_server_is_error(tmp_path: Path, shop: str, database18: str) -> None:
    """The lake belongs to a different pipeline, cluster or database."""
    shop_pipeline = pipeline_of(tmp_path, shop)
    lake_of(shop_pipeline, Lsn(100), name="another", database="elsewhere")
    findings = run_check(shop_pipeline)
    assert {"lake-of-another-pipeline", "lake-of-another-database"} <= set(codes(findings))
    assert "another" in finding_of(findings, "lake-of-another-pipeline").message
    assert codes(run_check(shop_pipeline, offline=True))[0] == "lake-of-another-pipeline"
    execute(database18, SHOP)
    moved = pipeline_of(tmp_path, database18, name="another")
    assert "lake-of-another-server" in codes(run_check(moved))


def test_stream_unable_to_continue_from_lake_is_error(tmp_path: Path, shop: str) -> None:
    shop_pipeline = pipeline_of(tmp_path, shop)
    lake_of(shop_pipeline, Lsn(100))
    findings = run_check(shop_pipeline)
    assert codes(findings) == ["slot-lost"]
    assert "slot-missing" not in codes(findings, "info")
    with connect(shop_pipeline.source) as connection:
        tables = [TableName("public", "orders"), TableName("public", "customers")]
        ensure_publication(connection, shop_pipeline.source, tables)
        slot = ensure_slot(connection, shop_pipeline.source)
    findings = run_check(shop_pipeline)
    assert codes(findings) == ["slot-gap"]
    assert str(slot.confirmed_flush) in finding_of(findings, "slot-gap").message

    for folder, end, expected in (
        ("fits", slot.confirmed_flush, []),
        ("ahead", Lsn(slot.confirmed_flush + (1 << 40)), ["server-behind"]),
    ):
        (tmp_path / folder).mkdir()
        second_pipeline = pipeline_of(tmp_path / folder, shop)
        lake_of(second_pipeline, end)
        assert codes(run_check(second_pipeline)) == expected

    execute(shop, "INSERT INTO customers VALUES (1, 'a@b.c')")
    with connect(shop_pipeline.source) as connection:
        end = log_end(connection)
    (tmp_path / "parted").mkdir()
    second_pipeline = pipeline_of(tmp_path / "parted", shop)
    lake_of(second_pipeline, end, sent=SentTransaction(slot.confirmed_flush, 1))
    for _ in range(2):  # a check moves no slot
        assert codes(run_check(second_pipeline)) == ["server-history-differs"]


@pytest.mark.parametrize("command", ["check", "init", "quality"])
def test_missing_answer_ends_every_catalog_command(tmp_path: Path, shop: str, command: str) -> None:
    opened: list[SourceConnection] = []

    def silent(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if opened and "patience" in vars(opened[0]):  # the session is set up
            connection = opened.pop()
            assert math.isfinite(connection.patience)
            connection.patience /= 600
            swallow(connection)
        result = effect()
        if door is Effect.CONNECT and where.startswith("deltasmelt"):
            opened.append(result)
        return result

    shop_pipeline = pipeline_of(tmp_path, shop)
    with guarded(silent):
        if command == "check":
            (error,) = (finding for finding in run_check(shop_pipeline) if finding.level == "error")
            message = error.message
        elif command == "init":
            with pytest.raises(TransientError) as caught:
                run_init(Output(), dsn=shop, out=tmp_path / "new" / "pipeline.yml")
            message = str(caught.value)
        else:
            _, (left_out,) = _constraints(shop_pipeline, shop_pipeline.lake_address())
            message = str(left_out)
    assert "has not answered" in message
