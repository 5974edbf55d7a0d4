"""The writer and reader of `control.*`: cuts, errors, runs. Schemas and meanings are in `bronze.control`.

Reading is cheap because it is polled: files of a Delta table never change, so each is read once per process
and kept; a poll that finds nothing new lists the log and no more. Files that a compaction or an update
replaced are forgotten. Appends leave one small file each; once there are too many, the writer joins them
(`bronze.compaction`), which changes no row and conflicts with no append.

Closing an error is an update, the only one here; removing cuts past retention is the only delete. Two
processes may update at once; Delta refuses the later one, which then runs again on the newer version, where
the row is closed already. Errors are few, and their files are not joined: a compaction could bring back a row
that an update closes at the same moment.
"""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, Transaction

from bronze import delta
from bronze.compaction import COMPACTION_APP, compact
from bronze.control import CUTS_SCHEMA, ERRORS_SCHEMA, RUNS_SCHEMA, Cut, OpenError, Run
from bronze.identifiers import quote_literal
from bronze.lsn import ZERO, Lsn
from bronze.upkeep import RETENTION, tidy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from bronze.lake import Lake, Layer

_COMPACT_ABOVE: Final = 200
"""Files of one table above which the writer joins them."""

_TIME_TYPE: Final = quote_literal('Timestamp(Microsecond, Some("UTC"))')

_CHECKPOINT_INTERVAL: Final = "50"


