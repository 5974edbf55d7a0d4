"""How much of a server a comparison may take, and how much of it is compared."""

from __future__ import annotations

from dataclasses import dataclass

from pipelines.bounds import CONNECTIONS, RATE, SAMPLE


@dataclass(frozen=True, slots=True)
class Load:
    """How much of the server a comparison may take.

    Attributes:
        connections: that read at once; None: as many as snapshots have (`snapshot.workers`).
        rate: bytes of text a second, all connections together; None: as fast as it sends.
        sample: the fraction of keys; None: all.

    Raises:
        ConfigurationError: ``argument-invalid``: one is out of its bounds.
    """

    connections: int | None = None
    rate: int | None = None
    sample: float | None = None

    def __post_init__(self) -> None:
        given = (
            ("max_connections", self.connections, CONNECTIONS),
            ("rate", self.rate, RATE),
            ("sample", self.sample, SAMPLE),
        )
        for name, value, bounds in given:
            if value is not None:
                bounds.require(value, name)
