"""`smelt verify` finds faults that are put into gold's compiler on purpose.

A fault of the compiler makes gold equal to a full rebuild, which has the same fault: the documents that
PostgreSQL computes find it. Nothing here finds what Spark cannot see, as the physical type of a timestamp in
a Parquet file (INT96): `tests/readers` reads the files by other readers.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from gold.compile import aggregates, clauses, elements
from pipelines.commands.context import load_documents_of, open_gold
from tests.fix_postgres import drop_database, make_database
from tests.pipelines.in_process import smelt_here
from tests.pipelines.proof.test_against_source import Source

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres]

TABLES = """
CREATE TYPE mood AS ENUM ('sad', 'ok');
CREATE TABLE owner (id int PRIMARY KEY, code varchar(5), level mood, name text);
INSERT INTO owner SELECT i, 'c' || i, (ARRAY['sad', 'ok'])[i % 2 + 1]::mood, 'Ä' || i
  FROM generate_series(1, 30) i;
CREATE TABLE item (id int PRIMARY KEY, owner text, amount numeric(12,2), valid date);
INSERT INTO item SELECT i, 'c' || i % 7, i, DATE '2024-01-01' + i FROM generate_series(1, 120) i;
"""

LATER = "UPDATE item SET amount = amount + 1 WHERE id < 5; DELETE FROM item WHERE id > 100;"

DOCUMENT = {
    "document": "owner",
    "root": "public.owner",
    "fields": [
        "id",
        {"label": {"sql": "upper(name)"}},
        {"largest": {"max": "public.item.amount", "on": {"owner": "code"}}},
        {"amounts": {"count_distinct": "public.item.amount", "on": {"owner": "code"}, "where": "id > 3"}},
        {"items": {"many": "public.item", "on": {"owner": "code"}, "order_by": ["amount desc"], "limit": 3,
                   "fields": ["id", "amount", {"owners": {"many": "public.owner", "on": {"code": "owner"},
                                                           "values": "name"}}]}},
        {"odd": {"count": "public.item", "on": {"owner": "code"}, "where": "lower(owner) = 'c1'"}},
        {"latest": {"max": "public.item.valid", "on": {"owner": "code"}}},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def source(
    spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Source]:
    dsn = make_database(server_dsn)
    folder = tmp_path_factory.mktemp("purpose")
    (folder / "owner.doc.yml").write_text(json.dumps(DOCUMENT))
    yield Source(spark, folder, dsn, (TABLES, LATER), "gold: {documents: ['*.doc.yml']}\n")
    drop_database(server_dsn, dsn)


def build(source: Source, *, rebuild: bool = False) -> None:
    """Build the document as it is now."""
    gold = open_gold(source.spark, source.pipeline, source.control)
    gold.cycle(rebuild=["owner"] if rebuild else ())


def verify(source: Source, *more: str) -> tuple[int, dict[str, Any]]:
    done = smelt_here("verify", source.file, *more, "--output", "json", folder=source.folder)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def test_documents_are_those_that_postgresql_computes(source: Source) -> None:
    source.carry()
    build(source)
    assert [one.name for one in load_documents_of(source.pipeline)] == ["owner"]
    done = smelt_here("verify", source.file, folder=source.folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gold.owner: equal to PostgreSQL's documents as of " in done.stdout
    assert "; a sample of 30\n" in done.stdout
    assert (
        "  not compared with PostgreSQL: odd: the filter \"lower(owner) = 'c1'\" of public.item: "
        in done.stdout
    )
    assert "gold.owner: equal to a full rebuild" in done.stdout
    assert source.left() == []


@pytest.mark.parametrize("fault", ["order", "maximum", "distinct"])
def test_a_fault_of_the_compiler_is_found_though_gold_equals_a_rebuild(
    source: Source, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """By text and not by value: each fault is in all that gold makes."""
    plain_measure, plain_order = aggregates._measure, clauses.ordered

    def measure(function: str, value: str, only: str, ddl: str) -> str:
        if fault == "maximum" and function == "max":
            return f"CAST(max(CAST({value} AS STRING)){only} AS {ddl})"
        if fault == "distinct" and function == "count_distinct":
            return f"count(DISTINCT floor({value} / 10)){only}"
        return plain_measure(function, value, only, ddl)

    monkeypatch.setattr(aggregates, "_measure", measure)
    if fault == "order":
        monkeypatch.setattr(
            elements, "ordered", lambda wanted, value: plain_order(wanted, f"CAST({value} AS STRING)")
        )
    code, found = verify(source)
    assert code == 1
    (one,) = found["documents_at_source"]
    assert not one["equal"]
    assert {wrong["kind"] for wrong in one["wrong"]} == {"differs"}
    paths = {"order": "items", "maximum": "largest", "distinct": "amounts"}
    assert one["wrong"][0]["difference"]["path"].startswith(paths[fault])
    assert all(table["equal"] for table in found["tables"])


def test_a_value_that_silver_cannot_hold_withdraws_the_documents_that_read_it_and_no_others(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = aggregates._measure

    def measure(function: str, value: str, only: str, ddl: str) -> str:
        return plain(function, f"floor({value} / 10)" if function == "count_distinct" else value, only, ddl)

    source.execute("UPDATE item SET valid = 'infinity' WHERE id = 10")
    source.carry()
    monkeypatch.setattr(aggregates, "_measure", measure)
    code, found = verify(source)
    assert code == 1
    (one,) = found["documents_at_source"]
    # The item of the value is one of c3.
    assert [wrong["key"] for wrong in one["wrong"]] == ["[1]", "[2]", "[4]", "[5]", "[6]"]
    assert (one["compared"], one["not_compared"]) == (29, "")
    assert one["values_not_held"] == "public.item.valid (1)"