class ControlTables:
    """The control tables of one lake.

    Safe to share between threads; other processes may write at the same time.
    """

    def __init__(self, lake: Lake) -> None:
        self._cuts = _Table(
            delta.location(lake, "control", "cuts"), CUTS_SCHEMA, "Versions that hold one LSN's state"
        )
        self._errors = _Table(
            delta.location(lake, "control", "errors"),
            ERRORS_SCHEMA,
            "What went wrong, until healed",
            append_only=False,
        )
        self._runs = _Table(delta.location(lake, "control", "runs"), RUNS_SCHEMA, "What each cycle did")

    def record_cut(self, cut: Cut) -> None:
        """Record a cut by one commit.

        A cut without tables still records its position (one row, `table_name` NULL).
        """
        recorded = cut.recorded_at or datetime.now(UTC)
        tables: dict[str, int] | dict[None, None] = cut.tables or {None: None}
        rows = [
            {
                "commit_lsn": int(cut.commit_lsn),
                "commit_ts": cut.commit_ts,
                "layer": cut.layer,
                "table_name": name,
                "delta_version": version,
                "recorded_at": recorded,
            }
            for name, version in tables.items()
        ]
        self._cuts.append(rows)

    def cuts(self, layer: Layer) -> list[Cut]:
        """All cuts of a layer by LSN.

        Where one LSN was recorded again (a rebuild), the newest record counts.
        """
        groups: dict[tuple[int, datetime], list[dict[str, Any]]] = {}
        for row in self._of_layer(layer).to_pylist():
            groups.setdefault((row["commit_lsn"], row["recorded_at"]), []).append(row)
        newest = {lsn: groups[lsn, recorded] for lsn, recorded in sorted(groups)}
        return [_cut(layer, group) for group in newest.values()]

    def latest_cut(
        self, layer: Layer, *, at: Lsn | datetime | None = None, known_by: datetime | None = None
    ) -> Cut | None:
        """The newest cut of a layer, or the newest at or before an LSN or a commit time.

        None where there is none.

        Args:
            layer: which.
            at: an LSN or a commit time.
            known_by: what was recorded after this moment does not count.
        """
        rows = self._of_layer(layer)
        if isinstance(at, datetime):
            rows = rows.filter(pc.less_equal(rows["commit_ts"], _moment(at)))
        elif at is not None:
            rows = rows.filter(pc.less_equal(rows["commit_lsn"], int(at)))
        if known_by is not None:
            rows = rows.filter(pc.less_equal(rows["recorded_at"], _moment(known_by)))
        for column in ("commit_lsn", "recorded_at"):
            if rows.num_rows:
                rows = rows.filter(pc.equal(rows[column], pc.max(rows[column])))
        return _cut(layer, rows.to_pylist()) if rows.num_rows else None

    def oldest_version(self, layer: Layer, name: str) -> int | None:
        """The oldest Delta version of a table that any record names; None where none does."""
        rows = self._of_layer(layer)
        oldest: int | None = pc.min(
            pc.filter(rows["delta_version"], pc.equal(rows["table_name"], name))
        ).as_py()
        return oldest

    def expire_cuts(self, before: datetime, *, gold: bool) -> int:
        """Remove cuts that the next one had replaced before a moment; returns how many.

        So the cut that was the newest at the moment stays, and with `gold` the one of silver that gold stands
        at. The cuts of a layer go by one commit.
        """
        removed = 0
        built = self.latest_cut("gold") if gold else None
        layers: tuple[Layer, ...] = ("silver", "gold")
        for layer in layers:
            rows = self._of_layer(layer)
            newest = pc.max(pc.filter(rows["recorded_at"], pc.less(rows["recorded_at"], _moment(before))))
            past = pc.less(rows["recorded_at"], newest)
            predicate = f"layer = {quote_literal(layer)} AND recorded_at < {_sql_moment(newest.as_py())}"
            if built is not None and layer == "silver":
                past = pc.and_(past, pc.not_equal(rows["commit_lsn"], int(built.commit_lsn)))
                predicate += f" AND commit_lsn <> {int(built.commit_lsn)}"
            gone = rows.filter(past)
            if gone.num_rows:
                self._cuts.delete(predicate)
                removed += len(gone["recorded_at"].unique())
        return removed

    def tidy(self) -> None:
        """Remove log entries and joined files of the control tables that are past their time."""
        for table in (self._cuts, self._errors, self._runs):
            table.tidy()

    def _of_layer(self, layer: Layer) -> pa.Table:
        rows = self._cuts.rows()
        return rows.filter(pc.equal(rows["layer"], layer))

    def open_error(self, error: OpenError) -> None:
        """Record an error. The same one (scope, name, code) that is still open is not recorded twice."""
        for known in self.open_errors():
            if (known.scope, known.name, known.code) == (error.scope, error.name, error.code):
                return
        row = {
            "opened_at": error.opened_at or datetime.now(UTC),
            "closed_at": None,
            "scope": error.scope,
            "name": error.name,
            "commit_lsn": None if error.commit_lsn is None else int(error.commit_lsn),
            "code": error.code,
            "message": error.message,
            "remedy": error.remedy,
        }
        self._errors.append([row])

    def close_errors(self, scope: str, name: str, code: str | None = None) -> None:
        """Set `closed_at` on the open errors of a table, document or pipeline.

        All of them, or of one code.
        """

        def concerned(known: OpenError) -> bool:
            return known.scope == scope and known.name == name and (code is None or known.code == code)

        if not any(concerned(known) for known in self.open_errors()):
            return
        predicate = f"closed_at IS NULL AND scope = {quote_literal(scope)} AND name = {quote_literal(name)}"
        if code is not None:
            predicate += f" AND code = {quote_literal(code)}"
        self._errors.update({"closed_at": datetime.now(UTC)}, predicate)

    def open_errors(self) -> list[OpenError]:
        """Errors that have not healed, oldest first; one per scope, name and code."""
        found: dict[tuple[str, str, str], OpenError] = {}
        rows = self._errors.rows()
        for row in delta.ordered(rows.filter(pc.is_null(rows["closed_at"])), "opened_at").to_pylist():
            error = OpenError(
                scope=row["scope"],
                name=row["name"],
                code=row["code"],
                message=row["message"],
                remedy=row["remedy"],
                commit_lsn=None if row["commit_lsn"] is None else Lsn(row["commit_lsn"]),
                opened_at=row["opened_at"],
            )
            # Two processes may have recorded the same one at the same moment.
            found.setdefault((error.scope, error.name, error.code), error)
        return list(found.values())

    def record_runs(self, runs: Sequence[Run]) -> None:
        """Record what a cycle did, all its tables in one commit."""
        if runs:
            self._runs.append([run.row() for run in runs])

    def runs(self, layer: Layer | None = None, name: str | None = None, limit: int = 100) -> list[Run]:
        """The newest runs, newest first."""
        rows = self._runs.rows()
        if layer is not None:
            rows = rows.filter(pc.equal(rows["layer"], layer))
        if name is not None:
            rows = rows.filter(pc.equal(rows["name"], name))
        newest = delta.ordered(rows, "started_at", "descending").slice(0, limit)
        return [_run(row) for row in newest.to_pylist()]


