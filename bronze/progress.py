"""What the reader is doing, for those who watch: counters that any thread may read at any time."""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from typing import Any

from bronze.lsn import ZERO, Lsn


@dataclass(slots=True)
class TableProgress:
    """The snapshot of one table.

    Attributes:
        rows_estimate: from the server's statistics; 0 if unknown.
        done: it is complete in bronze.
    """

    rows: int = 0
    rows_estimate: int = 0
    done: bool = False


@dataclass(slots=True)
class ProgressState:
    """One look at the reader.

    Attributes:
        phase: ``starting``, ``streaming``, ``waiting`` (for the server, after a fault), ``stopped``.
        said: what it waits for, for people.
        received: newest WAL position that arrived.
        durable: bronze holds everything before it.
        server: end of the server's WAL as last heard of.
        changes: rows committed to bronze since the start, without snapshots.
        wal_bytes: message bytes received since the start.
        commits: Delta commits since the start.
        connections: streams opened since the start.
        snapshots: by table name.
    """

    phase: str = "starting"
    said: str = ""
    received: Lsn = ZERO
    durable: Lsn = ZERO
    server: Lsn = ZERO
    changes: int = 0
    wal_bytes: int = 0
    commits: int = 0
    connections: int = 0
    started: float = field(default_factory=time.time)
    changes_per_second: float = 0.0
    snapshots: dict[str, TableProgress] = field(default_factory=dict)


class Progress:
    """The reader's counters. All methods may be called from any thread."""

    _WINDOW = 2.0

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._state = ProgressState()
        self._window_start = time.monotonic()
        self._window_changes = 0

    def set(self, **values: Any) -> None:
        """Set fields of the state."""
        with self._lock:
            for name, value in values.items():
                setattr(self._state, name, value)

    def connected(self, durable: Lsn) -> None:
        """A stream is open."""
        with self._lock:
            self._state.phase, self._state.said, self._state.durable = "streaming", "", durable
            self._state.connections += 1

    def received(self, size: int, position: Lsn) -> None:
        """Messages arrived."""
        with self._lock:
            self._state.wal_bytes += size
            self._state.received = max(self._state.received, position)

    def committed(self, changes: int, durable: Lsn) -> None:
        """A Delta commit is durable."""
        with self._lock:
            self._state.changes += changes
            self._state.commits += 1
            self._state.durable = durable
            self._window_changes += changes

    def copied(self, table: str, rows: int) -> None:
        """Rows of a snapshot were written."""
        with self._lock:
            self._state.snapshots.setdefault(table, TableProgress()).rows += rows

    def copying(self, table: str, rows_estimate: int) -> None:
        """The snapshot of a table begins."""
        with self._lock:
            self._state.snapshots[table] = TableProgress(rows_estimate=rows_estimate)

    def copy_done(self, table: str) -> None:
        """The snapshot of a table is complete in bronze."""
        with self._lock:
            self._state.snapshots.setdefault(table, TableProgress()).done = True

    def read(self) -> dict[str, Any]:
        """All fields as plain values that JSON can hold; LSNs as numbers."""
        with self._lock:
            elapsed = time.monotonic() - self._window_start
            if elapsed >= self._WINDOW:
                self._state.changes_per_second = self._window_changes / elapsed
                self._window_start, self._window_changes = time.monotonic(), 0
            return asdict(self._state)
