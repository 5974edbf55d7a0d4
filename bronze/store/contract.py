"""The table contract of bronze: what every later layer may rely on.

`bronze.changes` holds each change once, in commit order, values in PostgreSQL's own text. `bronze.relations`
holds one row per version of a table's shape. Both are append-only Delta tables (``delta.appendOnly``).

A transaction becomes visible in `bronze.changes` by one Delta commit, whatever its size: parts of a large
transaction are written as parquet files first and named by a single commit at its end. So every reader of
bronze sees whole transactions.

Where the stream stands, and each table, is said by marks (`bronze.store.marks`). Identity of the lake is in
the table properties named below.

The format of a lake: one number for all that is on disk besides the tables' own columns.

It counts the meaning of marks (`bronze.store.marks`), of table properties, of control tables and of folders'
names. A release that gives one of them another meaning raises it. The number is a property of
`bronze.changes`, set when that table is made. A lake with another number is refused before a row of it is
read or written, for a mark that is misread loses changes silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.errors import DefiniteError

if TYPE_CHECKING:
    from deltalake import DeltaTable

FORMAT: Final = "1"
"""What this release reads and writes."""
FORMAT_PROPERTY: Final = "deltasmelt.format"
"""Property of `bronze.changes` that holds it."""


def require_format(changes: DeltaTable) -> None:
    """Refuse a lake of another format.

    Args:
        changes: an open `bronze.changes`.

    Raises:
        DefiniteError: ``lake-format``.
    """
    found = changes.metadata().configuration.get(FORMAT_PROPERTY)
    if found != FORMAT:
        has = "no format number, as before the first release" if found is None else f"format {found}"
        raise DefiniteError(
            f"this lake has {has}; this deltasmelt reads and writes format {FORMAT}",
            code="lake-format",
            where=changes.table_uri,
            remedy="use the release that made it; or give another lake.path and another source.slot, where "
            "every table gets a new snapshot",
        )


CHANGES: Final = "changes"
RELATIONS: Final = "relations"
PIPELINE_PROPERTY: Final = "deltasmelt.pipeline"
SYSTEM_PROPERTY: Final = "deltasmelt.system_identifier"
DATABASE_PROPERTY: Final = "deltasmelt.database"
OP_INSERT: Final = "insert"
OP_UPDATE: Final = "update"
OP_DELETE: Final = "delete"
OP_TRUNCATE: Final = "truncate"
OP_SNAPSHOT: Final = "snapshot"
OP_SNAPSHOT_END: Final = "snapshot_end"
OP_MESSAGE: Final = "message"
_TEXTS: Final = pa.list_(pa.field("element", pa.string()))
CHANGES_SCHEMA: Final = pa.schema(
    [
        pa.field("commit_lsn", pa.int64()),
        pa.field("seq", pa.int64()),
        pa.field("lsn", pa.int64()),
        pa.field("xid", pa.int64()),
        pa.field("commit_ts", pa.timestamp("us", tz="UTC")),
        pa.field("op", pa.string()),
        pa.field("table_schema", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("relation_id", pa.int64()),
        pa.field("columns", _TEXTS),
        pa.field("new", _TEXTS),
        pa.field("old", _TEXTS),
        pa.field("old_is_key", pa.bool_()),
        pa.field("unchanged", _TEXTS),
        pa.field("end_of_tx", pa.bool_()),
        pa.field("ingested_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""`bronze.changes`.

`columns` are the relation's column names in message order; `new` and `old` are parallel to it (NULL list
where PostgreSQL sent no such tuple). In `old` with `old_is_key`, cells outside the identity are NULL and mean
"not sent". `unchanged` names the columns whose out-of-line value was not sent; their cell in `new` is NULL.
It is NULL (not an empty list) where there are none. For `truncate` one row per relation. For `message`:
`columns` is [prefix, content]. For `snapshot` rows `commit_lsn` is the snapshot's LSN (its consistent point
less one), `seq` is unique per table and snapshot, `xid` is NULL; `snapshot_end` closes the snapshot of one
table: every `snapshot` row with its `commit_lsn` and table belongs to it, and only then do they count.
"""
RELATIONS_SCHEMA: Final = pa.schema(
    [
        pa.field("relation_id", pa.int64()),
        pa.field("from_lsn", pa.int64()),
        pa.field("after_lsn", pa.int64()),
        pa.field("table_schema", pa.string()),
        pa.field("table_name", pa.string()),
        pa.field("replica_identity", pa.string()),
        pa.field("key", _TEXTS),
        pa.field("key_unique", pa.bool_()),
        pa.field(
            "columns",
            pa.list_(
                pa.field(
                    "element",
                    pa.struct(
                        [
                            pa.field("name", pa.string()),
                            pa.field("attnum", pa.int32()),
                            pa.field("type_oid", pa.int64()),
                            pa.field("typmod", pa.int32()),
                            pa.field("type", pa.string()),
                            pa.field("type_tree", pa.string()),
                            pa.field("not_null", pa.bool_()),
                            pa.field("in_identity", pa.bool_()),
                            pa.field("missing", pa.string()),
                        ]
                    ),
                )
            ),
        ),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""`bronze.relations`: a version holds for the changes of its `relation_id` after (`from_lsn`, `after_lsn`),
in the order of (`commit_lsn`, `lsn`), until the next.

`from_lsn` is the commit LSN of the transaction in which pgoutput announced the shape (or the snapshot's LSN).
`after_lsn` is 0 where the version holds for all of that transaction's changes of the table. Where the table
has changes in it from before the shape was another, it is the `lsn` of the last change before the new shape.
A transaction may have many versions of one table. `table_schema` and `table_name` are the name that the table
has when the transaction ends, where that is known: names that it has only inside of one are nobody's.
`key` is the row key that silver folds by: key override, else primary key, else replica identity index;
empty when there is none; `key_unique` whether an index of the source holds it to be unique. `type` is
format_type()'s text; `type_tree` the JSON of `bronze.shapes.PgType`; `missing` the text of the value that
rows from before the column hold in it (ADD COLUMN … DEFAULT), NULL where they hold none or it is not known.
"""
REPEATING: Final = ("op", "table_schema", "table_name", "columns.list.element", "unchanged.list.element")
"""Columns of `bronze.changes` whose values repeat; only these get a dictionary."""
MEASURED: Final = ("commit_lsn", "seq", "table_schema", "table_name", "op")
"""Columns of `bronze.changes` whose least and greatest values go into Delta's statistics."""
SAME_IN_A_SNAPSHOT: Final = ("commit_lsn", "lsn", "commit_ts", "relation_id", "ingested_at")
"""Columns that hold one value, or few, in all rows of a snapshot."""
_SAME: Final = pa.dictionary(pa.int32(), pa.string())
ROWS_SCHEMA: Final = pa.schema(
    [
        field.with_type({"columns": pa.list_(pa.field("element", _SAME))}.get(field.name, _SAME))
        if field.name in ("op", "table_schema", "table_name", "columns")
        else field
        for field in CHANGES_SCHEMA
    ]
)
"""`CHANGES_SCHEMA` where what repeats is a dictionary: parquet takes it over as it is, without hashing."""
