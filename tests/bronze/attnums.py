"""Bronze folded in plain Python, with columns identified by attnum: silver's contract in its plainest form.

A row has the columns of the newest version of its table's shape that begins before the row. For each column
that a later version adds, the row holds the value that this version names for older rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.shapes import Relation

    Cells: TypeAlias = dict[int, str | None]


class Fold:
    """The rows of one relation.

    Args:
        now: the relation's current shape in the catalog.
        versions: all shapes in `bronze.relations`, oldest first.
        changes: all rows of `bronze.changes`, in order.
    """

    def __init__(
        self, now: Relation, versions: Sequence[Relation], changes: Sequence[dict[str, Any]]
    ) -> None:
        self._now = now
        self._versions = [version for version in versions if version.relation_id == now.relation_id]
        self._changes = [row for row in changes if row["relation_id"] == now.relation_id]
        self._state: list[Cells] = []

    def rows(self) -> list[dict[str, str | None]]:
        """Return the rows under the current column names."""
        snapshot_lsn = max(row["commit_lsn"] for row in self._changes if row["op"] == "snapshot_end")
        for row in self._changes:
            if row["op"] == "snapshot" and row["commit_lsn"] == snapshot_lsn:
                self._state.append(self._cells(row, "new"))
            elif row["commit_lsn"] > snapshot_lsn and row["op"] == "truncate":
                self._state.clear()
            elif row["commit_lsn"] > snapshot_lsn:
                self._apply(row)
        return [
            {column.name: row.get(_number(column.attnum)) for column in self._now.columns}
            for row in self._state
        ]

    def _apply(self, row: dict[str, Any]) -> None:
        shape = self._shape(row)
        if row["op"] in ("update", "delete"):
            identity = self._cells(row, "old" if row["old"] is not None else "new")
            key = [_number(shape.column(name).attnum) for name in shape.fold_key]
            (before,) = [
                row_cells for row_cells in self._state if all(row_cells[at] == identity[at] for at in key)
            ]
            self._state.remove(before)
        if row["op"] in ("insert", "update"):
            new = self._cells(row, "new")
            for name in row["unchanged"] or ():
                new[_number(shape.column(name).attnum)] = before[_number(shape.column(name).attnum)]
            self._state.append(new)

    def _cells(self, row: dict[str, Any], tuple_name: str) -> Cells:
        columns = self._shape(row).columns
        cells = {
            _number(shape_column.attnum): text
            for shape_column, text in zip(columns, row[tuple_name], strict=True)
        }
        for version in self._versions:
            for column in version.columns:
                if column.attnum is not None and column.missing is not None:
                    cells.setdefault(column.attnum, column.missing)
        return cells

    def _shape(self, row: dict[str, Any]) -> Relation:
        return next(
            version for version in reversed(self._versions) if version.place < (row["commit_lsn"], row["lsn"])
        )


def _number(attnum: int | None) -> int:
    assert attnum is not None, "a row whose columns nobody knows is read"
    return attnum
