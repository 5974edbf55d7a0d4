"""Writer and reader of `control.*`: cuts, errors, runs; `bronze.lake.control` defines schemas and meanings.

**Reads.** Processes poll these tables, so reads are cheap. Files of a Delta table never change: a process
reads each file once and caches the rows. A poll without news only lists a local log, or requests the next
entry of a store's log. Above a limit of small files a writer compacts (`bronze.lake.compaction`); a
compaction changes no row and conflicts with no append.

**Rewrites.** Closing errors, and removing old cuts, runs (`bronze.lake.thinning`) and closed errors, change
rows. One commit rewrites the affected files, and carries the mark of compactions. Delta therefore rejects one
of two concurrent rewrites. The rejected rewrite retries on the newer version, where the row is already
closed. The mark also keeps a compaction from restoring a row that a concurrent update closes. In a catalog's
table the rows are changed in place (`bronze.lake.catalog.amend`).

**Durability.** Every change is on disk when its call returns. A failed call may have succeeded, so every call
may be repeated: a cut or error that is recorded twice counts once, and closing an error twice changes
nothing.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake.control import CUTS_SCHEMA, ERRORS_SCHEMA, RUNS_SCHEMA, Cut, Named, OpenError, Run
from deltasmelt.bronze.lake.control_table import ControlTable
from deltasmelt.bronze.lake.place import without_keys
from deltasmelt.bronze.lake.table import sorted_by
from deltasmelt.bronze.lake.thinning import (
    beyond,
    closed_before,
    closing,
    cuts_before,
    dense_until,
    lsns_kept,
    moment_of,
    moved,
    nameless,
    newest_runs,
    outdated,
    readdressed,
    runs_before,
    without,
)
from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.bronze.lake.thinning import Move


class ControlTables:
    """The control tables of one lake, for any threads; other processes may write at the same time."""

    def __init__(self, lake: Lake) -> None:
        self._cuts = ControlTable(
            lake.uri("control", "cuts"), CUTS_SCHEMA, "Versions that hold one LSN's state"
        )
        self._errors = ControlTable(
            lake.uri("control", "errors"),
            ERRORS_SCHEMA,
            "Errors, open and closed",
        )
        self._runs = ControlTable(lake.uri("control", "runs"), RUNS_SCHEMA, "Work of each cycle")

    def record_cut(self, cut: Cut) -> None:
        """Record a cut in one commit."""
        # A clock may go backwards, and another machine's clock may be late, so a record gets a later time
        # than each known record of its LSN. A layer has one writer, which reads the cuts in each cycle:
        # nothing is read for this.
        recorded = cut.recorded_at or datetime.now(UTC)
        known = self._cuts.rows(look=False)
        newest = pc.max(pc.filter(known["recorded_at"], pc.equal(known["commit_lsn"], int(cut.commit_lsn))))
        if newest.is_valid:
            recorded = max(recorded, newest.as_py() + timedelta(microseconds=1))
        # A cut without tables still records its position (one row, `table_name` NULL).
        tables: dict[str, int] | dict[None, None] = cut.tables or {None: None}
        rows = [
            {
                "commit_lsn": int(cut.commit_lsn),
                "commit_ts": cut.commit_ts,
                "layer": cut.layer,
                "table_name": name,
                "delta_version": version,
                "recorded_at": recorded,
                "mark_lsn": None if name is None or name not in cut.marks else int(cut.marks[name]),
                # Times do not identify gold's source: a cut of gold names the silver record.
                "built_from": cut.built_from,
                "table_id": None if name is None else cut.ids.get(name),
            }
            for name, version in tables.items()
        ]
        self._cuts.append(rows)

    def cuts(self, layer: Layer) -> list[Cut]:
        """Return all cuts of a layer, sorted by LSN."""
        groups: dict[tuple[int, datetime], list[dict[str, Any]]] = {}
        for row in self._of_layer(layer).to_pylist():
            groups.setdefault((row["commit_lsn"], row["recorded_at"]), []).append(row)
        # If one LSN was recorded several times (a rebuild), the newest record counts.
        newest = {lsn: groups[lsn, recorded] for lsn, recorded in sorted(groups)}
        return [_cut(layer, group) for group in newest.values()]

    def latest_cut(
        self, layer: Layer, *, at: Lsn | datetime | None = None, known_by: datetime | None = None
    ) -> Cut | None:
        """Return the newest cut of a layer, or the newest cut at or before an LSN or a commit time.

        Records later than `known_by` do not count. The result is None if the layer has no such cut.
        """
        rows = self._cuts.rows()
        counts = pc.equal(rows["layer"], layer)
        if isinstance(at, datetime):
            counts = pc.and_(counts, pc.less_equal(rows["commit_ts"], moment_of(at)))
        elif at is not None:
            counts = pc.and_(counts, pc.less_equal(rows["commit_lsn"], int(at)))
        if known_by is not None:
            counts = pc.and_(counts, pc.less_equal(rows["recorded_at"], moment_of(known_by)))
        # Every cycle calls this, so only the rows of the found cut are copied.
        newest = pc.max(pc.filter(rows["commit_lsn"], counts))
        counts = pc.and_(counts, pc.equal(rows["commit_lsn"], newest))
        last = pc.max(pc.filter(rows["recorded_at"], counts))
        found = rows.filter(pc.and_(counts, pc.equal(rows["recorded_at"], last)))
        return _cut(layer, found.to_pylist()) if found.num_rows else None

    def names(self, layer: Layer) -> list[str]:
        """Return all names in the records of a layer, sorted."""
        rows = self._cuts.rows()
        found: list[str] = (
            pc.filter(rows["table_name"], pc.equal(rows["layer"], layer)).drop_null().unique().to_pylist()
        )
        return sorted(found)

    def last_named(self, layer: Layer, name: str, *, at: Lsn | None = None) -> Named | None:
        """Return the newest record of a layer that names a table; None if no record names the table.

        Records of LSNs later than `at` do not count.
        """
        rows = self._cuts.rows()
        if not self._cuts.has_value("table_name", name):
            return None
        of_one = rows.filter(pc.and_(pc.equal(rows["layer"], layer), pc.equal(rows["table_name"], name)))
        if at is not None:
            of_one = of_one.filter(pc.less_equal(of_one["commit_lsn"], int(at)))
        if not of_one.num_rows:
            return None
        order = [("commit_lsn", "descending"), ("recorded_at", "descending")]
        row = of_one.take(pc.select_k_unstable(of_one, 1, sort_keys=order)).to_pylist()[0]
        mark = row["mark_lsn"]
        mark = None if mark is None else Lsn(mark)
        seen = row["built_from"] or row["recorded_at"]
        return Named(Lsn(row["commit_lsn"]), row["delta_version"], mark, seen)

    def disown(self, layer: Layer, name: str, version: int, mark: Lsn | None) -> None:
        """Remove a table from each cut that names a later version or mark than the table has.

        Called after a rollback with the table's newest version and mark. The cuts stay, with their remaining
        tables or without tables. One commit, safe to repeat.
        """
        gone = beyond(layer, name, version, mark)
        if pc.any(gone(self._cuts.rows())).as_py():
            self._cuts.update(nameless(gone))

    def readdress(self, moves: Mapping[tuple[Layer, str], Move], *, dry_run: bool = False) -> tuple[int, int]:
        """Let cuts name the successors of rewritten versions; older cuts lose the rewritten tables.

        The cuts stay, with their remaining tables or without tables. One commit, safe to repeat; with
        `dry_run` no commit.

        Returns:
            The number of records that name a successor, and of records that a cut has lost.
        """
        rows = self._cuts.rows()
        counts = [int(pc.sum(mask(moves)(rows)).as_py() or 0) for mask in (moved, outdated)]
        if any(counts) and not dry_run:
            self._cuts.update(readdressed(moves))
        return counts[0], counts[1]

    def rewrite_texts(self, change: Callable[[pa.Table], pa.Table]) -> None:
        """Apply a change to all rows of errors and runs; files without a change stay."""
        for table in (self._errors, self._runs):
            table.update(change)

    def oldest_version(self, layer: Layer, name: str) -> int | None:
        """Return the oldest Delta version of a table in any record; None without a record."""
        rows = self._cuts.rows()
        of_one = pc.and_(pc.equal(rows["layer"], layer), pc.equal(rows["table_name"], name))
        oldest: int | None = pc.min(pc.filter(rows["delta_version"], of_one)).as_py()
        return oldest

    def expire_cuts(self, before: datetime, *, gold: bool) -> int:
        """Remove cuts that a later cut had replaced before a moment; return the number of removed cuts.

        The newest cut as of the moment stays. With `gold` (this pipeline builds gold from silver), silver's
        cut at the LSN of gold's newest cut stays too. A document that needs an older cut is then rebuilt in
        full (`gold.builder.build_start`). One commit removes the cuts of a layer.
        """
        removed = 0
        built = self.latest_cut("gold") if gold else None
        standing = {int(built.commit_lsn)} if built else set[int]()
        layers: tuple[Layer, ...] = ("silver", "gold")
        for layer in layers:
            rows = self._of_layer(layer)
            newest = pc.max(pc.filter(rows["recorded_at"], pc.less(rows["recorded_at"], moment_of(before))))

            last = pc.max(rows["commit_lsn"]).as_py()  # the recording machine's clock may be late
            stays = {last} if last is not None else set[int]()
            past = cuts_before(newest, layer, stays | standing if gold and layer == "silver" else stays)
            gone = rows.filter(past(rows))
            if gone.num_rows:
                self._cuts.update(without(past))
                removed += len(gone["recorded_at"].unique())
        return removed

    def thin_cuts(self, now: datetime, *, gold: bool, positions: Collection[Lsn] = ()) -> int:
        """Thin cuts by age (`bronze.lake.thinning`); return the number of removed rows.

        Args:
            gold: whether this pipeline builds gold from silver; silver's cuts after gold's newest cut then
                stay.
            positions: LSNs from which documents continue.
        """
        kept = {int(lsn) for lsn in positions}
        removed = self._thin("gold", now, kept)
        built = self._of_layer("gold")["commit_lsn"]
        until = pc.max(built).as_py() if gold else None
        if gold and until is None:
            return removed
        kept |= set(built.unique().to_pylist())
        return removed + self._thin("silver", now, kept, until=until)

    def _thin(self, layer: Layer, now: datetime, also: set[int], *, until: int | None = None) -> int:
        rows, before = self._of_layer(layer), dense_until(now)
        kept = lsns_kept(rows, now, also=also)
        if not kept:
            return 0
        past = cuts_before(moment_of(before), layer, kept, until=until)
        count = int(pc.sum(past(rows)).as_py() or 0)
        if count:
            self._cuts.update(without(past))
        return count

    def expire_runs(self, now: datetime, before: datetime) -> int:
        """Remove old runs; return the number of removed runs.

        All runs of the last day stay, and the newest runs (`newest_runs`). Unusual runs stay until `before`,
        because users may need the reasons of such runs.
        """
        rows = self._runs.read(["run_id", "layer", "name", "mode", "started_at"])
        past = runs_before(now, before, newest_runs(rows, self.names("silver")))
        count = int(pc.sum(past(rows)).as_py() or 0)
        if count:
            # File by file: `control.runs` may be long, and no reader needs all runs at once. A cycle
            # remembers its own runs and reads none.
            self._runs.prune(without(past))
        return count

    def tidy(self) -> None:
        """Remove log entries and compacted files of the control tables past their retention."""
        for table in (self._cuts, self._errors, self._runs):
            table.tidy()

    def _of_layer(self, layer: Layer) -> pa.Table:
        rows = self._cuts.rows()
        return rows.filter(pc.equal(rows["layer"], layer))

    def open_error(self, error: OpenError) -> None:
        """Record an error, as `record_errors` does."""
        self.record_errors([error])

    def record_errors(self, errors: Sequence[OpenError]) -> None:
        """Record errors in one commit; an open error (scope, name, code) is not recorded twice.

        A foreign message may contain keys of a store; the record masks the keys.
        """
        known = {error.key for error in self.open_errors()} if errors else set()
        new: dict[tuple[str, str, str], OpenError] = {}
        for error in errors:
            if error.key not in known:
                new.setdefault(error.key, error)
        now = datetime.now(UTC)
        rows = [
            {
                "opened_at": error.opened_at or now,
                "closed_at": None,
                "scope": error.scope,
                "name": error.name,
                "commit_lsn": None if error.commit_lsn is None else int(error.commit_lsn),
                "code": error.code,
                "message": without_keys(error.message),
                "remedy": error.remedy,
            }
            for error in new.values()
        ]
        if rows:
            self._errors.append(rows)

    def restate_error(self, error: OpenError) -> None:
        """Record an error, as `restate_errors` does."""
        self.restate_errors([error])

    def restate_errors(self, errors: Sequence[OpenError], *, healed: Sequence[OpenError] = ()) -> None:
        """Close healed errors and open errors with a different message, then record the given errors.

        At most two commits. After a kill between the two, the caller finds the errors again and records them.
        """
        messages: dict[tuple[str, str, str], set[str]] = {}
        for error in errors:
            messages.setdefault(error.key, set()).add(without_keys(error.message))
        known = self.open_errors() if errors else []
        otherwise = [one for one in known if one.message not in messages.get(one.key, {one.message})]
        self.close_all([*healed, *otherwise])
        self.record_errors(errors)

    def close_errors(self, scope: str, name: str, code: str | None = None) -> None:
        """Close the open errors of a table, document or pipeline, optionally only errors of one code."""
        self.close_all(
            [
                known
                for known in self.open_errors()
                if known.scope == scope and known.name == name and (code is None or known.code == code)
            ]
        )

    def close_all(self, errors: Sequence[OpenError]) -> None:
        """Set `closed_at` on open errors (scope, name, code) in one commit."""
        if errors:
            self._errors.update(closing({error.key for error in errors}, datetime.now(UTC)))

    def expire_errors(self, before: datetime) -> int:
        """Remove errors closed before a moment, in one commit; return the number of removed errors."""
        past = closed_before(before)
        count = int(pc.sum(past(self._errors.rows())).as_py() or 0)
        if count:
            self._errors.update(without(past))
        return count

    def open_errors(self) -> list[OpenError]:
        """Return the open errors, oldest first; one error per scope, name and code."""
        found: dict[tuple[str, str, str], OpenError] = {}
        rows = self._errors.rows()
        for row in sorted_by(rows.filter(pc.is_null(rows["closed_at"])), "opened_at").to_pylist():
            error = OpenError(
                scope=row["scope"],
                name=row["name"],
                code=row["code"],
                message=row["message"],
                remedy=row["remedy"],
                commit_lsn=None if row["commit_lsn"] is None else Lsn(row["commit_lsn"]),
                opened_at=row["opened_at"],
            )
            # Two processes may have recorded equal errors at the same moment.
            found.setdefault(error.key, error)
        return list(found.values())

    def record_runs(self, runs: Sequence[Run]) -> None:
        """Record the runs of a cycle, all tables in one commit."""
        if runs:
            self._runs.append([run.row() for run in runs])

    def runs(self, layer: Layer | None = None, name: str | None = None, limit: int = 100) -> list[Run]:
        """Return the newest runs, newest first."""
        rows = self._runs.rows()
        if layer is not None:
            rows = rows.filter(pc.equal(rows["layer"], layer))
        if name is not None:
            rows = rows.filter(pc.equal(rows["name"], name))
        chosen = pc.select_k_unstable(rows, limit, sort_keys=[("started_at", "descending")])
        return [_run(row) for row in rows.take(chosen).to_pylist()]

    def newest_runs(self, layer: Layer) -> dict[str, Run]:
        """Return the newest run of each table or document of a layer, by name."""
        rows = self._runs.rows()
        rows = sorted_by(rows.filter(pc.equal(rows["layer"], layer)), "started_at")
        newest = {name: number for number, name in enumerate(rows["name"].to_pylist())}
        chosen = rows.take(pa.array(newest.values(), pa.int64()))
        return {row["name"]: _run(row) for row in chosen.to_pylist()}


def _run(row: dict[str, Any]) -> Run:
    positions = {name: None if row[name] is None else Lsn(row[name]) for name in ("from_lsn", "to_lsn")}
    return Run(**{**row, **positions, "details": json.loads(row["details"] or "{}")})


def _cut(layer: Layer, rows: list[dict[str, Any]]) -> Cut:
    first = rows[0]
    tables = {row["table_name"]: row["delta_version"] for row in rows if row["table_name"] is not None}
    marks = {
        row["table_name"]: Lsn(row["mark_lsn"])
        for row in rows
        if row["table_name"] is not None and row["mark_lsn"] is not None
    }
    ids = {row["table_name"]: row["table_id"] for row in rows if row["table_id"] is not None}
    lsn = Lsn(first["commit_lsn"] or ZERO)
    return Cut(layer, lsn, first["commit_ts"], tables, first["recorded_at"], marks, ids, first["built_from"])
