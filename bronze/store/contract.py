"""The table contract of bronze: the facts that every later layer may rely on.

`bronze.changes` contains each change once, in commit order, with values in PostgreSQL's own text.
`bronze.relations` has one row for each version of a table's shape. Both are append-only Delta tables
(``delta.appendOnly``), except that a pipeline with `bronze.retention` removes whole files of old changes, and
that `smelt forget` rewrites the files with one subject's records.

A transaction becomes visible in `bronze.changes` by one Delta commit, whatever its size: the reader first
writes parts of a large transaction as parquet files, and a single commit at the transaction's end names all
parts. Every reader of bronze therefore sees whole transactions.

Marks (`bronze.store.marks`) record the position of the stream and the state of each table. The table
properties below identify the lake.

**Format.** A single number is the format of everything on disk besides the tables' own columns: the meaning
of marks (`bronze.store.marks`), of table properties, of control tables and of folder names. A release that
changes a meaning raises the number. The number is a property of `bronze.changes`, set when the table is
created. A lake with an unknown number is refused before any row is read or written, because a misread mark
silently loses changes. Format 2 is format 1 without old changes (`bronze.store.retention`): the first removal
raises the number, because a release without the mark of the boundary would begin tables with removed changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.errors import DefiniteError

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.table import Table

FORMAT: Final = "1"
"""The format of a lake with all changes."""
FORMAT_OF_REMOVALS: Final = "2"
"""The format of a lake from the first removal of old changes on."""
FORMAT_PROPERTY: Final = "deltasmelt.format"
"""The property of `bronze.changes` with the format."""


def require_format(changes: Table) -> None:
    """Refuse a lake of another format, by an open `bronze.changes`.

    Raises:
        DefiniteError: ``lake-format``.
    """
    number = changes.metadata().configuration.get(FORMAT_PROPERTY)
    if number not in (FORMAT, FORMAT_OF_REMOVALS):
        form = "no format number, as before the first release" if number is None else f"format {number}"
        raise DefiniteError(
            f"this lake has {form}; this deltasmelt reads and writes formats {FORMAT} and "
            f"{FORMAT_OF_REMOVALS}",
            code="lake-format",
            where=changes.table_uri,
            remedy="use the release that created the lake, or a newer one; or set another lake.path and "
            "another source.slot, where every table gets a new snapshot",
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
OP_ERASED: Final = "erased"
OPERATIONS: Final = frozenset(
    {OP_INSERT, OP_UPDATE, OP_DELETE, OP_TRUNCATE, OP_SNAPSHOT, OP_SNAPSHOT_END, OP_MESSAGE, OP_ERASED}
)
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
        # the relation's column names in message order; `new` and `old` are parallel lists
        pa.field("columns", _TEXTS),
        # NULL if PostgreSQL sent no such tuple
        pa.field("new", _TEXTS),
        # NULL if PostgreSQL sent no such tuple. With `old_is_key`, cells outside the identity are NULL and
        # mean "not sent".
        pa.field("old", _TEXTS),
        pa.field("old_is_key", pa.bool_()),
        # The columns whose out-of-line value was not sent; their cells in `new` are NULL. NULL (not an empty
        # list) without such columns.
        pa.field("unchanged", _TEXTS),
        pa.field("end_of_tx", pa.bool_()),
        pa.field("ingested_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""`bronze.changes`.

For `truncate` there is a row for each relation. For `message`: `columns` is [prefix, content]. For `snapshot`
rows `commit_lsn` is the snapshot's LSN (its consistent point less one), `seq` is unique per table and
snapshot, `xid` is NULL. `snapshot_end` closes the snapshot of one table: every `snapshot` row with the
`commit_lsn` and table of `snapshot_end` belongs to the snapshot. `snapshot` rows count only with
`snapshot_end`. `erased` was a record of the stream until `smelt forget` removed its values: only its place,
its transaction and its table are left (`bronze.store.erasure`).
"""
RELATIONS_SCHEMA: Final = pa.schema(
    [
        pa.field("relation_id", pa.int64()),
        # commit LSN of the transaction in which pgoutput announced the shape, or the snapshot's LSN
        pa.field("from_lsn", pa.int64()),
        # 0 if the version describes all changes of the table in this transaction; otherwise the `lsn` of the
        # transaction's last change before the new shape. A transaction may have many versions of one table.
        pa.field("after_lsn", pa.int64()),
        pa.field("table_schema", pa.string()),
        pa.field("table_name", pa.string()),
        # The names above are the table's at the transaction's end, if known: a temporary name inside of a
        # transaction never counts.
        pa.field("replica_identity", pa.string()),
        # the row key that silver folds by: key override, else primary key, else replica identity index; empty
        # without a key
        pa.field("key", _TEXTS),
        # whether an index of the source keeps the key unique
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
                            # text of format_type()
                            pa.field("type", pa.string()),
                            # JSON of `bronze.shapes.PgType`
                            pa.field("type_tree", pa.string()),
                            pa.field("not_null", pa.bool_()),
                            pa.field("in_identity", pa.bool_()),
                            # text of the column's value in rows older than the column (ADD COLUMN … DEFAULT);
                            # NULL without a value or if unknown
                            pa.field("missing", pa.string()),
                        ]
                    ),
                )
            ),
        ),
        pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
    ]
)
"""`bronze.relations`: the versions of each relation's shape.

A version describes the changes of its `relation_id` after (`from_lsn`, `after_lsn`), in the order of
(`commit_lsn`, `lsn`), until the next version.
"""
REPEATING: Final = ("op", "table_schema", "table_name", "columns.list.element", "unchanged.list.element")
"""Columns of `bronze.changes` with repeating values; only these columns get a dictionary."""
MEASURED: Final = ("commit_lsn", "seq", "relation_id", "table_schema", "table_name", "op")
"""Columns of `bronze.changes` whose least and greatest values go into Delta's statistics.

Files of an earlier release may lack a column; then any row may be in the file.
"""
SAME_IN_A_SNAPSHOT: Final = ("commit_lsn", "lsn", "commit_ts", "relation_id", "ingested_at")
"""Columns with one value, or few values, in all rows of a snapshot."""
_SAME: Final = pa.dictionary(pa.int32(), pa.string())
ROWS_SCHEMA: Final = pa.schema(
    [
        field.with_type({"columns": pa.list_(pa.field("element", _SAME))}.get(field.name, _SAME))
        if field.name in ("op", "table_schema", "table_name", "columns")
        else field
        for field in CHANGES_SCHEMA
    ]
)
"""`CHANGES_SCHEMA` with dictionaries for repeating values: parquet copies a dictionary without hashing."""
