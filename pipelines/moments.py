"""The moment of a read, as a person or program writes it: an LSN or a time."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.figures import moment_text
from deltasmelt.bronze.lsn import Lsn

_LSN: Final = re.compile(r"[0-9A-Fa-f]+/[0-9A-Fa-f]+|\d+")
_ZONE: Final = re.compile(r"\s+UTC$")


def parse_as_of(text: str, *, where: str = "--as-of") -> Lsn | datetime:
    """Parse the value of ``--as-of``: an LSN, or a time (ISO 8601; UTC without a zone; or `moment_text`).

    Raises:
        ConfigurationError: the text is neither an LSN nor a time.
    """
    if _LSN.fullmatch(text.strip()):
        return Lsn.parse(text)
    try:
        time = datetime.fromisoformat(_ZONE.sub("+00:00", text.strip()))
        return (time if time.tzinfo is not None else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):  # the years 1 to 9999, in UTC
        raise ConfigurationError(
            f"{text!r} is neither an LSN nor a time",
            code="as-of",
            where=where,
            remedy="use e.g. 0/16B3748, or 2026-01-31T12:00:00Z",
        ) from None


def moment_of(moment: str | datetime | int | None, *, where: str) -> Lsn | datetime | None:
    """Return the moment of a Python caller's argument; None means now.

    The argument is a text for `parse_as_of`, a time (UTC without a zone), or an LSN as a number.
    """
    if isinstance(moment, str):
        return parse_as_of(moment, where=where)
    if isinstance(moment, datetime):
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return None if moment is None else Lsn(moment)


def named_moment(moment: Lsn | datetime | None) -> str:
    """Return a moment for a message; None means now."""
    if isinstance(moment, datetime):
        return moment_text(moment)
    return "now" if moment is None else str(moment)
