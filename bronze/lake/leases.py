"""Leases: who may write a layer of a lake in an object store, kept in the store itself.

A local lake is locked by the kernel, which notices the end of a process at once. A store notices nothing. So
a lease is an object that its holder puts again and again, each time on the condition that nobody else did
(`bronze.lake.objects`). Of a lake in a catalog it is a row of a table (`bronze.lake.catalog.lease_rows`).
Whoever wants it watches. An object that was not put anew for as long as it says, by the watcher's own clock,
belongs to nobody any more. Clocks of two machines are never compared.

**Why it is needed.** Delta's commits are safe where the store refuses to put an object that is there.
`deltalake` asks S3 for that; Delta in Spark does not. Its log store for S3 (delta-storage 4.4.0) has a lock
inside one JVM, so two drivers overwrite each other's commits without a word (delta-io/delta#3596, #4813).
Our own log store does ask (`pipelines.spark.hadoop`), but a session that something else started may have
another one. And two drivers that only fail in turns are no good either.

**Why the holder is sure.** Its right ends `Pace.seconds` after it began the last put that succeeded. That is
before anybody who saw that put may take over, for a watcher counts from after it looked, and then waits
`Pace.grace` longer. `check` is asked before each commit. It needs no request, and refuses from `Pace.margin`
before the right ends. A put whose answer was lost renews nothing; the next one is refused by the store, and
then a look tells whether the object is our own.

**What it cannot do.** It is asked for before a statement, whose commit comes at its end. A statement that
lasts longer than margin and grace together may so commit after another process has taken over. Our log store
then orders the two, and Delta finds the conflict. With another log store, silver and gold find out that what
they committed is not there (``lake-commit-lost``).

On ABFS and GCS Delta's own commits are safe, and a catalog's tables are. There the lease tells who writes.

A row is put by a statement of Spark. It waits while a large MERGE keeps all cores busy, so in a catalog a
lease holds for longer (`bronze.config.timing`). A holder that could not renew in time fails, before it begins
another commit, and goes on once it could, if nobody took over.
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
_GIVING_SECONDS: Final = 15.0
"""For the statement that gives a lease back."""
_FUTILE: Final = 10
"""Puts in a row that were refused though nothing had changed."""

_LOGGER = logging.getLogger("deltasmelt.run")


@dataclass
class Lease:
    """A lease that this process holds, from when it was taken until it is given back.

    All methods may be called from any thread.

    Attributes:
        over: tag of the object that it was put over when it was taken; None where that is not known.
        given: tag of the object by which it was given back.
    """

    root: str
    name: str
    command: str
    pace: Pace
    put: Found
    until: float
    lost: str | None = None
    over: str | None = None
    given: str | None = None
    _one: threading.Lock = field(default_factory=threading.Lock)
    _ended: threading.Event = field(default_factory=threading.Event)

    def check(self) -> None:
        """Whether we are still who may write, for long enough to begin a commit.

        Raises:
            TransientError: ``lease-lost``; it may be had again.
        """
        if self.lost is None and _now() < self.until - self.pace.margin:
            return
        why = self.lost or "it could not be renewed in time"
        raise TransientError(
            f"the lease of {self.name} does not hold: {why}",
            code="lease-lost",
            where=self.root,
            remedy="check the network to the store, or what keeps Spark busy; nothing was written without it",
        )

    def renew(self) -> None:
        """Put it anew; failures are left to the next time, and to `check`."""
        with self._one:
            if self.lost is not None or self._ended.is_set():
                return
            try:
                began, put = self._put_over(self.put)
                if put is None and (ours := self._ours()) is not None:
                    began, put = self._put_over(ours)
            except (OSError, BaseError) as error:
                _LOGGER.warning("the lease of %s could not be renewed: %s", self.name, words_of(error))
                return
            if put is None:
                return
            self.put, self.until = put, began + self.pace.seconds

    def follows(self, earlier: Lease | None) -> bool:
        """Whether nobody held the lease between an earlier time and this one.

        What was given back then is the very object that was there when it was taken now.
        """
        return earlier is not None and earlier.given is not None and earlier.given == self.over

    def _put_over(self, found: Found) -> tuple[float, Found | None]:
        began = _now()
        return began, cells_of(self.root).put(
            self.root, self.name_of, body_of(self.command, self.pace), over=found
        )

    def _ours(self) -> Found | None:
        """What is there, where it is our own: the answer to an earlier put was lost. Else the lease is."""
        found = cells_of(self.root).read(self.root, self.name_of)
        if found is not None and said(found).get("holder") == HOLDER:
            return found
        self.lost = f"taken over {held_by(found)}" if found is not None else "its object was removed"
        _LOGGER.error("the lease of %s was lost: %s", self.name, self.lost)
        return None

    def give_back(self) -> None:
        """The next one need not wait.

        In a catalog another thread does it, and is not waited for very long. This one may have been
        interrupted while it waits for Spark, and would read that statement's answer as its own. And tasks of
        other statements may keep all cores.
        """
        self._ended.set()
        if not is_named(self.root):
            self._give_back()
            return
        giver = threading.Thread(target=self._give_back, name=f"smelt-lease-{self.name}-ends", daemon=True)
        giver.start()
        giver.join(_GIVING_SECONDS)
        if giver.is_alive():
            _LOGGER.warning("the lease of %s was not given back in time: the next one waits", self.name)

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
            except Exception as error:  # noqa: BLE001 - of whatever kind: what was done under it is done
                _LOGGER.warning("the lease of %s could not be given back: %s", self.name, words_of(error))

    @property
    def name_of(self) -> str:
        """Of its object."""
        return object_of(self.name)

    def keep(self) -> None:
        """Renew it from time to time until it is given back; runs on a thread of its own."""
        while not self._ended.wait(self.pace.renewed_after):
            try:
                self.renew()
            except Exception:  # of whatever kind: the next time may be better, and `check` tells if none is
                _LOGGER.exception("the lease of %s could not be renewed", self.name)


_held: dict[tuple[str, str], Lease] = {}
_turns: dict[tuple[str, str], threading.Lock] = {}
_first_seen: dict[tuple[str, str], tuple[str | None, float]] = {}
"""Of each object the tag at the last look, and when it was first seen, by the clock of this process."""
_lock: Final = threading.Lock()


def cells_of(root: str) -> CompareAndSwap:
    """Where the leases of a lake at a location are kept."""
    return lease_rows if is_named(root) else objects


def object_of(name: str) -> str:
    """The name of a lease's object, below the lake."""
    return f"{FOLDER}/{name}.json"


