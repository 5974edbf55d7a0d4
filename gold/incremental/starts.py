"""Find the record of silver's cut that a document was built from, and versions of a table with the same rows.

A version is not a state: compaction, properties and comments are separate commits that change no row. Without
this rule gold would build an unchanged document in full after each maintenance.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake import delta
from deltasmelt.silver.run.commit_counts import rows_changed

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lsn import Lsn

_CARE: Final = frozenset(
    ("OPTIMIZE", "REORG", "SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "VACUUM START", "VACUUM END",
     "COMPUTE STATS", "CLUSTER BY", "UPGRADE PROTOCOL")
)  # fmt: skip
"""Operations that change no row."""

_COLUMNS: Final = frozenset(("CHANGE COLUMN", "CHANGE COLUMNS"))
"""Operations that change comments of columns; the operations may also widen types."""

_MOST: Final = 10_000
"""Largest number of commits to check: gold reads a table with a longer lag by its feed."""


@dataclass(frozen=True, slots=True)
class Start:
    """The point from which gold counts changes.

    `position` is the LSN of the cut in the gold table, if the table is known to hold a cut; `cut` is the
    silver cut of this LSN, if still recorded.
    """

    position: Lsn | None
    cut: Cut | None


def holds_the_same(uri: str, since: int, until: int) -> bool:
    """Check whether a table holds the same rows at two versions, as far as the log still shows."""
    if since == until:
        return True
    # An `until` before `since` means that the table was recreated.
    table = delta.open_table(uri)
    if table is None or not since < until <= table.version() or table.version() - since > _MOST:
        return False
    entries = table.history(table.version() - since)
    operations = {
        entry["version"]: entry.get("operation") for entry in entries if since < entry["version"] <= until
    }
    changing = set(operations.values()) - _CARE
    if len(operations) != until - since or not changing <= _COLUMNS:
        return False
    return not changing or _types(uri, since) == _types(uri, until)


def images_between(uri: str, since: int, until: int) -> int:
    """Return the approximate number of row images in a change feed after version `since` up to `until`."""
    table = delta.open_table(uri)
    if table is None or not since < until <= table.version():
        return 0
    entries = table.history(table.version() - since)
    counts = [rows_changed(entry) for entry in entries if since < entry["version"] <= until]
    return sum(count["inserts"] + count.get("deletes", 0) + 2 * count.get("updates", 0) for count in counts)


def _types(uri: str, version: int) -> list[tuple[str, object]]:
    """Return the columns of a version, without their comments."""
    return [(field.name, field.type) for field in delta.open_at(uri, version).schema().fields]


def built_from(
    control: ControlTables,
    position: Lsn,
    known_by: datetime | None,
    same_rows: Callable[[str, int, int], bool] = lambda _name, earlier, later: earlier == later,
) -> Cut | None:
    """Return the silver cut that a document was built from; None if no longer known.

    Args:
        control: the control tables with the recorded cuts.
        position: LSN of the cut to find.
        known_by: the time up to which records count (`Cut.seen`), if a gold cut places the document at
            `position`.
        same_rows: checks whether a silver table holds the same rows at two versions, the earlier first.
    """
    # Silver may have recorded the cut of one LSN again, with a rebuilt table. The gold cut that names the
    # document's table then identifies the record.
    newest = control.latest_cut("silver", at=position, known_by=known_by)
    if newest is None or newest.commit_lsn != position:
        return None
    earlier_cut: Cut | None = newest
    # No gold cut names the table, because the document has failed since or the process was killed: gold can
    # rely on no record. Records that differ only by added tables, or by later versions with the same rows,
    # count as equal: the document needed none of these tables.
    while known_by is None and earlier_cut is not None and earlier_cut.recorded_at is not None:
        if earlier_cut.commit_lsn != position:
            break
        if not _is_within(earlier_cut, newest, same_rows):
            return None
        earlier = earlier_cut.recorded_at - timedelta(microseconds=1)
        earlier_cut = control.latest_cut("silver", at=position, known_by=earlier)
    return newest


def _is_within(older: Cut, newer: Cut, same_rows: Callable[[str, int, int], bool]) -> bool:
    return all(
        name in newer.tables and same_rows(name, version, newer.tables[name])
        for name, version in older.tables.items()
    )
