"""What should not wait half a minute is looked at every second, on a thread and a connection of its own.

* Something that may have changed rows without an event (`bronze.drift.fingerprint`): the next full look is
  made at once (`news`); while tables are copied, by this thread (`meanwhile`).
* The slot comes near its limit (`bronze.checks.slot_risk`): said in the log and in `status`, once for each
  level, also while tables are copied, which may take hours.

It decides nothing. When something fails it connects again, after a pause that grows until a whole turn has
worked (`bronze.reader.trouble`). The stream and the copies tell of a server that is away. What does not heal
by itself is recorded by the watch, for nobody else may look for hours.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from bronze.checks.slot_risk import RiskLevel, SlotRisk, slot_risk, stays_high
from bronze.checks.wal_budget import read_budget
from bronze.drift.fingerprint import ColumnsFingerprint, catalog_fingerprint
from bronze.errors import SmeltError, TransientError
from bronze.postgres.connection import connect, translated, within
from bronze.progress import snapshot_view
from bronze.setup.slot import read_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import psycopg

    from bronze.checks.wal_budget import WalBudget
    from bronze.config.sections import SourceSettings
    from bronze.progress import Progress
    from bronze.reader.trouble import Trouble
    from bronze.setup.slot import SlotState

_SHARE: Final = 0.01
"""Of the time that this may ask the server: with thousands of tables it asks more rarely."""
_TINY_SECONDS: Final = 3600.0
"""Time that a level told of a tiny limit holds."""
_LOGGER = logging.getLogger("deltasmelt.reader")


class Watch:
    """Looks until it is stopped.

    Args:
        source: server, slot and publication.
        progress: of the reader; how far copies are is read there, a slot in danger is said there.
        oids: of the tables that are read, with their partitions, as they are known at the moment.
        trouble: what kept the watch from a whole turn.
        types: OIDs of the types that can be defined anew in place, likewise.
        meanwhile: is called every second since the catalog changed, until it says that it has looked.
        wanted: whether a look is wanted although the catalog did not change.
    """

    def __init__(
        self,
        source: SourceSettings,
        progress: Progress,
        oids: Callable[[], Collection[int]],
        meanwhile: Callable[[], bool],
        wanted: Callable[[], bool] = lambda: False,
        *,
        trouble: Trouble,
        types: Callable[[], Collection[int]] = lambda: (),
    ) -> None:
        self._source = source
        self._trouble = trouble
        self._timing = source.timing
        self._progress = progress
        self._oids = oids
        self._types = types
        self._columns = ColumnsFingerprint()
        self._meanwhile = meanwhile
        self._wanted = wanted
        self._pending = False
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smelt-watch", daemon=True)
        self._seen: tuple[Any, ...] | None = None
        self.failure: BaseException | None = None
        self._slot = SlotWatch()
        self._slot_at = 0.0

    def start(self) -> None:
        """Begin; nothing if it has begun."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """End the thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._trouble.ended()

    def news(self) -> bool:
        """Whether the catalog changed since this was asked last."""
        changed = self._news.is_set()
        self._news.clear()
        return changed

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with connect(self._source, application_name="deltasmelt watch") as connection:
                    self._watch(connection)
            except SmeltError as error:
                lasts = not isinstance(error, TransientError)
                level = logging.WARNING if lasts else logging.DEBUG
                _LOGGER.log(level, "the watch connects again: %s", error)
                self._trouble.failed(error, recorded=lasts)
                if self._trouble.pause(self._stop):
                    return
            except BaseException as error:  # noqa: BLE001 - raised by who asks; nothing is looked at any more
                self.failure = error
                return

    def _watch(self, connection: psycopg.Connection[Any]) -> None:
        while True:
            started = time.monotonic()
            with translated(self._source), within(self._timing.watch_answer, connection):
                self._look(connection, started)
            # Before `_meanwhile`: the full look that this may make has a share of its own.
            asked = time.monotonic() - started
            self._pending = (self._pending or self._wanted()) and not self._meanwhile()
            self._trouble.worked()
            if self._stop.wait(max(self._timing.watch, asked / _SHARE)):
                return

    def _look(self, connection: psycopg.Connection[Any], now: float) -> None:
        oids = self._oids()
        seen = (
            *catalog_fingerprint(connection, self._source.publication, oids, self._types()),
            self._columns.read(connection, oids),
        )
        if seen != self._seen:
            self._seen = seen
            self._news.set()
            self._pending = True
        if now - self._slot_at < self._timing.watch_slot:
            return
        self._slot_at = now
        slot = read_slot(connection, self._source.slot)
        if slot is None:
            return
        copies = snapshot_view(self._progress.read()["snapshots"], time.time())
        budget = read_budget(connection, slot)
        danger = self._slot.look(slot, now, None if copies is None else copies.seconds_left, budget)
        if danger is not None:
            _LOGGER.warning("slot %s: %s", slot.name, danger.said)
            self._progress.set(said=danger.said)


class SlotWatch:
    """Tells each level of danger once, until the slot was out of it.

    It is out of it when it has more room than when it was told. A moment in which nothing is written only
    looks like that. It is out of the lowest level when well below that is held. A limit
    of a few segments is passed in ordinary running; what is told of it holds for an hour.
    """

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        self._level = RiskLevel.NONE
        self._room: int | None = None
        self._told_at = 0.0

    def look(
        self,
        slot: SlotState,
        now: float,
        copies_left: float | None,
        budget: WalBudget | None = None,
    ) -> SlotRisk | None:
        """The danger, where it is nearer than what was told.

        Args:
            slot: as read.
            now: by the monotonic clock, in seconds.
            copies_left: as `slot_risk`.
            budget: as `slot_risk`.
        """
        before, safe = self._before, slot.safe_wal_size
        self._before = None if safe is None else (now, safe)
        left = None
        if before is not None and safe is not None and before[1] > safe and now > before[0]:
            left = max(safe, 0) * (now - before[0]) / (before[1] - safe)
        danger = slot_risk(slot, left, copies_left, budget)
        settled = budget is None or not budget.tiny or now - self._told_at >= _TINY_SECONDS
        if settled and (safe is None or self._room is None or safe > self._room):
            still = RiskLevel.MUCH if stays_high(budget) else RiskLevel.NONE
            self._level = min(self._level, max(danger.level, still))
        if danger.level <= self._level:
            return None
        self._level, self._room, self._told_at = danger.level, safe, now
        return danger
