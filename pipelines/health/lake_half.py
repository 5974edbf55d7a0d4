"""The lake's half of a status: positions, tables, documents and open errors. No server, no Spark.

A running command reads this half every few seconds. So `LakeReader` caches table handles, and reads files of
control tables and shapes once each. `Backlog` counts the transactions that a layer lacks file by file, each
file once, since no file ever changes. Otherwise a poll would cost most while silver is days behind, just when
the machine has most to do.

A local lake that vanishes (unmounted, moved) raises no error: missing tables are empty, and cached handles
repeat old facts. So a lake that lacks the `bronze.changes` of an earlier poll counts as unreadable.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lake import parquet
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.erasures import Erasures
from deltasmelt.bronze.lake.failures import lake_opened, vanished
from deltasmelt.bronze.store.comments import DAMAGED
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import snapshot_of
from deltasmelt.bronze.store.ownership import refuse_foreign
from deltasmelt.bronze.store.position import position_of
from deltasmelt.bronze.store.relations import RelationsWatch
from deltasmelt.pipelines.health.clustering import clustering_hints
from deltasmelt.pipelines.runtime.maintenance import stops
from deltasmelt.pipelines.runtime.reader_progress import read_progress
from deltasmelt.pipelines.runtime.retention import BronzeRetention
from deltasmelt.pipelines.terminal.failures import without_secrets
from deltasmelt.silver.schema.decimals import UNREPRESENTABLE_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltasmelt.bronze.lake.control import Cut, OpenError, Run
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.progress import SnapshotView
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.position import Position
    from deltasmelt.bronze.store.retention import Boundary
    from deltasmelt.pipelines.health.clustering import ClusteringHint
    from deltasmelt.pipelines.settings import Pipeline

_LOGGER: Final = logging.getLogger("deltasmelt.status")
_BOUNDARY_SECONDS: Final = 600.0


@dataclass(frozen=True, slots=True)
class TableStatus:
    """State of one table or document."""

    name: str
    # `streaming`, `waiting` (in bronze and not yet in the layer, or without some changes until a new
    # snapshot), `snapshot`, `stopped` or `dropped` (at the source; the layer keeps the last state)
    state: str
    commit_lsn: Lsn | None
    delta_version: int | None
    # number of changes in the newest cycle
    changes: int | None
    seconds: float | None
    error: str | None
    # upper bound of rows with values outside their types; None without a count
    unrepresentable: int | None = None


@dataclass(frozen=True, slots=True)
class LakeHalf:
    """State of the lake, read at nearly the same moment."""

    # an open `bronze.changes`; None before bronze's first commit
    changes: Table | None
    position: Position | None
    cuts: Mapping[str, Cut | None]
    # for each layer, the number of missing transactions and the commit time of the oldest
    pending: Mapping[str, tuple[int | None, datetime | None]]
    snapshot: SnapshotView | None
    tables: tuple[TableStatus, ...]
    documents: tuple[TableStatus, ...]
    errors: tuple[OpenError, ...]
    clustering: tuple[ClusteringHint, ...]
    # the boundary of bronze; None without `bronze.retention`
    retention: Boundary | None = None


class LakeReader:
    """Reads one lake repeatedly; one thread at a time."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lake = pipeline.lake_address()
        self._changes = CachedTable(self._lake.uri("bronze", CHANGES))
        self._newest: Table | None = None
        self._was_there = False
        self._forget()

    def _forget(self) -> None:
        """Drop everything cached about the lake except `bronze.changes`."""
        self._relations = RelationsWatch(self._lake)
        self._control = ControlTables(self._lake)
        self._erasures = Erasures(self._lake)
        self._backlog = Backlog()
        self._retention = BronzeRetention(self._pipeline, self._control)
        self._boundary: tuple[float, Boundary | None] | None = None

    def read(self) -> LakeHalf:
        """Read the lake's present state.

        Raises:
            SmeltError: the lake cannot be read, or belongs to another pipeline.
        """
        with lake_opened(self._lake.uri("bronze", CHANGES)):
            return self._read()

    def _read(self) -> LakeHalf:
        changes = self._changes.newest()
        # Another `bronze.changes` means another lake, so drop everything cached.
        if changes is not self._newest:
            self._newest = changes
            self._forget()
        if changes is not None:
            self._was_there = True
            refuse_foreign(changes, self._pipeline.pipeline)
        elif self._was_there:
            raise vanished(self._lake.label)
        cuts = {layer: self._control.latest_cut(layer) for layer in ("silver", "gold")}
        unfinished = [erasure.error for erasure in self._erasures.unfinished()]
        errors = tuple(
            replace(error, message=without_secrets(error.message))
            for error in (*self._control.open_errors(), *unfinished)
        )
        relations = self._relations.read()
        silver = cuts["silver"]
        positions = [cut.commit_lsn for cut in cuts.values() if cut is not None]
        counts = {} if changes is None else self._backlog.after(changes, positions)
        return LakeHalf(
            changes=changes,
            position=None if changes is None else position_of(changes),
            cuts=cuts,
            pending={
                layer: (None, None) if cut is None else counts.get(cut.commit_lsn, (None, None))
                for layer, cut in cuts.items()
            },
            snapshot=read_progress(self._lake),
            tables=_tables(relations, changes, self._control, silver, errors),
            documents=_documents(self._control, cuts["gold"], errors),
            errors=errors,
            clustering=clustering_hints(self._pipeline, relations, {} if silver is None else silver.tables),
            retention=None if changes is None else self._held_back(changes, relations),
        )

    def _held_back(self, changes: Table, relations: Sequence[Relation]) -> Boundary | None:
        """Return the boundary of bronze as of some minutes ago: each read asks every table of silver.

        A read that fails leaves the last boundary, and the rest of the status.
        """
        if self._pipeline.bronze.retention is None:
            return None
        now = time.monotonic()
        if self._boundary is None or now - self._boundary[0] > _BOUNDARY_SECONDS:
            boundary = None if self._boundary is None else self._boundary[1]
            try:
                boundary = self._retention.boundary(changes, relations, datetime.now(UTC))
            except (*DAMAGED, SmeltError) as error:
                _LOGGER.warning("the boundary of bronze cannot be read: %s", error)
            self._boundary = now, boundary
        return self._boundary[1]


