"""The gate of every selection by names and patterns.

A pattern without a match is almost always a mistake (a misspelt folder, another letter case, an unmounted
volume), and an idle command must not end as a success. So each selection of tables, documents and files goes
through `selected`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

from deltasmelt.bronze.figures import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from deltasmelt.bronze.errors import SmeltError

_T = TypeVar("_T")

_LISTED: Final = 5


def selected(
    patterns: Iterable[str],
    matching: Callable[[str], Sequence[_T]],
    nothing: Callable[[str], SmeltError],
) -> list[_T]:
    """Return the matches of patterns, in their order, each once.

    `matching` returns one pattern's matches; `nothing` returns the error for a pattern without a match, which
    names the pattern and the candidates.

    Raises:
        SmeltError: the error from `nothing`.
    """
    chosen: dict[_T, None] = {}
    for pattern in patterns:
        matches = matching(pattern)
        if not matches:
            raise nothing(pattern)
        chosen |= dict.fromkeys(matches)
    return list(chosen)


def there_are(names: Sequence[str]) -> str:
    """Return a text with the candidates, the first few by name."""
    if not names:
        return "available: none"
    return f"available: {listed(names, _LISTED)}"
