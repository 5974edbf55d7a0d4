"""The objects of the lake that the stream and the snapshots share."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - read at run time by dataclass
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.bronze.progress import Progress

if TYPE_CHECKING:
    from deltasmelt.bronze.store.relations import ShapeLog
    from deltasmelt.bronze.store.sink import DeltaSink


def _nowhere(_: str) -> None:
    """Do nothing at a named point: no test waits there."""


def _at_once(_: int) -> None:
    """Return without a pause: nothing slows down the reading."""


@dataclass(frozen=True, slots=True)
class Landing:
    """The way of rows into the lake, from the stream or a snapshot."""

    # makes rows and marks durable
    sink: DeltaSink
    # makes the rows' shapes durable
    shapes: ShapeLog
    # counts rows, commits and snapshots
    progress: Progress = field(default_factory=Progress)
    # called at named points of the work; fault tests kill the process there
    reached: Callable[[str], None] = _nowhere
    # called with the bytes of each block of a snapshot; may sleep, to spare the server
    pace: Callable[[int], None] = _at_once
    # whether a table gets a new snapshot automatically if the stream alone cannot provide its rows
    resnapshots: bool = True
    # whether a snapshot only renews the base of rebuilds (`bronze.store.retention`)
    renews: bool = False
