"""Upkeep of silver and gold: fewer files, clustered, nothing behind deletion vectors or past retention.

What must stay is what a recorded cut names. A cut counts until `lake.retention` after the next one took its
place, so every moment of that period can be asked for, and the newest cut always. The order makes it safe to
end anywhere:

1. cuts past retention leave `control.cuts`, in one commit: nothing names what is removed afterwards. Those
   within it are thinned (`bronze.lake.thinning`), which frees no file;
2. VACUUM removes files that left a table before its oldest named version was committed, and longer than the
   retention ago. All files of that version and of each later one left it, if at all, after that commit; so
   did the changes that gold reads between two of them. It does not matter why a version is old: an idle
   table, a cycle that took long, a gold that stands far behind and whose cut of silver is kept;
3. the log is cut off before the last checkpoint that the oldest named version can be read from. Delta's own
   clean-up goes by the age of entries and could take the version of a table that nothing happened to since;
   it is switched off. The oldest entries go first, so what is left is whole at each moment;
4. OPTIMIZE and REORG write new versions with the same rows. Cuts go on naming the older versions, whose
   files stay; the next cut names the newest.

What step 2 keeps stands in the table's properties, because every VACUUM goes by them, also one that did not
look at the cuts. The need of a gold that stands still grows by the hour, so a day more is stated than is
needed (`_AHEAD`), and stated again when half of it is used up. A VACUUM within a day of an upkeep, whoever
runs it, finds enough. An upkeep that fails before that leaves the older statement, and removes nothing.

One writer per table: each table's work holds the layer's lock (`pipelines.runtime.locks.writing`) that a
cycle also holds, so neither finds the table changed under it. VACUUM is told more than a day, so also where
there are no such locks it leaves alone what a cycle is writing.

**One table's trouble is never everyone's**, and none of upkeep ends a run. What fails for a table is recorded
for it (`pipelines.runtime.upkeep_errors`) and tried again after growing pauses between cycles, or by the next
`smelt maintain`; the others have their turn. Where it cannot be read at which LSN a document stands, no cut
leaves `control.cuts`: it might be the one that document goes on from.

Clusters that are large enough are not written again when new files come (`_CLUSTER_BYTES`); Delta would
write all of a table of up to 100 GB each time.
"""

from __future__ import annotations

import logging
import math
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from bronze.lake import delta
from bronze.lsn import Lsn
from gold.build.spark_settings import GOLD_APP
from pipelines.runtime import upkeep_errors
from pipelines.runtime.locks import writing
from pipelines.runtime.log_entries import committed_at, cut_log, data_files
from silver.run.pauses import Pauses
from silver.run.sessions import own_session
from silver.run.troubles import answers
from silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.lake.control_tables import ControlTables
    from bronze.lake.location import Lake, Layer

_T = TypeVar("_T")
_LOGGER: Final = logging.getLogger("deltasmelt.upkeep")

_CUTS: Final = "control.cuts"
_TABLES: Final = "control.tables"
"""Under these names what concerns no single table is told; the latter is no table."""

_FILE_BYTES: Final = 64 * 2**20
"""Size of joined files. A MERGE of neighbouring keys reads whole files: less than Delta's 1 GiB."""
_SMALL: Final = _FILE_BYTES // 2
_CLUSTER_BYTES: Final = 4 * _FILE_BYTES
_MANY: Final = 24
"""Small files of one table from which joining them pays by itself."""
_HOLES: Final = 0.2
"""Share of rows behind deletion vectors from which writing the rest again pays by itself."""
_COMMITS: Final = 20
"""Commits to a table between two looks at its files."""
_EVERY: Final = 3600.0
"""Seconds between two removals of what is past retention."""
_LOOK_EVERY: Final = 30.0
"""Seconds between two rounds over the tables."""
_TURN: Final = 1.0
"""Seconds of upkeep, or one table, after which the next cycle has its turn."""
_STARTS_WITHIN: Final = 60.0
"""Seconds until a VACUUM that was asked for reads the clock."""

