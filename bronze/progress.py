"""The reader's counters, which any thread may read at any time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Mapping

_MEANINGFUL: Final = 0.02


@dataclass(slots=True)
class TableProgress:
    """The snapshot of one table."""

    rows: int = 0
    # estimate by the server's statistics; 0 if unknown
    rows_estimate: int = 0
    # bytes of text that the server sent
    bytes: int = 0
    # number of key ranges; `chunks_done` of them are written
    chunks: int = 1
    chunks_done: int = 0
    # start of the snapshot, in seconds since 1970
    started: float = field(default_factory=time.time)
    # whether the table is complete in bronze
    done: bool = False
    # Whether the snapshot ended incomplete. A new attempt begins a new entry.
    failed: bool = False


@dataclass(slots=True)
class ProgressState:
    """The reader's state at one moment."""

    # `starting`, `streaming`, `waiting` (for the server, after a fault), `stopped`
    phase: str = "starting"
    # the reason of the wait, for people
    said: str = ""
    # the reason why copies of tables wait or are retried; empty while copies proceed
    copies_wait: str = ""
    # newest WAL position that arrived
    received: Lsn = ZERO
    # bronze holds every change before this position
    durable: Lsn = ZERO
    # rows committed to bronze since the start, without rows of snapshots
    changes: int = 0
    # number of Delta commits since the start
    commits: int = 0
    # number of streams opened since the start
    connections: int = 0
    # rows of snapshots since the start
    copied: int = 0
    # by table name; all snapshots since the last moment without a running snapshot
    snapshots: dict[str, TableProgress] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SnapshotView:
    """The progress of all snapshots together."""

    rows: int
    # bytes of text copied so far
    bytes: int
    # between 0 and 1; by estimated rows, otherwise by chunks
    fraction: float
    # remaining time at the present pace; None before the pace is known
    seconds_left: float | None
    # names of the incomplete tables
    tables: tuple[str, ...]


def is_under_way(state: Mapping[str, Any]) -> bool:
    """Check whether a table's snapshot, an entry of `Progress.read`'s ``snapshots``, has not ended yet."""
    return not (state["done"] or state.get("failed"))


def snapshot_view(snapshots: Mapping[str, Mapping[str, Any]], now: float) -> SnapshotView | None:
    """Return the progress of `Progress.read`'s ``snapshots``; None if no snapshot is under way. Pure."""
    waiting = tuple(sorted(name for name, state in snapshots.items() if is_under_way(state)))
    if not waiting:
        return None
    # Snapshots that ended before the first running snapshot began belong to an earlier round of copies.
    since = min(snapshots[name]["started"] for name in waiting)
    states = [
        state for state in snapshots.values() if state["started"] >= since - 1 and not state.get("failed")
    ]
    weights = [max(state["rows_estimate"], state["rows"], 1) for state in states]
    parts = [weight * _fraction(state) for weight, state in zip(weights, states, strict=True)]
    fraction = sum(parts) / sum(weights)
    seconds_left = (now - since) * (1 - fraction) / fraction if fraction > _MEANINGFUL else None
    rows, size = (sum(state[name] for state in states) for name in ("rows", "bytes"))
    return SnapshotView(rows, size, fraction, seconds_left, waiting)


def _fraction(state: Mapping[str, Any]) -> float:
    if state["done"]:
        return 1.0
    by_chunks: float = state["chunks_done"] / max(state["chunks"], 1)
    by_rows: float = min(state["rows"] / state["rows_estimate"], 0.99) if state["rows_estimate"] else 0.0
    return max(by_chunks * 0.99, by_rows)


_FIELDS: Final = tuple(entry.name for entry in fields(ProgressState))
_FIELDS_OF_TABLE: Final = tuple(entry.name for entry in fields(TableProgress))


_MOST_TABLES: Final = 10_000
"""Number of tables that `Growth` remembers beside the tables with a present snapshot."""


