"""Rows as text."""

from __future__ import annotations

import csv
import io

import pytest

from deltasmelt.pipelines.sql_shell.results import csv_line, fits, one_value_a_line


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (["a", "1"], "a,1\r\n"),
        ([None, ""], ',""\r\n'),
        (['say "a"', "b,c"], '"say ""a""","b,c"\r\n'),
        (["two\nlines", "cr\rhere"], '"two\nlines","cr\rhere"\r\n'),
        ([" blank", "tab\t"], '" blank","tab\t"\r\n'),
        (["日\U0001f642"], "日\U0001f642\r\n"),
    ],
)
def test_csv_line_distinguishes_null_from_empty_text(values: list[str | None], line: str) -> None:
    assert csv_line(values) == line
    assert next(csv.reader(io.StringIO(line, newline=""))) == [value or "" for value in values]


def test_table_fits_longest_cells_with_double_width_characters() -> None:
    assert fits(["id", "name"], [("1", "abc")], 7)
    assert not fits(["id", "name"], [("1", "abcdef")], 8)
    assert not fits(["a"], [("日日日",)], 5)
    assert fits(["a"], [("日日\nx",), (None,)], 4)


def test_expanded_layout_puts_names_before_aligned_values() -> None:
    assert list(one_value_a_line(["id", "größe"], [("1", "a\nb"), (None, "")])) == [
        "-[ row 1 ]-------",
        "id    | 1",
        "größe | a",
        "      | b",
        "-[ row 2 ]-------",
        "id    | NULL",
        "größe |",
    ]
