"""The report: one HTML file that shows everything and loads nothing.

It is made from `report.html.j2` beside this module. Styles and pictures are in the file. A
Content-Security-Policy in it forbids the browser to fetch anything. Everything that comes from data or suites
is escaped, so that a value cannot become markup. It is written to a temporary file and renamed, so that
nobody opens half a report.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pipelines.quality.results import identity
from pipelines.quality.sentences import Sentence, sentence
from pipelines.quality.sparkline import HEIGHT, WIDTH, sparkline
from pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from datetime import datetime

    from pipelines.quality.expectations import QualityResult, Result
    from pipelines.quality.results import History, PastRun
    from pipelines.quality.sparkline import Sparkline

_TEMPLATE: Final = "report.html.j2"
_BAR_HEIGHT: Final = 48.0
_BAR_LEAST: Final = 4.0


@dataclass(frozen=True, slots=True)
class Line:
    """One expectation as the report shows it."""

    result: Result
    sentence: Sentence
    trend: Sparkline | None = None

    @property
    def status(self) -> str:
        """``passed``, ``failed`` or ``error``; ``warned`` where what failed is no error."""
        if self.result.success is None:
            return "error"
        if self.result.success:
            return "passed"
        return "failed" if self.result.expectation.severity == "error" else "warned"


@dataclass(frozen=True, slots=True)
class TableSection:
    """One table as the report shows it, what failed first."""

    name: str
    layer: str
    version: int | None
    rows: int | None
    lines: tuple[Line, ...]

    def count(self, status: str) -> int:
        """Number of expectations of a status."""
        return sum(line.status == status for line in self.lines)

    @property
    def status(self) -> str:
        """The gravest of its lines; ``unchecked`` where there are none."""
        for status in ("failed", "error", "warned", "passed"):
            if self.count(status):
                return status
        return "unchecked"


@dataclass(frozen=True, slots=True)
class Bar:
    """A past run: heights of its parts, from below; what only warned stands with what was not checked."""

    run: PastRun
    passed: float
    failed: float
    errors: float


def write_report(result: QualityResult, past: History, path: Path) -> None:
    """Write the report of a run.

    Args:
        result: the run.
        past: the newest runs, this one included.
        path: the file; its folder is made.
    """
    html = render(result, past)
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(html, encoding="utf-8")
    draft.replace(path)


def render(result: QualityResult, past: History) -> str:
    """The report as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # noqa: PLC0415 - when one is written

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        finalize=lambda value: visible(value) if type(value) is str else value,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, percent=_percent, time=_time, seconds=_seconds)
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
    known = {table.qualified: table for table in result.tables}
    sections = []
    for name, found in of_table.items():
        table = known.get(name)
        found.sort(key=lambda line: order[line.status])
        layer = name.partition(".")[0]
        version, rows = (table.version, table.rows) if table else (None, None)
        sections.append(TableSection(name, layer, version, rows, tuple(found)))
    return sections


def _bar(run: PastRun) -> Bar:
    """Parts in proportion, but none that is there so low that it cannot be seen."""
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
    return "unknown" if value is None else f"{value:%Y-%m-%d %H:%M:%S}"


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {int(value % 60)} s"
