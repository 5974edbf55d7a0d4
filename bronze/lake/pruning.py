"""Rows of control tables that are past their time: as masks. Pure: rows in, which of them go.

`bronze.lake.control_tables` asks which rows go, and writes the files that have them again without them. A row
with a NULL where a mask compares stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from bronze.lake.control import CUTS_SCHEMA
from bronze.lake.thinning import RUNS_KEPT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable
    from datetime import datetime

    from bronze.lake.location import Layer

    Mask = Callable[[pa.Table], pa.Array]


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
