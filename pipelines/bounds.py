"""Bounds of numbers from users: on the command line, and in calls from Python."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from deltasmelt.bronze.errors import ConfigurationError


@dataclass(frozen=True, slots=True)
class Bounds:
    """The least and the greatest value, None for no bound; `whole` accepts whole numbers alone."""

    least: float
    most: float | None = None
    whole: bool = False

    def require(self, value: object, where: str) -> None:
        """Refuse values outside the bounds; neither "not a number" nor infinity is a number.

        Raises:
            ConfigurationError: ``argument-invalid``.
        """
        if (
            isinstance(value, int if self.whole else int | float)
            and math.isfinite(value)
            and value >= self.least
            and (self.most is None or value <= self.most)
        ):
            return
        raise ConfigurationError(
            f"{value!r} is not {self}",
            code="argument-invalid",
            where=where,
            remedy=f"use {self}, or leave the argument out",
        )

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        least = f"{self.least:.6f}".rstrip("0").rstrip(".")
        return f"{kind}, at least {least}" if self.most is None else f"{kind} from {least} to {self.most:g}"


SAMPLE: Final = Bounds(0.000001, 1.0)
"""Bounds of the compared fraction of keys."""
CONNECTIONS: Final = Bounds(1, 64, whole=True)
"""Bounds of the number of parallel connections to the server."""
RATE: Final = Bounds(1, whole=True)
"""Bounds of a rate in bytes per second."""
