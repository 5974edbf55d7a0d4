"""Elements of documents against silver: found at every depth, checked only with their row's key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.gold.language.document import load_documents
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.pipelines.quality.document_rows import ELEMENTS, check_document, elements_of, of_tree
from deltasmelt.pipelines.quality.run import _documents
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import reading
from tests.pipelines.quality_lake import shop_relations

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.gold.tree.nodes import Tree

DOCUMENT = """
document: country
root: public.countries
fields:
  - code
  - inner: {object: [{people: {many: public.customers, on: {country: code}, fields: [
      id, {orders: {many: public.orders, on: {customer_id: id}, fields: [
        {of: {column: customer_id}}, number]}}]}}]}
  - by_id: {many: public.customers, on: {country: code}, key_by: id, fields: [id]}
  - emails: {many: public.customers, on: {country: code}, values: email}
  - some: {many: public.customers, on: {country: code}, cap: 3, fields: [id]}
  - nameless: {many: public.customers, on: {country: code}, fields: [email]}
"""

DOCUMENTS = """
SELECT 'DE' AS code, named_struct('people', array(
         named_struct('id', 1L, 'orders', array(
           named_struct('of', 1L, 'number', 1), named_struct('of', 1L, 'number', 9))),
         named_struct('id', 2L, 'orders', array()))) AS inner,
       map(1L, named_struct('id', 1L), 5L, named_struct('id', 5L)) AS by_id
UNION ALL SELECT 'FR', named_struct('people', array()), map()
"""


SCORED = """
document: scored
root: public.customers
where: score is not null
fields: [id]
"""


def test_unreadable_document_leaves_others_in_run(tmp_path: Path) -> None:
    texts = {"good": "document: good\nroot: public.t\nfields: [id]\n", "torn": "document: d\nfields: ["}
    for name, text in texts.items():
        (tmp_path / f"{name}.yml").write_text(text)
    file = tmp_path / "pipeline.yaml"
    file.write_text(
        "pipeline: shop\nsource: {slot: s, publication: p}\nlake: {path: ./lake}\n"
        "gold: {documents: ['*.yml']}\n"
    )
    documents, left_out = _documents(load_pipeline(file))
    assert [document.name for document in documents] == ["good"]
    assert [entry.subject for entry in left_out] == ["document torn.yml"]
    assert "torn.yml:2" in left_out[0].why


def tree(folder: Path, text: str = DOCUMENT) -> Tree:
    """Return the resolved document."""
    file = folder / "country.yml"
    file.write_text(text)
    catalog = silver_catalog(shop_relations({"countries": 1, "customers": 2, "orders": 3}), SilverSettings())
    (document,) = load_documents([file])
    resolved, problems = resolve(document, catalog)
    assert resolved is not None, problems
    return resolved


def test_keyed_elements_are_collected_at_every_depth(tmp_path: Path) -> None:
    assert [(elements.label, elements.table, elements.key) for elements in elements_of(tree(tmp_path))] == [
        ("inner.people", "customers", (("id", "id"),)),
        ("inner.people.orders", "orders", (("customer_id", "of"), ("number", "number"))),
        ("by_id", "customers", (("id", "id"),)),
    ]


@pytest.mark.spark
def test_missing_roots_and_deep_orphans_are_reported(spark: SparkSession, tmp_path: Path) -> None:
    """Orphans are also reported in lists within lists, and in maps."""
    document = tree(tmp_path)
    with reading(spark):
        frames = {
            "gold.country": spark.sql(DOCUMENTS),
            "silver.countries": spark.sql("SELECT 'DE' AS code UNION ALL SELECT 'FR'"),
            "silver.customers": spark.sql("SELECT explode(array(1L, 2L, 3L)) AS id"),
            "silver.orders": spark.sql("SELECT 1L AS customer_id, 1 AS number"),
        }
        results = {
            expectation.kwargs.get("elements"): check_document(expectation, document, frames.__getitem__, 5)
            for expectation in of_tree(document, "country.yml", frames)
        }
    assert {
        name: (result.success, result.element_count, result.unexpected_count, result.values)
        for name, result in results.items()
    } == {
        None: (True, 2, 0, ()),
        "inner.people": (True, 2, 0, ()),
        "inner.people.orders": (False, 2, 1, ({"customer_id": 1, "number": 9},)),
        "by_id": (False, 2, 1, ({"id": 5},)),
    }
    scored = tree(tmp_path, SCORED)
    with reading(spark):
        # A value that silver's type cannot hold is not NULL at the source: its row has a document.
        frames = {
            "gold.scored": spark.sql("SELECT explode(array(1L, 2L)) AS id"),
            "silver.customers": spark.sql(
                "SELECT * FROM VALUES (1L, 1.5BD, NULL), (2L, NULL, map('score', 'NaN')), (3L, NULL, NULL) "
                "AS t(id, score, _unrepresentable)"
            ),
        }
        (expectation,) = of_tree(scored, "scored.yml", frames)
        verdict = check_document(expectation, scored, frames.__getitem__, 5)
    assert (verdict.success, verdict.element_count) == (True, 2)
    assert all(result.expectation.kind == ELEMENTS for name, result in results.items() if name)
