"""Upkeep of silver and gold: fewer files, clustered, nothing behind deletion vectors or past retention.

What must stay is what a recorded cut names. A cut counts until `lake.retention` after the next one took its
place, so every moment of that period can be asked for, and the newest cut always. The order makes it safe to
end anywhere:

1. cuts past retention leave `control.cuts`, in one commit: nothing names what is removed afterwards;
2. VACUUM removes files that left a table before its oldest named version was committed, and longer than the
   retention ago. All files of that version and of each later one left it, if at all, after that commit; so
   did the changes that gold reads between two of them. It does not matter why a version is old: an idle
   table, a cycle that took long, a gold that stands far behind and whose cut of silver is kept;
3. the log is cut off before the last checkpoint that the oldest named version can be read from. Delta's own
   clean-up goes by the age of entries and could take the version of a table that nothing happened to since;
   it is switched off. The oldest entries go first, so what is left is whole at each moment;
4. OPTIMIZE and REORG write new versions with the same rows. Cuts go on naming the older versions, whose
   files stay; the next cut names the newest.

One writer per table: each table's work holds the layer's lock (`pipelines.lock.writing`) that a cycle also
holds, so neither finds the table changed under it. VACUUM is told whole hours and never less than one, so
also where there are no such locks it leaves alone what a cycle is writing.

Clusters that are large enough are not written again when new files come (`_CLUSTER_BYTES`); Delta would
write all of a table of up to 100 GB each time.
"""

from __future__ import annotations

import json
import math
import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector, FileType

from bronze import delta
from bronze.parts import file_system
from pipelines.lock import writing
from silver.sessions import own_session
from silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.control_tables import ControlTables
    from bronze.lake import Lake, Layer

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
_ROUGHLY: Final = 24
"""Hours that a table may say more than it needs to: saying it is a commit."""

_VERSION: Final = re.compile(
    r"\.?(\d{20})\.(?:json|crc|checkpoint.*\.parquet|\d{20}\.compacted\.json)(?:\.crc)?"
)
"""Names of log entries, and of the checksums that Hadoop lays beside them on a local disk."""
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


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
        self._handles: dict[tuple[Layer, str], DeltaTable] = {}
        self._last: dict[tuple[Layer, str], _Last] = {}
        self._waiting: list[tuple[Layer, str]] = []
        self._next_round = self._next_expiry = -math.inf

    def all_tables(self) -> Iterator[Upkeep]:
        """Everything, whether it pays or not: what `smelt maintain` does; one result after each table."""
        self.expire()
        for layer, name in self._tables():
            done = self._maintain(layer, name, optimize=True, purge=True, remove=True)
            if done is not None:
                yield done

    def when_it_pays(self) -> Iterator[Upkeep]:
        """Between two cycles: tables with many small files or many holes, and now and then what is past.

        Ends after `_TURN`; the next call goes on with the tables that are left of this round.
        """
        begun = time.monotonic()
        if not self._waiting and begun >= self._next_round:
            self._next_round = begun + _LOOK_EVERY
            if begun >= self._next_expiry:
                self._next_expiry = begun + _EVERY
                self.expire()
            self._waiting = self._tables()
        while self._waiting and time.monotonic() - begun < _TURN:
            layer, name = self._waiting.pop(0)
            done = self._look_after(layer, name)
            if done is not None and done.done:
                yield done

    def expire(self) -> int:
        """Remove cuts past retention from `control.cuts`; returns how many."""
        self._control.tidy()
        before = datetime.now(UTC) - timedelta(seconds=self._retention)
        return self._control.expire_cuts(before, gold=self._documents)

    def _tables(self) -> list[tuple[Layer, str]]:
        cuts = [(layer, self._control.latest_cut(layer)) for layer in self._layers]
        return [(layer, name) for layer, cut in cuts if cut is not None for name in sorted(cut.tables)]

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
        committed, count = committed_at(table, oldest), _data_files(table)
        if committed is None or count <= files.count:
            return 0  # nobody knows what that version needs; or no file but those of the newest version
        self._state_retention(table, address, max(self._retention, time.time() - committed + _STARTS_WITHIN))
        self._spark.sql(f"VACUUM {address}").collect()
        return count - _data_files(table)

    def _state_retention(self, table: DeltaTable, address: str, seconds: float) -> None:
        """Have the table say how long files that left it stay.

        VACUUM goes by that, also one by hand; RETAIN is ignored by newer ones.
        """
        known = table.metadata().configuration
        hours, stated = math.ceil(seconds / 3600), _HOURS.fullmatch(known.get(_KEPT, ""))
        if (
            stated is not None
            and hours <= int(stated[1]) <= hours + _ROUGHLY
            and known.get(_CLEANUP) == "false"
        ):
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
        table = self._handles.get((layer, name))
        if table is not None:
            table.update_incremental()
            return table
        table = delta.open_table(delta.location(self._lake, layer, name))
        if table is not None:
            self._handles[layer, name] = table
        return table


def committed_at(table: DeltaTable, version: int) -> float | None:
    """When a version was committed, in seconds since 1970; None where its log entry is gone."""
    system, path = file_system(table.table_uri), f"_delta_log/{version:020}.json"
    if system.get_file_info(path).type == FileType.NotFound:
        return None
    with system.open_input_file(path) as file:
        entries = [json.loads(line) for line in file.read().splitlines()]
    times = [float(entry["commitInfo"]["timestamp"]) / 1000 for entry in entries if "commitInfo" in entry]
    return times[0] if times else None


def cut_log(table: DeltaTable, oldest: int) -> int:
    """Remove the log before the last checkpoint from which version `oldest` can be read; returns how much."""
    system = file_system(table.table_uri)
    names = [info.base_name for info in system.get_file_info(FileSelector("_delta_log"))]
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    first = max((version for version in checkpoints if version <= oldest), default=0)
    past = sorted(name for name in names if (match := _VERSION.fullmatch(name)) and int(match[1]) < first)
    for name in past:
        system.delete_file(f"_delta_log/{name}")
    return len(past)


def _data_files(table: DeltaTable) -> int:
    """Files in the table's folder, its log and checksums apart."""
    found = file_system(table.table_uri).get_file_info(FileSelector("", recursive=True))
    return sum(
        info.is_file and not info.path.startswith("_delta_log") and not info.base_name.startswith(".")
        for info in found
    )
