"""What the benchmarks share: processes under measurement, ratios, and lines that appear at once."""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Sequence

_LOOK_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run of a client.

    Attributes:
        wall: seconds.
        cpu: seconds of the client, user and system.
        peak: resident memory, MiB.
    """

    wall: float
    cpu: float
    peak: float


def bench_server() -> EmbeddedServer:
    """A server whose checkpoints stay out of the way."""
    return EmbeddedServer(settings={"max_wal_size": "16GB", "checkpoint_timeout": "1h"})


def machine() -> str:
    """What every table of figures has to say of the machine."""
    return (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start; "
        "the server on the same machine, with fsync off"
    )


class Watched:
    """A process of another program, with its own peak of resident memory.

    The kernel counts a child's peak from the fork on, so what `wait4` says begins with the size of this
    Python. The high-water mark of the program's own memory stands in ``/proc`` for as long as it runs.
    """

    def __init__(self, command: Sequence[str], *, stdout: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, bufsize=1)
        self._name = Path(command[0]).name
        self._peak = 0.0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def ended(self, since: float) -> Run:
        """Wait for its end; seconds are counted from `since`.

        Raises:
            RuntimeError: it failed.
        """
        assert self.process.stderr is not None
        said = self.process.stderr.read()
        _, status, usage = os.wait4(self.process.pid, 0)
        wall = time.monotonic() - since
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()
        self._watch.join()
        if status:
            raise RuntimeError(f"{self._name} failed: {said}")
        return Run(wall, usage.ru_utime + usage.ru_stime, self._peak)

    def _look(self) -> None:
        status = Path(f"/proc/{self.process.pid}/status")
        while not self._ended.wait(_LOOK_SECONDS):
            with suppress(OSError):
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
                if lines["Name"].strip() == self._name[:15] and "VmHWM" in lines:
                    self._peak = max(self._peak, int(lines["VmHWM"].split()[0]) / 1024)


def ratio(
    what: str, ratios: Sequence[float], *, at_least: float | None = None, at_most: float | None = None
) -> bool:
    """Print the median of ratios and whether the bar holds."""
    median = statistics.median(ratios)
    held = (at_least is None or median >= at_least) and (at_most is None or median <= at_most)
    bar = f"; bar {'≥' if at_least else '≤'} {at_least or at_most}: {'holds' if held else 'MISSED'}"
    verdict = "" if at_least is at_most is None else bar
    spread = "" if len(ratios) == 1 else f" ({', '.join(f'{one:.2f}' for one in ratios)})"
    say(f"  {what}: median ratio {median:.2f}{spread}{verdict}")
    return held


def say(line: str) -> None:
    """Print at once, also into a file."""
    print(line, flush=True)  # noqa: T201 - the result
