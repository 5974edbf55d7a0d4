"""Upkeep of silver and gold: fewer files, clustered, nothing behind deletion vectors or past retention.

What must stay is what a recorded cut names. A cut counts until `lake.retention` after the next one took its
place; so every moment of that period can be asked for, and the newest cut always. The order makes it safe to
end anywhere:

1. cuts past retention leave `control.cuts`, in one commit: nothing names what is removed afterwards;
2. OPTIMIZE and REORG write new versions with the same rows. Cuts go on naming the older versions, whose
   files stay; the next cut names the newest;
3. VACUUM removes files that left a table longer than the retention ago. A version that a cut names was the
   newest until less than the retention ago, so all of its files are still there;
4. the log is cut off before the last checkpoint that the oldest named version can be read from. Delta's own
   clean-up goes by the age of entries and could take the version of a table that nothing happened to since;
   it is switched off. The oldest entries go first, so what is left is whole at each moment.

Gold reads the changes between two silver cuts, so the one that it stands at is kept, and while gold is
behind by more than the retention, silver is not vacuumed.

One writer per table: each table's work holds the layer's lock (`pipelines.lock.writing`) that a cycle also
holds, so neither finds the table changed under it; where there are no such locks, Delta refuses the later
commit of the two, and a cycle or the next maintenance does it again.

Bronze's and control's files are joined by those who write them. Here only files that their logs have given up
are removed; files that no version names yet (an open transaction, a snapshot) are never looked at.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow.fs import FileSelector

from bronze import delta
from bronze.parts import file_system
from pipelines.lock import writing
from silver.sessions import own_session
from silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.control_tables import ControlTables
    from bronze.lake import Lake, Layer

LAYERS: Final[tuple[Layer, ...]] = ("silver", "gold")

_FILE_BYTES: Final = 64 * 2**20
"""Size of joined files. A MERGE of neighbouring keys reads whole files: less than Delta's 1 GiB."""
_SMALL: Final = _FILE_BYTES // 2
_MANY: Final = 24
"""Small files of one table from which joining them pays by itself."""
_HOLES: Final = 0.2
"""Share of rows behind deletion vectors from which writing the rest again pays by itself."""
_COMMITS: Final = 20
"""Commits to a table between two looks at its files."""
_EVERY: Final = 3600.0
"""Seconds between two rounds of removing what is past retention."""
_LOOK_EVERY: Final = 30.0
"""Seconds between two looks at the tables' files."""

_VERSION: Final = re.compile(r"(\d{20})\.(?:json|crc|checkpoint.*\.parquet|\d{20}\.compacted\.json)")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")
_KEPT_SECONDS: Final = 7 * 86400.0
"""For bronze and control, which nobody reads at an older version than a running cycle."""


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

    count: int
    small: int
    size: int
    rows: int
    holes: int


@dataclass(slots=True)
class Upkeep:
    """What was done to one table; `removed` counts data files and log entries that are gone."""

    layer: str
    name: str
    before: Files
    after: Files
    done: list[str] = field(default_factory=list)
    removed_files: int = 0
    removed_log_entries: int = 0
    seconds: float = 0.0


