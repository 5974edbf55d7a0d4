"""Documents that the server computes: their bounds, and the reasons to skip a document."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.gold.reference.query import root_columns
from deltasmelt.gold.verify.against_source import WrongDocument
from deltasmelt.pipelines.proof import documents
from deltasmelt.pipelines.proof.documents import ServerDocument, ServerDocuments
from deltasmelt.pipelines.settings import load_pipeline
from tests.bronze.replaying import execute
from tests.fix_postgres import drop_database, make_database
from tests.gold.shop_documents import document
from tests.torture.proxy import Proxy

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.pipelines.settings import Pipeline

pytestmark = pytest.mark.postgres

TABLES = """
CREATE TABLE parent (id int PRIMARY KEY, v text);
CREATE TABLE child () INHERITS (parent);
INSERT INTO parent VALUES (1, 'own'), (2, 'own');
INSERT INTO child VALUES (1, 'of the child'), (3, 'of the child');
CREATE TABLE chosen (id int PRIMARY KEY, v text);
CREATE TABLE empty (id int PRIMARY KEY);
CREATE TABLE stale (id int PRIMARY KEY, v text);
INSERT INTO stale SELECT i, 'v' FROM generate_series(1, 20000) i;
ANALYZE stale;
DELETE FROM stale WHERE id > 5;
CREATE TABLE wide (id int PRIMARY KEY, v text);
INSERT INTO wide SELECT i, repeat('x', 3000000) FROM generate_series(1, 5) i;
CREATE TABLE wider (id int PRIMARY KEY, v text);
INSERT INTO wider SELECT i, repeat('x', 9000000) FROM generate_series(1, 2) i;
"""
NAMES = ("parent", "chosen", "empty", "stale", "wide", "wider")


@pytest.fixture(scope="module")
def dsn(server_dsn: str) -> Iterator[str]:
    database = make_database(server_dsn)
    execute(database, TABLES)
    yield database
    drop_database(server_dsn, database)


def pipeline_of(dsn: str, folder: Path) -> Pipeline:
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: s, publication: s}}\n"
        "lake: {path: './lake'}\nsilver: {types: {public.chosen.v: boolean}}\n"
    )
    return load_pipeline(file)


def computed(
    pipeline: Pipeline, *names: str, stall: Proxy | None = None, more: str = ""
) -> dict[str, ServerDocument]:
    """Return the server's documents of these tables, each with all columns and further fields."""
    texts = [
        f"{{document: {name}, root: public.{name}, fields: [id{', v' * (name != 'empty')}{more}]}}"
        for name in names
    ]
    with connect(pipeline.source) as holder:
        tables = select_tables(holder, pipeline.source)
        documents_asked = ServerDocuments(pipeline, [document(text) for text in texts], tables)
        holder.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        row = holder.execute("SELECT pg_export_snapshot()").fetchone()
        assert row is not None
        documents_asked.begin(str(row[0]), Lsn(1), [TableName("public", name) for name in names])
        if stall is not None:
            stall.stall()
        return {result.name: result for result in documents_asked.result()}


def test_documents_are_compared_or_reason_is_reported(dsn: str, tmp_path: Path) -> None:
    by_name = computed(pipeline_of(dsn, tmp_path), *NAMES)
    assert {name: (result.compared, len(result.answers)) for name, result in by_name.items()} == {
        # The child's rows are not the parent's, as in silver.
        "parent": (2, 2), "chosen": (0, 0), "empty": (0, 0), "stale": (5, 5), "wide": (2, 2), "wider": (0, 0),
    }  # fmt: skip
    assert "of the child" not in "".join(by_name["parent"].answers)
    assert "boolean" in by_name["chosen"].reason
    assert (by_name["empty"].reason, by_name["empty"].empty) == ("the root's table has no rows", True)
    assert by_name["wider"].reason == "its first document is larger than 8 MB"
    assert [result.name for result in by_name.values() if result.reason] == ["chosen", "empty", "wider"]


def test_failure_of_document_is_reason_and_others_continue(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = iter([RuntimeError("broken")])

    def once(tree: Tree) -> str:
        for error in broken:
            raise error
        return root_columns(tree)

    monkeypatch.setattr("deltasmelt.pipelines.proof.documents.root_columns", once)
    by_name = computed(pipeline_of(dsn, tmp_path), "parent", "wide")
    assert (by_name["parent"].reason, by_name["parent"].compared) == ("RuntimeError: broken", 0)
    assert by_name["wide"].compared == 2


def test_omitted_measure_leaves_single_answer_per_root(dsn: str, tmp_path: Path) -> None:
    comparable = "{count: public.stale, on: {v: v}}"
    incomparable = comparable.replace("}}", "}, where: \"lower(v) = 'v'\"}")
    for fields in (f"{{n: {incomparable}}}", f"{{m: {comparable}}}, {{n: {incomparable}}}"):
        result = computed(pipeline_of(dsn, tmp_path), "stale", more=f", {fields}")["stale"]
        assert (result.compared, len(result.left_out)) == (5, 1)


def test_connection_swallowing_answers_ends_within_bound(
    dsn: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "_STATEMENT_SECONDS", 1.0)
    monkeypatch.setattr(documents, "_MARGIN_SECONDS", 0.5)
    start = time.monotonic()
    with Proxy(int(str(conninfo_to_dict(dsn)["port"]))) as proxy:
        by_name = computed(pipeline_of(proxy.dsn(dsn), tmp_path), "stale", stall=proxy)
    assert time.monotonic() - start < 30
    assert by_name["stale"].reason
    assert by_name["stale"].compared == 0


def test_only_documents_that_read_lost_values_are_withdrawn() -> None:
    server_document = ServerDocument(
        "d",
        answers=["{}"] * 3,
        differing=[WrongDocument("d", "[1]", "differs"), WrongDocument("d", "[2]", "differs")],
    )
    server_document.explain({"public.item.at": 1}, {"[1]", "[3]"})
    assert (
        [wrong.key for wrong in server_document.differing],
        server_document.withdrawn,
        server_document.compared,
        server_document.reason,
    ) == (
        ["[2]"],
        1,
        2,
        "",
    )
    server_document.explain({"public.item.at": 1}, {"[2]"})
    assert server_document.differing == []
