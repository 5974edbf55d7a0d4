"""How many documents fit into memory at once. Pure: sizes in, a plan out.

Sizes are bytes of documents as JSON. While a document is assembled, the heap holds its elements as rows and
as arrays of each level, the finished row and its JSON, from which the hash is made. A task that collects all
documents at once holds that of all of them; one that collects them sorted by their key holds that of one. So
a heap has room for so many bytes of documents, and builds that run side by side share it (`Room`).
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
"""Bytes of the heap for each byte of a document that is assembled (measured, docs/performance.md)."""

_RESERVED: Final = 300 * 2**20
"""Bytes of the heap for Spark itself, its classes and plans."""

_SHARE: Final = 0.85
"""Share of the heap that may be full: above it the garbage collector takes all the time."""

_FOR_A_PLAN: Final = 128 * 2**20
"""Bytes of the heap for planning one document of many joins, with what else it keeps."""

_MOST_SIDE_BY_SIDE: Final = 4
_FEWEST: Final = 2**20
_TASK: Final = 64 * 2**20
"""Bytes of documents for a task of a large build: what it sorts is then at most some gigabytes."""

WHOLE_BATCH: Final = 4096
"""Rows that Spark reads at once from a file, where they are small."""

_UNITS: Final = {"": 1, "b": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE: Final = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([bkmgt]?)(?:i?b)?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where tasks run.

    Attributes:
        heap: bytes of the JVM's heap.
        cores: tasks at once.
        setting: that makes the heap larger.
    """

    heap: int
    cores: int
    setting: str = "spark.driver.memory"

    @property
    def room(self) -> int:
        """Bytes of documents that may be assembled at once; also the most for a single one."""
        return max(_FEWEST, int((self.heap * _SHARE - _RESERVED) / _COPIES))

    @property
    def side_by_side(self) -> int:
        """Documents that may be planned at once."""
        return min(_MOST_SIDE_BY_SIDE, max(1, int((self.heap * _SHARE - _RESERVED) / 2 / _FOR_A_PLAN)))

    def heap_for(self, document: int) -> int:
        """Bytes of a heap that has room for a document of so many bytes."""
        return int((document * _COPIES + _RESERVED) / _SHARE)


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is to be assembled.

    Attributes:
        documents: how many.
        total: bytes of all of them.
        largest: bytes of the largest.
    """

    documents: int
    total: int
    largest: int


@dataclass(frozen=True, slots=True)
class Plan:
    """How documents are assembled and written.

    Attributes:
        together: all at once, in one task; else one by one, sorted by what they are collected by.
        partitions: tasks that share the work of a large build, where Spark is to make more than it would.
        broadcast: the finished documents are small enough to be sent to every task.
        batch: rows of the document's table that are read at once.
        needed: bytes of documents that are in memory at once.
    """

    together: bool
    partitions: int | None
    broadcast: bool
    batch: int
    needed: int


def assembly_plan(sizes: Sizes, machine: Machine, *, tasks: int) -> Plan:
    """How documents of these sizes are assembled within the machine's memory.

    Args:
        sizes: of the documents.
        machine: where.
        tasks: that Spark would make.
    """
    small = machine.room // 8
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
    """The memory that builds share.

    It is given in the order of requests, so that a large build does not starve.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._taken = 0
        self._waiting: list[object] = []
        self._changed = threading.Condition()

    @contextmanager
    def of(self, wanted: int) -> Iterator[None]:
        """Hold so many bytes for a block; a request for more than there is gets all of it."""
        wanted, ticket = min(wanted, self._size), object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._taken + wanted <= self._size
                )
                self._taken += wanted
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._taken -= wanted
                self._changed.notify_all()


def bytes_of(text: str, *, unit: str = "b") -> int:
    """A size as Spark's settings write it: ``2g``, ``1536m``; a bare number is in `unit`.

    Raises:
        ValueError: it is none.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return int(float(found[1]) * _UNITS[(found[2] or unit).lower()])
