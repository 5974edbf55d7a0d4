"""Shared parts of the benchmarks: measured processes, ratios, and unbuffered output."""

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

_POLL_SECONDS: Final = 0.02


@dataclass(frozen=True, slots=True)
class Run:
    """One measured run of a client.

    Attributes:
        wall: elapsed time of the run in seconds.
        cpu: seconds of the client, user and system.
        peak: largest resident memory of the client, MiB.
    """

    wall: float
    cpu: float
    peak: float


def bench_server() -> EmbeddedServer:
    """Return a server with checkpoints too rare to disturb a run, and a limit of WAL that no run reaches."""
    rare = {"max_wal_size": "16GB", "checkpoint_timeout": "1h"}
    return EmbeddedServer(settings=rare | {"max_slot_wal_keep_size": "50GB"})


def machine() -> str:
    """Return the description of the machine for every table of figures."""
    return (
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start; "
        "the server on the same machine, with fsync off"
    )


class Watched:
    """A process of another program, with the program's own peak of resident memory.

    The kernel counts a child's peak from the fork on, so the figure of `wait4` begins with the size of this
    Python. ``/proc`` shows the high-water mark of the program's own memory while the program runs.
    """

    def __init__(self, command: Sequence[str], *, stdout: int = subprocess.DEVNULL) -> None:
        self.process = subprocess.Popen(command, stdout=stdout, stderr=subprocess.PIPE, text=True, bufsize=1)
        self._name = Path(command[0]).name
        self._peak = 0.0
        self._ended = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()

    def ended(self, since: float) -> Run:
        """Wait for the end of the process; return the run, with seconds counted from `since`.

        Raises:
            RuntimeError: the process failed.
        """
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        _, status, usage = os.wait4(self.process.pid, 0)
        wall = time.monotonic() - since
        self.process.returncode = os.waitstatus_to_exitcode(status)
        self._ended.set()
        self._watch.join()
        if status:
            raise RuntimeError(f"{self._name} failed: {errors}")
        return Run(wall, usage.ru_utime + usage.ru_stime, self._peak)

    def _look(self) -> None:
        status = Path(f"/proc/{self.process.pid}/status")
        while not self._ended.wait(_POLL_SECONDS):
            with suppress(OSError):
                lines = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
                if lines["Name"].strip() == self._name[:15] and "VmHWM" in lines:
                    self._peak = max(self._peak, int(lines["VmHWM"].split()[0]) / 1024)


def ratio(
    title: str, ratios: Sequence[float], *, at_least: float | None = None, at_most: float | None = None
) -> bool:
    """Print the median of ratios; return whether the bar holds."""
    median = statistics.median(ratios)
    passed = (at_least is None or median >= at_least) and (at_most is None or median <= at_most)
    bar = f"; bar {'≥' if at_least else '≤'} {at_least or at_most}: {'holds' if passed else 'MISSED'}"
    verdict = "" if at_least is at_most is None else bar
    spread = "" if len(ratios) == 1 else f" ({', '.join(f'{value:.2f}' for value in ratios)})"
    say(f"  {title}: median ratio {median:.2f}{spread}{verdict}")
    return passed


def say(line: str) -> None:
    """Print without delay, also if the output is a file."""
    print(line, flush=True)  # noqa: T201 - the result
