"""Walk the tuples of many rows side by side, column by column, into one Arrow string array.

A tuple is a two-byte number of columns and then, for each column, a kind byte:

* ``t``: text, after a four-byte length;
* ``n``: NULL;
* ``u``: an out-of-line value (TOAST) that did not change and was not sent;
* ``b``: binary, never requested by deltasmelt.

The position of a column is known only after the column before, so one row cannot be read in parallel. But all
rows can make a step together: each step reads kind and length at every row's position and advances the
position.

Invariant: no step leaves its message. Each step compares positions with the end of the message. An unknown
kind stops the walk before its length is used. Finally each row must end exactly at the position that the
caller expects.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (TupleData).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NoReturn

import numpy as np
import pyarrow as pa

from deltasmelt.bronze.store.text_lists import cells_between

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from deltasmelt.bronze.pgoutput.framing import Frames, Positions

_TEXT, _NULL, _UNCHANGED, _BINARY = b"tnub"
_FEW_ROWS: Final = 8
"""Up to so many rows a plain loop over cells beats numpy's fixed cost per step (10 µs)."""


@dataclass(frozen=True, slots=True)
class Tuples:
    """Positions of the cells of some tuples."""

    # number of columns of each tuple
    widths: Positions
    # start and end of each cell in the buffer, tuple after tuple; int32, shape (cells, 2)
    bounds: NDArray[np.int32]
    # whether each cell has no text (NULL or not sent); None if all cells have text
    absent: NDArray[np.bool_] | None
    # indexes of the cells not sent because an out-of-line value did not change, ascending
    unchanged: Positions
    after: Positions


def walk(frames: Frames, messages: Positions, positions: Positions) -> Tuples:
    """Find the cells of the tuples that begin at `positions`, each inside its message of `messages`.

    Raises:
        DefiniteError: a tuple leaves its message, or holds binary values or an unknown kind of value.
    """
    limits = frames.at[messages + 1]
    for row in np.flatnonzero(positions + 2 > limits)[:1].tolist():
        frames.malformed(int(messages[row]), "the message ends before its tuple")
    widths = frames.uint16(positions)
    widest = int(widths.max(initial=0))
    offsets = np.zeros(len(widths) + 1, np.int64)
    np.cumsum(widths, out=offsets[1:])
    steps = _Steps(frames, messages, int(offsets[-1]))
    if len(widths) == 0 or int(widths.min()) == widest:
        next_positions = steps.side_by_side(positions + 2, limits, widest)
    else:
        next_positions = steps.ragged(positions + 2, limits, widths, offsets[:-1])
    return Tuples(widths, steps.bounds, steps.absent, steps.all_unchanged(), next_positions)


def texts(frames: Frames, tuples: Tuples) -> pa.StringArray:
    """Return all cells of the tuples as one string array; NULL for a cell without text.

    Raises:
        DefiniteError: a value is not UTF-8, despite the session's client_encoding.
    """
    # The cells of all tuples lie in the buffer in ascending order, as `cells_between` requires.
    cells = cells_between(tuples.bounds, frames.buffer(), tuples.absent)
    if len(cells) == 0:
        return cells
    values = np.frombuffer(cells.buffers()[2] or b"", np.uint8)
    if values.max(initial=0) >= 0x80:
        try:
            cells.validate(full=True)
        except pa.ArrowInvalid:
            frames.malformed(0, "a value is not valid UTF-8 (is client_encoding UTF8?)")
    return cells


