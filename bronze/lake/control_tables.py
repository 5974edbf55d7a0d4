"""The writer and reader of `control.*`: cuts, errors, runs.

Schemas and meanings are in `bronze.lake.control`.

Reading is cheap because it is polled. Files of a Delta table never change, so each is read once per process
and kept. A poll that finds nothing new lists the log and no more. Files that a compaction or an update
replaced are forgotten. Appends leave one small file each; once there are too many, the writer compacts them
(`bronze.lake.compaction`), which changes no row and conflicts with no append.

Closing errors, and removing what is past its time (cuts and runs, `bronze.lake.thinning`; closed errors),
change rows. The files that have them are written again, in one commit (runs file by file, for nobody needs
them together). It carries the mark of compactions. So of two processes that rewrite at once one is refused,
and runs again on the newer version, where the row is closed already. And no compaction brings a row back that
an update closes at the same moment. Of a catalog's table the rows are changed in place
(`bronze.lake.catalog.amend`).

A cycle reads no run: the cycle itself has those that it recorded, so that `control.runs` costs a writer
nothing, however long it is.

Every change is on disk when its call returns. A call that fails may have come about: recording a cut or an
error twice says the same as once, and so does closing an error.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control import CUTS_SCHEMA, ERRORS_SCHEMA, RUNS_SCHEMA, Cut, Named, OpenError, Run
from deltasmelt.bronze.lake.control_table import ControlTable
from deltasmelt.bronze.lake.place import without_keys
from deltasmelt.bronze.lake.thinning import (
    beyond,
    closed_before,
    closing,
    cuts_before,
    dense_until,
    lsns_kept,
    moment_of,
    nameless,
    newest_runs,
    runs_before,
    without,
)
from deltasmelt.bronze.lsn import ZERO, Lsn

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deltasmelt.bronze.lake.location import Lake, Layer


class ControlTables:
    """The control tables of one lake.

    Safe to share between threads; other processes may write at the same time.
    """

    def __init__(self, lake: Lake) -> None:
        self._cuts = ControlTable(
            delta.location(lake, "control", "cuts"), CUTS_SCHEMA, "Versions that hold one LSN's state"
        )
        self._errors = ControlTable(
            delta.location(lake, "control", "errors"),
            ERRORS_SCHEMA,
            "What went wrong, until healed",
        )
        self._runs = ControlTable(delta.location(lake, "control", "runs"), RUNS_SCHEMA, "What each cycle did")

    def record_cut(self, cut: Cut) -> None:
        """Record a cut by one commit.

        A cut without tables still records its position (one row, `table_name` NULL).

        A clock may go back, and that of another machine be behind. So a record of an LSN gets a later moment
        than each record of that LSN that is known. A layer has one writer, which reads the cuts in its cycle,
        so nothing is read for this. Which record of silver gold read does not follow from moments: a cut of
        gold states it (`Cut.built_from`).
        """
        recorded = cut.recorded_at or datetime.now(UTC)
        known = self._cuts.rows(look=False)
        newest = pc.max(pc.filter(known["recorded_at"], pc.equal(known["commit_lsn"], int(cut.commit_lsn))))
        if newest.is_valid:
            recorded = max(recorded, newest.as_py() + timedelta(microseconds=1))
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
                "built_from": cut.built_from,
                "table_id": None if name is None else cut.ids.get(name),
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
        rows = self._cuts.rows()
        counts = pc.equal(rows["layer"], layer)
        if isinstance(at, datetime):
            counts = pc.and_(counts, pc.less_equal(rows["commit_ts"], moment_of(at)))
        elif at is not None:
            counts = pc.and_(counts, pc.less_equal(rows["commit_lsn"], int(at)))
        if known_by is not None:
            counts = pc.and_(counts, pc.less_equal(rows["recorded_at"], moment_of(known_by)))
        # Asked for in each cycle: only the rows of the one cut are copied, whatever else is there.
        newest = pc.max(pc.filter(rows["commit_lsn"], counts))
        counts = pc.and_(counts, pc.equal(rows["commit_lsn"], newest))
        last = pc.max(pc.filter(rows["recorded_at"], counts))
        found = rows.filter(pc.and_(counts, pc.equal(rows["recorded_at"], last)))
        return _cut(layer, found.to_pylist()) if found.num_rows else None

    def names(self, layer: Layer) -> list[str]:
        """All names that any record of a layer has."""
        rows = self._cuts.rows()
        found: list[str] = (
            pc.filter(rows["table_name"], pc.equal(rows["layer"], layer)).drop_null().unique().to_pylist()
        )
        return sorted(found)

    def last_named(self, layer: Layer, name: str, *, at: Lsn | None = None) -> Named | None:
        """Return what the newest record of a layer that names a table says of it; None where none names it.

        Args:
            layer: the table's.
            name: of the table.
            at: no record of a later LSN counts.
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
        """Have no cut name a table beyond what the table is now: it was put back, so those versions are gone.

        The cuts stay, with their other tables or with none. In one commit, and safe to repeat.

        Args:
            layer: the table's.
            name: of the table.
            version: the table's newest.
            mark: of that version.
        """
        gone = beyond(layer, name, version, mark)
        if pc.any(gone(self._cuts.rows())).as_py():
            self._cuts.update(nameless(gone))

    def oldest_version(self, layer: Layer, name: str) -> int | None:
        """The oldest Delta version of a table that any record names; None where none does."""
        rows = self._cuts.rows()
        of_one = pc.and_(pc.equal(rows["layer"], layer), pc.equal(rows["table_name"], name))
        oldest: int | None = pc.min(pc.filter(rows["delta_version"], of_one)).as_py()
        return oldest

    def expire_cuts(self, before: datetime, *, gold: bool) -> int:
        """Remove cuts that the next one had replaced before a moment; returns how many.

        So the cut that was the newest at the moment stays, and with `gold` that of silver at gold's newest. A
        document that stands at an older one is built in full then (`gold.builder.build_start`). The cuts of a
        layer go by one commit.

        Args:
            before: the moment.
            gold: whether gold is built from silver here.
        """
        removed = 0
        built = self.latest_cut("gold") if gold else None
        standing = {int(built.commit_lsn)} if built else set[int]()
        layers: tuple[Layer, ...] = ("silver", "gold")
        for layer in layers:
            rows = self._of_layer(layer)
            newest = pc.max(pc.filter(rows["recorded_at"], pc.less(rows["recorded_at"], moment_of(before))))

            last = pc.max(rows["commit_lsn"]).as_py()  # the clock of who recorded it may be behind
            stays = {last} if last is not None else set[int]()
            past = cuts_before(newest, layer, stays | standing if gold and layer == "silver" else stays)
            gone = rows.filter(past(rows))
            if gone.num_rows:
                self._cuts.update(without(past))
                removed += len(gone["recorded_at"].unique())
        return removed

    def thin_cuts(self, now: datetime, *, gold: bool, positions: Collection[Lsn] = ()) -> int:
        """Remove cuts that stand closer than their age deserves; how many (`bronze.lake.thinning`).

        Args:
            now: the present.
            gold: whether gold is built from silver here; silver's cuts after gold's newest stay then.
            positions: LSNs from which documents go on.
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
        """Thin the cuts of a layer, up to an LSN."""
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
        """Remove runs that nobody asks for any more; returns how many.

        All of the last day stay; the newest (`newest_runs`); and until `before` those that were no ordinary
        cycle, whose reason may be asked for.
        """
        rows = self._runs.read(["run_id", "layer", "name", "mode", "started_at"])
        past = runs_before(now, before, newest_runs(rows, self.names("silver")))
        count = int(pc.sum(past(rows)).as_py() or 0)
        if count:
            self._runs.prune(without(past))
        return count

    def tidy(self) -> None:
        """Remove log entries and compacted files of the control tables that are past their time."""
        for table in (self._cuts, self._errors, self._runs):
            table.tidy()

    def _of_layer(self, layer: Layer) -> pa.Table:
        rows = self._cuts.rows()
        return rows.filter(pc.equal(rows["layer"], layer))

    def open_error(self, error: OpenError) -> None:
        """Record an error, as `record_errors` does."""
        self.record_errors([error])

    def record_errors(self, errors: Sequence[OpenError]) -> None:
        """Record errors, in one commit; an error (scope, name, code) that is open is not recorded twice.

        Keys of stores, which a message of others may repeat, are left out.
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
        """Record errors, and close first which are open with another message, and those that have healed.

        Two commits at most. After a kill between them the caller finds the errors again, and records them.
        """
        messages: dict[tuple[str, str, str], set[str]] = {}
        for error in errors:
            messages.setdefault(error.key, set()).add(without_keys(error.message))
        known = self.open_errors() if errors else []
        otherwise = [one for one in known if one.message not in messages.get(one.key, {one.message})]
        self.close_all([*healed, *otherwise])
        self.record_errors(errors)

    def close_errors(self, scope: str, name: str, code: str | None = None) -> None:
        """Close the open errors of a table, document or pipeline: all of them, or of one code."""
        self.close_all(
            [
                known
                for known in self.open_errors()
                if known.scope == scope and known.name == name and (code is None or known.code == code)
            ]
        )

    def close_all(self, errors: Sequence[OpenError]) -> None:
        """Set `closed_at` on errors (scope, name, code) that are open, in one commit."""
        if errors:
            self._errors.update(closing({error.key for error in errors}, datetime.now(UTC)))

    def expire_errors(self, before: datetime) -> int:
        """Remove errors that were closed before a moment, in one commit; returns how many."""
        past = closed_before(before)
        count = int(pc.sum(past(self._errors.rows())).as_py() or 0)
        if count:
            self._errors.update(without(past))
        return count

    def open_errors(self) -> list[OpenError]:
        """Errors that have not healed, oldest first; one per scope, name and code."""
        found: dict[tuple[str, str, str], OpenError] = {}
        rows = self._errors.rows()
        for row in delta.sorted_by(rows.filter(pc.is_null(rows["closed_at"])), "opened_at").to_pylist():
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
            found.setdefault(error.key, error)
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
        chosen = pc.select_k_unstable(rows, limit, sort_keys=[("started_at", "descending")])
        return [_run(row) for row in rows.take(chosen).to_pylist()]

    def newest_runs(self, layer: Layer) -> dict[str, Run]:
        """The newest run of each table or document of a layer, by its name."""
        rows = self._runs.rows()
        rows = delta.sorted_by(rows.filter(pc.equal(rows["layer"], layer)), "started_at")
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
