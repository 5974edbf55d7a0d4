"""The end of shapes and marks that nothing needs any longer: of tables that are gone, and of old versions.

A table that is dropped, renamed or no longer selected leaves its shapes in `bronze.relations` and its marks
on `bronze.changes`, and each ALTER TABLE and each snapshot leaves a version of a shape. With a retention of
bronze (`bronze.store.retention`) their rows end, and so do they. Without a retention every row stays, and so
does every shape, because only the shape makes the row readable.

**The horizon** H: bronze has no row with a commit LSN before H, and no reader needs one. H is the mark of the
removed changes, or the least row of the files that are still there, if that is before the mark.

**Shapes.** A version that begins before H is unneeded if a later version of its relation begins before H as
well: each row has an LSN of H or more, so the later version describes the row. The versions of a relation
that is *gone* are all unneeded once H is past the end of the log as of the poll that found the relation gone.
A relation is gone if its newest name is not selected, or if a newer relation has this name. Every row of the
relation was committed before that poll. A copy of the relation that is still running has an LSN before the
poll, so its commit is refused (`TableMarks.commit_snapshot`).

**Marks.** A table that has the mark of tables that are not read (`gaps.is_left_out`), no shape and no place
among the selected tables has ended: one commit ends all its marks (`bronze.lake.transactions.ENDED`). If the
name returns, its table begins like a new one. Silver's table of that name may still have the rows of long
ago: without a base in bronze silver does not carry the table (`gaps.is_whole`), the first snapshot replaces
the rows, and its history omits the changes in between, because the first poll opens a gap (`gaps.note`).

**At each point of failure:**

* *killed before the removal of shapes*: nothing has changed. The moment at which a relation was found gone is
  only in memory; the next process begins with a later moment.
* *killed between shapes and marks, or a failed commit of marks*: the name has a mark and no shape. Silver
  does not see the table, and the next poll of any process ends the marks, which are found by the marks alone.
* *a failed removal of shapes*: this process has forgotten the versions, the lake has not. A returning
  relation is recorded twice, with the effect of a single record; the next process finds the versions again.
* *a late commit*: of shapes, it removes what is unneeded in any case, since H only grows; of marks, Delta
  refuses it if one of the ids was written since.
"""

from __future__ import annotations

import time
from itertools import groupby
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.table import retry_conflict
from deltasmelt.bronze.lake.transactions import ENDED
from deltasmelt.bronze.lsn import LAST, ZERO, Lsn
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.marks import TABLE_APPS, fingerprint_app, kept_from
from deltasmelt.bronze.store.retention import files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.changes_table import ChangesTable
    from deltasmelt.bronze.store.relations import ShapeLog

_EVERY: Final = 30.0
"""Seconds between two searches."""
_ANY: Final = TableName("", "")
_KINDS: Final = frozenset(app(_ANY).partition(":")[0] for app in TABLE_APPS)
_FINGERPRINT: Final = fingerprint_app(_ANY).partition(":")[0]


class GoneTables:
    """What gone tables have left. Only polls, one at a time, call this object.

    Args:
        remove: removes versions of shapes durably.
    """

    def __init__(self, changes: ChangesTable, remove: Callable[[Sequence[Relation]], None]) -> None:
        self._changes = changes
        self._remove = remove
        # by relation: the end of the log after the first poll of this process that found the relation gone
        self._gone_at: dict[int, Lsn] = {}
        self._next = 0.0

    def forget(self, shapes: ShapeLog, selected: Collection[TableName], end: Lsn) -> None:
        """Remove unneeded shapes, then the marks of tables without a shape.

        Args:
            selected: all tables that the poll selected, including tables that are left out.
            end: end of the log after the poll.

        Raises:
            DefiniteError: ``lake-in-use``.
            TransientError: ``lake-unwritable``.
        """
        gone = gone_relations(shapes.until(LAST), selected)
        self._gone_at = {relation: self._gone_at.get(relation, end) for relation in gone}
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _EVERY
        horizon = self._changes.read_newest(horizon_of)
        # Held, so that no version is compared with a version that is about to go.
        with shapes.held():
            if unneeded := unneeded_shapes(shapes.until(LAST), horizon, self._gone_at):
                shapes.forget(unneeded)
                self._remove(unneeded)
            present = {table.quoted for table in (*shapes.tables(), *selected)}
        apps = self._changes.read_newest(lambda changes: apps_of_ended(changes.marks() or {}, present))
        if apps:
            with lake_failures(self._changes.uri, "bronze"):
                _end(self._changes.uri, apps)


def horizon_of(changes: Table) -> Lsn:
    """Return the LSN before which an open `bronze.changes` has no row and needs none; 0 before a removal."""
    kept = kept_from(changes)
    if not kept:
        return ZERO
    return min([kept, *(file.first or ZERO for file in files_of(changes))])


def gone_relations(shapes: Iterable[Relation], selected: Collection[TableName]) -> set[int]:
    """Return the relations whose newest name is not selected, or belongs to a newer relation. Pure."""
    newest: dict[int, Relation] = {}
    for shape in sorted(shapes, key=lambda shape: shape.place):
        newest[shape.relation_id] = shape
    holders = {shape.table: shape.relation_id for shape in sorted(newest.values(), key=lambda one: one.place)}
    chosen = set(selected)
    return {
        relation
        for relation, shape in newest.items()
        if shape.table not in chosen or holders[shape.table] != relation
    }


def unneeded_shapes(shapes: Iterable[Relation], horizon: Lsn, gone_at: Mapping[int, Lsn]) -> list[Relation]:
    """Return the versions that describe no row at or after the horizon. Pure."""
    unneeded: list[Relation] = []
    ordered = sorted(shapes, key=lambda shape: (shape.relation_id, *shape.place))
    for relation, group in groupby(ordered, key=lambda shape: shape.relation_id):
        versions = list(group)
        if gone_at.get(relation, LAST) <= horizon:
            unneeded += versions
        else:
            unneeded += [shape for shape in versions if shape.from_lsn < horizon][:-1]
    return unneeded


def apps_of_ended(marks: Mapping[str, int], present: Collection[str]) -> list[str]:
    """Return the ids of all marks of tables that are not read and not present; `present` are quoted names."""
    ended = set()
    for app, mark in marks.items():
        kind, _, table = app.partition(":")
        if kind == _FINGERPRINT and mark == NOT_CARRIED and table not in present:
            ended.add(table)
    found = ((app, *app.partition(":")[::2]) for app in marks)
    return [app for app, kind, table in found if kind in _KINDS and table in ended]


@retry_conflict
def _end(uri: str, apps: Iterable[str]) -> None:
    """End marks in one durable commit."""
    changes = delta.open_existing(uri)
    marks = changes.marks() or {}
    commit_marks(changes, [Transaction(app, ENDED) for app in apps if app in marks])
