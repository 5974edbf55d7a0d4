"""Watch the catalog and the slot every second, on a separate thread and connection.

* A statement may have changed rows without an event. Then the next catalog poll follows at once (`news`), or
  on this thread while tables are copied (`meanwhile`).
* The slot approaches its limit (`bronze.checks.slot_risk`). The watch reports each level once, in the log and
  in `status`, also during copies, which may take hours.

The watch decides nothing. After a failure the watch reconnects after a pause that grows until a whole turn
succeeds (`bronze.reader.pipeline_errors`). The stream and the copies report an absent server. The watch
records errors that need a person, because no other thread may query the server for hours.

**The fingerprint** covers the catalog's rows about the read tables, cheap enough for a query per second. The
fingerprint changes whenever a statement may have changed rows without an event, or the publication.

Equal fingerprints prove nothing about unknown tables, other indexes and comments, nor about columns with
`track_counts` off or on PostgreSQL 14. The periodic catalog poll finds these changes.
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
    from deltasmelt.bronze.reader.pipeline_errors import RetryGate
    from deltasmelt.bronze.setup.slot import SlotState

# An ALTER TABLE that rewrites a table or a partition, or adds a column, writes the table's row in pg_class;
# so does a DROP TABLE. An added or removed partition writes pg_inherits. The publication's parts are separate
# rows. Each such write creates a new row version with a new xmin.
_HASH: Final = "coalesce(bit_xor(hashtextextended(concat_ws(' ', {}), 0)), 0)"
# VACUUM and ANALYZE update pg_class in place, without a new xmin. Dropping a primary key or an identity index
# leaves rows unchanged. But the application's UPDATEs of a published table fail afterwards, so the query
# includes the rows of pg_index that define an identity.
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
# A label of an enum is a row of pg_enum, and an attribute of a composite is a row of pg_attribute. Both are
# queried only for types of the tables' columns, and not at all without such types.
_TYPES: Final = f""",
           (SELECT concat_ws(' ', count(*), {_HASH.format("e.oid, e.xmin")})
            FROM pg_enum e WHERE e.enumtypid = ANY (%(types)s::oid[])),
           (SELECT concat_ws(' ', count(*), {_HASH.format("a.attrelid, a.attnum, a.xmin")})
            FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
            WHERE t.oid = ANY (%(types)s::oid[]) AND t.typrelid <> 0 AND a.attnum > 0)"""
# A busy session reports its counts within a second of its commit, and an idle session within ten.
_UPDATES: Final = "SELECT pg_stat_get_tuples_updated('pg_catalog.pg_attribute'::regclass)"
# A renamed or dropped column writes pg_attribute alone, and a query of pg_attribute for all tables would cost
# ten times all the rest. So `ColumnsFingerprint` reads these rows only after the server has counted an update
# of pg_attribute (https://www.postgresql.org/docs/current/monitoring-stats.html).
_COLUMNS: Final = f"""
    SELECT concat_ws(' ', count(*), {_HASH.format("a.attrelid, a.attnum, a.xmin")})
    FROM pg_attribute a WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0
"""


class ColumnsFingerprint:
    """A fingerprint of tables' columns, read again after the server counted an update of pg_attribute."""

    def __init__(self) -> None:
        self._of: tuple[int, Collection[int]] | None = None
        self._read = ""

    def read(self, connection: psycopg.Connection[Any], oids: Collection[int]) -> str:
        """Return the fingerprint; constant before PostgreSQL 15, because reading the count is expensive."""
        if connection.info.server_version < 150000:
            return ""
        updates = connection.execute(_UPDATES).fetchone()
        fingerprint = (0 if updates is None else int(updates[0]), oids)
        if fingerprint != self._of:
            row = connection.execute(_COLUMNS.encode(), {"oids": list(oids)}).fetchone()
            self._of, self._read = fingerprint, "" if row is None else str(row[0])
        return self._read


def catalog_fingerprint(
    connection: psycopg.Connection[Any], publication: str, oids: Collection[int], types: Collection[int] = ()
) -> tuple[Any, ...]:
    """Return a fingerprint of the current catalog; equal fingerprints mean no relevant statement.

    Args:
        oids: OIDs of the tables and all their partitions.
        types: OIDs of the enums and composites in the tables' columns.
    """
    schemas = _SCHEMAS if connection.info.server_version >= 150000 else ""
    query = _QUERY.format(schemas=schemas, types=_TYPES if types else "")
    parameters = {"oids": list(oids), "types": list(types), "publication": publication}
    row = connection.execute(query.encode(), parameters).fetchone()
    return tuple(row or ())


_SHARE: Final = 0.01
"""Share of time for queries to the server: with thousands of tables the watch queries more rarely."""
_TINY_SECONDS: Final = 3600.0
"""Seconds for which a reported level of a tiny limit holds."""
_LOGGER = logging.getLogger("deltasmelt.reader")


