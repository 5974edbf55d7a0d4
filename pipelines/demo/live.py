"""The demo's view: the shop's activity and each layer's lag, live.

Every layer's lag in seconds has the same measure. The view records the server's head twice a second; a layer
at an LSN lags by the time since the head was at this LSN. On a terminal the view redraws a table in place;
elsewhere the view prints a line now and then.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from deltasmelt.bronze.figures import bytes_text, estimate_text, seconds_text
from deltasmelt.pipelines.demo.story import LAYERS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from rich.console import RenderableType

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.demo.story import Followed
    from deltasmelt.pipelines.terminal.output import Output

_WINDOW_SECONDS: Final = 10.0
_LINE_EVERY: Final = 10.0
_MARKS: Final = {None: ("…", ""), True: ("✓", "green"), False: ("✗", "red")}


class Meter:
    """A growing count, and its pace over the last seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._counts: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def set(self, total: int) -> None:
        """Set the count to `total`."""
        self.total = total

    def add(self, more: int) -> None:
        """Increase the count."""
        self.total += more

    def begin(self) -> None:
        """Measure the pace from now on."""
        self._counts = deque([(time.monotonic(), self.total)])

    def rate(self) -> float:
        """Return the pace per second, over the window."""
        now = time.monotonic()
        self._counts.append((now, self.total))
        while len(self._counts) > 2 and now - self._counts[0][0] > _WINDOW_SECONDS:
            self._counts.popleft()
        start, before = self._counts[0]
        return (self.total - before) / max(now - start, 0.001)


@dataclass(slots=True)
class LayerLine:
    """One line of the view; `counts` names the counted things."""

    name: str
    counts: str
    meter: Meter = field(default_factory=Meter)
    lsn: Lsn | None = None


class HeadHistory:
    """Positions of the server's head over time."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._times: list[float] = []

    def note(self, head: Lsn) -> None:
        """Record the head's present position."""
        if not self._lsns or head > self._lsns[-1]:
            self._lsns.append(int(head))
            self._times.append(time.monotonic())

    @property
    def head(self) -> int | None:
        """The newest position of the head."""
        return self._lsns[-1] if self._lsns else None

    def behind(self, lsn: Lsn | None) -> tuple[int | None, float | None]:
        """Return the lag in bytes and seconds of a layer with everything up to and including `lsn`.

        Return None for a layer without a position.
        """
        if lsn is None or not self._lsns:
            return None, None
        next_lsn = int(lsn) + 1
        # The first head beyond the position of the layer: the layer has lacked changes since then.
        index = bisect_left(self._lsns, next_lsn + 1)
        if index == len(self._lsns):
            return 0, 0.0
        return self._lsns[-1] - next_lsn, time.monotonic() - self._times[index]


class Preparation:
    """Steps before the shop opens, in sequence or in parallel; each takes some seconds."""

    def __init__(self, names: Sequence[str]) -> None:
        self._start = time.monotonic()
        self._names = tuple(names)
        self._done: dict[str, tuple[float, str]] = {}

    def done(self, name: str, result: str = "") -> bool:
        """Record a finished step with its result; return whether the step was open before."""
        if name in self._done:
            return False
        self._done[name] = time.monotonic() - self._start, result
        return True

    @property
    def complete(self) -> bool:
        """True if all steps are finished."""
        return len(self._done) == len(self._names)

    def text(self, name: str) -> str:
        """Return a finished step as a line."""
        seconds, result = self._done[name]
        return (
            f"{name}: {result} ({estimate_text(seconds)})" if result else f"{name} ({estimate_text(seconds)})"
        )

    def rendered(self) -> Group:
        """Return the steps as a list with a bar, for a terminal."""
        table = Table.grid(padding=(0, 2, 0, 0))
        for name in self._names:
            seconds, result = self._done.get(name, (None, ""))
            if seconds is None:
                table.add_row(Spinner("dots"), name, Text("…", style="dim"), "")
            else:
                table.add_row(
                    Text("✓", style="green"), name, Text(result, style="dim"), f"{estimate_text(seconds)}"
                )
        bar = Table.grid()
        bar.add_row(ProgressBar(total=len(self._names), completed=len(self._done), width=60))
        return Group(bar, table)