class Growth:
    """A check whether the reader proceeds: its counters against the greatest so far, restarts included."""

    def __init__(self) -> None:
        self._durable = -1
        self._rows: dict[str, int] = {}
        self._done: set[str] = set()
        self._stuck_since: float | None = None

    def streamed(self, counters: Mapping[str, Any]) -> bool:
        """Check whether `Progress.read`'s counters show more of the stream in bronze than ever before."""
        grown = bool(counters["durable"] > self._durable)
        self._durable = max(self._durable, counters["durable"])
        return grown

    def copied(self, counters: Mapping[str, Any]) -> bool:
        """Check whether some table has more copied rows than ever before, or became complete."""
        grown = False
        for name, state in counters["snapshots"].items():
            if state["rows"] > self._rows.get(name, 0) or (state["done"] and name not in self._done):
                grown = True
            self._rows[name] = max(self._rows.get(name, 0), state["rows"])
            if state["done"]:
                self._done.add(name)
        # Names of tables that are gone; the counters of present tables begin again once.
        if len(self._rows) > _MOST_TABLES + 2 * len(counters["snapshots"]):
            self._rows.clear()
            self._done.clear()
        return grown

    def stuck(self, counters: Mapping[str, Any]) -> float:
        """Return the seconds since the last growth; call once for each report of counters."""
        grown = [self.streamed(counters), self.copied(counters)]
        if any(grown) or self._stuck_since is None:
            self._stuck_since = time.monotonic()
        return time.monotonic() - self._stuck_since


class Progress:
    """The reader's counters. Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = ProgressState()

    def set(self, **values: Any) -> None:
        """Set fields of the state."""
        with self._lock:
            for name, value in values.items():
                setattr(self._state, name, value)

    def connected(self, durable: Lsn) -> None:
        """Record an opened stream."""
        with self._lock:
            self._state.phase, self._state.said, self._state.durable = "streaming", "", durable
            self._state.connections += 1

    def received(self, position: Lsn) -> None:
        """Record the position of messages that arrived."""
        with self._lock:
            self._state.received = max(self._state.received, position)

    def committed(self, changes: int, durable: Lsn) -> None:
        """Record a durable Delta commit."""
        with self._lock:
            self._state.changes += changes
            self._state.commits += 1
            self._state.durable = durable

    def copied(self, table: str, rows: int, size: int = 0) -> None:
        """Record written rows of a snapshot and the bytes of their text."""
        with self._lock:
            progress = self._state.snapshots.setdefault(table, TableProgress())
            progress.rows += rows
            progress.bytes += size
            self._state.copied += rows

    def chunk_copied(self, table: str) -> None:
        """Record a complete chunk of a snapshot."""
        with self._lock:
            self._state.snapshots.setdefault(table, TableProgress()).chunks_done += 1
            self._state.copies_wait = ""

    def copying(self, table: str, rows_estimate: int, chunks: int = 1) -> None:
        """Record the start of a table's snapshot."""
        with self._lock:
            self._state.snapshots[table] = TableProgress(rows_estimate=rows_estimate, chunks=chunks)

    def copy_done(self, table: str) -> None:
        """Record that a table's snapshot is complete in bronze."""
        with self._lock:
            self._state.snapshots.setdefault(table, TableProgress()).done = True

    def copy_failed(self, table: str) -> None:
        """Record that a table's snapshot ended incomplete."""
        with self._lock:
            if table in self._state.snapshots:
                self._state.snapshots[table].failed = True

    def copies_ended(self) -> None:
        """Record that no snapshot runs any more: every incomplete snapshot has failed."""
        with self._lock:
            for progress in self._state.snapshots.values():
                progress.failed = not progress.done

    def read(self) -> dict[str, Any]:
        """Return all fields as plain values for JSON, LSNs as numbers."""
        with self._lock:
            return self._read()

    def report(self) -> dict[str, Any]:
        """Return the same values as `read`; once all snapshots have ended, forget their entries."""
        with self._lock:
            values = self._read()
            if not any(map(is_under_way, values["snapshots"].values())):
                # Each snapshot is reported as ended once: a reader of thousands of tables must not repeat
                # them in every later report.
                self._state.snapshots.clear()
        return values

    def _read(self) -> dict[str, Any]:
        values = {name: getattr(self._state, name) for name in _FIELDS}
        values["snapshots"] = {
            table: {name: getattr(table_state, name) for name in _FIELDS_OF_TABLE}
            for table, table_state in self._state.snapshots.items()
        }
        return values