class Watch:
    """A thread that watches catalog and slot until stopped.

    Args:
        progress: progress of the reader; source of the copies' progress, and target of slot warnings.
        oids: returns the OIDs of the currently known tables and partitions.
        retry_gate: failures of the watch since its last complete turn.
        types: returns the OIDs of types that may be redefined in place.
        meanwhile: called every second after a catalog change, until the call returns True.
        poll_needed: checks whether a poll is due although the catalog did not change.
    """

    def __init__(
        self,
        source: SourceSettings,
        progress: Progress,
        oids: Callable[[], Collection[int]],
        meanwhile: Callable[[], bool],
        poll_needed: Callable[[], bool] = lambda: False,
        *,
        retry_gate: RetryGate,
        types: Callable[[], Collection[int]] = lambda: (),
    ) -> None:
        self._source = source
        self._retry_gate = retry_gate
        self._timing = source.timing
        self._progress = progress
        self._oids = oids
        self._types = types
        self._columns = ColumnsFingerprint()
        self._meanwhile = meanwhile
        self._poll_needed = poll_needed
        self._pending = False
        self._news = threading.Event()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smelt-watch", daemon=True)
        self._fingerprint: tuple[Any, ...] | None = None
        self.failure: BaseException | None = None
        self._slot = SlotWatch()
        self._slot_at = 0.0

    def start(self) -> None:
        """Start the thread, unless the thread runs already."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """End the watch's thread."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._retry_gate.ended()

    def news(self) -> bool:
        """Check whether the catalog changed since the last call."""
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
                _LOGGER.log(level, "the watch for changed tables connects again: %s", error)
                self._retry_gate.failed(error, recorded=lasts)
                if self._retry_gate.pause(self._stop):
                    return
            except BaseException as error:  # noqa: BLE001 - `raise_failure` raises the error; the watch ends
                self.failure = error
                return

    def _watch(self, connection: psycopg.Connection[Any]) -> None:
        while True:
            started = time.monotonic()
            with translated(self._source), within(self._timing.watch_answer, connection):
                self._check(connection, started)
            # Measure before `_meanwhile`: the catalog poll that it may make has a separate time share.
            elapsed = time.monotonic() - started
            self._pending = (self._pending or self._poll_needed()) and not self._meanwhile()
            self._retry_gate.worked()
            if self._stop.wait(max(self._timing.watch, elapsed / _SHARE)):
                return

    def _check(self, connection: psycopg.Connection[Any], now: float) -> None:
        oids = self._oids()
        fingerprint = (
            *catalog_fingerprint(connection, self._source.publication, oids, self._types()),
            self._columns.read(connection, oids),
        )
        if fingerprint != self._fingerprint:
            self._fingerprint = fingerprint
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
        danger = self._slot.check(slot, now, None if copies is None else copies.seconds_left, budget)
        if danger is not None:
            _LOGGER.warning("slot %s: %s", slot.name, danger.message)
            self._progress.set(said=danger.message)


class SlotWatch:
    """A reporter of slot danger: reports each level once, until the slot has left the level."""

    def __init__(self) -> None:
        self._before: tuple[float, int] | None = None
        self._level = RiskLevel.NONE
        self._room: int | None = None
        self._reported_at = 0.0

    def check(
        self,
        slot: SlotState,
        now: float,
        copies_left: float | None,
        budget: WalBudget | None = None,
    ) -> SlotRisk | None:
        """Return the danger if its level exceeds the reported level, else None.

        `now` is a time of the monotonic clock; `copies_left` and `budget` are as in `slot_risk`.
        """
        last_size, safe = self._before, slot.safe_wal_size
        self._before = None if safe is None else (now, safe)
        seconds_left = None
        if last_size is not None and safe is not None and last_size[1] > safe and now > last_size[0]:
            seconds_left = max(safe, 0) * (now - last_size[0]) / (last_size[1] - safe)
        danger = slot_risk(slot, seconds_left, copies_left, budget)
        # A limit of a few segments is exceeded in normal operation; a report about such a limit holds for an
        # hour.
        settled = budget is None or not budget.tiny or now - self._reported_at >= _TINY_SECONDS
        if settled and (safe is None or self._room is None or safe > self._room):
            # Free space above the space at the report ends a level. A moment without writes has this effect,
            # too, so the lowest level ends only when the kept log is well below the limit.
            lowest_level = RiskLevel.MUCH if stays_high(budget) else RiskLevel.NONE
            self._level = min(self._level, max(danger.level, lowest_level))
        if danger.level <= self._level:
            return None
        self._level, self._room, self._reported_at = danger.level, safe, now
        return danger
