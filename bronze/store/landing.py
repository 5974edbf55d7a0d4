"""What the stream and the snapshots share on the lake's side."""

from __future__ import annotations

from collections.abc import Callable  # noqa: TC003 - read at run time by dataclass
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bronze.progress import Progress

if TYPE_CHECKING:
    from bronze.store.relations import ShapeLog
    from bronze.store.sink import DeltaSink


def _nowhere(_: str) -> None:
    """No one asked to be told."""


@dataclass(frozen=True, slots=True)
class Landing:
    """Where rows land, on whatever way they come.

    Attributes:
        sink: makes them durable.
        shapes: makes the shapes durable that they have.
        progress: counts them.
        reached: is told named points on the way; fault tests kill the process there.
        takes_again: tables are copied by themselves where the stream alone cannot tell their rows.
    """

    sink: DeltaSink
    shapes: ShapeLog
    progress: Progress = field(default_factory=Progress)
    reached: Callable[[str], None] = _nowhere
    takes_again: bool = True
