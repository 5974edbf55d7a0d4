"""`bronze.relations`: every version of every table's shape, appended before the first change that needs it.

The reader commits a shape before the commit of `bronze.changes` that holds rows of that shape. So whoever
finds a row finds its shape. A crash between the two leaves a shape that no row uses yet, which is harmless:
the stream announces it again after the restart, at the same position, and it is then not appended twice.

**Which row has which shape** follows from the position alone, never by names: two columns may have had one
name, and a transaction may change a shape many times. A version's position is (`from_lsn`, `after_lsn`); both
are read from the log itself. However often the log is read, no change of the table lies between the positions
that are found for one version. Should one position be recorded twice, because the catalog said more the
second time, the later record counts: no row of it was durable before.

**A version that says nothing new is left out** (`ShapeLog.record`).

**When the append fails** nothing is remembered, so the next session, to which the stream announces the shape
again, appends it then. If it did come about after all, the version is there twice, which is as once.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.kept import KeptTable
from deltasmelt.bronze.lsn import LAST, Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation, same_shape
from deltasmelt.bronze.store.contract import RELATIONS, RELATIONS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltalake import DeltaTable

    from deltasmelt.bronze.lake.location import Lake

    _Recorded = tuple[Relation, datetime]


class RelationsWatch:
    """Reads the shapes of one lake again and again: files that are new since the last time, and no others.

    Any thread may ask.
    """

    def __init__(self, lake: Lake) -> None:
        self._kept = KeptTable(lake, "bronze", RELATIONS)
        self._lock = threading.Lock()
        self._table: DeltaTable | None = None
        self._version = -1
        self._files: dict[str, list[_Recorded]] = {}
        self._relations: list[Relation] = []

    def read(self) -> list[Relation]:
        """All versions of all shapes, ordered by relation and the position from which they hold.

        Raises:
            DeltaError, OSError: the lake cannot be read.
        """
        with self._lock:
            table = self._kept.newest()
            if table is None:
                return []
            if table is not self._table:
                self._table, self._version, self._files = table, -1, {}
            if table.version() != self._version:
                paths = delta.paths_of(table)
                self._files = {path: self._files.get(path) or _recorded(table, path) for path in paths}
                self._relations = _in_order([one for found in self._files.values() for one in found])
                self._version = table.version()
            return list(self._relations)


def read_relations(lake: Lake) -> list[Relation]:
    """All versions of all shapes, read once; ordered by relation and the position from which they hold."""
    return RelationsWatch(lake).read()


def relations_of(table: DeltaTable) -> list[Relation]:
    """All versions that an open `bronze.relations` holds, ordered by relation and position.

    One for each of both.
    """
    return _in_order([one for path in delta.paths_of(table) for one in _recorded(table, path)])


def _recorded(table: DeltaTable, path: str) -> list[_Recorded]:
    """What a file says, and when that was recorded."""
    return [(_relation(row), row["recorded_at"]) for row in delta.read_file(table, path).to_pylist()]


def _in_order(found: list[_Recorded]) -> list[Relation]:
    found.sort(key=lambda one: (one[0].relation_id, *one[0].place, one[1]))
    return list({(one.relation_id, one.place): one for one, _ in found}.values())


def append_relations(table: DeltaTable, relations: Sequence[Relation]) -> None:
    """Append versions of shapes in one commit."""
    recorded = datetime.now(UTC)
    rows = [_row(relation, recorded) for relation in relations]
    delta.append(table, pa.Table.from_pylist(rows, schema=RELATIONS_SCHEMA), widen=True)


class ShapeLog:
    """`bronze.relations` as its writers know it; a shape is appended where it differs from the one before it.

    Safe to share: the stream and snapshots record shapes side by side.

    Args:
        known: what the table holds.
        append: makes versions durable.
    """

    def __init__(self, known: Sequence[Relation], append: Callable[[Sequence[Relation]], None]) -> None:
        self._append = append
        self._lock = threading.RLock()
        self._versions: dict[int, list[Relation]] = {}
        for relation in known:
            self._versions.setdefault(relation.relation_id, []).append(relation)
        self._unknown: dict[int, Lsn] = {}
        for relation_id, versions in self._versions.items():
            versions.sort(key=_by_place)
            self._note_unknown(relation_id, versions)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block no other thread reads or records versions."""
        with self._lock:
            yield

    def tables(self) -> set[TableName]:
        """Every table of which a version is known."""
        with self._lock:
            return {each.table for versions in self._versions.values() for each in versions}

    def names(self, relation_id: int) -> set[TableName]:
        """Every name that a known version of a relation has."""
        with self._lock:
            return {each.table for each in self._versions.get(relation_id, ())}

    def until(self, lsn: Lsn) -> list[Relation]:
        """The versions that begin at or before an LSN; a stream that goes on from there knows no others.

        In order.
        """
        with self._lock:
            return [each for versions in self._versions.values() for each in versions if each.from_lsn <= lsn]

    def record(self, relations: Sequence[Relation], *, ahead: bool = False) -> None:
        """Make versions durable, those that say something new.

        One is left out where the version that holds at its position is the same. That holds as long as nobody
        puts another one between the two. The stream's versions come in order. Those of a snapshot and of a
        look come ahead of the stream, which may still announce what held before; so they are always recorded.
        The stream's versions after them are compared with them. None was compared too early: until such a
        version is recorded a copy locks the table, so that no later shape begins, and a look holds the
        versions (`held`), so that no later shape is compared.

        What rows from before a column hold in it (`Column.missing`) is taken from another version of the
        relation where this one was made when the catalog no longer told it.

        Args:
            relations: those of one relation in order.
            ahead: the stream may still announce what holds before them.
        """
        with self._lock:
            after: dict[int, list[Relation]] = {}
            new = []
            for relation in map(self._completed, relations):
                known = self._versions.get(relation.relation_id, [])
                versions = after.setdefault(relation.relation_id, list(known))
                if _put(versions, relation, always=ahead):
                    new.append(relation)
            if new:
                self._append(new)
                self._versions.update(after)
                for relation_id, versions in after.items():
                    self._note_unknown(relation_id, versions)

    def knows(self, relation_id: int, lsn: Lsn = LAST) -> bool:
        """Whether a version of a relation begins at or before an LSN."""
        with self._lock:
            return any(version.from_lsn <= lsn for version in self._versions.get(relation_id, ()))

    def before(self, relation: Relation) -> list[Relation]:
        """The versions that rows right before another one may have been written with, oldest first.

        They are the one that holds when its transaction begins, unless the first of the transaction holds for
        all of it, and those of the transaction itself. Its own position does not count: it may have been
        recorded by a session that failed thereafter.
        """
        with self._lock:
            versions = self._versions.get(relation.relation_id, [])
            own = bisect_left(versions, relation.place, key=_by_place)
            first = bisect_left(versions, relation.from_lsn, key=lambda version: version.from_lsn)
            whole = first < own and not versions[first].after_lsn
            return versions[first if whole else max(first - 1, 0) : own]

    def at(self, relation_id: int, lsn: Lsn) -> Relation | None:
        """The version of a relation that holds at an LSN; None before the first."""
        with self._lock:
            versions = self._versions.get(relation_id, [])
            place = bisect_right(versions, lsn, key=lambda version: version.from_lsn)
            return versions[place - 1] if place else None

    def missing(self, relation_id: int) -> dict[int, str | None]:
        """`Column.missing` of each column of a relation, by attnum, in the first version that has the column.

        That version is the one by which silver adds the column.
        """
        with self._lock:
            found: dict[int, str | None] = {}
            for version in self._versions.get(relation_id, ()):
                for column in version.columns:
                    if column.attnum is not None:
                        found.setdefault(column.attnum, column.missing)
            return found

    def unknown_columns(self) -> dict[int, Lsn]:
        """By relation: the newest version with a column of which nobody knows which it was.

        The catalog had no column of its name any more when the stream announced it. The reader asks several
        times a second, so this is kept while versions are recorded, and not looked for in all of them.
        """
        with self._lock:
            return dict(self._unknown)

    def _note_unknown(self, relation_id: int, versions: Sequence[Relation]) -> None:
        unknown = [one.from_lsn for one in versions if any(c.attnum is None for c in one.columns)]
        self._unknown.pop(relation_id, None)
        if unknown:
            self._unknown[relation_id] = max(unknown)

    def _completed(self, relation: Relation) -> Relation:
        known: dict[int | None, str] = {
            column.attnum: column.missing
            for version in self._versions.get(relation.relation_id, ())
            for column in version.columns
            if column.attnum is not None and column.missing is not None
        }
        columns = [
            column if column.missing is not None else replace(column, missing=known.get(column.attnum))
            for column in relation.columns
        ]
        return replace(relation, columns=tuple(columns))


