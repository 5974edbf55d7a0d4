"""Times, sizes and counts as text for people: one form for messages, tables, pages and reports. Pure.

* A count has its noun, and commas between thousands: ``1 change``, ``12,345 changes``.
* A measured time has a decimal below a minute, an estimate none. Only a statement's time has milliseconds.
* A moment is in UTC, without fractions of a second.
* Bytes count by thousands (kB, MB, GB), as in the pipeline file. WAL beside its limit, and memory,
  count as in the settings of PostgreSQL and Java, where 1 GB is 1,024 MB: a limit of 50 GB is ``50 GB``,
  and a limit of 10,000 MB, which is no simple number of GB, is ``10,000 MB``.

Values of rows, and JSON for programs, keep every digit.
"""

from __future__ import annotations

import time
from datetime import UTC
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

_NAMED = 3
_VOWELS = frozenset("aeiou")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{number:,} {plural(number, noun)}"


def plural(number: int, noun: str) -> str:
    """Return a noun after a number."""
    if number == 1:
        return noun
    return f"{noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in _VOWELS else f"{noun}s"


def listed(names: Sequence[object], most: int = _NAMED) -> str:
    """Return the first few names, and the number of the other names."""
    shown = ", ".join(map(str, names[:most]))
    return f"{shown} and {len(names) - most:,} more" if len(names) > most else shown


def bytes_text(count: int | None) -> str:
    """Return a number of bytes by thousands; ``?`` for unknown."""
    if count is None:
        return "?"
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def setting_text(count: float) -> str:
    """Return bytes of WAL or memory in the units of settings of PostgreSQL and Java."""
    size, unit = count / (1 << 20), "MB"
    if 0 < size < 0.05:
        return "less than 0.1 MB"
    # A setting is a whole number of MB; a measured size is mostly none.
    exact = size.is_integer()
    for larger in ("GB", "TB"):
        if abs(size) >= 1024 and not (exact and round(size / 1024, 1) * 1024 != size):
            size, unit = size / 1024, larger
    return f"{size:,.1f}".removesuffix(".0") + f" {unit}"


def seconds_text(seconds: float | None) -> str:
    """Return a measured time; ``?`` for unknown."""
    if seconds is None:
        return "?"
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min" if hours else f"{minutes} min {remainder} s"
    return f"{hours // 24} d {hours % 24} h"


def timing_text(seconds: float) -> str:
    """Return the measured time of a statement."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else seconds_text(seconds)


def estimate_text(seconds: float) -> str:
    """Return an estimated time, as exact as an estimate is."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:,.0f} min"
    return f"{seconds / 3600:,.0f} h" if seconds < 48 * 3600 else f"{seconds / 86400:,.0f} d"


def moment_text(moment: datetime) -> str:
    """Return a moment in UTC; a moment without a zone is in UTC."""
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    try:
        return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    except OverflowError:  # in UTC the year would be 0, or 10000
        return moment.isoformat(" ", "seconds")


def clock_text() -> str:
    """Return the time of day, for the begin of a line of progress."""
    return time.strftime("%H:%M:%S")