class _Steps:
    """The walk over some tuples and the cells located so far."""

    def __init__(self, frames: Frames, messages: Positions, cells: int) -> None:
        self._frames = frames
        self._messages = messages
        self.bounds = np.empty((cells, 2), np.int32)
        self.absent: NDArray[np.bool_] | None = None
        self._unchanged: list[Positions] = []

    def all_unchanged(self) -> Positions:
        """Return the indexes of all cells of kind ``u``, ascending."""
        return np.sort(np.concatenate(self._unchanged)) if self._unchanged else np.empty(0, np.int64)

    def side_by_side(self, positions: Positions, limits: Positions, width: int) -> Positions:
        """Walk tuples of one common width; return the positions after the tuples."""
        if len(positions) <= _FEW_ROWS:
            cell = np.arange(len(positions), dtype=np.int64) * width
            return self._one_by_one(positions, limits, cell, cell + width)
        for column in range(width):
            positions = self._step(positions, limits, slice(column, None, width))
        return positions

    def ragged(
        self, positions: Positions, limits: Positions, widths: Positions, first: Positions
    ) -> Positions:
        """Walk tuples of different widths, the widest first: the unfinished tuples always form a prefix."""
        order = np.argsort(-widths, kind="stable")
        standing, limits, cell = positions[order], limits[order], first[order]
        going = np.searchsorted(-widths[order], -np.arange(int(widths[order[0]])), side="left")
        self._messages = self._messages[order]
        for rows in going[going > _FEW_ROWS].tolist():
            standing[:rows] = self._step(standing[:rows], limits[:rows], cell[:rows])
            cell[:rows] += 1
        few, last = slice(0, _FEW_ROWS), (first + widths)[order]
        standing[few] = self._one_by_one(standing[few], limits[few], cell[few], last[few])
        after = np.empty_like(standing)
        after[order] = standing
        return after

    def _one_by_one(
        self, positions: Positions, limits: Positions, first: Positions, last: Positions
    ) -> Positions:
        """Walk a few tuples, each from its cell `first` up to `last`; return the positions after them."""
        data = self._frames.buffer()
        next_positions = []
        for row, (at, limit, start, end) in enumerate(
            zip(positions.tolist(), limits.tolist(), first.tolist(), last.tolist(), strict=True)
        ):
            standing, bounds, absent = at, [], []
            for cell in range(start, end):
                kind = data[standing]
                if kind == _TEXT:
                    bounds.append(standing + 5)
                    standing += 5 + int.from_bytes(data[standing + 1 : standing + 5], "big")
                elif kind in (_NULL, _UNCHANGED):
                    standing += 1
                    bounds.append(standing)
                    absent.append(cell)
                    if kind == _UNCHANGED:
                        self._unchanged.append(np.array([cell]))
                else:
                    self._refuse(row, kind)
                if standing > limit:
                    self._refuse_length(row)
                bounds.append(standing)
            self.bounds[start:end] = np.array(bounds, np.int32).reshape(-1, 2)
            if absent:
                self._absent()[absent] = True
            next_positions.append(standing)
        return np.array(next_positions, np.int64)

    def _step(self, positions: Positions, limits: Positions, cells: slice | Positions) -> Positions:
        """Read one cell of each row; return the positions after the cells."""
        # One read takes kind (one byte), length (four) and three bytes to spare.
        head = self._frames.uint64(positions)
        kind = (head >> np.uint64(56)).astype(np.uint8)
        size = ((head >> np.uint64(24)) & np.uint64(0xFFFFFFFF)).view(np.int64)
        start = positions + 5
        text = kind == _TEXT
        if not text.all():
            textless = ~text
            self._note_absent(kind, textless, cells)
            size[textless] = 0
            start[textless] -= 4
        end = start + size
        beyond = end > limits
        if beyond.any():
            self._refuse_length(int(np.flatnonzero(beyond)[0]))
        self.bounds[cells, 0] = start
        self.bounds[cells, 1] = end
        return end

    def _note_absent(
        self, kind: NDArray[np.uint8], without: NDArray[np.bool_], cells: slice | Positions
    ) -> None:
        unchanged = kind == _UNCHANGED
        for row in np.flatnonzero(without & ~unchanged & (kind != _NULL))[:1].tolist():
            self._refuse(row, int(kind[row]))
        self._absent()[cells] = without
        if unchanged.any():
            if isinstance(cells, slice):
                cells = np.arange(cells.start, len(self.bounds), cells.step)
            self._unchanged.append(cells[unchanged])

    def _absent(self) -> NDArray[np.bool_]:
        if self.absent is None:
            self.absent = np.zeros(len(self.bounds), np.bool_)
        return self.absent

    def _refuse(self, row: int, kind: int) -> NoReturn:
        if kind == _BINARY:
            self._frames.malformed(
                int(self._messages[row]), "a value in binary form, which the reader did not request"
            )
        self._frames.malformed(int(self._messages[row]), f"unknown kind of value {bytes([kind])!r}")

    def _refuse_length(self, row: int) -> NoReturn:
        self._frames.malformed(int(self._messages[row]), "a value is longer than its message")
