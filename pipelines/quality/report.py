"""The report: one self-contained HTML file from the template `report.html.j2`.

Styles and pictures are in the file, and a Content-Security-Policy forbids the browser to fetch anything. The
template escapes all texts from data and suites, so a value cannot become markup.

A trend is a small picture: one line through the runs, inline SVG without a script. Failed or unchecked runs
are dots, and so is the last run. The picture's label has the same facts in words.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.figures import moment_text, seconds_text
from deltasmelt.pipelines.quality.results import identity
from deltasmelt.pipelines.quality.sentences import Sentence, sentence
from deltasmelt.pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from deltasmelt.pipelines.quality.expectations import QualityResult, Result
    from deltasmelt.pipelines.quality.results import History, PastRun, Point

WIDTH: Final = 120.0
HEIGHT: Final = 24.0
_MARGIN: Final = 4.0
_LEAST_RUNS: Final = 2


@dataclass(frozen=True, slots=True)
class Dot:
    """A marked run: its place, and ``passed``, ``failed`` or ``error``."""

    x: float
    y: float
    status: str


@dataclass(frozen=True, slots=True)
class Sparkline:
    """A trend, ready for drawing in a box of `WIDTH` by `HEIGHT`.

    Attributes:
        lines: the points of each unbroken stretch, in SVG's notation.
        dots: the marked runs.
        label: the trend in words.
    """

    lines: tuple[str, ...]
    dots: tuple[Dot, ...]
    label: str


def sparkline(points: Sequence[Point]) -> Sparkline | None:
    """Return the picture of a trend; None for fewer than two runs."""
    if len(points) < _LEAST_RUNS:
        return None
    values = [point.value for point in points if point.value is not None]
    low, high = (min(values), max(values)) if values else (0.0, 0.0)
    step = (WIDTH - 2 * _MARGIN) / (len(points) - 1)
    places: list[tuple[float, float] | None] = []
    for index, point in enumerate(points):
        if point.value is None:
            # A run without a known value breaks the line.
            places.append(None)
            continue
        # The height spans the values from the least to the greatest; a constant trend is at half the height.
        part = (point.value - low) / (high - low) if high > low else 0.5
        places.append(
            (round(_MARGIN + index * step, 1), round(HEIGHT - _MARGIN - part * (HEIGHT - 2 * _MARGIN), 1))
        )
    dots = []
    for index, (point, place) in enumerate(zip(points, places, strict=True)):
        if point.success is not True or index == len(points) - 1:
            x, y = place or (round(_MARGIN + index * step, 1), HEIGHT / 2)
            dots.append(Dot(x, y, _status(point)))
    return Sparkline(_stretches(places), tuple(dots), _label(points, values))


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
    successes = sum(point.success is True for point in points)
    text = f"succeeded in {successes} of the last {len(points)} runs"
    if known and min(known) < max(known):
        text += f"; between {min(known):.6g} and {max(known):.6g}, last {known[-1]:.6g}"
    return text


_TEMPLATE: Final = "report.html.j2"
_BAR_HEIGHT: Final = 48.0
_BAR_LEAST: Final = 4.0


@dataclass(frozen=True, slots=True)
class Line:
    """One expectation in the report."""

    result: Result
    sentence: Sentence
    trend: Sparkline | None = None

    @property
    def status(self) -> str:
        """``passed``, ``failed`` or ``error``; ``warned`` for a failure below ``error``."""
        if self.result.success is None:
            return "error"
        if self.result.success:
            return "passed"
        return "failed" if self.result.expectation.severity == "error" else "warned"


@dataclass(frozen=True, slots=True)
class TableSection:
    """One table in the report, failures first."""

    name: str
    layer: str
    version: int | None
    rows: int | None
    lines: tuple[Line, ...]

    def count(self, status: str) -> int:
        """Return the number of expectations with a status."""
        return sum(line.status == status for line in self.lines)

    @property
    def status(self) -> str:
        """The gravest status of its lines; ``unchecked`` without lines."""
        for status in ("failed", "error", "warned", "passed"):
            if self.count(status):
                return status
        return "unchecked"


@dataclass(frozen=True, slots=True)
class Bar:
    """A past run: heights of its parts, from below; warnings share a part with unchecked expectations."""

    run: PastRun
    passed: float
    failed: float
    errors: float


def write_report(result: QualityResult, past: History, path: Path) -> None:
    """Write the report of a run, with the newest runs of the `past`, which include this run."""
    html = render(result, past)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written to a temporary file and renamed, so no reader opens half a report.
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(html, encoding="utf-8")
    draft.replace(path)


def render(result: QualityResult, past: History) -> str:
    """Return the report as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - when one is written

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, percent=_percent, time=_time, seconds=seconds_text)
    lines = {
        id(row): Line(
            row, sentence(row.expectation), sparkline(past.trends.get(identity(row.expectation), ()))
        )
        for row in result.rows
    }
    sections = _sections(result, lines)
    return environment.get_template(_TEMPLATE).render(
        result=result,
        failed=[lines[id(row)] for row in result.failed],
        unchecked=[lines[id(row)] for row in result.unchecked],
        sections=sections,
        layers=[
            (layer, [section for section in sections if section.layer == layer])
            for layer in ("bronze", "silver", "gold")
            if any(section.layer == layer for section in sections)
        ],
        bars=[_bar(run) for run in past.runs],
        bar_height=_BAR_HEIGHT,
        box=(WIDTH, HEIGHT),
    )


def _sections(result: QualityResult, lines: dict[int, Line]) -> list[TableSection]:
    order = {"failed": 0, "error": 1, "warned": 2, "passed": 3}
    of_table: dict[str, list[Line]] = {table.qualified: [] for table in result.tables}
    for row in result.rows:
        of_table.setdefault(row.expectation.qualified, []).append(lines[id(row)])
    tables = {table.qualified: table for table in result.tables}
    sections = []
    for name, table_lines in of_table.items():
        table = tables.get(name)
        table_lines.sort(key=lambda line: order[line.status])
        layer = name.partition(".")[0]
        version, rows = (table.version, table.rows) if table else (None, None)
        sections.append(TableSection(name, layer, version, rows, tuple(table_lines)))
    return sections


def _bar(run: PastRun) -> Bar:
    """Return proportional parts, with a visible minimum for each nonzero part."""
    total = run.passed + run.failed + run.errors + run.warned or 1
    failed, errors = (
        max(_BAR_LEAST, _BAR_HEIGHT * count / total) if count else 0.0
        for count in (run.failed, run.errors + run.warned)
    )
    passed = max(0.0, _BAR_HEIGHT - failed - errors)
    return Bar(run, round(passed, 1), round(failed, 1), round(errors, 1))


def _number(value: int | None) -> str:
    return "\u2013" if value is None else f"{value:,}"


def _percent(value: float | None) -> str:
    if value is None:
        return "\u2013"
    if 0 < value < 0.01:
        return "< 0.01 %"
    if 99.99 < value < 100:
        return "> 99.99 %"
    return f"{value:.2f}".rstrip("0").rstrip(".") + " %"


def _time(value: datetime | None) -> str:
    return "unknown" if value is None else moment_text(value)
