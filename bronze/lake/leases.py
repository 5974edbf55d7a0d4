"""Leases: in a store or catalog, at most one process at a time may write a layer of a lake.

A store does not notice the end of a process; a kernel's lock does. A lease is therefore an object that its
holder rewrites again and again, each time only if no second process has written the object
(`bronze.lake.objects`). In a catalog the lease is a row (`bronze.lake.catalog.lease_rows`). A watcher takes
the lease once the object has stayed unchanged for the stated duration, by the watcher's own clock. No process
compares the clocks of two machines.

**Invariant.** The holder's right ends `Pace.seconds` after the start of the last successful write. A watcher
counts from the end of the watcher's own read, and waits `Pace.grace` longer. The holder calls `check` before
each commit; `check` needs no request, and fails from `Pace.margin` before the right ends.

**Need.** Delta's commits are safe if the store rejects writing an existing object. `deltalake` requests this
check from S3. Spark's log store (delta-storage 4.4.0) only has a lock within one JVM, so two drivers
overwrite each other's commits without an error (delta-io/delta#3596, #4813). The project's own log store
requests the check (`pipelines.spark.hadoop`), but a foreign session may have a different log store. On ABFS
and GCS, and in a catalog, Delta's own commits are safe; there the lease only selects the writing process,
because two alternately failing drivers would be useless.

**Limit.** A statement commits at its end. A statement longer than margin and grace together may commit after
a second process has taken over. The project's log store then orders the two commits, and Delta finds the
conflict. With a different log store, silver and gold detect the missing commit (``lake-commit-lost``).
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from obstore.exceptions import BaseError

from deltasmelt.bronze.errors import DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.catalog import lease_rows
from deltasmelt.bronze.lake.failures import words_of
from deltasmelt.bronze.lake.lease_objects import HOLDER, Pace, body_of, held_by, is_free, patience_of, said
from deltasmelt.bronze.lake.place import is_named, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from deltasmelt.bronze.lake.lease_objects import CompareAndSwap, Found
    from deltasmelt.bronze.lake.location import Lake

FOLDER: Final = "_leases"
COMMIT_LOST: Final = "lake-commit-lost"
PUT_BACK: Final = "table-put-back"
# Time limit for the statement that gives a lease back.
_GIVING_SECONDS: Final = 15.0
# Maximum number of successive rejected writes over an unchanged object.
_FUTILE: Final = 10

_LOGGER = logging.getLogger("deltasmelt.run")


@dataclass
class Lease:
    """A lease of this process, from taking to giving back; any thread may call all methods."""

    root: str
    name: str
    command: str
    pace: Pace
    put: Found
    until: float
    lost: str | None = None
    # tag of the object that taking the lease replaced; None if unknown
    over: str | None = None
    # tag of the object that gave the lease back
    given: str | None = None
    _one: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Check that this process may write for long enough to begin a commit.

        Raises:
            TransientError: ``lease-lost``; a retry may get the lease again.
        """
        if self.lost is None and _now() < self.until - self.pace.margin:
            return
        why = self.lost or "the lease could not be renewed in time"
        raise TransientError(
            f"the lease of {self.name} is not valid: {why}",
            code="lease-lost",
            where=self.root,
            remedy="check the network to the store, and whether Spark is overloaded; nothing was written "
            "without the lease",
        )

    def renew(self) -> None:
        """Rewrite the lease object; leave failures to the next renewal and to `check`."""
        with self._one:
            if self.lost is not None or self._ended.is_set():
                return
            try:
                began, put = self._put_over(self.put)
                # After a lost answer the store rejects the next write: read whether the object is our own.
                if put is None and (ours := self._ours()) is not None:
                    began, put = self._put_over(ours)
            except (OSError, BaseError) as error:
                _LOGGER.warning("the lease of %s could not be renewed: %s", self.name, words_of(error))
                return
            if put is None:
                return
            self.put, self.until = put, began + self.pace.seconds

    def follows(self, earlier: Lease | None) -> bool:
        """Check whether no process held the lease between an earlier lease and this lease."""
        # This lease replaced the very object with which the earlier lease was given back.
        return earlier is not None and earlier.given is not None and earlier.given == self.over

    def _put_over(self, found: Found) -> tuple[float, Found | None]:
        began = _now()
        return began, cells_of(self.root).put(
            self.root, self.name_of, body_of(self.command, self.pace), over=found
        )

    def _ours(self) -> Found | None:
        """Return the object if this process wrote it; else record the lease as lost."""
        found = cells_of(self.root).read(self.root, self.name_of)
        if found is not None and said(found).get("holder") == HOLDER:
            return found
        self.lost = f"taken over {held_by(found)}" if found is not None else "the lease object was removed"
        _LOGGER.error("the lease of %s was lost: %s", self.name, self.lost)
        return None

    def give_back(self) -> None:
        """Give the lease back, so that the next process need not wait."""
        self._ended.set()
        if not is_named(self.root):
            self._give_back()
            return
        # A separate thread writes a catalog's row: the calling thread may have been interrupted while waiting
        # for Spark, and would read the interrupted statement's answer as its own. The wait has a limit,
        # because tasks of other statements may occupy all cores.
        giver = threading.Thread(target=self._give_back, name=f"smelt-lease-{self.name}-ends", daemon=True)
        giver.start()
        giver.join(_GIVING_SECONDS)
        if giver.is_alive():
            _LOGGER.warning("the lease of %s was not released in time: the next process waits", self.name)

    def _give_back(self) -> None:
        with self._one:
            if self.lost is not None:
                return
            free = body_of(self.command, self.pace, free=True)
            try:
                given = cells_of(self.root).put(self.root, self.name_of, free, over=self.put)
                if given is None and (ours := self._ours()) is not None:
                    given = cells_of(self.root).put(self.root, self.name_of, free, over=ours)
                self.given = None if given is None else given.tag
            except Exception as error:  # noqa: BLE001 - of any kind: the work under the lease is done
                _LOGGER.warning("the lease of %s could not be released: %s", self.name, words_of(error))

    @property
    def name_of(self) -> str:
        """Name of the lease's object."""
        return object_of(self.name)

    def keep(self) -> None:
        """Renew the lease periodically until the lease is given back; runs on its own thread."""
        while not self._ended.wait(self.pace.renewed_after):
            try:
                self.renew()
            except Exception:  # of any kind: the next renewal may succeed; else `check` fails
                _LOGGER.exception("the lease of %s could not be renewed", self.name)


