"""Rows of text from columns of text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bronze.rows import TEXT_LIST, interleave, interleave_pieces, list_array

CELLS = st.one_of(st.none(), st.text(max_size=6))


@st.composite
def tables(draw: st.DrawFn) -> list[list[str | None]]:
    rows, width = draw(st.integers(0, 8)), draw(st.integers(1, 5))
    return [draw(st.lists(CELLS, min_size=rows, max_size=rows)) for _ in range(width)]


@settings(deadline=None)  # the machine is shared
@given(tables())
def test_interleaved_columns_read_as_their_rows(table: list[list[str | None]]) -> None:
    rows = interleave([pa.array(column, pa.string()) for column in table])
    rows.validate(full=True)
    assert rows.type == TEXT_LIST
    assert rows.to_pylist() == [list(row) for row in zip(*table, strict=True)]


@settings(deadline=None)  # the machine is shared
@given(tables(), st.integers(0, 5))
def test_slices_and_large_strings_interleave_like_plain_columns(
    table: list[list[str | None]], skip: int
) -> None:
    columns = [
        pa.array(column, pa.large_string() if i % 2 else pa.string()).slice(skip)
        for i, column in enumerate(table)
    ]
    assert interleave(columns).to_pylist() == [list(row) for row in zip(*table, strict=True)][skip:]


@settings(deadline=None)  # the machine is shared
@given(tables(), st.integers(1, 30))
def test_pieces_hold_the_same_rows_within_their_bytes(table: list[list[str | None]], max_bytes: int) -> None:
    columns = [pa.array(column, pa.string()) for column in table]
    pieces = list(interleave_pieces(columns, max_bytes=max_bytes))
    assert [row for piece in pieces for row in piece.to_pylist()] == interleave(columns).to_pylist()
    for piece in pieces:
        text = sum(len(cell.encode()) for row in piece.to_pylist() for cell in row if cell is not None)
        assert len(piece) <= 1 or text <= max_bytes


def test_a_table_without_columns_has_empty_rows() -> None:
    assert interleave([], length=3).to_pylist() == [[], [], []]
    with pytest.raises(ValueError, match="one length"):
        interleave([])


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        interleave([pa.array(["a"]), pa.array(["a", "b"])])


def test_more_than_two_gib_of_text_are_refused_whole_and_split_in_pieces() -> None:
    # One buffer of 700 MB stands in for four columns: sizes are read from offsets, no text is touched.
    buffer = pa.py_buffer(np.zeros(700_000_000, np.uint8))
    offsets = pa.py_buffer(np.array([0, 350_000_000, 700_000_000], np.int32))
    columns = [pa.StringArray.from_buffers(2, offsets, buffer)] * 4
    with pytest.raises(OverflowError, match="interleave_pieces"):
        interleave(columns)


def test_null_lists_differ_from_empty_lists() -> None:
    lists = list_array(np.array([0, 2, 2, 2]), pa.array(["a", None]), np.array([True, False, True]))
    lists.validate(full=True)
    assert lists.to_pylist() == [["a", None], None, []]
