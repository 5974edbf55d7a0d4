"""Compare the SQL of documents and of affected roots with files under `golden/`.

After a wanted change, rewrite the files: ``SMELT_WRITE_GOLDEN=1 pytest tests/gold/compile/test_compile.py``,
then read the diff.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.gold.builder.build import view_of
from deltasmelt.gold.compile.clauses import with_steps
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.compile.counting import count_flagged
from deltasmelt.gold.incremental.affected import affected_roots
from deltasmelt.gold.tree.resolve import resolve
from tests.gold.shop import SHAPES, catalog
from tests.gold.shop_documents import COUNTRY, CUSTOMER, FAMILY, LAND, PARCEL_LINE, PROFILE, document

if TYPE_CHECKING:
    from deltasmelt.gold.tree.nodes import Tree

GOLDEN = Path(__file__).parents[1] / "golden"
TEXTS = {"customer": CUSTOMER, "parcel_line": PARCEL_LINE, "country": COUNTRY, "profile": PROFILE,
         "family": FAMILY, "land": LAND}  # fmt: skip


def tree(text: str) -> Tree:
    resolved, problems = resolve(document(text), catalog())
    assert resolved is not None, problems
    return resolved


def same_as_file(name: str, text: str) -> None:
    path = GOLDEN / name
    if os.environ.get("SMELT_WRITE_GOLDEN"):
        path.write_text(text + "\n")
    assert text + "\n" == path.read_text()


@pytest.mark.parametrize("name", TEXTS)
def test_a_document_as_one_query(name: str) -> None:
    same_as_file(f"{name}.sql", compile_tree(tree(TEXTS[name]), str).sql)


@pytest.mark.parametrize("name", TEXTS)
def test_a_document_for_some_roots(name: str) -> None:
    same_as_file(
        f"{name}.restricted.sql", compile_tree(tree(TEXTS[name]), str, roots="affected", single_task=True).sql
    )


@pytest.mark.parametrize("name", TEXTS)
def test_roots_affected_by_changes_of_every_table(name: str) -> None:
    root = tree(TEXTS[name])
    query = affected_roots(root, root.tables(), lambda table: f"images_of_{table.name}", str, broadcast=True)
    assert query is not None
    same_as_file(f"{name}.affected.sql", with_steps(query.steps, query.query))


def test_unread_table_affects_no_document() -> None:
    assert affected_roots(tree(PARCEL_LINE), [TableName("public", "tags")], str, str) is None


def test_root_affected_twice_is_named_once() -> None:
    query = affected_roots(tree(COUNTRY), [TableName("public", "customers")], str, str)
    assert query is not None
    assert "UNION" not in query.query
    assert query.query.endswith("GROUP BY k0")


def test_link_by_root_key_skips_reading_root() -> None:
    query = affected_roots(tree(PARCEL_LINE), [TableName("logistics", "parcels")], str, str)
    assert query is not None
    assert "order_items" not in query.query
    assert query.places == (("weight", TableName("logistics", "parcels")),)


def test_only_documents_with_ambiguous_lookup_count_matches() -> None:
    """A document counts several matches only if a lookup does not use a key."""
    assert count_flagged(tree(PARCEL_LINE), str) == ((), "")
    flags, count_columns = count_flagged(tree(CUSTOMER), str)
    assert flags == ("several",)
    assert "n13_first_order" in count_columns
    assert "items" not in count_columns


def test_row_sets_read_once_stay_inline_in_query() -> None:
    compiled = compile_tree(tree(CUSTOMER), str, roots="affected")
    shared = {step.name for step in compiled.shared}
    assert any(name.endswith("_orders") for name in shared)
    assert not any(name.endswith("_parcels") for name in shared)
    assert len({(step.sql) for step in compiled.rows}) == len(compiled.rows)


def test_names_of_any_spelling_are_quoted() -> None:
    shapes = {**SHAPES, 'odd."ta`ble"': ({"i d": "int4", "from": "text", "t": "text"}, ("i d",))}
    text = (
        'document: odd\nroot: odd."ta`ble"\nwhere: "`from` <> \'x\'"\nfields:\n  - id: {column: i d}\n'
        "  - from\n  - same: {many: odd.\"ta`ble\", on: {from: from}, order_by: ['`i d` desc'], values: t}\n"
    )
    resolved, problems = resolve(document(text), catalog(shapes))
    assert resolved is not None, problems
    sql = compile_tree(resolved, lambda name: f"delta.`/lake/{name.name.replace('`', '``')}`").sql
    assert "`t`.`i d` AS `id`" in sql
    assert "`t`.`from` <> 'x'" in sql
    assert "delta.`/lake/ta``ble` AS t" in sql


def test_tables_with_similar_names_have_separate_views() -> None:
    assert view_of(TableName("a.b", "c")) != view_of(TableName("a", "b.c"))