class LiveView:
    """The view, as a context manager; `refresh` redraws the view."""

    def __init__(self, output: Output, preparation: Preparation) -> None:
        self._output = output
        self._start = time.monotonic()
        self._last_line = 0.0
        self._live = Live(console=output.console, refresh_per_second=4) if output.rich else None
        self._printed: set[str] = set()
        self._lags = False
        self.phase = ""
        # shown until every step is finished
        self.preparation = preparation
        self.heads = HeadHistory()
        self.source = LayerLine("PostgreSQL", "transactions")
        self.bronze = LayerLine("bronze", "changes")
        self.silver = LayerLine("silver", "changes merged")
        self.gold = LayerLine("gold", "documents written")
        self.followed: Sequence[Followed] = ()
        # description of the killed reader
        self.crash = ""

    def layer(self, name: Layer) -> LayerLine:
        """Return the line of a layer."""
        return {"bronze": self.bronze, "silver": self.silver, "gold": self.gold}[name]

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self.refresh()
            self._live.stop()

    def enter(self, phase: str) -> None:
        """Begin a new part of the demo."""
        self.phase = phase
        if self._live is None:
            self._output.line(f"{self._elapsed()} {phase}")
        self.refresh()

    def open(self, phase: str) -> None:
        """Show the layers' pace from now on, since everything runs."""
        for layer in (self.source, self.bronze, self.silver, self.gold):
            layer.meter.begin()
        self._last_line = time.monotonic()
        self._lags = True
        self.enter(phase)

    def settled(self, phase: str) -> None:
        """Show no more lag in printed lines, since all layers have caught up."""
        self._lags = False
        self.enter(phase)

    def prepared(self, name: str, result: str = "") -> None:
        """Record the end of a step before the shop's opening."""
        if self.preparation.done(name, result):
            if self._live is None:
                self._output.line(f"{self._elapsed()} {self.preparation.text(name)}")
            self.refresh()

    def refresh(self) -> None:
        """Show the present state."""
        if self._live is not None:
            self._live.update(self.rendered())
            return
        for change in self.followed:
            if change.arrived is not None and change.title not in self._printed:
                self._printed.add(change.title)
                self._output.line(f"{self._elapsed()} {change_text(change)}")
        if self.crash and self.crash not in self._printed:
            self._printed.add(self.crash)
            self._output.line(f"{self._elapsed()} {self.crash}")
        if self._lags and time.monotonic() - self._last_line >= _LINE_EVERY:
            self._last_line = time.monotonic()
            self._output.line(f"{self._elapsed()} " + "; ".join(self._texts()))

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._start), 60)
        return f"{minutes}:{seconds:02}"

    def rendered(self) -> Group:
        """Return the present state as a terminal shows it."""
        parts: list[RenderableType] = [Text(f"{self._elapsed()} {self.phase}", style="bold")]
        if not self.preparation.complete:
            return Group(*parts, self.preparation.rendered())
        parts += [Text(), self._layers()]
        if self.followed:
            parts += [Text(), self._changes()]
        if self.crash:
            parts += [Text(), Text(self.crash, style="yellow")]
        return Group(*parts)

    def _layers(self) -> Table:
        table = _table("layer")
        for column in ("rows/s", "total", "", "bytes behind", "time behind"):
            table.add_column(column, justify="left" if not column else "right", min_width=8, no_wrap=True)
        for layer in (self.source, self.bronze, self.silver, self.gold):
            size, age = self.heads.behind(layer.lsn)
            table.add_row(
                layer.name,
                f"{layer.meter.rate():,.0f}",
                f"{layer.meter.total:,}",
                layer.counts,
                "" if layer is self.source else bytes_text(size),
                "" if layer is self.source else seconds_text(age),
            )
        return table

    def _changes(self) -> Table:
        table = _table("at the source, and the time until each layer had it")
        for layer in LAYERS:
            table.add_column(layer, justify="right", min_width=9, no_wrap=True)
        for change in self.followed:
            mark, style = _MARKS[change.arrived]
            cells = [seconds_text(change.seconds[name]) if name in change.seconds else "…" for name in LAYERS]
            table.add_row(Text(f"{mark} {change.title}", style=style), *cells)
        return table

    def _texts(self) -> list[str]:
        texts = [f"{self.source.meter.rate():,.0f} tx/s"]
        for layer in (self.bronze, self.silver, self.gold):
            _, age = self.heads.behind(layer.lsn)
            place = "" if layer.lsn is None else f", {seconds_text(age)} behind"
            texts.append(f"{layer.name} {layer.meter.rate():,.0f} rows/s{place}")
        return texts


def _table(first: str) -> Table:
    """Return a table without lines at its sides."""
    table = Table(header_style="bold", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    return table


def change_text(change: Followed) -> str:
    """Return a followed change as a line."""
    times = ", ".join(
        f"in {layer} after {seconds_text(seconds)}" for layer, seconds in change.seconds.items()
    )
    return f"{change.title}: {times}{'' if change.arrived else ' BUT NOT FOUND THERE'}"