_Count: TypeAlias = "tuple[int, datetime | None]"
"""Number of transactions, and the commit time of the oldest."""
_NONE: Final[_Count] = (0, None)
_Range: TypeAlias = "tuple[int | None, int | None]"
"""First and last LSN of a file; None for unknown."""


class Backlog:
    """Counts the transactions of `bronze.changes` after positions, by the row that ends each transaction.

    The backlog reads a new file once, and remembers the file's count even where the next file cannot be read.
    """

    def __init__(self) -> None:
        self._whole: dict[str, _Count] = {}

    def after(self, changes: Table, positions: Sequence[Lsn]) -> dict[Lsn, _Count]:
        """Return the count after each position."""
        if not positions:
            return {}
        uri, columns = changes.table_uri, ["commit_lsn", "commit_ts"]
        known_counts: dict[str, _Count] = {}
        later: dict[str, _Range] = {"": (None, None)}
        if changes.shows_files:
            later = _files_after(changes, min(positions))
            known_counts = self._whole = {path: count for path, count in self._whole.items() if path in later}
        inside = {path: {lsn for lsn in positions if _within(lsn, span)} for path, span in later.items()}
        parts: dict[tuple[str, Lsn], _Count] = {}
        for path in later:
            # Read a known file again only while a position lies within the file's range.
            if path in known_counts and not inside[path]:
                continue
            read = (
                parquet.file_batches(uri, path, columns, "end_of_tx")
                if path
                else changes.batches(columns, after=("commit_lsn", min(positions)), ending="end_of_tx")
            )
            whole = _NONE
            for batch in read:
                whole = _sum([whole, _count(batch)])
                for lsn in inside[path]:
                    part = _count(batch.filter(pc.field("commit_lsn") > int(lsn)))
                    parts[path, lsn] = _sum([parts.get((path, lsn), _NONE), part])
            known_counts[path] = whole

        def after(path: str, last: int | None, lsn: Lsn) -> _Count:
            if lsn in inside[path]:
                return parts.get((path, lsn), _NONE)
            return _NONE if last is not None and last <= lsn else known_counts[path]

        return {lsn: _sum(after(path, last, lsn) for path, (_, last) in later.items()) for lsn in positions}


