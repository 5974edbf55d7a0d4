"""Which column of the table each column of a shape is: by attnum, whatever its name then."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.silver.schema.catalog import SilverColumn


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """Columns as they are in `new` and `old` of some rows, mapped to the table's columns.

    Attributes:
        after: the rows are those after this position, (commit LSN, LSN), and not after the next shape's.
        names: the `columns` of those rows.
        positions: for each column of the table: its index in `names`; None where it did not exist.
        missing: for each column of the table: the text that it has in rows written before it.
    """

    after: tuple[int, int]
    names: tuple[str, ...]
    positions: tuple[int | None, ...]
    missing: tuple[str | None, ...]

    @property
    def straight(self) -> bool:
        """Whether the rows are already in the table's order."""
        return self.positions == tuple(range(len(self.names)))

    def renamed(self, columns: Sequence[SilverColumn]) -> dict[str, str | None]:
        """Names in `names` that the table has under another name, or not at all."""
        found: dict[str, str | None] = dict.fromkeys(self.names)
        for column, position in zip(columns, self.positions, strict=True):
            if position is not None:
                found[self.names[position]] = column.name
        return {name: to for name, to in found.items() if name != to}