_held: dict[tuple[str, str], Lease] = {}
_turns: dict[tuple[str, str], threading.Lock] = {}
# By object: tag at the last poll, and when this process first saw the tag.
_first_seen: dict[tuple[str, str], tuple[str | None, float]] = {}
_lock: Final = threading.Lock()


def cells_of(root: str) -> CompareAndSwap:
    """Return the storage of a lake's leases."""
    return lease_rows if is_named(root) else objects


def object_of(name: str) -> str:
    """Return the name of a lease's object below the lake."""
    return f"{FOLDER}/{name}.json"


def writing_of(layer: str) -> str:
    """Return the name of the lease for writing a layer's tables."""
    return f"{layer}.writing"


def still_writing(lake: Lake, layer: str) -> None:
    """Check before each commit that the process still has the layer's lease, if the process took a lease.

    Raises:
        TransientError: ``lease-lost``: the lease has ended or is about to end.
    """
    lease = held(lake, layer)
    if lease is not None:
        lease.check()


def held(lake: Lake, layer: str) -> Lease | None:
    """Return this process's lease of the layer's tables; None without a lease, as in a local lake."""
    return _held.get((lake.root, writing_of(layer)))


def let_expire() -> None:
    """Give no lease of this process back: each ends by itself, as after a crash.

    For a process that ends during a write: the store may still execute the last request.
    """
    for lease in list(_held.values()):
        lease.lost = lease.lost or "this process was interrupted"


def commit_lost(table: str, where: str, again: str) -> SmeltError:
    """Return the error for a table whose log lacks a commit that Spark reported as done.

    `again` names the work that the pipeline repeats.
    """
    return SmeltError(
        f"the log of {table} lacks a commit: another process without a lease wrote the same version",
        code=COMMIT_LOST,
        where=where,
        remedy=f"find the process that writes the lake's tables, and stop it; {again} again",
    )


def put_back(table: str, where: str, version: int) -> SmeltError:
    """Return the error for a table that was rolled back: a version known to the writer is missing."""
    return SmeltError(
        f"version {version} of {table} is missing: the table was rolled back or removed",
        code=PUT_BACK,
        where=where,
        remedy="stop the pipeline before you restore tables; silver and gold apply the missing changes again",
    )


def still_holding(lake: Lake, stages: Iterable[str]) -> None:
    """Check that each stage of the process still belongs to the process.

    Raises:
        DefiniteError: ``lease-lost``: another process holds the stage now.
    """
    for stage in stages:
        lease = _held.get((lake.root, stage))
        if lease is not None and lease.lost is not None:
            raise DefiniteError(
                f"this lake's {stage} stage no longer belongs to this process: {lease.lost}",
                code="lease-lost",
                where=lake.root,
                remedy="this process was paused, or could not reach the lake, until its lease expired; the "
                "other process continues",
            )


