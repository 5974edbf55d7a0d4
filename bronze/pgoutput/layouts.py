"""Assign column names to the cells of each row, by the Relation message before the row.

A `TupleLayout` belongs to one Relation message. The rows of one batch may have many layouts. The name lists
are built for all rows at once. The names of a layout are one blob of bytes. Arrow takes one blob per row, and
numpy computes the offsets of the names.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import pyarrow as pa

from deltasmelt.bronze.store.text_lists import list_array

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.pgoutput.framing import Frames, Positions
    from deltasmelt.bronze.rules import Gate


NO_RELATION: Final = -1
"""Placeholder relation of a logical decoding message, which has no relation."""


@dataclass(frozen=True, slots=True, eq=False)
class TupleLayout:
    """Names of a row's cells, and the rules of the cells."""

    # None for the row of a logical decoding message
    table: TableName | None
    # in tuple order, without excluded columns; for a logical decoding message its prefix and content
    names: tuple[str, ...]
    # whether bronze keeps rows of this layout
    selected: bool
    # the names in UTF-8, concatenated
    blob: bytes
    # start of each name in `blob`
    starts: Positions
    # number of cells in a tuple of the stream
    sent: int
    # None if no rule concerns the table's cells
    gate: Gate | None = None

    @classmethod
    def of(
        cls,
        table: TableName | None,
        names: Sequence[str],
        *,
        selected: bool = True,
        gate: Gate | None = None,
    ) -> Self:
        """Return the layout of these names, the columns of the stream's tuples."""
        stored = (
            names if gate is None else [name for name, kept in zip(names, gate.kept, strict=True) if kept]
        )
        encoded = [name.encode() for name in stored]
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return cls(table, tuple(stored), selected, b"".join(encoded), ends[:-1], len(names), gate)


class AnnouncedLayouts:
    """The newest announced layout of each relation."""

    def __init__(self) -> None:
        self._newest: dict[int, TupleLayout] = {}

    def of_rows(
        self,
        frames: Frames,
        message: Positions,
        relation_id: Positions,
        announced: Mapping[int, Sequence[tuple[int, TupleLayout]]],
        written: Sequence[TupleLayout],
    ) -> tuple[list[TupleLayout], Positions]:
        """Return the layout of each row: the layout of the last Relation message before the row.

        Args:
            message: index of each row's message in `frames`.
            relation_id: oid of each row's relation, or NO_RELATION.
            announced: per relation the announcing messages of the slice, with their layouts.
            written: layouts of the rows without a relation, in order.

        Returns:
            The layouts, and each row's index into the layouts.

        Raises:
            DefiniteError: the relation of a row was not announced before the row.
        """
        layouts: list[TupleLayout] = []
        layout_of_row = np.empty(len(message), np.int64)
        for relation, rows in _by_value(relation_id):
            if relation == NO_RELATION:
                choices, choice = list(written), np.arange(len(written))
            else:
                versions = announced.get(relation, [])
                choice = np.searchsorted([at for at, _ in versions], message[rows])
                former = self._newest.get(relation)
                if former is None and not choice.all():
                    row = rows[int(np.argmin(choice))]
                    problem = f"a change of relation {relation}, which the server did not announce"
                    frames.malformed(int(message[row]), problem)
                choices = [former or TupleLayout.of(None, ()), *(layout for _, layout in versions)]
            layout_of_row[rows] = choice + len(layouts)
            layouts += choices
        for relation, versions in announced.items():
            self._newest[relation] = versions[-1][1]
        return layouts, layout_of_row


def name_lists(layouts: Sequence[TupleLayout], layout_of_row: Positions) -> pa.ListArray:
    """Return the names of each row's cells, in order."""
    rows = len(layout_of_row)
    blobs = pa.array([layout.blob for layout in layouts], pa.binary()).take(pa.array(layout_of_row))
    blob_starts = np.frombuffer(blobs.buffers()[1], np.int32, rows + 1)
    widths = np.array([len(layout.names) for layout in layouts], np.int64)[layout_of_row]
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(widths, out=offsets[1:])
    cells = int(offsets[-1])
    ends = np.empty(cells + 1, np.int32)
    if len(layouts) == 1:
        np.add(blob_starts[:-1, None], layouts[0].starts, out=ends[:-1].reshape(rows, -1), casting="unsafe")
    else:
        inner = np.concatenate([layout.starts for layout in layouts])
        first = np.cumsum([0, *(len(layout.names) for layout in layouts)])[:-1]
        within = np.repeat(first[layout_of_row] - offsets[:-1], widths) + np.arange(cells)
        ends[:-1] = inner[within] + np.repeat(blob_starts[:-1], widths)
    ends[-1] = blob_starts[-1]
    names = pa.StringArray.from_buffers(cells, pa.py_buffer(ends), blobs.buffers()[2])
    return list_array(offsets, names)


def unchanged_lists(
    layouts: Sequence[TupleLayout], layout_of_row: Positions, offsets: Positions, unchanged: Positions
) -> pa.ListArray:
    """Return the names of the unsent cells, as a list per row; NULL for rows without unsent cells.

    Args:
        layout_of_row: index in `layouts` of each row.
        offsets: index of each row's first cell, then the number of all cells.
        unchanged: indexes of the unsent cells, ascending.
    """
    rows = len(layout_of_row)
    row = np.searchsorted(offsets, unchanged, side="right") - 1
    counts = np.bincount(row, minlength=rows)
    first = np.cumsum([0, *(len(layout.names) for layout in layouts)])[:-1]
    name = first[layout_of_row[row]] + unchanged - offsets[row]
    names = pa.array([name for layout in layouts for name in layout.names], pa.string()).take(pa.array(name))
    lists = np.zeros(rows + 1, np.int64)
    np.cumsum(counts, out=lists[1:])
    return list_array(lists, names, counts > 0)


def only_used(
    layouts: Sequence[TupleLayout], layout_of_row: Positions
) -> tuple[list[TupleLayout], Positions]:
    """Return the layouts that rows refer to, with the references renumbered."""
    if len(layouts) == 1:
        return list(layouts), layout_of_row
    indexes: NDArray[np.intp] = np.flatnonzero(np.bincount(layout_of_row, minlength=len(layouts)))
    place = np.zeros(len(layouts), np.int64)
    place[indexes] = np.arange(len(indexes))
    return [layouts[index] for index in indexes.tolist()], place[layout_of_row]


def _by_value(values: Positions) -> Iterator[tuple[int, Positions]]:
    """Yield each distinct value with its positions; cheap for long runs of one value, as changes arrive."""
    heads = np.flatnonzero(np.append(True, values[1:] != values[:-1])[: len(values)])
    if len(heads) == 1:
        yield int(values[0]), np.arange(len(values))
        return
    distinct, run_value = np.unique(values[heads], return_inverse=True)
    value_of = np.repeat(run_value, np.diff(np.append(heads, len(values))))
    order = np.argsort(value_of, kind="stable")
    ends = np.cumsum(np.bincount(value_of, minlength=len(distinct)))
    for value, start, end in zip(distinct.tolist(), [0, *ends.tolist()], ends.tolist(), strict=False):
        yield value, order[start:end]
