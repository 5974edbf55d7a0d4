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
def test_a_line_of_csv_tells_null_from_an_empty_text(values: list[str | None], line: str) -> None:
    assert csv_line(values) == line
    assert next(csv.reader(io.StringIO(line, newline=""))) == [value or "" for value in values]


def test_a_table_fits_by_its_longest_cells_where_wide_characters_count_twice() -> None:
    assert fits(["id", "name"], [("1", "abc")], 7)
    assert not fits(["id", "name"], [("1", "abcdef")], 8)
    assert not fits(["a"], [("日日日",)], 5)
    assert fits(["a"], [("日日\nx",), (None,)], 4)


def test_one_value_a_line_puts_names_before_values_and_keeps_lines_of_a_text_below_each_other() -> None:
    assert list(one_value_a_line(["id", "größe"], [("1", "a\nb"), (None, "")])) == [
        "-[ row 1 ]-------",
        "id    | 1",
        "größe | a",
        "      | b",
        "-[ row 2 ]-------",
        "id    | NULL",
        "größe |",
    ]
