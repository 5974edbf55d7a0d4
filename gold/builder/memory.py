"""Compute how many documents fit into memory at once. Pure: sizes in, a plan out.

Sizes are bytes of documents as JSON. While Spark assembles a document, the heap holds the elements as rows
and as arrays of each level, the finished row and its JSON. So a heap has room for a limited number of
document bytes, and parallel builds share this room (`Room`).

Measured: five kinds of documents, the largest of 22 MB, under a heap of 2 GB: 148 → 124 s, 1.9 → 1.4 GB live.
"""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_COPIES: Final = 24
"""Bytes of the heap for each byte of a document under assembly (measured, docs/performance/gold.md)."""

_RESERVED: Final = 300 * 2**20
"""Bytes of the heap for Spark itself, its classes and plans."""

_SHARE: Final = 0.85
"""Share of the heap that may be full; a fuller heap gives the garbage collector all the time."""

_FOR_A_PLAN: Final = 128 * 2**20
"""Bytes of the heap for planning one document of many joins, with all that the plan keeps."""

_MOST_SIDE_BY_SIDE: Final = 4
_FEWEST: Final = 2**20
_TASK: Final = 64 * 2**20
"""Bytes of documents for a task of a large build, so that a task sorts some gigabytes at most."""

WHOLE_BATCH: Final = 4096
"""Rows that Spark reads at once from a file of small rows."""

_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Machine:
    """The heap and the cores that tasks have.

    `heap` is in bytes, `cores` is the number of tasks at once, and `setting` is Spark's setting that makes
    the heap larger.
    """

    heap: int
    cores: int
    setting: str = "spark.driver.memory"

    @property
    def room(self) -> int:
        """Bytes of documents that may be assembled at once; also the maximum for a single document."""
        return max(_FEWEST, int((self.heap * _SHARE - _RESERVED) / _COPIES))

    @property
    def side_by_side(self) -> int:
        """Number of documents that may be planned in parallel."""
        return min(_MOST_SIDE_BY_SIDE, max(1, int((self.heap * _SHARE - _RESERVED) / 2 / _FOR_A_PLAN)))

    def heap_for(self, document: int) -> int:
        """Return the bytes of a heap with room for a document of `document` bytes."""
        return int((document * _COPIES + _RESERVED) / _SHARE)


@dataclass(frozen=True, slots=True)
class Sizes:
    """The number of documents to assemble, the bytes of all of them, and the bytes of the largest."""

    documents: int
    total: int
    largest: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The way in which Spark assembles and writes documents.

    Attributes:
        together: all documents at once, in one task; else one by one, sorted by their group.
        partitions: number of tasks for a large build; None leaves Spark's own number.
        broadcast: the finished documents are small enough to be sent to every task.
        batch: rows of the document's table that Spark reads at once.
        needed: bytes of documents that are in memory at once.
    """

    together: bool
    partitions: int | None
    broadcast: bool
    batch: int
    needed: int


def assembly_plan(sizes: Sizes, machine: Machine, *, tasks: int) -> Plan:
    """Return a plan by which documents of these sizes fit into the memory; Spark would make `tasks` tasks."""
    small = machine.room // 8
    # A task that collects all documents at once needs memory for all. A task that collects documents sorted
    # by their key needs memory for one document.
    together = sizes.total <= small
    partitions = -(-sizes.total // min(_TASK, machine.room))
    at_once = min(machine.cores, max(tasks, partitions), max(sizes.documents, 1))
    each = sizes.total // max(sizes.documents, 1)
    return Plan(
        together=together,
        partitions=partitions if partitions > tasks else None,
        broadcast=sizes.total <= small,
        batch=max(1, min(WHOLE_BATCH, small // max(each, 1))),
        needed=min(sizes.total, sizes.largest * at_once),
    )


class Room:
    """The memory that parallel builds share."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._reserved = 0
        self._waiting: list[object] = []
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, needed: int) -> Iterator[None]:
        """Hold `needed` bytes for the length of a block; a request above the whole room gets the room."""
        needed, ticket = min(needed, self._size), object()
        with self._changed:
            # Memory goes in the order of requests, so that a large build does not starve.
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._reserved + needed <= self._size
                )
                self._reserved += needed
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._reserved -= needed
                self._changed.notify_all()


def bytes_of(text: str, *, unit: str = "b") -> int:
    """Return the bytes of a size in Spark's form, ``2g`` or ``1536m``; a bare number is in `unit`.

    Raises:
        ValueError: the text is no size.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(float(found[1]) * _UNITS[(found[2] or unit).lower()])
