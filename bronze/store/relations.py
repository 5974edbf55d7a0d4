"""`bronze.relations`: every version of every table's shape, appended before the first change that needs it.

The reader commits a shape before it commits rows of this shape to `bronze.changes`. So a process that finds a
row also finds the row's shape. A crash between the two commits leaves a shape without rows, which is
harmless. After the restart the stream announces the shape again, at the same position, and the reader does
not append the shape twice.

**The shape of a row** follows from the position alone, never from names: two columns may have had one name,
and a transaction may change a shape many times. A version's position is (`from_lsn`, `after_lsn`); the reader
reads both from the log itself. In repeated reads of the log, a version may get different positions, but no
change of the table lies between them.

**If the append fails**, the reader remembers nothing. In the next session the stream announces the shape
again, and the reader appends the shape then. If the failed append succeeded after all, the version is
recorded twice, with the effect of a single record.
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
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lsn import LAST, Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation, same_shape
from deltasmelt.bronze.store.contract import RELATIONS, RELATIONS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table

    _Recorded = tuple[Relation, datetime]


class RelationsWatch:
    """Reader of one lake's shapes, which reads only new files on each call.

    Any thread may call the reader.
    """

    def __init__(self, lake: Lake) -> None:
        self._cached = CachedTable(lake.uri("bronze", RELATIONS))
        self._lock = threading.Lock()
        self._table: Table | None = None
        self._version = -1
        self._files: dict[str, list[_Recorded]] = {}
        self._relations: list[Relation] = []

    def read(self) -> list[Relation]:
        """Return all versions of all shapes, ordered by relation and start position.

        Raises:
            DeltaError, OSError: the lake cannot be read.
        """
        with self._lock:
            table = self._cached.newest()
            if table is None:
                return []
            if table is not self._table:
                self._table, self._version, self._files = table, -1, {}
            if table.version() != self._version:
                paths = table.paths()
                self._files = {path: self._files.get(path) or _recorded(table, path) for path in paths}
                self._relations = _in_order([shape for files in self._files.values() for shape in files])
                self._version = table.version()
            return list(self._relations)


def read_relations(lake: Lake) -> list[Relation]:
    """Return all versions of all shapes, read once, ordered by relation and start position."""
    return RelationsWatch(lake).read()


def relations_of(table: Table) -> list[Relation]:
    """Return all versions of an open `bronze.relations`, ordered by relation and position.

    Each relation and position has one version.
    """
    return _in_order([shape for path in table.paths() for shape in _recorded(table, path)])


def _recorded(table: Table, path: str) -> list[_Recorded]:
    """Return the versions in a file, each with the time of its record."""
    return [(_relation(row), row["recorded_at"]) for row in table.read_file(path).to_pylist()]


def _in_order(versions: list[_Recorded]) -> list[Relation]:
    # One position may be recorded twice, because the catalog had more facts the second time. The later record
    # counts: no row of the shape was durable before.
    versions.sort(key=lambda version: (version[0].relation_id, *version[0].place, version[1]))
    return list({(shape.relation_id, shape.place): shape for shape, _ in versions}.values())


def append_relations(table: Table, relations: Sequence[Relation]) -> None:
    """Append versions of shapes in one commit."""
    recorded = datetime.now(UTC)
    rows = [_row(relation, recorded) for relation in relations]
    table.append(pa.Table.from_pylist(rows, schema=RELATIONS_SCHEMA), widen=True)


class ShapeLog:
    """`bronze.relations` for writers: a shape is appended if it differs from the shape before.

    Safe to share: the stream and snapshots record shapes in parallel.
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
        """Prevent other threads from reading or recording versions within the block."""
        with self._lock:
            yield

    def tables(self) -> set[TableName]:
        """Return every table with a known version."""
        with self._lock:
            return {shape.table for versions in self._versions.values() for shape in versions}

    def names(self, relation_id: int) -> set[TableName]:
        """Return every table name in the known versions of a relation."""
        with self._lock:
            return {shape.table for shape in self._versions.get(relation_id, ())}

    def until(self, lsn: Lsn) -> list[Relation]:
        """Return the versions that begin at or before an LSN, in order.

        A stream that continues from `lsn` knows only the returned versions.
        """
        with self._lock:
            return [
                shape for versions in self._versions.values() for shape in versions if shape.from_lsn <= lsn
            ]

    def record(self, relations: Sequence[Relation], *, ahead: bool = False) -> None:
        """Make versions durable, except versions without a difference.

        A version is left out if it equals the version at its position. This is correct as long as no thread
        inserts another version between the two. The stream's versions come in order. The versions of a
        snapshot or a poll come ahead of the stream, which may still announce earlier shapes; so `record`
        always records them. Later versions of the stream are compared with them.

        Args:
            relations: the versions; versions of one relation in order.
            ahead: whether the stream may still announce shapes from before these versions.
        """
        with self._lock:
            new_versions: dict[int, list[Relation]] = {}
            new = []
            # The catalog may no longer have the value in rows older than a column (`Column.missing`); another
            # version of the relation has the value.
            for relation in map(self._completed, relations):
                former = self._versions.get(relation.relation_id, [])
                versions = new_versions.setdefault(relation.relation_id, list(former))
                # No version is compared too early. Until the record, a copy locks the table, so that no later
                # shape begins. A poll holds the versions (`held`), so that no later shape is compared.
                if _put(versions, relation, always=ahead):
                    new.append(relation)
            if new:
                self._append(new)
                self._versions.update(new_versions)
                for relation_id, versions in new_versions.items():
                    self._note_unknown(relation_id, versions)

    def knows(self, relation_id: int, lsn: Lsn = LAST) -> bool:
        """Check whether a version of a relation begins at or before an LSN."""
        with self._lock:
            return any(version.from_lsn <= lsn for version in self._versions.get(relation_id, ()))

    def before(self, relation: Relation) -> list[Relation]:
        """Return the possible versions of rows right before another version, oldest first.

        The result has the version at the start of the transaction, and the earlier versions of the
        transaction itself.
        """
        with self._lock:
            versions = self._versions.get(relation.relation_id, [])
            # A record at the version's own position does not count: the record may come from a session that
            # failed afterwards.
            place = bisect_left(versions, relation.place, key=_by_place)
            first = bisect_left(versions, relation.from_lsn, key=lambda version: version.from_lsn)
            # The version before is left out if the transaction's first version describes the whole
            # transaction.
            starts_inside = first < place and not versions[first].after_lsn
            return versions[first if starts_inside else max(first - 1, 0) : place]

    def at(self, relation_id: int, lsn: Lsn) -> Relation | None:
        """Return the version of a relation at an LSN; None before the first version."""
        with self._lock:
            versions = self._versions.get(relation_id, [])
            place = bisect_right(versions, lsn, key=lambda version: version.from_lsn)
            return versions[place - 1] if place else None

    def missing(self, relation_id: int) -> dict[int, str | None]:
        """Return `Column.missing` of each column of a relation, by attnum, from the column's first version.

        Silver adds the column by this version.
        """
        with self._lock:
            missing: dict[int, str | None] = {}
            for version in self._versions.get(relation_id, ()):
                for column in version.columns:
                    if column.attnum is not None:
                        missing.setdefault(column.attnum, column.missing)
            return missing

    def unknown_columns(self) -> dict[int, Lsn]:
        """Return by relation the LSN of the newest version with an unidentified column.

        The catalog had lost the column's name when the stream announced the column.
        """
        with self._lock:
            # The reader calls this method several times a second, so no call may search all versions.
            return dict(self._unknown)

    def _note_unknown(self, relation_id: int, versions: Sequence[Relation]) -> None:
        unknown = [shape.from_lsn for shape in versions if any(c.attnum is None for c in shape.columns)]
        self._unknown.pop(relation_id, None)
        if unknown:
            self._unknown[relation_id] = max(unknown)

    def _completed(self, relation: Relation) -> Relation:
        defaults: dict[int | None, str] = {
            column.attnum: column.missing
            for version in self._versions.get(relation.relation_id, ())
            for column in version.columns
            if column.attnum is not None and column.missing is not None
        }
        columns = [
            column if column.missing is not None else replace(column, missing=defaults.get(column.attnum))
            for column in relation.columns
        ]
        return replace(relation, columns=tuple(columns))


def _put(versions: list[Relation], relation: Relation, *, always: bool) -> bool:
    """Put a version at its position; return False if the version at this position is equal.

    With `always`, an equal version is left out only if it also begins at this position.
    """
    at = bisect_right(versions, relation.place, key=_by_place)
    former = versions[at - 1] if at else None
    is_same_place = former is not None and former.place == relation.place
    if former is not None and same_shape(former, relation) and (is_same_place or not always):
        return False
    versions[at - is_same_place : at] = [relation]
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
        after_lsn=Lsn(row.get("after_lsn") or 0),  # absent in a lake of an early release
        key_unique=bool(row.get("key_unique")),
    )
