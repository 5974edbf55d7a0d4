"""Text in a buffer to rows of text: ``list<string>`` arrays without a Python object per cell.

Bronze keeps a row as one list of its values, and both ways into it bring them row by row: the stream's tuples
(`bronze.pgoutput.tuples`) and COPY's lines (`bronze.snapshot.copy_out`). The cells lie in ascending order in
what was received. Take an Arrow array over that very buffer, with offsets start, end, start, end … It has the
cells at its even places and the bytes between them at its odd ones. One `take` copies the former together.

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
    """Cells of a buffer as one array, which shares nothing with it.

    Args:
        bounds: start and end of each cell, ascending; shape (cells, 2).
        buffer: bytes of UTF-8.
        absent: the cells that are NULL, as a mask or as indexes; None where none is.
    """
    cells = len(bounds)
    if cells == 0:
        return pa.array([], pa.string())
    with_gaps = pa.StringArray.from_buffers(2 * cells - 1, pa.py_buffer(bounds), pa.py_buffer(buffer))
    found = with_gaps.take(pa.array(np.arange(0, 2 * cells, 2, dtype=np.int32)))
    if absent is None:
        return found
    valid = np.ones(cells, np.bool_)
    valid[absent] = False
    _, offsets, text = found.buffers()
    return pa.StringArray.from_buffers(
        cells, offsets, text, pa.py_buffer(np.packbits(valid, bitorder="little"))
    )


def list_array(
    offsets: NDArray[np.int64], values: pa.StringArray, valid: NDArray[np.bool_] | None = None
) -> pa.ListArray:
    """Lists over `values`: list i is ``values[offsets[i]:offsets[i + 1]]``; NULL where `valid` is false."""
    length = len(offsets) - 1
    bitmap = None
    if valid is not None and not valid.all():
        bitmap = pa.py_buffer(np.packbits(valid, bitorder="little"))
    ends = pa.py_buffer(offsets.astype(np.int32))
    return pa.ListArray.from_buffers(TEXT_LIST, length, [bitmap, ends], children=[values])