def writing_of(layer: str) -> str:
    """The name of the lease of who writes a layer's tables."""
    return f"{layer}.writing"


def still_writing(lake: Lake, layer: str) -> None:
    """Before each commit: whether this process, if it took the lease of the layer's tables, still has it.

    Raises:
        TransientError: ``lease-lost``.
    """
    lease = held(lake, layer)
    if lease is not None:
        lease.check()


def held(lake: Lake, layer: str) -> Lease | None:
    """The lease of the layer's tables, where this process holds it; None also where there are no leases."""
    return _held.get((lake.root, writing_of(layer)))


def commit_lost(table: str, where: str, again: str) -> SmeltError:
    """Return the error of a table to which Spark committed, but whose log lacks that commit.

    Args:
        table: ``silver.orders``.
        where: the lake or table.
        again: what is done again thereafter.
    """
    return SmeltError(
        f"what was committed to {table} is not in its log: another process that holds no lease wrote the "
        "same version",
        code=COMMIT_LOST,
        where=where,
        remedy=f"find what else writes the lake's tables, and stop it; {again} again",
    )


def put_back(table: str, where: str, version: int) -> SmeltError:
    """Return the error of a table of which a version is gone that its writer knows.

    Args:
        table: ``silver.orders``.
        where: the lake.
        version: that is gone.
    """
    return SmeltError(
        f"version {version} of {table} is gone: somebody put the table back, or removed it",
        code=PUT_BACK,
        where=where,
        remedy="stop the pipeline before tables are put back; what the table lacks now is folded again",
    )


