"""What should not wait half a minute is looked at every second, on a thread and a connection of its own.

* Something that may have changed rows without an event (`bronze.reader.watch`): the next full look is
  made at once (`news`); while tables are copied, by this thread (`meanwhile`).
* The slot comes near its limit (`bronze.checks.slot_risk`): said in the log and in `status`, once for each
  level, also while tables are copied, which may take hours.

It decides nothing. When something fails it connects again, after a pause that grows until a whole turn has
worked (`bronze.reader.trouble`). The stream and the copies tell of a server that is away. What does not heal
by itself is recorded by the watch, for nobody else may look for hours.

A fingerprint of all that the catalog says of the tables that are read: cheap enough to ask every second.

It is new whenever a statement may have changed rows without an event, or the publication. An ALTER TABLE that
rewrites a table or a partition, or adds a column, writes its row in pg_class; so does a DROP TABLE. A
partition that comes or goes writes pg_inherits. The publication's parts are rows of their own. Each such
write makes a new version of the row, which has a new xmin. What VACUUM and ANALYZE note in pg_class is
written in place.

A primary key or an identity index that is dropped leaves rows as they are. But the application's UPDATEs of
a published table fail from then on, so the rows of pg_index that make an identity belong here.

A label of an enum is a row of pg_enum, and an attribute of a composite one of pg_attribute. Both are asked
for the types that the tables' columns have, and where there are none, not at all.

**Columns** that are renamed or dropped write pg_attribute alone, which for all tables would cost ten times
all the rest. So `ColumnsFingerprint` asks for these rows only when the server has counted an update of
pg_attribute (https://www.postgresql.org/docs/current/monitoring-stats.html). A session reports what it
counted within a second of its commit while it is busy, and within ten when it is idle from then on.

Equal fingerprints say nothing of tables that are not known yet, of columns where `track_counts` is off or the
server is PostgreSQL 14, of other indexes and of comments. The full look, now and then, finds those.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.checks.slot_risk import RiskLevel, SlotRisk, slot_risk, stays_high
from deltasmelt.bronze.checks.wal_budget import read_budget
from deltasmelt.bronze.errors import SmeltError, TransientError
from deltasmelt.bronze.postgres.connection import connect, translated, within
from deltasmelt.bronze.progress import snapshot_view
from deltasmelt.bronze.setup.slot import read_slot

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    import psycopg

    from deltasmelt.bronze.checks.wal_budget import WalBudget
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.progress import Progress
    from deltasmelt.bronze.reader.trouble import Trouble
    from deltasmelt.bronze.setup.slot import SlotState

_HASH: Final = "coalesce(bit_xor(hashtextextended(concat_ws(' ', {}), 0)), 0)"
_QUERY: Final = f"""
    SELECT (SELECT concat_ws(' ', count(*), {_HASH.format("c.oid, c.xmin")})
            FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])),
           (SELECT concat_ws(' ', count(*), {_HASH.format("i.inhrelid, i.inhparent, i.xmin")})
            FROM pg_inherits i WHERE i.inhparent = ANY (%(oids)s::oid[])),
           (SELECT concat_ws(' ', count(*), {_HASH.format("i.indexrelid, i.xmin")})
            FROM pg_index i
            WHERE i.indrelid = ANY (%(oids)s::oid[]) AND (i.indisprimary OR i.indisreplident)),
           (SELECT concat_ws(' ', p.oid, p.xmin) FROM pg_publication p WHERE p.pubname = %(publication)s),
           (SELECT concat_ws(' ', count(*), {_HASH.format("r.oid, r.xmin")})
            FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
            WHERE p.pubname = %(publication)s){{schemas}}{{types}}
"""
_SCHEMAS: Final = f""",
           (SELECT concat_ws(' ', count(*), {_HASH.format("s.oid, s.xmin")})
            FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
            WHERE p.pubname = %(publication)s)"""
_TYPES: Final = f""",
           (SELECT concat_ws(' ', count(*), {_HASH.format("e.oid, e.xmin")})
            FROM pg_enum e WHERE e.enumtypid = ANY (%(types)s::oid[])),
           (SELECT concat_ws(' ', count(*), {_HASH.format("a.attrelid, a.attnum, a.xmin")})
            FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
            WHERE t.oid = ANY (%(types)s::oid[]) AND t.typrelid <> 0 AND a.attnum > 0)"""
_UPDATES: Final = "SELECT pg_stat_get_tuples_updated('pg_catalog.pg_attribute'::regclass)"
_COLUMNS: Final = f"""
    SELECT concat_ws(' ', count(*), {_HASH.format("a.attrelid, a.attnum, a.xmin")})
    FROM pg_attribute a WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0
"""


class ColumnsFingerprint:
    """A fingerprint of the columns of tables, read anew when the server counted an update of pg_attribute."""

    def __init__(self) -> None:
        self._of: tuple[int, Collection[int]] | None = None
        self._read = ""

    def read(self, connection: psycopg.Connection[Any], oids: Collection[int]) -> str:
        """Return the fingerprint; before PostgreSQL 15, where to ask for the count is not cheap, always one.

        Args:
            connection: in autocommit mode.
            oids: of the tables.
        """
        if connection.info.server_version < 150000:
            return ""
        updates = connection.execute(_UPDATES).fetchone()
        of = (0 if updates is None else int(updates[0]), oids)
        if of != self._of:
            row = connection.execute(_COLUMNS.encode(), {"oids": list(oids)}).fetchone()
            self._of, self._read = of, "" if row is None else str(row[0])
        return self._read


def catalog_fingerprint(
    connection: psycopg.Connection[Any], publication: str, oids: Collection[int], types: Collection[int] = ()
) -> tuple[Any, ...]:
    """A fingerprint of the catalog's state now; equal where nothing of this kind happened.

    Args:
        connection: in autocommit mode.
        publication: its name.
        oids: of the tables and all their partitions.
        types: OIDs of the enums and composites that their columns are made of.
    """
    schemas = _SCHEMAS if connection.info.server_version >= 150000 else ""
    query = _QUERY.format(schemas=schemas, types=_TYPES if types else "")
    wanted = {"oids": list(oids), "types": list(types), "publication": publication}
    row = connection.execute(query.encode(), wanted).fetchone()
    return tuple(row or ())


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
