"""Running processes, read from Linux' ``/proc``."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True)
class Process:
    """A process at the moment of reading.

    Attributes:
        name: name of its program, at most 15 letters.
        parent: id of the process that started it.
        seconds: CPU time so far, user and system.
    """

    pid: int
    name: str
    parent: int
    seconds: float


def processes() -> Iterator[Process]:
    """Return all running processes; skip a process that ends during the read."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            number, _, stat_fields = stat.read_text().partition(" (")
        except OSError:
            continue
        name, _, fields = stat_fields.rpartition(") ")
        numbers = fields.split()
        ticks = int(numbers[11]) + int(numbers[12])
        yield Process(int(number), name, int(numbers[1]), ticks / os.sysconf("SC_CLK_TCK"))