@contextmanager
def leased(
    root: str,
    name: str,
    *,
    command: str,
    wait: bool,
    say: Callable[[str], None] = _LOGGER.info,
    stop: threading.Event | None = None,
) -> Iterator[Lease]:
    """Hold a lease during the block.

    Args:
        name: subject of the lease: a stage, or the writing of a layer.
        wait: whether to wait for a living holder; otherwise a living holder is an error.
        say: reports that this process waits for a holder that may have ended.
        stop: ends the wait.

    Raises:
        InterruptedError: `stop` was set during the wait.
        DefiniteError: ``already-running``: the holder is alive.
        TransientError: ``lake-unreachable``: the store is unreachable or refuses.
    """
    with _turn(root, name) if wait else nullcontext():
        # In a catalog a Spark statement renews the lease and may wait while a large MERGE occupies all cores,
        # so leases last longer there (`bronze.config.timing`). A holder with a late renewal fails before its
        # next commit, and continues after a successful renewal.
        pace = Pace(place_of(root).lease)
        lease = _taken(root, name, command=command, wait=wait, pace=pace, say=say, stop=stop)
        _held[root, name] = lease
        keeper = threading.Thread(target=lease.keep, name=f"smelt-lease-{name}", daemon=True)
        keeper.start()
        try:
            yield lease
        finally:
            if _held.get((root, name)) is lease:
                del _held[root, name]
            lease.give_back()


def _turn(root: str, name: str) -> threading.Lock:
    """Return the lock by which threads of a process take turns without a request to the store."""
    with _lock:
        return _turns.setdefault((root, name), threading.Lock())


def _taken(
    root: str,
    name: str,
    *,
    command: str,
    wait: bool,
    pace: Pace,
    say: Callable[[str], None],
    stop: threading.Event | None,
) -> Lease:
    """Poll until the lease is free or has expired, then take the lease."""
    tried: dict[bytes, float] = {}
    before: Found | None = None
    refused: list[Found | None] = []
    told, failed = False, 0
    while True:
        try:
            found = _look(root, name)
            renewed, before = before is not None and found is not None and found.tag != before.tag, found
            refused = [over for over in refused if over == found]
            if len(refused) > _FUTILE:
                raise OSError("the store refuses the lease, although no other process writes it")  # noqa: TRY301 - as below
            # A rejected or failed write may nevertheless have succeeded: the object then has a body of this
            # process.
            if found is not None and found.body in tried:
                return Lease(root, name, command, pace, found, tried[found.body] + pace.seconds)
            free = found is None or is_free(found) or _since(root, name) > patience_of(found)
            if renewed and not free and not wait:
                raise _running(root, name, found)
            if free:
                body = body_of(command, pace)
                tried[body] = began = _now()
                put = cells_of(root).put(root, object_of(name), body, over=found)
                refused.append(found)
                if put is not None:
                    over = None if found is None else found.tag
                    return Lease(root, name, command, pace, put, began + pace.seconds, over=over)
            failed = 0
        except (OSError, BaseError) as error:
            failed += 1
            if failed > 1:
                raise TransientError(
                    f"the lease of {name} cannot be acquired: {words_of(error)}",
                    code="lake-unreachable",
                    where=root,
                    remedy="check the bucket or catalog, credentials and network; the store must support "
                    "conditional writes",
                ) from error
            free = True  # unknown: this process waits for no holder
        if not told and not free and not wait:
            told = True
            say(f"{name} is held {held_by(found)}: waiting to see whether the holder still runs")
        _pause(pace.looks, stop)


def _pause(seconds: float, stop: threading.Event | None) -> None:
    if stop is None:
        time.sleep(seconds)
    elif stop.wait(seconds):
        raise InterruptedError("the run ended during its wait for another process")


def watch(root: str, names: Iterable[str]) -> None:
    """Poll several leases before taking the first, so that the waits for expired leases overlap."""
    for name in names:
        _look(root, name)


def _look(root: str, name: str) -> Found | None:
    """Return the lease object, and record since when this process has seen the object unchanged."""
    found = cells_of(root).read(root, object_of(name))
    tag, now = None if found is None else found.tag, time.monotonic()
    before = _first_seen.get((root, name))
    if before is None or before[0] != tag:
        _first_seen[root, name] = tag, now
    return found


def _since(root: str, name: str) -> float:
    return time.monotonic() - _first_seen[root, name][1]


def _now() -> float:
    # This clock counts a machine's sleep, because leases expire meanwhile.
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _running(root: str, name: str, found: Found | None) -> DefiniteError:
    return DefiniteError(
        f"this lake's {name} stage is already running: {held_by(found)}",
        code="already-running",
        where=root,
        remedy="wait for this stage or stop it (Ctrl-C, or SIGTERM); only one process at a time can run a "
        "stage",
    )