_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(_FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(_SMALL),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(_CLUSTER_BYTES),
    # VACUUM lists a table's one folder with as many tasks as Spark lists partitions, 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Delta wants a week, so that nobody's running job loses its files; ours hold the layer's lock.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # two commits each, without a change
}

_KEPT: Final = "delta.deletedFileRetentionDuration"
_LOG_KEPT: Final = "delta.logRetentionDuration"  # Delta wants it to be no less
_CLEANUP: Final = "delta.enableExpiredLogCleanup"
_HOURS: Final = re.compile(r"interval (\d+) hours")
_AHEAD: Final = 24
"""Hours that a table says more than is needed now: what is needed grows with the age of the oldest version
that is named, and a VACUUM by hand, or of a nightly job, goes by what was said last."""
_LEFT: Final = 12
"""Hours of these that may be used up before it is said again: saying it is a commit, and a need that grows by
the hour is not said each hour. Upkeeps twelve hours apart find twelve left, rarer ones say it each time."""
_ROUGHLY: Final = 24
"""Hours that a table may say more than that."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table at one version.

    Attributes:
        count: all of them.
        small: how many are less than half as large as they should be.
        size: bytes.
        rows: in them, those behind deletion vectors included.
        holes: rows behind deletion vectors.
    """

    count: int = 0
    small: int = 0
    size: int = 0
    rows: int = 0
    holes: int = 0

    @property
    def many_small(self) -> bool:
        """Whether joining them pays by itself."""
        return self.small >= _MANY

    @property
    def many_holes(self) -> bool:
        """Whether writing the other rows again pays by itself."""
        return self.holes > _HOLES * self.rows


@dataclass(slots=True)
class Upkeep:
    """What was done to one table."""

    layer: str
    name: str
    before: Files
    after: Files
    done: list[str] = field(default_factory=list)
    removed_files: int = 0
    removed_log_entries: int = 0
    seconds: float = 0.0


@dataclass(slots=True)
class _Last:
    """When a continuous run last cared for a table: the version it had, and the moment of removal."""

    version: int = -_COMMITS
    removed_at: float = -_EVERY


