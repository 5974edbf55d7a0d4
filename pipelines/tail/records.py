"""Rows of `bronze.changes` as changes: which key, which values, and what is unknown. Pure.

**Never NULL for unknown.** PostgreSQL sends no unchanged out-of-line value, and of an old row often the
identity alone. A column without a sent value is therefore in neither `new` nor `old`; the names of unchanged
columns are in `unchanged`. Only the full old row (REPLICA IDENTITY FULL) shows what an update changed.

**The shape** of a row follows from its relation and its place in the log, so two rows of one transaction may
have different shapes.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import BY_KEY
from deltasmelt.bronze.store.contract import OP_MESSAGE

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from datetime import datetime

    from deltasmelt.bronze.shapes import Relation

Values = dict[str, str | None]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one row, of one table (`truncate`), or a message."""

    op: str
    # None for a message
    table: TableName | None
    relation_id: int | None
    time: datetime | None
    commit_lsn: Lsn
    seq: int
    lsn: Lsn
    xid: int | None
    # the row's key after the change; of a deleted row, before the change
    key: Values
    # the key before the change, if the change moved the row
    old_key: Values | None
    # the values that PostgreSQL sent of the new and of the old row; None without such a row
    new: Values | None
    old: Values | None
    # columns with an unchanged value that PostgreSQL did not send
    unchanged: tuple[str, ...]
    # columns with another value than before; None if PostgreSQL did not send the old row
    changed: tuple[str, ...] | None
    end_of_tx: bool


class Shapes:
    """The shapes of all relations, for rows by relation and place."""

    def __init__(self, relations: Iterable[Relation]) -> None:
        self._versions: dict[int, list[Relation]] = {}
        for relation in relations:
            self._versions.setdefault(relation.relation_id, []).append(relation)
        for versions in self._versions.values():
            versions.sort(key=_place)

    def at(self, relation_id: int, commit_lsn: int, lsn: int) -> Relation | None:
        """Return the shape of a row; None for an unknown relation."""
        versions = self._versions.get(relation_id, [])
        at = bisect_left(versions, (commit_lsn, lsn), key=_place)
        return versions[at - 1] if at else None

    def versions(self, relation_id: int) -> Sequence[Relation]:
        """Return all shapes of a relation, oldest first."""
        return self._versions.get(relation_id, ())

    def tables(self) -> set[TableName]:
        """Return all names of tables, also former names."""
        return {shape.table for versions in self._versions.values() for shape in versions}


def _place(relation: Relation) -> tuple[Lsn, Lsn]:
    return relation.place


def change_of(row: dict[str, Any], shapes: Shapes) -> Change:
    """Return a row of `bronze.changes` as a change."""
    relation_id = row["relation_id"]
    shape = None if relation_id is None else shapes.at(relation_id, row["commit_lsn"], row["lsn"])
    columns = row["columns"] or []
    if row["op"] == OP_MESSAGE:
        row, columns = {**row, "new": columns}, ["prefix", "content"]
    unchanged = tuple(row["unchanged"] or ())
    new = None if row["new"] is None else dict(zip(columns, row["new"], strict=True))
    old = None if row["old"] is None else dict(zip(columns, row["old"], strict=True))
    # For a partitioned table the stream does not show which old tuples are full rows.
    by_key = shape is not None and shape.replica_identity == BY_KEY
    is_full = old is not None and not row["old_is_key"] and not by_key
    if old is not None and not is_full:
        sent = _identity(shape, old)
        old = {name: value for name, value in old.items() if name in sent}
    for name in unchanged if new is not None else ():
        del new[name]  # type: ignore[union-attr]
    changed = None
    if is_full and old is not None and new is not None:
        changed = tuple(name for name in new if new[name] != old[name])
    key, old_key = _keys(shape, new, old)
    return Change(
        op=row["op"],
        table=None if row["table_name"] is None else TableName(row["table_schema"], row["table_name"]),
        relation_id=relation_id,
        time=row["commit_ts"],
        commit_lsn=Lsn(row["commit_lsn"]),
        seq=row["seq"],
        lsn=Lsn(row["lsn"]),
        xid=row["xid"],
        key=key,
        old_key=old_key,
        new=new,
        old=old,
        unchanged=unchanged,
        changed=changed,
        end_of_tx=bool(row["end_of_tx"]),
    )


def _identity(shape: Relation | None, old: Values) -> set[str]:
    """Return the columns that an old tuple of the identity alone has."""
    if shape is None:
        return {name for name, value in old.items() if value is not None}
    if shape.replica_identity == BY_KEY:
        return set(shape.key)
    return {column.name for column in shape.columns if column.in_identity} or set(shape.key)


def _keys(shape: Relation | None, new: Values | None, old: Values | None) -> tuple[Values, Values | None]:
    """Return the key of a row after and, if the row moved, before a change."""
    names = () if shape is None else shape.key
    if new is None:
        known = old or {}
        if shape is not None and not set(names) <= known.keys():
            names = shape.fold_key
        return {name: known[name] for name in names if name in known}, None
    # An unchanged key value that is stored out of line comes with the old row alone.
    both = {**(old or {}), **new}
    key = {name: both[name] for name in names if name in both}
    before = {name: old[name] for name in names if name in old} if old else {}
    return key, before if before and before != {name: key[name] for name in before} else None
