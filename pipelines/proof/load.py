"""How much of a server a comparison may take, and how much of it is compared."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """How much of the server a comparison may take.

    Attributes:
        connections: that read at once; None: as many as snapshots have (`snapshot.workers`).
        rate: bytes of text a second, all connections together; None: as fast as it sends.
        sample: the fraction of keys; None: all.
    """

    connections: int | None = None
    rate: int | None = None
    sample: float | None = None