class Maintenance:
    """Keeps one lake's tables in order.

    Args:
        spark: a session; a new one beside it is used.
        lake: where.
        control: its control tables.
        retention: seconds that superseded cuts stay readable.
        documents: whether gold is built from silver here.
        layers: whose tables.

    Attributes:
        failed: what ended the last upkeep of tables, by layer and name; those that have passed since are out.
    """

    def __init__(
        self,
        spark: SparkSession,
        lake: Lake,
        control: ControlTables,
        *,
        retention: float,
        documents: bool,
        layers: Sequence[Layer] = ("silver", "gold"),
    ) -> None:
        self._spark = own_session(spark)
        for name, value in _SETTINGS.items():
            self._spark.conf.set(name, value)
        self._lake = lake
        self._control = control
        self._retention = retention
        self._documents = documents
        self._layers = layers
        self._handles: dict[str, DeltaTable] = {}
        self._last: dict[tuple[Layer, str], _Last] = {}
        self._waiting: list[tuple[Layer, str]] = []
        self._next_round = self._next_expiry = -math.inf
        self._pauses: Pauses[str] = Pauses()
        self.failed: dict[str, Exception] = {}

    def all_tables(self) -> Iterator[Upkeep]:
        """Everything, whether it pays or not: what `smelt maintain` does; one result after each table.

        Raises nothing: what could not be done is in `failed` thereafter.
        """
        self._guarded(_CUTS, self.expire, at_once=True)
        for layer, name in self._guarded(_CUTS, self._tables, at_once=True) or ():
            work = partial(self._maintain, layer, name, optimize=True, purge=True, remove=True)
            done = self._guarded(f"{layer}.{name}", work, at_once=True)
            if done is not None:
                yield done

    def when_it_pays(self) -> Iterator[Upkeep]:
        """Between two cycles: tables with many small files or many holes, and now and then what is past.

        Ends after `_TURN`; the next call goes on with the tables that are left of this round. Raises nothing.
        """
        begun = time.monotonic()
        if not self._waiting and begun >= self._next_round:
            self._next_round = begun + _LOOK_EVERY
            if begun >= self._next_expiry and self._guarded(_CUTS, self.expire) is not None:
                self._next_expiry = begun + _EVERY
            self._waiting = self._guarded(_TABLES, self._tables) or []
        while self._waiting and time.monotonic() - begun < _TURN:
            layer, name = self._waiting.pop(0)
            done = self._guarded(f"{layer}.{name}", partial(self._look_after, layer, name))
            if done is not None and done.done:
                yield done

    def _guarded(self, name: str, work: Callable[[], _T], *, at_once: bool = False) -> _T | None:
        """Do a part of upkeep; None where it rests, or fails, which is told and recorded."""
        if self._pauses.rests(name) and not at_once:
            return None
        try:
            done = work()
            if name in self._pauses or done is not None:
                upkeep_errors.close(self._control, name)
        except Exception as error:
            self._handles.pop(name, None)
            self.failed[name] = error
            seconds = self._pauses.failed(name)
            _LOGGER.warning("upkeep of %s failed; tried again in %.0f s", name, seconds, exc_info=True)
            self._record(name, error)
            return None
        self._pauses.passed(name)
        self.failed.pop(name, None)
        return done

    def _record(self, name: str, error: Exception) -> None:
        """Where Spark answers nothing, as after its stop, what failed is no table's."""
        if not answers(self._spark):
            return
        try:
            upkeep_errors.record(self._control, name, error)
        except Exception:
            _LOGGER.warning("that could not be recorded", exc_info=True)

    def expire(self) -> int:
        """Remove cuts past retention from `control.cuts`; returns how many.

        Those that stay are thinned with their age, and old runs go (`bronze.lake.thinning`).
        """
        self._control.tidy()
        now = datetime.now(UTC)
        before = now - timedelta(seconds=self._retention)
        self._control.expire_runs(now, before)
        standing = positions(self._lake, self._control)
        removed = self._control.expire_cuts(before, gold=self._documents, positions=standing)
        self._control.thin_cuts(now, gold=self._documents, positions=standing)
        return removed

    def _tables(self) -> list[tuple[Layer, str]]:
        cuts = [(layer, self._control.latest_cut(layer)) for layer in self._layers]
        found = [(layer, name) for layer, cut in cuts if cut is not None for name in sorted(cut.tables)]
        upkeep_errors.close_others(self._control, self._layers, {f"{layer}.{name}" for layer, name in found})
        return found

    def _look_after(self, layer: Layer, name: str) -> Upkeep | None:
        last = self._last.setdefault((layer, name), _Last())
        table, now = self._open(layer, name), time.monotonic()
        remove = now - last.removed_at >= _EVERY
        if table is None or not (remove or table.version() - last.version >= _COMMITS):
            return None
        files = self._files(table, layer, name)
        done = None
        if remove or files.many_small or files.many_holes:
            done = self._maintain(
                layer, name, optimize=files.many_small, purge=files.many_holes, remove=remove
            )
        last.version = table.version()
        last.removed_at = now if remove else last.removed_at
        return done

    def _maintain(
        self, layer: Layer, name: str, *, optimize: bool, purge: bool, remove: bool
    ) -> Upkeep | None:
        begun = time.monotonic()
        address = self._lake.sql(layer, name)
        with writing(self._lake, layer):
            table = self._open(layer, name)
            if table is None:
                return None
            files = self._files(table, layer, name)
            result = Upkeep(layer, name, files, files)
            if remove:
                oldest = self._control.oldest_version(layer, name)
                oldest = table.version() if oldest is None else oldest
                result.removed_files = self._vacuum(table, address, oldest, files)
                result.removed_log_entries = cut_log(table, oldest)
                if result.removed_files or result.removed_log_entries:
                    result.done.append("vacuumed")
            if optimize and files.small > 1:
                self._spark.sql(f"OPTIMIZE {address}").collect()
                result.done.append("clustered" if layer == "silver" else "joined")
                files = self._files(table, layer, name)
            if purge and files.holes:
                self._spark.sql(f"REORG TABLE {address} APPLY (PURGE)").collect()
                result.done.append("purged")
                files = self._files(table, layer, name)
        result.after = files
        result.seconds = time.monotonic() - begun
        return result

    def _vacuum(self, table: DeltaTable, address: str, oldest: int, files: Files) -> int:
        """Remove files that neither the retention nor version `oldest` keeps; returns how many."""
        committed, count = committed_at(table, oldest), data_files(table)
        if committed is None or count <= files.count:
            return 0  # nobody knows what that version needs; or no file but those of the newest version
        self._state_retention(table, address, max(self._retention, time.time() - committed + _STARTS_WITHIN))
        self._spark.sql(f"VACUUM {address}").collect()
        return count - data_files(table)

    def _state_retention(self, table: DeltaTable, address: str, seconds: float) -> None:
        """Have the table say how long files that left it stay.

        VACUUM goes by that, also one by hand; RETAIN is ignored by newer ones.
        """
        known = table.metadata().configuration
        stated = _HOURS.fullmatch(known.get(_KEPT, ""))
        before = None if stated is None else int(stated[1])
        hours = hours_to_state(seconds, before)
        if hours == before and known.get(_CLEANUP) == "false":
            return
        interval = literal(f"interval {hours} hours")
        properties = f"{literal(_KEPT)} = {interval}, {literal(_LOG_KEPT)} = {interval}"
        self._spark.sql(
            f"ALTER TABLE {address} SET TBLPROPERTIES ({properties}, {literal(_CLEANUP)} = 'false')"
        )

    def _files(self, table: DeltaTable, layer: Layer, name: str) -> Files:
        """The files of a table now. Delta answers the count from statistics, without reading them."""
        table.update_incremental()
        actions: Any = pa.table(table.get_add_actions())
        if not actions.num_rows:
            return Files()
        sizes, rows = actions["size_bytes"], int(pc.sum(actions["num_records"]).as_py() or 0)
        living = self._spark.sql(f"SELECT count(*) FROM {self._lake.sql(layer, name)}").collect()[0][0]
        return Files(
            count=actions.num_rows,
            small=int(pc.sum(pc.less(sizes, _SMALL)).as_py() or 0),
            size=int(pc.sum(sizes).as_py()),
            rows=rows,
            holes=max(0, rows - living),
        )

    def _open(self, layer: Layer, name: str) -> DeltaTable | None:
        """The table at its newest version; its log is read on from where it was read before."""
        table = self._handles.get(f"{layer}.{name}")
        if table is not None:
            table.update_incremental()
            return table
        table = delta.open_table(delta.location(self._lake, layer, name))
        if table is not None:
            self._handles[f"{layer}.{name}"] = table
        return table


def positions(lake: Lake, control: ControlTables) -> set[Lsn]:
    """LSNs that the tables of documents say of themselves, also of those that stand still."""
    tables = [delta.open_table(delta.location(lake, "gold", name)) for name in control.names("gold")]
    marks = [None if table is None else table.transaction_version(GOLD_APP) for table in tables]
    return {Lsn(mark) for mark in marks if mark is not None}


def hours_to_state(needed: float, stated: int | None) -> int:
    """How many hours a table should say that files which left it stay; `stated` while that is about right.

    Args:
        needed: seconds that they have to stay if VACUUM ran now.
        stated: what it says.
    """
    hours = math.ceil(needed / 3600) + _AHEAD
    return stated if stated is not None and hours - _LEFT <= stated <= hours + _ROUGHLY else hours
