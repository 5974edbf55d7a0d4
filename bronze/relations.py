"""`bronze.relations`: every version of every table's shape, appended before the first change that needs it.

The reader commits a shape before the commit of `bronze.changes` that holds rows of that shape. So whoever
finds a row finds its shape; a crash between the two leaves a shape that no row uses yet, which is harmless:
the stream announces it again after the restart, and the same version (relation and LSN) is then not appended
twice.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bronze import delta
from bronze.identifiers import TableName
from bronze.lsn import Lsn
from bronze.shapes import Column, PgType, Relation
from bronze.tables import RELATIONS, RELATIONS_SCHEMA

if TYPE_CHECKING:
    from collections.abc import Sequence

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
    rows = table.to_pyarrow_dataset().to_table().to_pylist()
    rows.sort(key=lambda row: (row["relation_id"], row["from_lsn"], row["recorded_at"]))
    return list({(row["relation_id"], row["from_lsn"]): _relation(row) for row in rows}.values())


def append_relations(table: DeltaTable, relations: Sequence[Relation]) -> None:
    """Append versions of shapes in one commit."""
    recorded = datetime.now(UTC)
    rows = [_row(relation, recorded) for relation in relations]
    delta.append(table, pa.Table.from_pylist(rows, schema=RELATIONS_SCHEMA))


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
            )
            for column in row["columns"]
        ),
        key=tuple(row["key"]),
        replica_identity=row["replica_identity"],
        from_lsn=Lsn(row["from_lsn"]),
    )
