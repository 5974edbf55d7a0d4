"""Which cuts and runs are kept when they grow old. Pure: rows in, what stays out.

A pipeline of a hundred tables that records a cut every two seconds would write thirty million rows a week,
which every reader of `control.cuts` holds in memory. Nobody asks for a moment of last week to the second. So
all cuts of the last hour stay, then the last one of each minute, after a day the last one of each hour, until
`lake.retention` takes them (`ControlTables.expire_cuts`).

What somebody may stand at stays, however dense:

* the newest cut of each layer;
* silver's cuts after gold's newest. One of them is what a build of gold that is under way, here or in another
  process, was begun from, and what its cut will name;
* the newest cut of gold that names each document, and silver's cuts at that LSN and at the mark of the
  document's table: from one of these the document goes on (`gold.builder.build_start`);
* silver's cuts at the LSN of each cut of gold that stays, so that both can be read together.

Only rows of `control.cuts` go. Files are kept by the oldest version that is still named
(`pipelines.runtime.maintenance`), so a process that reads a cut at this moment reads on. To end halfway is
safe: gold's cuts go before silver's, by one commit each, and what was left is found the next time.

Rows of control tables that are past their time: as masks. Pure: rows in, which of them go.

`bronze.lake.control_tables` asks which rows go, and writes the files that have them again without them. A row
with a NULL where a mask compares stays.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake.control import CUTS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from datetime import datetime

    from deltasmelt.bronze.lake.location import Layer

    Mask = Callable[[pa.Table], pa.Array]

_ALL: Final = timedelta(hours=1)
_BY_MINUTE: Final = timedelta(days=1)
_MINUTE: Final = 60_000_000
_HOUR: Final = 60 * _MINUTE
RUNS_KEPT: Final = timedelta(days=1)
"""How long all runs stay; those that were no ordinary cycle stay as long as cuts do."""


def dense_until(now: datetime) -> datetime:
    """The moment before which cuts are thinned; a whole minute, so that a minute is thinned as a whole."""
    return (now - _ALL).astimezone(UTC).replace(second=0, microsecond=0)


def lsns_kept(cuts: pa.Table, now: datetime, *, also: Iterable[int] = ()) -> list[int]:
    """LSNs of a layer's cuts before `dense_until` that stay; empty where all of them do.

    Args:
        cuts: rows of `control.cuts` of one layer.
        now: the present.
        also: LSNs that stay in any case.
    """
    recorded, lsns = _microseconds(cuts["recorded_at"]), cuts["commit_lsn"].to_numpy()
    old = recorded < _since_1970(dense_until(now))
    if not old.any():
        return []
    newest = lsns.max()
    recorded, lsns = recorded[old], lsns[old]
    by_hour = recorded < _since_1970(now - _BY_MINUTE) // _HOUR * _HOUR
    # Each period by its beginning; an hour and its first minute are told apart.
    period = np.where(by_hour, recorded // _HOUR * _HOUR * 2, recorded // _MINUTE * _MINUTE * 2 + 1)
    order = np.lexsort((lsns, recorded, period))
    last = np.append(period[order][1:] != period[order][:-1], True)
    kept = {int(lsn) for lsn in lsns[order][last]} | {int(newest)} | set(also)
    there = {int(lsn) for lsn in np.unique(lsns)}
    return [] if there <= kept else sorted(kept & there)


def newest_runs(runs: pa.Table, silver: Iterable[str]) -> list[str]:
    """Return `run_id` of the newest run of each document, and of each table that a cut names.

    The newest cut never expires. So a table that no cut names has been in none for as long as cuts are kept.

    Args:
        runs: rows of `control.runs`.
        silver: tables that cuts name.
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
    """A moment as the times of the control tables are: microseconds, UTC."""
    return pa.scalar(moment, CUTS_SCHEMA.field("recorded_at").type)


def cuts_before(moment: pa.Scalar, layer: Layer, staying: Iterable[int], *, until: int | None = None) -> Mask:
    """Rows of a layer's cuts that were recorded before a moment.

    Args:
        moment: the moment; NULL takes nothing.
        layer: whose cuts.
        staying: LSNs whose cuts stay all the same.
        until: only cuts before this LSN go; None for all.
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
    """Rows of cuts that name a table at a later version, or at a later mark, than the table has.

    Args:
        layer: the table's.
        name: of the table.
        version: its newest.
        mark: of that version; None: every mark is later.
    """

    def gone(rows: pa.Table) -> pa.Array:
        of_one = pc.and_(pc.equal(rows["layer"], layer), pc.equal(rows["table_name"], name))
        later = pc.fill_null(pc.greater(rows["mark_lsn"], -1 if mark is None else int(mark)), False)
        return pc.fill_null(pc.and_(of_one, pc.or_(later, pc.greater(rows["delta_version"], version))), False)

    return gone


def runs_before(now: datetime, before: datetime, staying: Iterable[str]) -> Mask:
    """Rows of runs older than `RUNS_KEPT`; those that were no ordinary cycle only where older than `before`.

    Args:
        now: the present.
        before: the moment for runs whose reason may be asked for.
        staying: ids of runs that stay all the same.
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
    """Rows of errors that were closed before a moment."""
    return lambda rows: pc.fill_null(pc.less(rows["closed_at"], moment_of(moment)), False)


def closing(keys: Collection[tuple[str, str, str]], moment: datetime) -> Callable[[pa.Table], pa.Table]:
    """The rows, of which open errors with one of these keys (scope, name, code) are closed at a moment."""

    def change(rows: pa.Table) -> pa.Table:
        found = zip(*(rows[name].to_pylist() for name in ("scope", "name", "code")), strict=True)
        mask = pc.and_(pa.array([key in keys for key in found], pa.bool_()), pc.is_null(rows["closed_at"]))
        closed = pc.if_else(mask, moment_of(moment), rows["closed_at"])
        return rows.set_column(rows.column_names.index("closed_at"), rows.schema.field("closed_at"), closed)

    return change


def nameless(gone: Mask) -> Callable[[pa.Table], pa.Table]:
    """The rows, of which those of a mask name no table: a cut without tables still records its position."""

    def change(rows: pa.Table) -> pa.Table:
        mask = gone(rows)
        for name in ("table_name", "delta_version", "mark_lsn"):
            column = rows.schema.field(name)
            cleared = pc.if_else(mask, pa.scalar(None, column.type), rows[name])
            rows = rows.set_column(rows.column_names.index(name), column, cleared)
        return rows

    return change


def without(gone: Mask) -> Callable[[pa.Table], pa.Table]:
    """The rows that a mask leaves."""
    return lambda rows: rows.filter(pc.invert(gone(rows)))