class Maintenance:
    """Keeps one lake's tables in order.

    Args:
        spark: a session; a new one beside it is used.
        lake: where.
        control: its control tables.
        retention: seconds that superseded cuts stay readable.
        documents: whether gold is built from silver here.
    """

    def __init__(
        self, spark: SparkSession, lake: Lake, control: ControlTables, *, retention: float, documents: bool
    ) -> None:
        self._spark = own_session(spark)
        self._spark.conf.set("spark.databricks.delta.optimize.maxFileSize", str(_FILE_BYTES))
        self._spark.conf.set("spark.databricks.delta.optimize.minFileSize", str(_SMALL))
        # VACUUM lists a table's one folder with as many tasks as Spark lists partitions, 10,000.
        self._spark.conf.set("spark.sql.sources.parallelPartitionDiscovery.parallelism", "2")
        # Delta wants a week, so that nobody's running job loses its files; ours hold the layer's lock.
        self._spark.conf.set("spark.databricks.delta.retentionDurationCheck.enabled", "false")
        self._lake = lake
        self._control = control
        self._retention = retention
        self._documents = documents
        self._looked = 0.0
        self._removed_at = 0.0
        self._seen: dict[tuple[Layer, str], int] = {}

    def all_tables(self) -> Iterator[Upkeep]:
        """Everything, whether it pays or not: what `smelt maintain` does; one result after each table."""
        self.expire()
        for layer in LAYERS:
            vacuum = self._may_vacuum(layer)
            for name in self._tables(layer):
                done = self._maintain(layer, name, optimize=True, purge=True, remove=True, vacuum=vacuum)
                if done is not None:
                    yield done

    def when_it_pays(self) -> list[Upkeep]:
        """Between two cycles: tables with many small files or many holes, and now and then what is past."""
        now = time.monotonic()
        if self._looked and now - self._looked < _LOOK_EVERY:
            return []
        self._looked = now
        remove = not self._removed_at or now - self._removed_at >= _EVERY
        if remove:
            self._removed_at = now
            self.expire()
        found = []
        for layer in LAYERS:
            vacuum = remove and self._may_vacuum(layer)
            for name in self._tables(layer):
                table = self._open(layer, name)
                seen = self._seen.get((layer, name), -_COMMITS)
                if table is None or (not remove and table.version() - seen < _COMMITS):
                    continue
                files = self._files(table, layer, name)
                purge = files.holes > _HOLES * max(files.rows, 1)
                optimize = files.small >= _MANY
                if optimize or purge or remove:
                    done = self._maintain(
                        layer, name, optimize=optimize, purge=purge, remove=remove, vacuum=vacuum
                    )
                    if done is not None and done.done:
                        found.append(done)
                table.update_incremental()
                self._seen[layer, name] = table.version()
        return found

    def expire(self) -> int:
        """Remove cuts past retention from `control.cuts`; returns how many."""
        return self._control.expire_cuts(self._before(), gold=self._documents)

    def _before(self) -> datetime:
        return datetime.now(UTC) - timedelta(seconds=self._retention)

    def _tables(self, layer: Layer) -> list[str]:
        cut = self._control.latest_cut(layer)
        return [] if cut is None else sorted(cut.tables)

    def _may_vacuum(self, layer: Layer) -> bool:
        """Whether no table of silver is still needed by a gold that is far behind."""
        if layer != "silver" or not self._documents:
            return True
        gold = self._control.latest_cut("gold")
        later = (
            []
            if gold is None
            else [c for c in self._control.cuts("silver") if c.commit_lsn > gold.commit_lsn]
        )
        return not later or (later[0].recorded_at or datetime.now(UTC)) >= self._before()

    def _maintain(
        self, layer: Layer, name: str, *, optimize: bool, purge: bool, remove: bool, vacuum: bool
    ) -> Upkeep | None:
        begun = time.monotonic()
        with writing(self._lake, layer):
            table = self._open(layer, name)
            if table is None:
                return None
            before = self._files(table, layer, name)
            result = Upkeep(layer, name, before, before)
            address = self._lake.sql(layer, name)
            self._state_retention(table, address)
            if optimize and before.small > 1:
                self._spark.sql(f"OPTIMIZE {address}").collect()
                result.done.append("clustered" if layer == "silver" else "compacted")
            if purge and before.holes:
                self._spark.sql(f"REORG TABLE {address} APPLY (PURGE)").collect()
                result.done.append("purged")
            if vacuum:
                result.removed_files = self._vacuum(table, address)
            if remove:
                result.removed_log_entries = self._cut_log(table, layer, name)
            if result.removed_files or result.removed_log_entries:
                result.done.append("vacuumed")
            table.update_incremental()
            result.after = self._files(table, layer, name)
        result.seconds = time.monotonic() - begun
        return result

    def _state_retention(self, table: DeltaTable, address: str) -> None:
        """Have the table say how long its files stay; its log is cut off here."""
        interval = f"interval {max(1, round(self._retention))} seconds"
        wanted = {
            "delta.deletedFileRetentionDuration": interval,
            "delta.logRetentionDuration": interval,
            "delta.enableExpiredLogCleanup": "false",
        }
        known = table.metadata().configuration
        if any(known.get(name) != value for name, value in wanted.items()):
            listed = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in wanted.items())
            self._spark.sql(f"ALTER TABLE {address} SET TBLPROPERTIES ({listed})")

    def _vacuum(self, table: DeltaTable, address: str) -> int:
        """Remove data files past retention; returns how many."""
        count = _data_files(table)
        self._spark.sql(f"VACUUM {address}").collect()
        return count - _data_files(table)

    def _cut_log(self, table: DeltaTable, layer: Layer, name: str) -> int:
        """Remove log entries that no named version needs; returns how many."""
        table.update_incremental()
        named = [cut.tables[name] for cut in self._control.cuts(layer) if name in cut.tables]
        return cut_log(table, min([table.version(), *named]))

    def _files(self, table: DeltaTable, layer: Layer, name: str) -> Files:
        """The files of an open table. Delta answers the count from statistics, without reading them."""
        actions: Any = pa.table(table.get_add_actions())
        if not actions.num_rows:
            return Files(0, 0, 0, 0, 0)
        sizes, rows = actions["size_bytes"], int(pc.sum(actions["num_records"]).as_py() or 0)
        version = f"{self._lake.sql(layer, name)} VERSION AS OF {table.version()}"
        living = self._spark.sql(f"SELECT count(*) FROM {version}").collect()[0][0]
        return Files(
            count=actions.num_rows,
            small=int(pc.sum(pc.less(sizes, _SMALL)).as_py() or 0),
            size=int(pc.sum(sizes).as_py()),
            rows=rows,
            holes=max(0, rows - living),
        )

    def _open(self, layer: Layer, name: str) -> DeltaTable | None:
        return delta.open_table(delta.location(self._lake, layer, name))


def vacuum_given_up(lake: Lake, layer: Layer, name: str) -> int:
    """Remove files that the log of a bronze or control table gave up a week ago; returns how many.

    delta-rs's light vacuum looks at the log alone, so a file that no version names yet is never touched.
    """
    table = delta.open_table(delta.location(lake, layer, name))
    return 0 if table is None else len(table.vacuum(round(_KEPT_SECONDS / 3600), dry_run=False))


def cut_log(table: DeltaTable, oldest: int) -> int:
    """Remove the log before the last checkpoint from which version `oldest` can be read."""
    system = file_system(table.table_uri)
    names = [info.base_name for info in system.get_file_info(FileSelector("_delta_log"))]
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    first = max((version for version in checkpoints if version <= oldest), default=0)
    past = sorted(name for name in names if (match := _VERSION.fullmatch(name)) and int(match[1]) < first)
    for name in past:
        system.delete_file(f"_delta_log/{name}")
    return len(past)


def _data_files(table: DeltaTable) -> int:
    """Files in the table's folder, its log apart."""
    found = file_system(table.table_uri).get_file_info(FileSelector("", recursive=True))
    return sum(1 for info in found if info.is_file and not info.path.startswith("_delta_log"))
