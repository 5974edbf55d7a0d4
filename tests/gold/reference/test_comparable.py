"""The reference omits fields that PostgreSQL orders or compares differently from documents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.gold.reference.comparable import Comparable, comparable
from deltasmelt.gold.reference.query import documents
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.gold.shop_documents import document
from tests.silver.histories import INT, NUMERIC, TEXT

CITEXT = PgType("base", "citext", schema="public")
NAMED = PgType("composite", "named", schema="public", fields=(("n", INT), ("t", TEXT)))
NUMBERED = PgType("composite", "numbered", schema="public", fields=(("n", INT), ("m", INT)))
KINDS = {
    "id": PgType("base", "money"), "n": INT, "name": TEXT, "c": CITEXT, "named": NAMED, "numbered": NUMBERED,
    "cs": PgType("array", "_citext", element=CITEXT), "chosen": TEXT, "exact": NUMERIC,
}  # fmt: skip
SETTINGS = SilverSettings(types={"public.rows.chosen": "int", "public.rows.exact": "decimal(20,2)"})


def compared(**field: Any) -> Comparable:
    """Return the comparable part of a document with its key and one further field."""
    columns = [Column(name, place, kind, kind.name) for place, (name, kind) in enumerate(KINDS.items(), 1)]
    relations = [
        Relation(place, TableName("public", name), tuple(columns), (key,), "d", Lsn(0))
        for place, (name, key) in enumerate((("roots", "n"), ("rows", "id")), 1)
    ]
    text = json.dumps({"document": "d", "root": "public.roots", "fields": ["n", {"f": field}]})
    tree, problems = resolve(document(text), silver_catalog(relations, SETTINGS))
    assert tree is not None, [problem.message for problem in problems]
    return comparable(tree)


def rows(**more: Any) -> dict[str, Any]:
    return {"many": "public.rows", "on": {"n": "n"}, "fields": ["n"], **more}


@pytest.mark.parametrize(
    "field",
    [
        rows(order_by=["named"]), rows(order_by=["cs"]), rows(order_by=["chosen"]), rows(on={"chosen": "n"}),
        rows(where="chosen = 1"), {"max": "public.rows.c", "on": {"n": "n"}},
        {"max": "public.rows.named", "on": {"n": "n"}}, {"sum": "public.rows.chosen", "on": {"n": "n"}},
    ],
)  # fmt: skip
def test_differently_ordered_field_is_left_out_with_reason(
    field: dict[str, Any],
) -> None:
    part = compared(**field)
    assert [reason_text.split(":")[0] for reason_text in part.left_out] == ["f"]
    assert "public.rows" in part.left_out[0]
    assert part.tree is not None


@pytest.mark.parametrize(
    ("field", "order"),
    [
        (rows(order_by=["c"]), 'lower(t3."c"::text COLLATE "default") COLLATE "C" ASC'),
        (rows(order_by=["name desc"]), 't3."name" COLLATE "C" DESC'),
        (rows(order_by=["numbered"]), 't3."numbered" ASC'),
        (rows(order_by=["exact"]), 't3."exact" ASC'),
        # The key breaks ties; silver has its text.
        (rows(order_by=["n"]), """format('%s', t3."id") END COLLATE "C" ASC"""),
    ],
)
def test_the_rest_is_ordered_as_documents_are(field: dict[str, Any], order: str) -> None:
    part = compared(**field)
    assert part.left_out == ()
    assert part.tree is not None
    assert order in documents(part.tree, "roots")