def _moment(moment: datetime) -> pa.Scalar:
    return pa.scalar(moment, CUTS_SCHEMA.field("recorded_at").type)


def _sql_moment(moment: datetime | None) -> str:
    """As delta-rs compares it, to the microsecond."""
    return "NULL" if moment is None else f"arrow_cast({quote_literal(moment.isoformat())}, {_TIME_TYPE})"


def _run(row: dict[str, Any]) -> Run:
    positions = {name: None if row[name] is None else Lsn(row[name]) for name in ("from_lsn", "to_lsn")}
    return Run(**{**row, **positions, "details": json.loads(row["details"] or "{}")})


def _cut(layer: Layer, rows: list[dict[str, Any]]) -> Cut:
    first = rows[0]
    tables = {row["table_name"]: row["delta_version"] for row in rows if row["table_name"] is not None}
    return Cut(layer, Lsn(first["commit_lsn"] or ZERO), first["commit_ts"], tables, first["recorded_at"])


class _Table:
    """One control table: its handle, and the rows of each of its files."""

    def __init__(self, uri: str, schema: pa.Schema, description: str, *, append_only: bool = True) -> None:
        self._uri = uri
        self._append_only = append_only
        self._schema = schema
        self._description = description
        self._lock = threading.RLock()
        self._handle: DeltaTable | None = None
        self._read_version = -1
        self._files: dict[str, pa.Table] = {}

    def append(self, rows: list[dict[str, Any]]) -> None:
        with self._lock:
            table = self._open_or_create()
            delta.append(table, pa.Table.from_pylist(rows, schema=self._schema))
            if self._append_only and len(table.file_uris()) > _COMPACT_ABOVE:
                compact(table, self._schema, many=_COMPACT_ABOVE // 2)

    @delta.retry_conflict
    def update(self, new_values: dict[str, Any], predicate: str) -> None:
        with self._lock:
            table = self._open_or_create()
            table.update_incremental()
            table.update(new_values=new_values, predicate=predicate)

    @delta.retry_conflict
    def delete(self, predicate: str) -> None:
        """Remove rows. Carries the mark of compactions, so that of two at once only one comes about."""
        with self._lock:
            table = self._open_or_create()
            table.update_incremental()
            mark = Transaction(COMPACTION_APP, table.version())
            table.delete(predicate, commit_properties=CommitProperties(app_transactions=[mark]))

    def tidy(self) -> None:
        with self._lock:
            table = delta.open_table(self._uri)
            if table is not None:
                tidy(table)

    def rows(self) -> pa.Table:
        with self._lock:
            if self._handle is None:
                self._handle = delta.open_table(self._uri)
            if self._handle is None:
                return self._schema.empty_table()
            self._handle.update_incremental()
            if self._handle.version() != self._read_version:
                self._read(self._handle)
            return pa.concat_tables([self._schema.empty_table(), *self._files.values()])

    def _read(self, table: DeltaTable) -> None:
        version = table.version()
        self._files = {
            path: self._files.get(path) or delta.read_file(table, path).cast(self._schema)
            for path in delta.paths_of(table)
        }
        self._read_version = version

    def _open_or_create(self) -> DeltaTable:
        if self._handle is None:
            self._handle = delta.open_or_create(
                self._uri,
                self._schema,
                description=self._description,
                properties={"delta.checkpointInterval": _CHECKPOINT_INTERVAL, **RETENTION},
            )
        return self._handle
