"""The demo's view: what the shop does, and each layer's lag, while it happens.

Lag in seconds is measured the same way for every layer. The server's head is noted twice a second; a layer at
some LSN lags by the time since the head was there. On a terminal a table is redrawn in place; elsewhere a
line is printed now and then.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Self

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipelines.terminal.output import bytes_text, seconds_text

if TYPE_CHECKING:
    from types import TracebackType

    from bronze.lsn import Lsn
    from pipelines.terminal.output import Output

_WINDOW_SECONDS: Final = 10.0
_LINE_EVERY: Final = 5.0


class Meter:
    """A count that grows, and its pace over the last seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def set(self, total: int) -> None:
        """The count is now `total`."""
        self.total = total

    def add(self, more: int) -> None:
        """The count grew."""
        self.total += more

    def rate(self) -> float:
        """Per second, over the window."""
        now = time.monotonic()
        self._seen.append((now, self.total))
        while len(self._seen) > 2 and now - self._seen[0][0] > _WINDOW_SECONDS:
            self._seen.popleft()
        begun, before = self._seen[0]
        return (self.total - before) / max(now - begun, 0.001)


@dataclass(slots=True)
class LayerLine:
    """One line of the view.

    Attributes:
        note: shown until there is a number to show.
    """

    name: str
    counts: str
    meter: Meter = field(default_factory=Meter)
    lsn: Lsn | None = None
    note: str = ""


class HeadHistory:
    """Where the server's head was when."""

    def __init__(self) -> None:
        self._lsns: list[int] = []
        self._times: list[float] = []

    def note(self, head: Lsn) -> None:
        """The head is here now."""
        if not self._lsns or head > self._lsns[-1]:
            self._lsns.append(int(head))
            self._times.append(time.monotonic())

    @property
    def head(self) -> int | None:
        """The newest head."""
        return self._lsns[-1] if self._lsns else None

    def behind(self, lsn: Lsn | None) -> tuple[int | None, float | None]:
        """Bytes and seconds that a layer is behind that holds everything up to and with `lsn`.

        None where it has no place yet.
        """
        if lsn is None or not self._lsns:
            return None, None
        held = int(lsn) + 1
        # The first head that it does not hold: what was written until then is missing since then.
        index = bisect_left(self._lsns, held + 1)
        if index == len(self._lsns):
            return 0, 0.0
        return self._lsns[-1] - held, time.monotonic() - self._times[index]


class LiveView:
    """The view, as a context manager; `refresh` redraws it."""

    def __init__(self, output: Output) -> None:
        self._output = output
        self._begun = time.monotonic()
        self._last_line = 0.0
        self._live = Live(console=output.console, refresh_per_second=4) if output.rich else None
        self.phase = ""
        self.heads = HeadHistory()
        self.source = LayerLine("PostgreSQL", "transactions")
        self.bronze = LayerLine("bronze", "changes", note="first snapshot")
        self.silver = LayerLine("silver", "changes folded", note="Spark starts")
        self.gold = LayerLine("gold", "documents written", note="Spark starts")

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
        """A new part of the demo begins."""
        self.phase = phase
        if self._live is None:
            self._output.line(f"{self._elapsed()} {phase}")
        self.refresh()

    def refresh(self) -> None:
        """Show what is known now."""
        if self._live is not None:
            self._live.update(Group(Text(f"{self._elapsed()} {self.phase}", style="bold"), self._table()))
        elif time.monotonic() - self._last_line >= _LINE_EVERY:
            self._last_line = time.monotonic()
            self._output.line(f"{self._elapsed()} " + "; ".join(self._texts()))

    def _elapsed(self) -> str:
        minutes, seconds = divmod(int(time.monotonic() - self._begun), 60)
        return f"{minutes}:{seconds:02}"

    def _table(self) -> Table:
        table = Table(header_style="bold", expand=False)
        table.add_column("layer")
        for column in ("rows/s", "total", "", "bytes behind", "seconds behind"):
            table.add_column(column, justify="left" if not column else "right", min_width=9)
        for layer in (self.source, self.bronze, self.silver, self.gold):
            size, age = self.heads.behind(layer.lsn)
            waiting = layer.lsn is None and layer is not self.source
            table.add_row(
                layer.name,
                f"{layer.meter.rate():,.0f}",
                f"{layer.meter.total:,}",
                layer.note if waiting else layer.counts,
                "" if layer is self.source else bytes_text(size),
                "" if layer is self.source else seconds_text(age),
            )
        return table

    def _texts(self) -> list[str]:
        texts = [f"{self.source.meter.rate():,.0f} tx/s"]
        for layer in (self.bronze, self.silver, self.gold):
            _, age = self.heads.behind(layer.lsn)
            place = layer.note if layer.lsn is None else f"{seconds_text(age)} behind"
            texts.append(f"{layer.name} {layer.meter.rate():,.0f} rows/s, {place}")
        return texts
