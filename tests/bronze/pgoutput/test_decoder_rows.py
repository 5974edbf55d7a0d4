"""Test the step from text in a buffer to rows of text."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from deltasmelt.bronze.store.text_lists import TEXT_LIST, cells_between, list_array


def test_cells_follow_bounds_and_copy_buffer() -> None:
    buffer = bytearray(b"one,,three")
    bounds = np.array([[0, 3], [4, 4], [5, 5], [5, 10]], np.int32)
    cells = cells_between(bounds, buffer, np.array([False, False, True, False]))
    buffer[:] = b"x" * len(buffer)
    cells.validate(full=True)
    assert cells.to_pylist() == ["one", "", None, "three"]
    assert cells_between(bounds[:0], buffer).to_pylist() == []


def test_null_lists_differ_from_empty_lists() -> None:
    lists = list_array(np.array([0, 2, 2, 2]), pa.array(["a", None]), np.array([True, False, True]))
    lists.validate(full=True)
    assert lists.type == TEXT_LIST
    assert lists.to_pylist() == [["a", None], None, []]
