"""Retention of cuts, runs and errors: which rows of the control tables are removed. Pure.

A pipeline of a hundred tables with a cut every two seconds would write thirty million rows a week, and every
reader of `control.cuts` holds all rows in memory. All cuts of the last hour stay. Of older cuts the last cut
of each minute stays, and after a day the last cut of each hour, until `lake.retention` removes the cut
(`ControlTables.expire_cuts`).

Cuts that a process may still need stay at any density:

* the newest cut of each layer;
* silver's cuts after gold's newest cut: a running build of gold, in any process, started from one of the
  cuts, and gold's next cut will name the same LSN;
* for each document, the newest cut of gold that names the document, and silver's cuts at the cut's LSN and at
  the mark of the document's table: the document continues from one of the cuts (`gold.builder.build_start`);
* silver's cuts at the LSN of each remaining cut of gold, so that users can read both layers together.

Maintenance keeps files by the oldest version that a cut still names (`pipelines.runtime.maintenance`), so a
process in the middle of reading a cut continues. A crash halfway is safe: gold's cuts are removed before
silver's, by one commit each, and the next call finds the rest.

The functions return masks and row changes, which `bronze.lake.control_tables` applies. A row with NULL in a
compared column stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake.control import CUTS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from datetime import datetime

    from deltasmelt.bronze.lake.location import Layer

    Mask = Callable[[pa.Table], pa.Array]

_ALL: Final = timedelta(hours=1)
_BY_MINUTE: Final = timedelta(days=1)
_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
# Retention of ordinary runs; further runs are kept as long as cuts.
RUNS_KEPT: Final = timedelta(days=1)


def dense_until(now: datetime) -> datetime:
    """Return the time before which cuts are thinned."""
    # A whole minute, so no minute is thinned partly.
    return (now - _ALL).astimezone(UTC).replace(second=0, microsecond=0)


def lsns_kept(cuts: pa.Table, now: datetime, *, also: Iterable[int] = ()) -> list[int]:
    """Return the LSNs of cuts before `dense_until` that stay; empty if no cut is to be removed.

    `cuts` are the rows of one layer; the LSNs in `also` stay in any case.
    """
    recorded, lsns = _microseconds(cuts["recorded_at"]), cuts["commit_lsn"].to_numpy()
    old = recorded < _since_1970(dense_until(now))
    if not old.any():
        return []
    newest = lsns.max()
    recorded, lsns = recorded[old], lsns[old]
    by_hour = recorded < _since_1970(now - _BY_MINUTE) // _HOUR * _HOUR
    # A period is named by its start; even and odd numbers separate an hour from its first minute.
    period = np.where(by_hour, recorded // _HOUR * _HOUR * 2, recorded // _MINUTE * _MINUTE * 2 + 1)
    order = np.lexsort((lsns, recorded, period))
    last = np.append(period[order][1:] != period[order][:-1], True)
    kept = {int(lsn) for lsn in lsns[order][last]} | {int(newest)} | set(also)
    there = {int(lsn) for lsn in np.unique(lsns)}
    return [] if there <= kept else sorted(kept & there)


def newest_runs(runs: pa.Table, silver: Iterable[str]) -> list[str]:
    """Return `run_id` of the newest run of each document, and of each table that a cut names.

    `silver` are the names of the tables in silver's cuts. The newest cut never expires: a table without any
    cut has been in no cut for the whole retention of cuts.
    """
    named = pc.is_in(runs["name"], value_set=pa.array(silver, pa.string()))
    runs = runs.filter(pc.or_(named, pc.not_equal(runs["layer"], "silver")))
    names = pc.binary_join_element_wise(runs["layer"], runs["name"], ".").combine_chunks()
    codes = names.dictionary_encode().indices.to_numpy()
    order = np.lexsort((_microseconds(runs["started_at"]), codes))
    last = np.append(codes[order][1:] != codes[order][:-1], True)[: len(order)]
    found: list[str] = runs["run_id"].take(pa.array(order[last])).to_pylist()
    return found


def _microseconds(moments: pa.ChunkedArray) -> np.ndarray:
    found: np.ndarray = moments.cast(pa.timestamp("us", tz="UTC")).cast(pa.int64()).to_numpy()
    return found


def _since_1970(moment: datetime) -> int:
    return round(moment.timestamp() * 1_000_000)


def moment_of(moment: datetime) -> pa.Scalar:
    """Return a time in the type of the control tables: microseconds, UTC."""
    return pa.scalar(moment, CUTS_SCHEMA.field("recorded_at").type)


@dataclass(frozen=True, slots=True)
class Move:
    """A rewritten version of a table with the same rows as a version that cuts name."""

    # the version that the newest cut names
    named: int
    version: int
    # number of the table in cuts; None: cuts keep theirs
    table_id: int | None = None


def outdated(moves: Mapping[tuple[Layer, str], Move]) -> Mask:
    """Return a mask of the records of rewritten tables whose version has other rows."""

    def gone(rows: pa.Table) -> pa.Array:
        found = pa.array(np.zeros(rows.num_rows, np.bool_))
        for place, move in moves.items():
            found = pc.or_(found, pc.and_(_of_one(rows, place), pc.less(rows["delta_version"], move.named)))
        return pc.fill_null(found, False)

    return gone


def moved(moves: Mapping[tuple[Layer, str], Move]) -> Mask:
    """Return a mask of the records of rewritten tables that a rewritten version succeeds."""

    def found(rows: pa.Table) -> pa.Array:
        found = pa.array(np.zeros(rows.num_rows, np.bool_))
        for place, move in moves.items():
            if move.named != move.version:
                same = pc.equal(rows["delta_version"], move.named)
                found = pc.or_(found, pc.and_(_of_one(rows, place), same))
        return pc.fill_null(found, False)

    return found


def readdressed(moves: Mapping[tuple[Layer, str], Move]) -> Callable[[pa.Table], pa.Table]:
    """Return a function that lets records name the rewritten versions, and clears outdated records."""

    def change(rows: pa.Table) -> pa.Table:
        rows = nameless(outdated(moves))(rows)
        for place, move in moves.items():
            mask = moved({place: move})(rows)
            for name, value in (("delta_version", move.version), ("table_id", move.table_id)):
                if value is not None:
                    column = rows.schema.field(name)
                    values = pc.if_else(mask, pa.scalar(value, column.type), rows[name])
                    rows = rows.set_column(rows.column_names.index(name), column, values)
        return rows

    return change


def _of_one(rows: pa.Table, place: tuple[Layer, str]) -> pa.Array:
    return pc.and_(pc.equal(rows["layer"], place[0]), pc.equal(rows["table_name"], place[1]))


def cuts_before(moment: pa.Scalar, layer: Layer, staying: Iterable[int], *, until: int | None = None) -> Mask:
    """Return a mask of a layer's cuts that were recorded before a moment; a NULL moment selects no cut.

    Args:
        staying: LSNs whose cuts stay in any case.
        until: an LSN; only earlier cuts are selected. None selects all.
    """
    stays = pa.array(sorted(staying), pa.int64())

    def gone(rows: pa.Table) -> pa.Array:
        found = pc.and_(pc.equal(rows["layer"], layer), pc.less(rows["recorded_at"], moment))
        if until is not None:
            found = pc.and_(found, pc.less(rows["commit_lsn"], until))
        found = pc.and_(found, pc.invert(pc.is_in(rows["commit_lsn"], value_set=stays)))
        return pc.fill_null(found, False)

    return gone


def beyond(layer: Layer, name: str, version: int, mark: int | None) -> Mask:
    """Return a mask of cuts that name a later version or mark of a table than the table has.

    With the mark None every mark is later.
    """

    def gone(rows: pa.Table) -> pa.Array:
        of_one = pc.and_(pc.equal(rows["layer"], layer), pc.equal(rows["table_name"], name))
        later = pc.fill_null(pc.greater(rows["mark_lsn"], -1 if mark is None else int(mark)), False)
        return pc.fill_null(pc.and_(of_one, pc.or_(later, pc.greater(rows["delta_version"], version))), False)

    return gone


def runs_before(now: datetime, before: datetime, staying: Iterable[str]) -> Mask:
    """Return a mask of runs older than `RUNS_KEPT`; of unusual runs only those older than `before`.

    `before` ends the retention of runs whose reason a user may ask for; the run ids in `staying` stay in any
    case.
    """
    stays = pa.array(staying, pa.string())

    def gone(rows: pa.Table) -> pa.Array:
        ordinary = pc.is_in(rows["mode"], value_set=pa.array(["incremental", "none"]))
        found = pc.and_(
            pc.less(rows["started_at"], moment_of(now - RUNS_KEPT)),
            pc.or_(ordinary, pc.less(rows["started_at"], moment_of(before))),
        )
        return pc.fill_null(pc.and_(found, pc.invert(pc.is_in(rows["run_id"], value_set=stays))), False)

    return gone


def closed_before(moment: datetime) -> Mask:
    """Return a mask of errors that were closed before a moment."""
    return lambda rows: pc.fill_null(pc.less(rows["closed_at"], moment_of(moment)), False)


def closing(keys: Collection[tuple[str, str, str]], moment: datetime) -> Callable[[pa.Table], pa.Table]:
    """Return a function that closes open errors with one of these keys (scope, name, code) at a moment."""

    def change(rows: pa.Table) -> pa.Table:
        found = zip(*(rows[name].to_pylist() for name in ("scope", "name", "code")), strict=True)
        mask = pc.and_(pa.array([key in keys for key in found], pa.bool_()), pc.is_null(rows["closed_at"]))
        closed = pc.if_else(mask, moment_of(moment), rows["closed_at"])
        return rows.set_column(rows.column_names.index("closed_at"), rows.schema.field("closed_at"), closed)

    return change


def nameless(gone: Mask) -> Callable[[pa.Table], pa.Table]:
    """Return a function that clears the table name in the rows of a mask; a cut keeps its position."""

    def change(rows: pa.Table) -> pa.Table:
        mask = gone(rows)
        for name in ("table_name", "delta_version", "mark_lsn"):
            column = rows.schema.field(name)
            cleared = pc.if_else(mask, pa.scalar(None, column.type), rows[name])
            rows = rows.set_column(rows.column_names.index(name), column, cleared)
        return rows

    return change


def without(gone: Mask) -> Callable[[pa.Table], pa.Table]:
    """Return a function that removes the rows of a mask."""
    return lambda rows: rows.filter(pc.invert(gone(rows)))
