"""A trend as a small picture: one line through the runs, inline SVG, drawn without a script.

Values are spread over the height from the least to the greatest that was found; a trend that never moved is a
line at half the height. A run whose value is not known breaks the line. Runs that failed, or could not be
checked, are dots, and so is the last run. The words beside the picture say the same (`label`), so that
nobody has to see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pipelines.quality.results import Point

WIDTH: Final = 120.0
HEIGHT: Final = 24.0
_MARGIN: Final = 4.0
_LEAST_RUNS: Final = 2


@dataclass(frozen=True, slots=True)
class Dot:
    """A run that is marked: where, and ``passed``, ``failed`` or ``error``."""

    x: float
    y: float
    status: str


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A trend, ready to be drawn in a box of `WIDTH` by `HEIGHT`.

    Attributes:
        lines: the points of each unbroken stretch, as SVG wants them.
        dots: the runs that are marked.
        label: the trend in words.
    """

    lines: tuple[str, ...]
    dots: tuple[Dot, ...]
    label: str


def sparkline(points: Sequence[Point]) -> Sparkline | None:
    """The picture of a trend; None where there are fewer than two runs."""
    if len(points) < _LEAST_RUNS:
        return None
    known = [point.value for point in points if point.value is not None]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    step = (WIDTH - 2 * _MARGIN) / (len(points) - 1)
    places: list[tuple[float, float] | None] = []
    for index, point in enumerate(points):
        if point.value is None:
            places.append(None)
            continue
        part = (point.value - low) / (high - low) if high > low else 0.5
        places.append(
            (round(_MARGIN + index * step, 1), round(HEIGHT - _MARGIN - part * (HEIGHT - 2 * _MARGIN), 1))
        )
    dots = []
    for index, (point, place) in enumerate(zip(points, places, strict=True)):
        if point.success is not True or index == len(points) - 1:
            x, y = place or (round(_MARGIN + index * step, 1), HEIGHT / 2)
            dots.append(Dot(x, y, _status(point)))
    return Sparkline(_stretches(places), tuple(dots), _label(points, known))


def _status(point: Point) -> str:
    return "error" if point.success is None else "passed" if point.success else "failed"


def _stretches(places: Sequence[tuple[float, float] | None]) -> tuple[str, ...]:
    stretches: list[list[str]] = [[]]
    for place in places:
        if place is None:
            stretches.append([])
        else:
            stretches[-1].append(f"{place[0]},{place[1]}")
    return tuple(" ".join(stretch) for stretch in stretches if len(stretch) > 1)


def _label(points: Sequence[Point], known: Sequence[float]) -> str:
    held = sum(point.success is True for point in points)
    text = f"held in {held} of the last {len(points)} runs"
    if known and min(known) < max(known):
        text += f"; between {min(known):.6g} and {max(known):.6g}, last {known[-1]:.6g}"
    return text
