"""The name that was meant, where one was misspelt."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most probably means; None where nothing is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: what it may mean, or all that is known."""
    names = list(known)
    near = nearest(name, names)
    if near is not None:
        return f"; did you mean {near!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f" (known: {shown})"
