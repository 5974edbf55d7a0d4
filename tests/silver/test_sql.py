"""Quoting for Spark SQL."""

from __future__ import annotations

from silver.sql import literal, quote


def test_any_name_is_quoted() -> None:
    assert quote("a b") == "`a b`"
    assert quote("s", "we`ird") == "`s`.`we``ird`"


def test_a_literal_cannot_end_early_and_keeps_its_backslashes() -> None:
    assert literal("it's") == r"'it\'s'"
    assert literal("a\\") == r"'a\\'"
    assert literal("a\nb") == r"'a\nb'"


def test_other_literals() -> None:
    assert [literal(value) for value in (None, True, False, 12, 1.5)] == [
        "NULL",
        "true",
        "false",
        "12",
        "1.5",
    ]
