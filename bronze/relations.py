"""`bronze.relations`: every version of every table's shape, appended before the first change that needs it.

The reader commits a shape before the commit of `bronze.changes` that holds rows of that shape. So whoever
finds a row finds its shape; a crash between the two leaves a shape that no row uses yet, which is harmless:
the stream announces it again after the restart, and the same version (relation and LSN) is then not appended
twice.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bronze import delta
from bronze.identifiers import TableName
from bronze.lsn import Lsn
from bronze.shapes import Column, PgType, Relation
from bronze.tables import RELATIONS, RELATIONS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltalake import DeltaTable

    from bronze.lake import Lake


def read_relations(lake: Lake) -> list[Relation]:
    """All versions of all shapes, ordered by relation and the LSN from which they hold."""
    table = delta.open_table(delta.location(lake, "bronze", RELATIONS))
    return [] if table is None else relations_of(table)


def relations_of(table: DeltaTable) -> list[Relation]:
    """All versions that an open `bronze.relations` holds, ordered by relation and LSN.

    One for each of both.
    """
    rows = [row for path in delta.paths_of(table) for row in delta.read_file(table, path).to_pylist()]
    rows.sort(key=lambda row: (row["relation_id"], row["from_lsn"], row["recorded_at"]))
    return list({(row["relation_id"], row["from_lsn"]): _relation(row) for row in rows}.values())


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
        self._lock = threading.Lock()
        self._versions: dict[int, list[Relation]] = {}
        for relation in known:
            self._insert(relation)

    def until(self, lsn: Lsn) -> list[Relation]:
        """The versions that begin at or before an LSN; a stream that goes on from there knows no others."""
        with self._lock:
            return [each for versions in self._versions.values() for each in versions if each.from_lsn <= lsn]

    def record(self, relations: Sequence[Relation]) -> None:
        """Make versions durable, those that say something new.

        What rows from before a column hold in it (`Column.missing`) is taken from another version of the
        relation where this one was made when the catalog no longer told it.
        """
        with self._lock:
            completed = [self._completed(relation) for relation in relations]
            new = [relation for relation in completed if self._insert(relation)]
            if new:
                self._append(new)

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

        The catalog had no column of its name any more when the stream announced it.
        """
        with self._lock:
            return {
                relation_id: max(unknown)
                for relation_id, versions in self._versions.items()
                if (
                    unknown := [
                        one.from_lsn for one in versions if any(c.attnum is None for c in one.columns)
                    ]
                )
            }

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

    def _insert(self, relation: Relation) -> bool:
        """Put a version in its place by LSN; False if the version that holds there is the same."""
        versions = self._versions.setdefault(relation.relation_id, [])
        place = bisect_right(versions, relation.from_lsn, key=lambda version: version.from_lsn)
        if place and replace(versions[place - 1], from_lsn=relation.from_lsn) == relation:
            return False
        versions.insert(place, relation)
        return True


def _row(relation: Relation, recorded: datetime) -> dict[str, Any]:
    return {
        "relation_id": relation.relation_id,
        "from_lsn": int(relation.from_lsn),
        "table_schema": relation.table.schema,
        "table_name": relation.table.name,
        "replica_identity": relation.replica_identity,
        "key": list(relation.key),
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
    )