def _put(versions: list[Relation], relation: Relation, *, always: bool) -> bool:
    """Put a version at its position; False if the version that holds there is the same.

    With `always` False only if it begins there, too.
    """
    at = bisect_right(versions, relation.place, key=_by_place)
    former = versions[at - 1] if at else None
    here = former is not None and former.place == relation.place
    if former is not None and same_shape(former, relation) and (here or not always):
        return False
    versions[at - here : at] = [relation]
    return True


def _by_place(version: Relation) -> tuple[Lsn, Lsn]:
    return version.place


def _row(relation: Relation, recorded: datetime) -> dict[str, Any]:
    return {
        "relation_id": relation.relation_id,
        "from_lsn": int(relation.from_lsn),
        "after_lsn": int(relation.after_lsn),
        "table_schema": relation.table.schema,
        "table_name": relation.table.name,
        "replica_identity": relation.replica_identity,
        "key": list(relation.key),
        "key_unique": relation.key_unique,
        "columns": [
            {
                "name": column.name,
                "attnum": column.attnum,
                "type_oid": column.type.oid,
                "typmod": column.type.typmod,
                "type": column.type_text,
                "type_tree": column.type.to_json(),
                "not_null": column.not_null,
                "in_identity": column.in_identity,
                "missing": column.missing,
            }
            for column in relation.columns
        ],
        "recorded_at": recorded,
    }


def _relation(row: dict[str, Any]) -> Relation:
    return Relation(
        relation_id=row["relation_id"],
        table=TableName(row["table_schema"], row["table_name"]),
        columns=tuple(
            Column(
                name=column["name"],
                attnum=column["attnum"],
                type=PgType.from_json(column["type_tree"]),
                type_text=column["type"],
                not_null=column["not_null"],
                in_identity=column["in_identity"],
                missing=column.get("missing"),
            )
            for column in row["columns"]
        ),
        key=tuple(row["key"]),
        replica_identity=row["replica_identity"],
        from_lsn=Lsn(row["from_lsn"]),
        after_lsn=Lsn(row.get("after_lsn") or 0),  # a lake from before shapes within transactions has none
        key_unique=bool(row.get("key_unique")),
    )
