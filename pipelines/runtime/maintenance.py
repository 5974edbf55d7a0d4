"""Maintenance of silver and gold: compacts and clusters tables, removes deleted rows and expired files.

Everything named by a recorded cut must stay. A cut counts until `lake.retention` after its successor, so
every moment of this period stays readable. The newest cut always counts. The order makes an end at any point
safe:

1. One commit removes expired cuts from `control.cuts`: nothing names the versions removed afterwards.
2. VACUUM removes files needed by no named version (`Maintenance._vacuum` has the argument).
3. The log is cut off before the last checkpoint that serves the oldest named version. The oldest entries go
   first, so the rest is complete at each moment.
4. OPTIMIZE and REORG write new versions with the same rows. Cuts continue to name older versions, whose files
   stay; the next cut names the newest.

In a lake without a path, maintenance also compacts bronze, the control tables and quality
(`pipelines.runtime.table_files`). No cut names these tables: their properties decide how long removed files
stay.

One writer per table: the work on each table holds the layer's lock (`pipelines.runtime.locks.writing`), which
a cycle also holds, so the table changes under neither. VACUUM keeps files for more than a day. So VACUUM
spares the files of a cycle in progress, also without such locks.

**A failure stays with its table**, and no failure of maintenance ends a run. `record` opens an error for the
table. Continuous runs retry after growing pauses between cycles, and so does the next `smelt maintain`; the
other tables have their turn. A table without VACUUM or compaction is still correct: the table continues, cuts
name the table, and no run stops. So these errors have their own code, and the name of the table in the lake
(`silver.orders`): the layers open and close the errors of the source's tables and of the documents.
`silver.spark.failure_scope` decides which failures are no table's: maintenance pauses after such a failure
too, and records nothing.
"""

from __future__ import annotations

import logging
import math
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.bronze.memory import release
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.pipelines.runtime.clustering import ORDERED_FILES, cluster_as_configured, written_again
from deltasmelt.pipelines.runtime.locks import writing
from deltasmelt.pipelines.runtime.log_entries import (
    cut_log,
    data_files,
    positions,
    state_retention,
)
from deltasmelt.pipelines.runtime.old_timestamps import renewed
from deltasmelt.pipelines.runtime.table_files import (
    FILE_BYTES,
    OTHERS,
    SMALL,
    Files,
    files_of,
    is_young,
    others_of,
)
from deltasmelt.pipelines.terminal.failures import without_secrets
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.failure_scope import FailedUnits
from deltasmelt.silver.spark.tuning import FINE_PAGES, change

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.silver.schema.catalog import SilverTable

MAINTENANCE_FAILED: Final = "upkeep-failed"


def stops(error: OpenError) -> bool:
    """Check whether an error stops its table or document."""
    return error.code != MAINTENANCE_FAILED


def record(control: ControlTables, name: str, error: Exception) -> None:
    """Open the error of a table, named with its layer; first close an open error with another cause."""
    reason = cause_of(error)
    message = without_secrets(f"maintenance failed: {reason}")
    control.restate_error(
        OpenError(
            "table",
            name,
            MAINTENANCE_FAILED,
            message,
            "nothing to do at first: the table's rows are correct and still updated, and maintenance is "
            "retried automatically, with growing pauses; to retry at once: smelt maintain FILE",
        )
    )


def close(control: ControlTables, name: str) -> None:
    """Close the error of a maintained table."""
    control.close_errors("table", name, MAINTENANCE_FAILED)


def close_others(control: ControlTables, layers: Collection[str], names: Collection[str]) -> None:
    """Close the errors of tables of `layers` named by no cut any more, which are not maintained (`names`)."""
    for error in control.open_errors():
        layer = error.name.partition(".")[0]
        if error.code == MAINTENANCE_FAILED and layer in layers and error.name not in names:
            close(control, error.name)


