"""Test quoting for Spark SQL."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.silver.sql import block, comment, literal, quote
from tests.fix_spark import rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_any_name_is_quoted() -> None:
    assert quote("a b") == "`a b`"
    assert quote("s", "we`ird") == "`s`.`we``ird`"


def test_literal_cannot_end_early_and_keeps_backslashes() -> None:
    assert literal("it's") == r"'it\'s'"
    assert literal("a\\") == r"'a\\'"
    assert literal("a\nb") == r"'a\nb'"


ENDS = "a\rb\x0bc\x0cd\x1ce\x85f\u2028g\u2029h"
"""Characters that Python reads as line ends and Spark as text."""


def test_indentation_preserves_texts_and_names() -> None:
    text, name = literal(ENDS), quote(ENDS.replace("\r", ""))
    statement = f"SELECT {text} AS {name},\n{text}"
    assert block(statement, 2) == f"SELECT {text} AS {name},\n  {text}"


def test_line_end_in_name_is_not_indented() -> None:
    name = quote("a\n`b\n")
    assert block(f"SELECT {name},\n'it\\'s `' -- it's `\nFROM {name}", 2) == (
        f"SELECT {name},\n  'it\\'s `' -- it's `\n  FROM {name}"
    )


def test_name_in_comment_stays_within_comment() -> None:
    assert comment("public.a\n; b\\") == "-- public.a\ufffd; b\ufffd"


TEXTS = [
    "${env:HOME}", "${spark.app.name} ${x} ${", "it's", '"', "`", "\\", "\\'", "\\\\u0041", "a\\", "--", ";",
    "/* */", "*/", "", " ", "\n", "\r\n", "\t", "%", "{x}", "\u202e\u200f", "\U0001f642", "\uffff",
    "".join(map(chr, range(1, 0xA0))), ENDS, "a\n  b", "x' OR '1'='1", "\n`\n``\n",
]  # fmt: skip
"""Texts and names with a special meaning somewhere."""


@pytest.mark.spark
def test_texts_and_names_pass_statement_unchanged(spark: SparkSession) -> None:
    names = [f"{position}{text}" for position, text in enumerate(TEXTS)]
    columns = ",\n".join(f"{literal(text)} AS {quote(name)}" for text, name in zip(TEXTS, names, strict=True))
    nested = block(f"SELECT *\nFROM (\n  SELECT {block(columns, 4)}  -- it's `\n)", 4)
    row = rows_of(spark, f"SELECT {', '.join(quote('t', name) for name in names)} FROM ({nested}) AS t")
    assert list(row[0].asDict().items()) == list(zip(names, TEXTS, strict=True))


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
    for path in (Path(__file__).parents[2] / layer).rglob("*.py"):
        match = re.search(r"\budf\b|pandas|\.rdd\b|mapIn|applyIn|foreach\(|toLocalIterator", path.read_text())
        assert match is None, f"{path.name}: {match}"