def still_holding(lake: Lake, stages: Iterable[str]) -> None:
    """Whether nobody has taken over a stage that this process runs.

    Raises:
        DefiniteError: ``lease-lost``.
    """
    for stage in stages:
        lease = _held.get((lake.root, stage))
        if lease is not None and lease.lost is not None:
            raise DefiniteError(
                f"this lake's {stage} stage no longer belongs to this process: {lease.lost}",
                code="lease-lost",
                where=lake.root,
                remedy="this process stood still, or could not reach the lake, for longer than that; the "
                "other one goes on",
            )


@contextmanager
def leased(
    root: str,
    name: str,
    *,
    command: str,
    wait: bool,
    say: Callable[[str], None] = _LOGGER.info,
) -> Iterator[Lease]:
    """Hold a lease while the block runs.

    Args:
        root: location of the lake.
        name: of what is leased: a stage, or a layer's writing.
        command: what holds it, for others.
        wait: for a holder that is alive; else it is an error.
        say: is told that a holder which may be gone is waited for.

    Raises:
        DefiniteError: ``already-running``.
        TransientError: ``lake-unreachable``: the store cannot be reached, or refuses.
    """
    with _turn(root, name) if wait else nullcontext():
        lease = _taken(root, name, command=command, wait=wait, pace=Pace(place_of(root).lease), say=say)
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
    """Threads of one process take turns without asking the store."""
    with _lock:
        return _turns.setdefault((root, name), threading.Lock())


def _taken(
    root: str, name: str, *, command: str, wait: bool, pace: Pace, say: Callable[[str], None]
) -> Lease:
    """Look until it is free, or was not renewed for long enough.

    A put that is refused, or fails, may have come about all the same: the next look knows its body.
    """
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
                raise OSError("it is refused, although nobody puts it")  # noqa: TRY301 - as below
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
                    f"the lease of {name} cannot be taken: {words_of(error)}",
                    code="lake-unreachable",
                    where=root,
                    remedy="check the bucket or catalog, credentials and network; a store must know "
                    "conditional puts",
                ) from error
            free = True  # not known: nobody is waited for
        if not told and not free and not wait:
            told = True
            say(f"{name} is held {held_by(found)}: waiting to see whether it is alive")
        time.sleep(pace.looks)


def watch(root: str, names: Iterable[str]) -> None:
    """Look at leases that will be taken one after the other: what is not renewed is waited for once.

    Raises:
        OSError, BaseError: the store cannot be reached, or refuses.
    """
    for name in names:
        _look(root, name)


def _look(root: str, name: str) -> Found | None:
    """What is there; since when this process has seen it is noted."""
    found = cells_of(root).read(root, object_of(name))
    tag, now = None if found is None else found.tag, time.monotonic()
    before = _first_seen.get((root, name))
    if before is None or before[0] != tag:
        _first_seen[root, name] = tag, now
    return found


def _since(root: str, name: str) -> float:
    """Seconds since the object that is there was first seen by this process."""
    return time.monotonic() - _first_seen[root, name][1]


def _now() -> float:
    """Seconds of a clock that goes on while the machine sleeps, as the holder's right runs out meanwhile."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _running(root: str, name: str, found: Found | None) -> DefiniteError:
    return DefiniteError(
        f"this lake's {name} stage is already running: {held_by(found)}",
        code="already-running",
        where=root,
        remedy="wait for it or stop it (Ctrl-C, or SIGTERM); only one process at a time can run a stage",
    )