def _files_after(changes: Table, position: Lsn) -> dict[str, _Range]:
    """Return files that may hold rows after a position, each with the range of LSNs in the file."""
    files = pa.table(changes.get_add_actions(flatten=True))
    names = ["min.commit_lsn", "max.commit_lsn"]
    if not {*names} <= set(files.column_names):
        return dict.fromkeys(files["path"].to_pylist(), (None, None))
    files = files.filter(pc.fill_null(pc.greater(files["max.commit_lsn"], int(position)), True))
    ranges = zip(*(files[name].to_pylist() for name in names), strict=True)
    return dict(zip(files["path"].to_pylist(), ranges, strict=True))


def _within(position: Lsn, span: _Range) -> bool:
    """Check whether a file of this range may hold rows on both sides of a position."""
    first, last = span
    return first is None or last is None or first <= position < last


def _count(rows: pa.RecordBatch) -> _Count:
    return rows.num_rows, pc.min(rows["commit_ts"]).as_py() if rows.num_rows else None


def _sum(counts: Iterable[_Count]) -> _Count:
    pairs = list(counts)
    return sum(count for count, _ in pairs), min((at for _, at in pairs if at is not None), default=None)


def _tables(
    relations: Sequence[Relation],
    changes: Table | None,
    control: ControlTables,
    silver: Cut | None,
    errors: tuple[OpenError, ...],
) -> tuple[TableStatus, ...]:
    runs = control.newest_runs("silver")
    newest = {relation.table: relation for relation in relations}
    stopped = {error.name: error for error in errors if error.scope == "table" and stops(error)}
    states = []
    for table in sorted(newest):
        names = (str(table), table.silver_name)  # as in errors of the reader and of silver
        error = next((stopped.pop(name) for name in names if name in stopped), None)
        waiting = changes is not None and snapshot_of(changes, table) is not None
        before = "waiting" if waiting else "snapshot"
        run = runs.get(table.silver_name)
        states.append(_state(str(table), table.silver_name, silver, run, error, before=before))
    states += [
        TableStatus(name, "stopped", error.commit_lsn, None, None, None, error.message)
        for name, error in sorted(stopped.items())
    ]
    return tuple(states)


def _documents(
    control: ControlTables, gold: Cut | None, errors: tuple[OpenError, ...]
) -> tuple[TableStatus, ...]:
    stopped = {error.name: error for error in errors if error.scope == "document"}
    names = sorted(stopped.keys() | (gold.tables.keys() if gold is not None else set()))
    runs = control.newest_runs("gold") if names else {}
    return tuple(_state(name, name, gold, runs.get(name), stopped.get(name)) for name in names)


def _state(
    display_name: str,
    name: str,
    cut: Cut | None,
    run: Run | None,
    error: OpenError | None,
    *,
    before: str = "waiting",
) -> TableStatus:
    """Return one table of a layer; `before` is the state while no cut names the table."""
    version = None if cut is None else cut.tables.get(name)
    return TableStatus(
        name=display_name,
        state="stopped" if error is not None else before if version is None else "streaming",
        commit_lsn=None if cut is None or version is None else cut.commit_lsn,
        delta_version=version,
        changes=None if run is None else run.changes,
        seconds=None if run is None else run.seconds,
        error=None if error is None else error.message,
        unrepresentable=None if run is None else _lost(run),
    )


def _lost(run: Run) -> int | None:
    count = run.details.get(UNREPRESENTABLE_ROWS)
    return count if isinstance(count, int) else None
