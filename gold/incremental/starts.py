"""Which record of silver's cut a document was built from, and which versions of a table hold the same rows.

A version is not a state: compaction, properties and comments are separate commits, which change no row. If
two records of one LSN differ by such versions alone, they are the same cut. A gold table that was only
maintained still is what the newest gold cut says. Otherwise a document for which nothing happens would be
built in full after each maintenance.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.delta import history
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
"""Comments of columns; but types are widened by the same operation."""

_MOST: Final = 10_000
"""Commits to look at: a table that lags further is read by its feed."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where changes are counted from.

    Attributes:
        position: LSN of the cut that the gold table holds, where it is known to hold one.
        cut: the silver cut of that LSN, where it is still recorded.
    """

    position: Lsn | None
    cut: Cut | None


def holds_the_same(uri: str, since: int, until: int) -> bool:
    """Whether a table holds the same rows at two versions, as far as the log still says.

    Args:
        uri: of the table.
        since: a version.
        until: another; an earlier one is of a table that was recreated.
    """
    if since == until:
        return True
    table = delta.open_table(uri)
    if table is None or not since < until <= table.version() or table.version() - since > _MOST:
        return False
    entries = history(table, table.version() - since)
    operations = {
        entry["version"]: entry.get("operation") for entry in entries if since < entry["version"] <= until
    }
    found = set(operations.values()) - _CARE
    if len(operations) != until - since or not found <= _COLUMNS:
        return False
    return not found or _types(uri, since) == _types(uri, until)


def images_between(uri: str, since: int, until: int) -> int:
    """Return about how many images of rows a table's change feed has after a version, up to another.

    Args:
        uri: of the table.
        since: a version; its own changes do not count.
        until: the last version that counts.
    """
    table = delta.open_table(uri)
    if table is None or not since < until <= table.version():
        return 0
    entries = history(table, table.version() - since)
    counts = [rows_changed(entry) for entry in entries if since < entry["version"] <= until]
    return sum(one["inserts"] + one.get("deletes", 0) + 2 * one.get("updates", 0) for one in counts)


def _types(uri: str, version: int) -> list[tuple[str, object]]:
    """The columns of a version, without their comments."""
    return [(field.name, field.type) for field in delta.open_at(uri, version).schema().fields]


def built_from(
    control: ControlTables,
    position: Lsn,
    known_by: datetime | None,
    same: Callable[[str, int, int], bool] = lambda _name, one, other: one == other,
) -> Cut | None:
    """The silver cut that a document was built from; None where that is no longer known.

    Silver may have recorded the cut of one LSN again, with a table that was rebuilt. Then the gold cut that
    names the document's table tells which record it was. If no gold cut names it, because the document failed
    since or the process was killed, none of them can be relied on. A record that only has more tables than
    those before it, or later versions with the same rows, counts as the same: the document needed none of
    them.

    Args:
        control: where cuts are recorded.
        position: LSN of the cut.
        known_by: the moment up to which records count (`Cut.seen`), where a gold cut says that the document
            stands there.
        same: whether a silver table holds the same rows at two versions, the earlier first.
    """
    newest = control.latest_cut("silver", at=position, known_by=known_by)
    if newest is None or newest.commit_lsn != position:
        return None
    other: Cut | None = newest
    while known_by is None and other is not None and other.recorded_at is not None:
        if other.commit_lsn != position:
            break
        if not _is_within(other, newest, same):
            return None
        earlier = other.recorded_at - timedelta(microseconds=1)
        other = control.latest_cut("silver", at=position, known_by=earlier)
    return newest


def _is_within(one: Cut, newer: Cut, same: Callable[[str, int, int], bool]) -> bool:
    return all(
        name in newer.tables and same(name, version, newer.tables[name])
        for name, version in one.tables.items()
    )
