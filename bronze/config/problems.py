"""Problems of a file that a user wrote: each at its line, all in a single error."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


MAX_PROBLEMS: Final = 10


@dataclass(frozen=True, slots=True)
class Problem:
    """A single problem at a line."""

    line: int
    message: str


def problems_error(
    path: Path, problems: Iterable[Problem], *, code: str, remedy: str | None = None
) -> ConfigurationError:
    """Return a single error for all problems of a file, in order of lines."""
    ordered = sorted(dict.fromkeys(problems), key=lambda problem: problem.line)
    first, *later = ordered[:MAX_PROBLEMS]
    message = "\n".join([first.message, *(f"{path}:{entry.line}: {entry.message}" for entry in later)])
    if len(ordered) > MAX_PROBLEMS:
        message += f"\n… and {len(ordered) - MAX_PROBLEMS} more"
    return ConfigurationError(message, code=code, where=f"{path}:{first.line}", remedy=remedy)
