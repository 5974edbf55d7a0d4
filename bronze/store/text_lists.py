"""Convert text in a buffer to rows of text: ``list<string>`` arrays without a Python object per cell.

Bronze stores a row as one list of values, and both inputs arrive row by row: the stream's tuples
(`bronze.pgoutput.tuples`) and COPY's lines (`bronze.snapshot.copy_out`).

Arrow's ``list`` and ``string`` count in int32, so one array holds at most 2 GiB of text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

TEXT_LIST: Final = pa.list_(pa.field("element", pa.string()))
"""The type of `columns`, `new`, `old` and `unchanged` in bronze."""


def cells_between(
    bounds: NDArray[np.int32], buffer: object, absent: NDArray[Any] | None = None
) -> pa.StringArray:
    """Return the cells of a buffer as an array that shares no memory with the buffer.

    Args:
        bounds: start and end of each cell, ascending; shape (cells, 2).
        absent: the NULL cells, as a mask or as indexes; None without NULL cells.
    """
    cells = len(bounds)
    if cells == 0:
        return pa.array([], pa.string())
    # The cells are in ascending order in the received bytes. An Arrow array over the buffer gets the offsets
    # start, end, start, end … The cells are then at even indexes, the bytes between cells at odd indexes. A
    # single `take` copies all cells together.
    with_gaps = pa.StringArray.from_buffers(2 * cells - 1, pa.py_buffer(bounds), pa.py_buffer(buffer))
    selected = with_gaps.take(pa.array(np.arange(0, 2 * cells, 2, dtype=np.int32)))
    if absent is None:
        return selected
    valid = np.ones(cells, np.bool_)
    valid[absent] = False
    _, offsets, text = selected.buffers()
    return pa.StringArray.from_buffers(
        cells, offsets, text, pa.py_buffer(np.packbits(valid, bitorder="little"))
    )


def list_array(
    offsets: NDArray[np.int64], values: pa.StringArray, valid: NDArray[np.bool_] | None = None
) -> pa.ListArray:
    """Return lists over `values`: list i is ``values[offsets[i]:offsets[i + 1]]``; NULL if not `valid`."""
    length = len(offsets) - 1
    bitmap = None
    if valid is not None and not valid.all():
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    ends = pa.py_buffer(offsets.astype(np.int32))
    return pa.ListArray.from_buffers(TEXT_LIST, length, [bitmap, ends], children=[values])