_T = TypeVar("_T")
_LOGGER: Final = logging.getLogger("deltasmelt.maintenance")
_CUTS: Final = "control.cuts"
_CHANGES: Final = "bronze.changes"
_TABLES: Final = "control.tables"  # for errors without a single table; no table has this name
_PARTS: Final = frozenset({_CUTS, _CHANGES, _TABLES})
_CLUSTER_BYTES: Final = 4 * FILE_BYTES
"""Size at which new files no longer cause a rewrite of a cluster; Delta would rewrite up to 100 GB."""
_COMMITS: Final = 20  # commits to a table between two counts of its files
_EVERY: Final = 3600.0  # seconds between two removals of expired cuts and files
_LOOK_EVERY: Final = 30.0  # seconds between two rounds over the tables
_TURN: Final = 1.0  # seconds of maintenance before the next cycle's turn; at least one table
_STARTS_WITHIN: Final = 60.0  # seconds until a requested VACUUM reads the clock
_SETTINGS: Final = {
    "spark.databricks.delta.optimize.maxFileSize": str(FILE_BYTES),
    "spark.databricks.delta.optimize.minFileSize": str(SMALL),
    "spark.databricks.delta.optimize.clustering.mergeStrategy.minCubeSize.threshold": str(_CLUSTER_BYTES),
    # VACUUM lists a table's one folder with as many tasks as Spark lists partitions, 10,000.
    "spark.sql.sources.parallelPartitionDiscovery.parallelism": "2",
    # Delta wants a week, so that no running job loses its files; deltasmelt's jobs hold the layer's lock.
    "spark.databricks.delta.retentionDurationCheck.enabled": "false",
    "spark.databricks.delta.vacuum.logging.enabled": "false",  # two commits each, without a change
    **ORDERED_FILES,
    **FINE_PAGES,
}


@dataclass(slots=True)
class MaintenanceResult:
    """The work done on one table."""

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
    """The last maintenance of a table in a continuous run: the version, and the time of removal."""

    version: int = -_COMMITS
    removed_at: float = -_EVERY


