"""What the stream and the snapshots share on the lake's side."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - read at run time by dataclass
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from deltasmelt.bronze.progress import Progress

if TYPE_CHECKING:
    from deltasmelt.bronze.store.relations import ShapeLog
    from deltasmelt.bronze.store.sink import DeltaSink


def _nowhere(_: str) -> None:
    """No test listens."""


def _at_once(_: int) -> None:
    """Nothing slows the reading down."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where rows land, from the stream or a snapshot.

    Attributes:
        sink: makes them durable.
        shapes: makes the shapes durable that they have.
        progress: counts them.
        reached: called at named points on the way; fault tests kill the process there.
        pace: called with the bytes of each block of a snapshot; may sleep, to spare the server.
        resnapshots: a table gets a new snapshot by itself where the stream alone cannot tell its rows.
    """

    sink: DeltaSink
    shapes: ShapeLog
    progress: Progress = field(default_factory=Progress)
    reached: Callable[[str], None] = _nowhere
    pace: Callable[[int], None] = _at_once
    resnapshots: bool = True
