"""A guard that injects one fault of any kind at one effect of a real reader, on the lake or on the source.

`SourceAndLake` counts the effects of each kind. One effect meets the fault:

* *before*: the effect fails and changes nothing. At the source the guard really ends the backend first.
* *after*: the effect succeeds and its answer is lost. At the source the guard then ends the backend.
* *late*: the effect happens only after every timeout (the tests shorten all timeouts).
* *never*: the server receives the request and its answer never arrives. No connection ends, so the
  reader's own timeout must end the wait.
* *half*: a file is half written, then the write fails. From a batch of messages half arrives, then the
  connection ends.
* *stale*: a table or a listing is read in an older state; feedback to the server is dropped on its way.

With a kill, the next effect of any kind and any thread does not happen, and no later effect either. So the
kill interrupts the reader's handling of the fault. `Killed` is no Exception, so no handler recovers from it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, cast

import psycopg
from deltalake import DeltaTable

from deltasmelt.bronze.effects import Effect
from deltasmelt.bronze.lake.place import local_folder
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.pgoutput.framing import Block
from deltasmelt.bronze.store.marks import CONFIRM_APP
from deltasmelt.bronze.stream.replication import Drained
from tests.bronze.faults import OF_THE_SOURCE, failure

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Kind = Literal["before", "after", "late", "never", "half", "stale"]

LATE_SECONDS: Final = 1.4
PATIENCE_SECONDS: Final = 0.9
KINDS: Final[dict[Kind, frozenset[Effect]]] = {
    "before": frozenset(Effect),
    "after": frozenset(Effect),
    "late": OF_THE_SOURCE | {Effect.COMMIT, Effect.REFRESH, Effect.CLOSE_PART},
    "never": OF_THE_SOURCE - {Effect.CONNECT},  # libpq's own patience, in whole seconds
    "half": frozenset(
        {Effect.WRITE_PART, Effect.CLOSE_PART, Effect.CREATE_TABLE, Effect.CHECKPOINT, Effect.RECEIVE}
    ),
    "stale": frozenset({Effect.REFRESH, Effect.OPEN_TABLE, Effect.LIST_FILES, Effect.FEEDBACK}),
}


class Killed(BaseException):
    """The simulated death of the process: from now on no effect happens."""


@dataclass(frozen=True, slots=True)
class Case:
    """A fault at the n-th effect of a kind, from 1; optionally a kill follows."""

    door: Effect
    number: int
    kind: Kind
    kill: bool

    def __str__(self) -> str:
        return f"{self.kind} {self.door} {self.number}{', killed' if self.kill else ''}"


def cases(seen: Counter[Effect]) -> list[Case]:
    """Return every fault of each counted effect, with and without a kill."""
    return [
        Case(door, number, kind, kill)
        for door in Effect
        for number in range(1, seen[door] + 1)
        for kind, doors in KINDS.items()
        if door in doors
        for kill in (False, True)
    ]


class SourceAndLake:
    """A guard that counts effects and injects a fault into one effect; safe for concurrent threads.

    Args:
        dsn: an administrator's DSN, with which the guard ends backends.
        case: the fault to inject; None only counts.
        at_commit: functions to call before the commits with these numbers.
    """

    def __init__(
        self, dsn: str, changes: Path, case: Case | None, at_commit: dict[int, Callable[[], None]]
    ) -> None:
        self._dsn = dsn
        self._changes = changes
        self._case = case
        self._at_commit = at_commit
        self._lock = threading.Lock()
        self._listing: Any = None
        self.durable = ZERO
        self._torn = ""
        self._connections: dict[str, psycopg.Connection[Any]] = {}
        self._dies = False
        self.seen: Counter[Effect] = Counter()
        self.met = False
        self.killed = False
        self.confirmed_too_far: list[str] = []

    def __call__(self, door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if self._dies:
            self.killed = True
            raise Killed
        if door is Effect.RECEIVE and where == self._torn:
            while True:  # nothing comes behind a hole: what was on its way is forgotten until the line ends
                effect()
        with self._lock:
            now = self._is_due(door)
        if door is Effect.COMMIT and where.endswith("/changes"):
            self._at_commit.get(self.seen[door], lambda: None)()
        if door is Effect.FEEDBACK:
            self._check(Lsn.parse(where.split()[1]))
        if not now:
            return self._counted(door, effect())
        self.met = True
        case = cast("Case", self._case)
        try:
            if door in OF_THE_SOURCE:
                return self._at_source(case, where, effect)
            return self._at_lake(case, where, effect)
        finally:
            self._dies = case.kill

    def _is_due(self, door: Effect) -> bool:
        if door is not Effect.RECEIVE:  # counted when something came
            self.seen[door] += 1
        number = self.seen[door] + (door is Effect.RECEIVE)
        case = self._case
        return not self.met and case is not None and (case.door, case.number) == (door, number)

    def _counted(self, door: Effect, result: Any) -> Any:
        if door is Effect.RECEIVE and len(result.block):
            with self._lock:
                self.seen[door] += 1
        if door is Effect.LIST_FILES and self._listing is None:
            self._listing = result
        if door is Effect.CONNECT and result is not None:
            self._connections[str(result.info.backend_pid)] = result
        return result

    def _check(self, confirmed: Lsn) -> None:
        """Record a confirmation beyond the newest durable commit; read the commit without the guard."""
        if confirmed > self.durable:
            table = DeltaTable(str(self._changes))
            self.durable = max(self.durable, Lsn(table.transaction_version(CONFIRM_APP) or 0))
        if confirmed > self.durable:
            self.confirmed_too_far.append(f"{confirmed} is confirmed, {self.durable} is durable")

    def _at_source(self, case: Case, where: str, effect: Callable[[], Any]) -> Any:
        lost = psycopg.OperationalError("injected: server closed the connection unexpectedly")
        match case.kind:
            case "late":
                time.sleep(LATE_SECONDS)
                return effect()
            case "stale":
                return None
            case "never":
                swallow(self._connections[where.split(maxsplit=1)[0]])
                return effect()
            case "before" if case.door is Effect.CONNECT:
                raise psycopg.OperationalError("injected: Connection refused")
            case "before":
                self._end(where)
                return effect()
        result = effect()
        if case.door is Effect.CONNECT:
            if result is not None:
                result.close()
            raise lost
        self._end(where)
        if case.door is not Effect.RECEIVE:
            raise lost
        self._torn = where
        if case.kind == "after":
            return self(case.door, where, effect)
        messages = cast("Drained", result).block.messages()
        return Drained(Block.of(messages[: len(messages) // 2]))

    def _at_lake(self, case: Case, where: str, effect: Callable[[], Any]) -> Any:
        error = failure(case.door, f"injected {case} at {where}")
        match case.kind:
            case "before":
                raise error
            case "after":
                effect()
                raise error
            case "late":
                time.sleep(LATE_SECONDS)
                return effect()
            case "half":
                effect()
                self._halve(case.door, where)
                raise error
        if case.door is Effect.REFRESH:
            return None
        if case.door is Effect.LIST_FILES:
            return [] if self._listing is None else self._listing
        table = effect()
        return type(table)(where, table.version() - 1) if table.version() else table

    def _halve(self, door: Effect, where: str) -> None:
        path = local_folder(where)
        assert path is not None
        files = [path]
        if door is Effect.CREATE_TABLE:
            files = list(path.parent.glob(f"_{path.name}-*/_delta_log/*.json"))
        if door is Effect.CHECKPOINT:
            files = list(path.glob("*/_delta_log/*.checkpoint.parquet"))
        for file in files:
            with file.open("r+b") as opened:
                opened.truncate(file.stat().st_size // 2)

    def _end(self, where: str) -> None:
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            connection.execute("SELECT pg_terminate_backend(%s, 5000)", [int(where.split(maxsplit=1)[0])])


def swallow(connection: psycopg.Connection[Any]) -> None:
    """Drop everything that the server sends on an open connection, and forward the client's requests."""
    line = connection.fileno()
    server = socket.socket(fileno=os.dup(line))
    ours, theirs = socket.socketpair()
    ours.setblocking(False)  # as libpq has its own
    os.dup2(ours.fileno(), line)
    ours.close()

    def forward() -> None:
        with server, theirs, suppress(OSError):
            while data := theirs.recv(65536):
                server.sendall(data)

    threading.Thread(target=forward, name="swallows", daemon=True).start()
