"""SVG lines of the last hour, or since the start, on a readable scale. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.figures import bytes_text, seconds_text
from deltasmelt.pipelines.monitor.samples import KEPT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from deltasmelt.pipelines.monitor.samples import LadderPoint

WIDTH: Final = 720.0
HEIGHT: Final = 180.0
_POINTS: Final = 180
_LEAST_SECONDS: Final = 10.0
_STEPS: Final = (1, 2, 3, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)
_SPANS: Final = (300.0, 900.0, 1800.0, KEPT.total_seconds())
_GAP_SECONDS: Final = 120.0
"""Time between two samples at which a line is broken."""


@dataclass(frozen=True, slots=True)
class Line:
    """The line of one step."""

    name: str
    # SVG paths, one for each unbroken part
    paths: tuple[str, ...]
    # the newest value as text
    now: str
    # the largest value of the hour as text
    most: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A horizontal line of the scale: its height and its label."""

    y: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """Lag in seconds over the last hour."""

    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]


def lag_chart(points: Sequence[LadderPoint], names: Iterable[str], now: datetime) -> Chart:
    """Return the chart of these steps' lag over the last hour."""
    series = {name: _series(points, name, "seconds", now) for name in names}
    top = max([_LEAST_SECONDS, *(value for step_values in series.values() for _, value in step_values)])
    step = next((step for step in _STEPS if step * 4 >= top), math.ceil(top / 4))
    top = step * 4.0
    lines = tuple(
        Line(
            name,
            _paths(step_values, top, width=WIDTH, height=HEIGHT, span=span_of(points, now)),
            seconds_text(step_values[-1][1]),
            seconds_text(max(value for _, value in step_values)),
        )
        for name, step_values in series.items()
        if step_values
    )
    ticks = tuple(Tick(round(HEIGHT * (1 - part / 4), 1), _tick(step * part)) for part in (0, 2, 4))
    return Chart(lines, ticks)


def span_of(points: Sequence[LadderPoint], now: datetime) -> float:
    """Return the seconds on display: an hour, or less after a recent start."""
    age = (now - points[0].at).total_seconds() if points else 0.0
    return next((span for span in _SPANS if span >= age), _SPANS[-1])


def bytes_line(
    points: Sequence[LadderPoint], name: str, now: datetime, *, width: float, height: float
) -> Line | None:
    """Return one step's lag in bytes as a small line on its own scale; None without known values."""
    values = _series(points, name, "bytes", now)
    if not values:
        return None
    largest = max(value for _, value in values)
    return Line(
        name,
        _paths(values, max(largest, 1.0), width=width, height=height, span=span_of(points, now)),
        bytes_text(int(values[-1][1])),
        bytes_text(int(largest)),
    )


def _series(points: Sequence[LadderPoint], name: str, label: str, now: datetime) -> list[tuple[float, float]]:
    """Return pairs of age in seconds and value, oldest first.

    Of samples at one point of the line, the largest value counts; the newest value stays exact.
    """
    span = span_of(points, now)
    ages = [
        ((now - point.at).total_seconds(), max(0.0, float(value)))
        for point in points
        if (value := _value(point, name, label)) is not None
    ]
    ages = [(ago, value) for ago, value in ages if 0 <= ago <= span]
    newest: dict[int, tuple[float, float]] = {}
    for ago, value in ages:
        slot = int(ago / span * _POINTS)
        if slot not in newest or value >= newest[slot][1]:
            newest[slot] = (ago, value)
    return [*sorted(newest.values(), reverse=True)[:-1], *ages[-1:]]


def _value(point: LadderPoint, name: str, attribute: str) -> float | None:
    return next((getattr(rung, attribute) for rung in point.ladder if rung.name == name), None)


def _paths(
    points: list[tuple[float, float]], top: float, *, width: float, height: float, span: float
) -> tuple[str, ...]:
    parts: list[list[str]] = []
    before: float | None = None
    for ago, value in points:
        x, y = width * (1 - ago / span), height * (1 - min(value, top) / top)
        if before is None or before - ago > _GAP_SECONDS:
            parts.append([])
        parts[-1].append(f"{x:.1f} {y:.1f}")
        before = ago
    return tuple("M" + "L".join(part if len(part) > 1 else part * 2) for part in parts)


def _tick(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:g} {unit}"
    return f"{seconds:g} s"
