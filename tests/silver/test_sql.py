"""Quoting for Spark SQL."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from silver.sql import block, comment, literal, quote


def test_any_name_is_quoted() -> None:
    assert quote("a b") == "`a b`"
    assert quote("s", "we`ird") == "`s`.`we``ird`"


def test_a_literal_cannot_end_early_and_keeps_its_backslashes() -> None:
    assert literal("it's") == r"'it\'s'"
    assert literal("a\\") == r"'a\\'"
    assert literal("a\nb") == r"'a\nb'"


ENDS = "a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h"
"""Characters that Python takes for ends of lines, and Spark for text."""


def test_statements_are_indented_without_a_change_of_what_their_texts_and_names_hold() -> None:
    text, name = literal(ENDS), quote(ENDS.replace("\r", ""))
    statement = f"SELECT {text} AS {name},\n{text}"
    assert block(statement, 2) == f"SELECT {text} AS {name},\n  {text}"


def test_a_name_in_a_comment_neither_ends_it_nor_takes_the_next_line_into_it() -> None:
    assert comment("public.a\n; b\\") == "-- public.a\ufffd; b\ufffd"


def test_other_literals() -> None:
    assert [literal(value) for value in (None, True, False, 12, 1.5)] == [
        "NULL",
        "true",
        "false",
        "12",
        "1.5",
    ]


@pytest.mark.parametrize("layer", ["silver", "gold"])
def test_no_row_passes_through_python(layer: str) -> None:
    for path in (Path(__file__).parents[2] / layer).glob("*.py"):
        found = re.search(r"\budf\b|pandas|\.rdd\b|mapIn|applyIn|foreach\(|toLocalIterator", path.read_text())
        assert found is None, f"{path.name}: {found}"
