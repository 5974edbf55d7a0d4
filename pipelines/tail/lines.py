"""A change, a copy or a gap as one line of text, or as an object for JSON. Pure.

Text is for people: long values and wide rows are shortened, with the number of what is left out. A value
whose text could be mistaken (blanks, commas, ``NULL``) is in quotes. JSON has every value in full, as
PostgreSQL's text.
"""

from __future__ import annotations

import json
import re
from datetime import UTC
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.figures import counted
from deltasmelt.bronze.store.arrivals import Copied, Gap
from deltasmelt.bronze.store.contract import OP_SNAPSHOT, OP_SNAPSHOT_END

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import datetime

    from deltasmelt.pipelines.tail.records import Change

OP_GAP: Final = "gap"
_PLAIN: Final = re.compile(r"(?!(?:NULL|unchanged)$)[\w.:+@/*-]+")
# Largest number of characters of a value, and of columns in a line.
_CHARACTERS: Final = 60
_COLUMNS: Final = 20


def text_of(arrival: Change | Copied | Gap) -> str:
    """Return one line: time, operation, table, key, and what changed."""
    # Values are quoted; a name of a table or column may have a line end, too.
    return "  ".join(_parts(arrival)).rstrip().replace("\n", "\\n")


def _parts(arrival: Change | Copied | Gap) -> list[str]:
    if isinstance(arrival, Copied):
        rows = "copied" if arrival.rows is None else f"copied, {counted(arrival.rows, 'row')}"
        return [_moment(arrival.at), OP_SNAPSHOT, str(arrival.table), rows]
    if isinstance(arrival, Gap):
        what = f"changes up to {arrival.lsn} may be missing in bronze, until the next copy of the table"
        return [" " * 23, OP_GAP.ljust(8), str(arrival.table), what]
    parts = [_moment(arrival.time), arrival.op.ljust(8), str(arrival.table or ""), _key(arrival)]
    return [*parts, *_what(arrival)]


def json_of(arrival: Change | Copied | Gap) -> dict[str, Any]:
    """Return the object of a line of JSON."""
    if isinstance(arrival, Gap):
        return {"op": OP_GAP, "table": str(arrival.table), "commit_lsn": str(arrival.lsn)}
    if isinstance(arrival, Copied):
        return {
            "time": arrival.at.astimezone(UTC).isoformat(),
            "op": OP_SNAPSHOT_END,
            "table": str(arrival.table),
            "commit_lsn": str(arrival.lsn),
            "rows": arrival.rows,
        }
    return {
        "time": None if arrival.time is None else arrival.time.astimezone(UTC).isoformat(),
        "op": arrival.op,
        "table": None if arrival.table is None else str(arrival.table),
        "commit_lsn": str(arrival.commit_lsn),
        "seq": arrival.seq,
        "xid": arrival.xid,
        "end_of_tx": arrival.end_of_tx,
        "key": arrival.key,
        "old_key": arrival.old_key,
        "new": arrival.new,
        "old": arrival.old,
        "unchanged": list(arrival.unchanged),
    }


def left_out_text(changes: int, tables: int) -> str:
    """Return the line about changes without a line of their own."""
    return f"… {counted(changes, 'more change')} of {counted(tables, 'table')} left out"


def _moment(time: datetime | None) -> str:
    if time is None:
        return "-".ljust(23)
    return time.astimezone(UTC).isoformat(sep=" ", timespec="milliseconds").removesuffix("+00:00")


def _key(change: Change) -> str:
    if change.old_key is None:
        return " ".join(f"{name}={_shown(value)}" for name, value in change.key.items())
    pairs = [(name, change.old_key.get(name, value), value) for name, value in change.key.items()]
    return " ".join(
        f"{name}={_shown(new) if old == new else f'{_shown(old)} → {_shown(new)}'}"
        for name, old, new in pairs
    )


def _what(change: Change) -> list[str]:
    """Return the changed values of other columns than the key's, in at most one part."""
    if change.changed is not None and change.new is not None and change.old is not None:
        cells = [
            f"{name}: {_shown(change.old[name])} → {_shown(change.new[name])}"
            for name in change.changed
            if name not in change.key
        ]
        if not cells and change.old_key is None:
            cells = ["no column changed"]
        return _joined(cells)
    values: Mapping[str, str | None] = (change.old if change.new is None else change.new) or {}
    cells = [f"{name}={_shown(value)}" for name, value in values.items() if name not in change.key]
    return _joined([*cells, *(f"{name} unchanged" for name in change.unchanged if name not in change.key)])


def _joined(cells: list[str]) -> list[str]:
    more = len(cells) - _COLUMNS
    shown = [*cells[:_COLUMNS], f"… {counted(more, 'more column')}"] if more > 0 else cells
    return [", ".join(shown)] if shown else []


def _shown(value: str | None) -> str:
    if value is None:
        return "NULL"
    if len(value) > _CHARACTERS:
        return f"{json.dumps(value[:_CHARACTERS] + '…', ensure_ascii=False)} ({len(value):,} characters)"
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
