"""What names and patterns select: the gate of every selection.

A pattern that selects nothing is almost always a mistake (a misspelt folder, another letter case, a volume
that is not mounted), and a command that then does nothing must not end as a success. So each selection of
tables, documents and files goes through `selected`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeVar

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
    """Return what patterns select, in their order, each once.

    Args:
        patterns: names or patterns.
        matching: gives what one pattern selects.
        nothing: the error of a pattern that selects nothing; it names the pattern and what there is.

    Raises:
        SmeltError: as `nothing` gives it.
    """
    chosen: dict[_T, None] = {}
    for pattern in patterns:
        found = matching(pattern)
        if not found:
            raise nothing(pattern)
        chosen |= dict.fromkeys(found)
    return list(chosen)


def there_are(names: Sequence[str]) -> str:
    """Return a list of what could have been selected, the first few by name."""
    if not names:
        return "there is none"
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"there {'is' if len(names) == 1 else 'are'} {', '.join(names[:_LISTED])}{more}"
