"""Comparisons of columns with constants, as a document's text has them."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.rules import TableRules, hashed
from deltasmelt.gold.expressions.expressions import parse_expression
from deltasmelt.pipelines.health.document_rules import compared_texts

COLUMNS = {"email": "STRING", "city": "STRING", "total": "INT"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("email = 'x@y'", [("email", "x@y")]),
        ("'x@y' <> email", [("email", "x@y")]),
        ("city = 'Bonn' and EMAIL in ('a', 'b''c')", [("city", "Bonn"), ("email", "a"), ("email", "b'c")]),
        ("email not in ('a') or email like '%@y'", [("email", "a"), ("email", "%@y")]),
        ("case when email = 'a' then total end", [("email", "a")]),
        ("email = city and total = 3 and lower(email) = 'a'", []),
    ],
)
def test_direct_comparisons_with_texts_are_found(text: str, found: list[tuple[str, str]]) -> None:
    assert list(compared_texts(parse_expression(text, COLUMNS, "t"))) == found


def test_only_hashes_and_masks_may_arrive() -> None:
    rules = TableRules((("email", "hash"), ("phone", "mask")), key=b"k" * 16)
    texts = {
        "email": ("x@y", hashed("x@y", rules.key)),
        "phone": ("+49 171", "+00 000"),
        "city": ("", "Bonn"),
    }
    answers = {column: [rules.may_arrive(column, text) for text in texts[column]] for column in texts}
    assert answers == {"email": [False, True], "phone": [False, True], "city": [True, True]}
