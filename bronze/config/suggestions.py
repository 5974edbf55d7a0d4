"""Suggestions for a misspelt name."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that a misspelt name most probably means; None if no name is near."""
    by_lower = {candidate.lower(): candidate for candidate in known}
    matches = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    return by_lower[matches[0]] if matches else None


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the nearest known names, or all known names.

    Of a name without its schema, each name that ends with it is near: a table's in silver and in gold.
    """
    names = list(known)
    qualified = [each for each in names if each.lower().endswith(f".{name.lower()}")]
    if qualified:
        return f"; did you mean {' or '.join(map(repr, qualified))}?"
    near = nearest(name, names)
    if near is not None:
        return f"; did you mean {near!r}?"
    if not names:
        return ""
    shown = ", ".join(names[:20]) + (", …" if len(names) > 20 else "")
    return f" (known: {shown})"
