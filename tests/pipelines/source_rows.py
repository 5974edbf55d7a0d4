"""The expected rows of silver, computed without silver: PostgreSQL's text converted to Python values.

Each value is a pair: the value of the Spark column, and PostgreSQL's text if the Spark type cannot represent
the value (else None).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from psycopg import sql

from deltasmelt.bronze.catalog.types import resolve_types
from tests.pipelines.source_values import value_of

if TYPE_CHECKING:
    from psycopg import Connection

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import PgType

Held: TypeAlias = tuple[Any, str | None]
Row: TypeAlias = dict[str, Held]


def source_rows(connection: Connection[Any], table: TableName) -> list[Row]:
    """Return every row of a source table, without generated columns."""
    columns = connection.execute(
        "SELECT attname, atttypid, atttypmod FROM pg_attribute WHERE attrelid = %s::regclass AND attnum > 0 "
        "AND NOT attisdropped AND attgenerated = '' ORDER BY attnum",
        [table.quoted],
    ).fetchall()
    trees = resolve_types(connection, [oid for _, oid, _ in columns])
    types = {name: trees.tree(oid, typmod) for name, oid, typmod in columns}
    # By output functions, as the stream: a cast drops char(n)'s padding and adds a mask to inet.
    # Rows of a table that inherits are its own; a partitioned one has none but its partitions'.
    root = connection.execute(
        "SELECT relkind = 'p' FROM pg_class WHERE oid = %s::regclass", [table.quoted]
    ).fetchone()
    query = sql.SQL("SELECT {} FROM {} {}").format(
        sql.SQL(", ").join(map(sql.Identifier, types)),
        sql.SQL("" if root is not None and root[0] else "ONLY"),
        sql.Identifier(table.schema, table.name),
    )
    # As the pipeline reads it: names of tables and functions print with their schema.
    before = connection.execute("SELECT current_setting('search_path')").fetchone()
    connection.execute("SET search_path = pg_catalog")
    result = connection.pgconn.exec_(query.as_string(connection).encode())
    connection.execute("SELECT set_config('search_path', %s, false)", before)
    return [
        {
            name: _held(type_, None if (value := result.get_value(row, at)) is None else value.decode())
            for at, (name, type_) in enumerate(types.items())
        }
        for row in range(result.ntuples)
    ]


def _held(type_: PgType, text: str | None) -> Held:
    if text is None:
        return None, None
    try:
        return value_of(type_, text), None
    except (ValueError, OverflowError):
        return None, text
