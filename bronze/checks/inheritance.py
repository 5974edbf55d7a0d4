"""Findings about classic table inheritance: a query of a parent shows rows that belong to children.

``SELECT … FROM parent`` returns the rows of the parent and of all children (PostgreSQL docs, 5.11). The log
and a copy name each child separately, so silver's table of the parent holds only the parent's own rows. A
child that the patterns select is a separate silver table. The rows of all unselected children are in no
layer. This includes the rows of a hypertable, because chunks hold all rows of a hypertable.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.unnamed import unnamed_tables

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.source_table import SourceTable

_CHILDREN_QUERY: Final = """
    WITH RECURSIVE child (parent, oid) AS (
        SELECT i.inhparent, i.inhrelid
        FROM pg_inherits i
        WHERE i.inhparent = ANY (%(oids)s::oid[])
        UNION
        SELECT child.parent, i.inhrelid
        FROM child
        JOIN pg_inherits i ON i.inhparent = child.oid
    )
    SELECT child.parent, n.nspname, c.relname
    FROM child
    JOIN pg_class c ON c.oid = child.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid <> ALL (%(unnamed)s::oid[])
    ORDER BY n.nspname, c.relname
"""
_SHOWN: Final = 5


def inheritance_findings(
    connection: psycopg.Connection[Any], tables: Sequence[SourceTable]
) -> Iterator[Finding]:
    """Yield a finding for each selected table with children, whose rows silver's table does not hold."""
    parents = {table.relation.relation_id: table.table for table in tables if table.kind == "r"}
    selected = {table.table for table in tables}
    children: dict[int, list[TableName]] = defaultdict(list)
    parameters = {"oids": list(parents), "unnamed": list(unnamed_tables(connection))}
    for parent, schema, name in connection.execute(_CHILDREN_QUERY, parameters):
        children[parent].append(TableName(schema, name))
    for parent, heirs in children.items():
        outside = [child for child in heirs if child not in selected]
        yield Finding(
            level="warning" if outside else "info",
            code="inherited-rows",
            subject=str(parents[parent]),
            message="a query of this table also shows the rows of tables that inherit from the table; "
            + (
                f"the patterns do not select {_names_of(outside)}, so silver lacks the rows of these tables"
                if outside
                else f"silver has the rows of {_names_of(heirs)} in separate tables"
            ),
            remedy=f"select these tables as well, each with a key: add {_patterns(outside)} to "
            "source.tables; combine them with this table where documents or queries need all rows"
            if outside
            else None,
        )


def _names_of(tables: Sequence[TableName]) -> str:
    names = ", ".join(map(str, tables[:_SHOWN]))
    return f"{names} … ({len(tables)} tables)" if len(tables) > _SHOWN else names


def _patterns(tables: Sequence[TableName]) -> str:
    """Return patterns for these tables: the names; of many tables, the common prefix in each schema."""
    if len(tables) <= _SHOWN:
        return ", ".join(map(str, tables))
    by_schema: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        by_schema[table.schema].append(table.name)
    return ", ".join(f"{schema}.{_beginning(names)}*" for schema, names in by_schema.items())


def _beginning(names: Sequence[str]) -> str:
    pairs = zip(min(names), max(names), strict=False)
    return "".join(first for first, _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
