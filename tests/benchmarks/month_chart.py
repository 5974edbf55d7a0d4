"""The chart of `bench_month`: a small panel for each measure, as one SVG file without scripts.

`python -m tests.benchmarks.month_chart MONTH.csv CHART.svg` draws the measures of a run once more, and prints
those of some days as a table for the page.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final
from xml.sax.saxutils import escape

from tests.benchmarks.measuring import say
from tests.benchmarks.month_measures import SETTLED, TIMES, growing, rise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_COLUMNS: Final = 4
_WIDTH, _HEIGHT = 210, 92
_PLOT_WIDTH, _PLOT_HEIGHT = 190, 50
_STYLE: Final = (
    "text{font:11px sans-serif;fill:#57606a}.name{font-weight:600;fill:#24292f}"
    "path{fill:none;stroke:#0969da;stroke-width:1.5}line{stroke:#d0d7de}.week{stroke-dasharray:3 3}"
    "@media(prefers-color-scheme:dark){text{fill:#8b949e}.name{fill:#c9d1d9}path{stroke:#58a6ff}line{stroke:#30363d}}"
)


def draw(rows: Sequence[Mapping[str, float]]) -> str:
    """Return the chart of all measures over the days; each scale begins at zero."""
    names = [name for name in rows[-1] if name not in TIMES]
    panels = [_panel(name, rows, number) for number, name in enumerate(names)]
    height = -(-len(names) // _COLUMNS) * _HEIGHT + 8
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_COLUMNS * _WIDTH} {height}" role="img" '
        f'aria-label="Measures of each day of a month">\n<style>{_STYLE}</style>\n'
        + "\n".join(panels)
        + "\n</svg>\n"
    )


def _panel(name: str, rows: Sequence[Mapping[str, float]], number: int) -> str:
    values = [row[name] for row in rows]
    top, last = max([*values, 1e-9]), max(len(rows) - 1, 1)
    left, up = number % _COLUMNS * _WIDTH + 10, number // _COLUMNS * _HEIGHT + 30
    base = up + _PLOT_HEIGHT
    points = [
        (left + at * _PLOT_WIDTH / last, base - value / top * (_PLOT_HEIGHT - 4))
        for at, value in enumerate(values)
    ]
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in points)
    week = left + (SETTLED - 1) * _PLOT_WIDTH / last
    return (
        f'<text class="name" x="{left}" y="{up - 14}">{escape(name)}</text>'
        f'<text x="{left}" y="{up - 1}">last {values[-1]:,.3g}, most {max(values):,.3g}</text>'
        f'<line x1="{left}" y1="{base}" x2="{left + _PLOT_WIDTH}" y2="{base}"/>'
        f'<line class="week" x1="{week:.1f}" y1="{up + 4}" x2="{week:.1f}" y2="{base}"/>'
        f'<path d="{path}"/>'
    )


def table(rows: Sequence[Mapping[str, float]]) -> str:
    """Return the measures of four days, and their rise a day from `SETTLED` on, as a table in Markdown."""
    days = [SETTLED // 2, SETTLED, (SETTLED + len(rows)) // 2, len(rows)]
    lines = [f"| measure | {' | '.join(f'day {day}' for day in days)} | rise a day from day {SETTLED} on |"]
    lines.append("| --- " * (len(days) + 2) + "|")
    for name in rows[-1]:
        if name not in TIMES:
            values = [*(rows[day - 1][name] for day in days), rise(rows, name)]
            lines.append(f"| {name} | {' | '.join(map(_short, values))} |")
    return "\n".join(lines)


def _short(value: float) -> str:
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def main() -> None:
    """Draw the chart of a file of measures; print a table, and the measures that grow."""
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as file:
        rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    Path(sys.argv[2]).write_text(draw(rows), encoding="utf-8")
    say("\n".join([table(rows), *(f"GROWS: {name}: {text}" for name, text in growing(rows).items())]))


if __name__ == "__main__":
    main()
