"""The status page: one self-contained HTML page.

`page.html.j2` is the page's template. Styles and pictures are part of the page, and a Content-Security-Policy
forbids the browser to fetch anything. The page has no script: the browser reloads the page every few seconds.
The template escapes every text, and `shown_text` filters every text.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from deltasmelt.bronze.figures import bytes_text, moment_text, seconds_text
from deltasmelt.pipelines.health.status import slot_text, slot_warnings
from deltasmelt.pipelines.monitor.alerts import shown_text
from deltasmelt.pipelines.monitor.chart import HEIGHT, WIDTH, bytes_line, lag_chart, span_of
from deltasmelt.pipelines.runtime.progress_text import snapshot_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import datetime

    from deltasmelt.pipelines.health.lake_half import TableStatus
    from deltasmelt.pipelines.monitor.samples import View

REFRESH_SECONDS: Final = 10
_SPANS: Final = {300.0: "5 minutes", 900.0: "15 minutes", 1800.0: "30 minutes", 3600.0: "hour"}
_LAYERS: Final = ("bronze", "silver", "gold")
_SHOWN: Final = 200
"""Largest number of tables on the page; tables with a fault come first."""
_ORDER: Final = ("stopped", "waiting", "snapshot", "dropped", "streaming")


def render(view: View, pipeline: str, reasons: Sequence[str], *, report: bool) -> str:
    """Return the page as text.

    Args:
        reasons: why the layers are not ready; empty for ready layers.
    """
    status = view.status
    ladder = () if status is None else status.ladder
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            pipeline=pipeline,
            view=view,
            status=status,
            reasons=reasons,
            chart=lag_chart(view.points, _LAYERS, view.now),
            span=_SPANS[span_of(view.points, view.now)],
            chart_width=WIDTH,
            chart_height=HEIGHT,
            rungs=[
                (rung, bytes_line(view.points, rung.name, view.now, width=120, height=22)) for rung in ladder
            ],
            slot="" if status is None else slot_text(status),
            warnings=[] if status is None else slot_warnings(status),
            snapshot="" if status is None or status.snapshot is None else snapshot_text(status.snapshot),
            groups=[]
            if status is None
            else [("Tables", _worst_first(status.tables)), ("Documents", _worst_first(status.documents))],
            shown=_SHOWN,
            report=report,
            refresh=REFRESH_SECONDS,
        )
    )


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_escaped_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(size=bytes_text, seconds=seconds_text, number=_number, time=_time)
    return environment


def _worst_first(tables: Sequence[TableStatus]) -> list[TableStatus]:
    return sorted(tables, key=lambda table: (_ORDER.index(table.state), table.name))


def _escaped_value(value: Any) -> Any:
    """Filter each text of the page, at every place in the template."""
    return shown_text(value) if type(value) is str else value


def _number(value: int | None) -> str:
    return "\u2013" if value is None else f"{value:,}"


def _time(value: datetime | None) -> str:
    return "unknown" if value is None else moment_text(value)
