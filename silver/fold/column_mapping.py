"""Map each column of a shape to a column of the table: by attnum, whatever the column's name at the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.silver.schema.catalog import SilverColumn


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """A mapping of the columns in `new` and `old` of some rows to the table's columns.

    Attributes:
        after: position (commit LSN, LSN) after which the rows were written, up to the next shape's position.
        names: the value of `columns` in each of these rows.
        positions: for each column of the table: its index in `names`; None if the column did not exist.
        missing: for each column of the table: its text in rows written before the column existed.
    """

    after: tuple[int, int]
    names: tuple[str, ...]
    positions: tuple[int | None, ...]
    missing: tuple[str | None, ...]

    @property
    def straight(self) -> bool:
        """Check whether the rows are already in the table's order."""
        return self.positions == tuple(range(len(self.names)))

    def renamed(self, columns: Sequence[SilverColumn]) -> dict[str, str | None]:
        """Return the names in `names` that the table has renamed or (None) no longer has."""
        names: dict[str, str | None] = dict.fromkeys(self.names)
        for column, position in zip(columns, self.positions, strict=True):
            if position is not None:
                names[self.names[position]] = column.name
        return {name: new for name, new in names.items() if name != new}