class Maintenance:
    """Maintains one lake's tables, in a new session beside the given session.

    Args:
        retention: seconds for which superseded cuts stay readable.
        documents: True if gold is built from silver here.
        shapes: silver's tables by name, with their clustering; other tables keep their order.
        retain: decides which changes of bronze may go (`pipelines.runtime.retention`), if any.

    Attributes:
        failed: error of the last maintenance of tables, by layer and name; a later success removes the error.
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
        shapes: Mapping[str, SilverTable] | None = None,
        retain: Callable[[], object] | None = None,
    ) -> None:
        self._spark = access_of(spark).child()
        for name, value in _SETTINGS.items():
            change(self._spark, name, value)
        self._lake = lake
        self._control = control
        self._retention = retention
        self._documents = documents
        self._layers = layers
        self._shapes = shapes or {}
        self._retain = retain
        self._handles: dict[str, CachedTable] = {}
        self._last: dict[tuple[Layer, str], _Last] = {}
        self._waiting: list[tuple[Layer, str]] = []
        self._passed_over: set[str] = set()
        self._next_round = self._next_expiry = self._next_decision = -math.inf
        self._failed: FailedUnits[str] = FailedUnits(self._spark, lake, partial(record, control))
        self.failed: dict[str, Exception] = {}

    def all_tables(self) -> Iterator[MaintenanceResult]:
        """Maintain everything, as `smelt maintain` does; yield one result after each table.

        Raises nothing: `failed` then has the errors.
        """
        self._guarded(_CUTS, self.expire, at_once=True)
        self.decide(at_once=True)
        for layer, name in self._guarded(_CUTS, self._tables, at_once=True) or ():
            work = partial(self._maintain, layer, name, optimize=True, purge=True, remove=True, renew=True)
            result = self._guarded(f"{layer}.{name}", work, at_once=True)
            if result is not None:
                yield result

    def when_it_pays(self) -> Iterator[MaintenanceResult]:
        """Maintain between two cycles: tables with many small files or deleted rows; sometimes expired files.

        The hourly removal of expired rows also returns this process's free memory to the system.

        Ends after `_TURN`; the next call continues with the remaining tables of the round. Raises nothing.
        """
        start = time.monotonic()
        if not self._waiting and start >= self._next_round:
            self._next_round = start + _LOOK_EVERY
            if start >= self._next_expiry and self._guarded(_CUTS, self.expire) is not None:
                self._next_expiry = start + _EVERY
                release()
            if start >= self._next_decision and self.decide():
                self._next_decision = start + _EVERY
            tables = self._guarded(_TABLES, self._tables)
            if tables is not None:
                self._forget_others(tables)
            self._waiting = tables or []
        while self._waiting and time.monotonic() - start < _TURN:
            layer, name = self._waiting.pop(0)
            result = self._guarded(f"{layer}.{name}", partial(self._look_after, layer, name))
            if result is not None and result.done:
                yield result

    def _guarded(self, name: str, work: Callable[[], _T], *, at_once: bool = False) -> _T | None:
        """Run a part of the work; return None during a pause, or after a logged and recorded failure."""
        if self._failed.rests(name) and not at_once:
            return None
        try:
            result = work()
            if name in self._failed or result is not None:
                close(self._control, name)
        except Exception as error:
            _LOGGER.warning("maintenance of %s failed", name, exc_info=True)
            self._handles.pop(name, None)
            self.failed[name] = error
            try:
                self._failed.pause({name: error})
            except Exception as reason:  # noqa: BLE001 - no table's failure, or no record; `error` is in the log
                _LOGGER.warning(
                    "%s is retried in %.0f s: %s", name, self._failed.failed(name), cause_of(reason)
                )
            return None
        self._failed.passed(name)
        self.failed.pop(name, None)
        return result

    def decide(self, *, at_once: bool = False) -> bool:
        """Decide which changes of bronze may go, if bronze has a retention; return whether this is done."""
        if self._retain is not None:
            self._guarded(_CHANGES, self._retain, at_once=at_once)
        return _CHANGES not in self.failed

    def expire(self) -> int:
        """Remove expired rows from the control tables; return the number of removed cuts (`expired`)."""
        now = datetime.now(UTC)
        return expired(self._lake, self._control, now, self._retention, documents=self._documents)

    def _tables(self) -> list[tuple[Layer, str]]:
        """Return the tables in any cut; a table left out or dropped is missing from the newest cut."""
        tables = [(layer, name) for layer in self._layers for name in self._control.names(layer)]
        if "silver" in self._layers:
            tables += others_of(self._spark, self._lake, self._passed_over)
        names = {_CUTS, _TABLES, *(f"{layer}.{name}" for layer, name in tables)}
        layers = {*self._layers, *self._lake.place.tended_by_spark}
        # Silver's process decides about bronze; an error of a decision may outlast the key in the file.
        if "silver" in self._layers:
            layers.add("bronze")
            names |= set() if self._retain is None else {_CHANGES}
        close_others(self._control, layers, names)
        return tables

    def _forget_others(self, tables: Iterable[tuple[Layer, str]]) -> None:
        """Forget tables that no cut names any longer; `tables` are the others."""
        names = {f"{layer}.{name}" for layer, name in tables}
        self._last = {key: last for key, last in self._last.items() if f"{key[0]}.{key[1]}" in names}
        self._handles = {name: handle for name, handle in self._handles.items() if name in names}
        for name in [*self._failed]:
            if name not in names | _PARTS:
                self._failed.passed(name)
                self.failed.pop(name, None)

    def _look_after(self, layer: Layer, name: str) -> MaintenanceResult | None:
        last = self._last.setdefault((layer, name), _Last())
        table, now = self._open(layer, name), time.monotonic()
        remove = now - last.removed_at >= _EVERY
        if table is None or not (remove or table.version() - last.version >= _COMMITS):
            return None
        if remove and layer in OTHERS and is_young(table):
            last.removed_at, remove = now, False
        files = files_of(self._spark, table, self._lake.sql(layer, name))
        result = None
        if remove or files.many_small or files.many_deleted_rows:
            result = self._maintain(
                layer, name, optimize=files.many_small, purge=files.many_deleted_rows, remove=remove
            )
        last.version = table.version()
        last.removed_at = now if remove else last.removed_at
        return result

    def _maintain(
        self, layer: Layer, name: str, *, optimize: bool, purge: bool, remove: bool, renew: bool = False
    ) -> MaintenanceResult | None:
        start = time.monotonic()
        address = self._lake.sql(layer, name)
        writer = Writer(self._lake, layer)
        run = partial(writer.run, self._spark, name)
        with writing(self._lake, layer):
            table = self._open(layer, name)
            if table is None:
                return None
            files = files_of(self._spark, table, address)
            result = MaintenanceResult(layer, name, files, files)
            writer.check()
            # The commits below may let Delta remove the log entries with the marks. The reader restates the
            # marks of bronze, but not while the reader is stopped.
            if layer not in OTHERS or name == CHANGES:
                table.state_marks()
            if remove and layer in OTHERS:
                run(f"VACUUM {address}")
                result.done.append("vacuumed")
            elif remove:
                oldest = self._control.oldest_version(layer, name)
                oldest = table.version() if oldest is None else oldest
                result.removed_files = self._vacuum(run, table, address, oldest, files)
                # Delta's own clean-up is off: Delta removes entries by age, and so could remove the needed
                # version of an idle table.
                writer.check()
                result.removed_log_entries = cut_log(table, oldest)
                if result.removed_files or result.removed_log_entries:
                    result.done.append("vacuumed")
            shape = self._shapes.get(name) if layer == "silver" and optimize else None
            anew = shape is not None and cluster_as_configured(self._spark, address, shape, table, run)
            if anew or (optimize and files.small > 1):
                run(f"OPTIMIZE {address}{' FULL' if anew else ''}")
                if anew:
                    written_again(address, run)
                result.done.append("clustered" if layer == "silver" else "compacted")
                files = files_of(self._spark, table, address)
            if purge and files.deleted_rows:
                run(f"REORG TABLE {address} APPLY (PURGE)")
                result.done.append("purged")
                files = files_of(self._spark, table, address)
            # After OPTIMIZE and REORG, which rewrite files, and so timestamps, in any case. Only
            # `smelt maintain` also rewrites tables of earlier versions with timestamps mistaken
            # by other readers (`pipelines.runtime.old_timestamps`).
            if renew and layer not in OTHERS and renewed(self._spark, address, table, run):
                result.done.append("timestamps rewritten")
                files = files_of(self._spark, table, address)
        result.after = files
        result.seconds = time.monotonic() - start
        return result

    def _vacuum(
        self, run: Callable[[str], object], table: Table, address: str, oldest: int, files: Files
    ) -> int:
        """Remove files needed neither by the retention nor by version `oldest`; return their number.

        VACUUM removes files that left the table before the commit of the oldest named version, and longer
        than the retention ago. All files of this version and of each later version left the table, if ever,
        after this commit. So did the changes read by gold between two of them. The reason for an old version
        does not matter: an idle table, a long cycle, or a gold far behind, whose cut of silver is kept.
        """
        committed, in_catalog = table.committed_at(oldest), not table.shows_files
        count = 0 if in_catalog else data_files(table)  # a catalog hides the files in a folder
        if committed is None or (count <= files.count and not in_catalog):
            return 0  # nobody knows what that version needs; or no file but those of the newest version
        retention = max(self._retention, time.time() - committed + _STARTS_WITHIN)
        # A failure before this line leaves the older property of the table, and removes nothing.
        state_retention(table, address, retention, run)
        run(f"VACUUM {address}")
        return 0 if in_catalog else count - data_files(table)

    def _open(self, layer: Layer, name: str) -> Table | None:
        """Return the table at its newest version, from its cached log."""
        return self._handles.setdefault(f"{layer}.{name}", CachedTable(self._lake.uri(layer, name))).newest()


def expired(lake: Lake, control: ControlTables, now: datetime, retention: float, *, documents: bool) -> int:
    """Remove expired cuts, old runs and closed errors; return the number of removed cuts.

    Args:
        retention: seconds for which superseded cuts stay readable.
        documents: True if gold is built from silver here.
    """
    control.tidy()
    before = now - timedelta(seconds=retention)
    control.expire_runs(now, before)
    control.expire_errors(before)
    removed = control.expire_cuts(before, gold=documents)
    # Thinning by age frees no file (`bronze.lake.thinning`). With an unreadable mark of a document, nothing
    # is thinned: the document may continue at any cut.
    control.thin_cuts(now, gold=documents, positions=positions(lake, control))
    return removed
