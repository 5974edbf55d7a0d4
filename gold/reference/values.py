"""Order, compare and write the server's values as text. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.identifiers import quote_identifier
from deltasmelt.gold.language.comparing import comparison

if TYPE_CHECKING:
    from deltasmelt.bronze.shapes import PgType
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.silver.schema.catalog import SilverTable

_TEXTS: Final = frozenset(("text", "varchar", "bpchar", "name"))
C: Final = ' COLLATE "C"'
"""Documents order text by code point: in UTF-8 the collation C gives this order."""


def base_type(pg_type: PgType) -> PgType:
    """Return the type under a domain."""
    while pg_type.kind == "domain" and pg_type.element is not None:
        pg_type = pg_type.element
    return pg_type


def at_source(table: SilverTable, name: str) -> str:
    """Return the source's column behind a column that gold derives for Spark's comparisons."""
    return str(getattr(table.column(name), "origin", "") or name)


def sources(expression: Expression, table: SilverTable) -> list[str]:
    """Return the source's columns behind an expression, in a fixed order."""
    return sorted({at_source(table, name) for name in expression.columns})


def column_type(table: SilverTable, name: str) -> PgType:
    """Return a column's type; for a domain, the type under the domain."""
    return base_type(table.relation.column(name).type)


def is_text(pg_type: PgType) -> bool:
    """Check whether values are plain text, which a collation orders."""
    base = base_type(pg_type)
    return base.kind == "base" and base.schema == "pg_catalog" and base.name in _TEXTS


def is_citext(pg_type: PgType) -> bool:
    """Check whether values are texts that ignore case."""
    base = base_type(pg_type)
    return base.kind == "base" and base.schema != "pg_catalog" and base.name == "citext"


def ordered_value(table: SilverTable, name: str, alias: str) -> str:
    """Return a column in the order of documents: a key without an order in Spark is ordered by its text."""
    pg_type = column_type(table, name)
    if comparison(table.column(name)).order.refused:
        return text(value(name, alias)) + C
    if is_citext(pg_type):
        # citext itself orders by small letters under the database's rules, then by the text.
        return f'lower({value(name, alias)}::text COLLATE "default"){C}'
    element = pg_type.element if pg_type.kind in {"array", "range", "multirange"} else None
    collated = is_text(pg_type) or (pg_type.kind == "array" and element is not None and is_text(element))
    return compared_value(table, name, alias) + (C if collated else "")


def rows_at_source(table: SilverTable) -> str:
    """Return a table for FROM and LOCK: children by table inheritance are separate tables."""
    return table.table.quoted if table.relation.partitioned else f"ONLY {table.table.quoted}"


def value(name: str, alias: str) -> str:
    """Return a column of a row."""
    return f"{alias}.{quote_identifier(name)}"


def compared_value(table: SilverTable, name: str, alias: str) -> str:
    """Return a column for a comparison: PostgreSQL has no operators for a domain over an enum."""
    sql, base = value(name, alias), column_type(table, name)
    if base.kind == "enum" and table.relation.column(name).type.kind == "domain":
        return f"{sql}::{quote_identifier(base.schema)}.{quote_identifier(base.name)}"
    return sql


def equality(left: PgType, right: PgType) -> str:
    """Return the operator for equality of values of two types."""
    is_own = (
        left.kind == "base"
        and left.schema != "pg_catalog"
        and (left.schema, left.name) == (right.schema, right.name)
    )
    # A type of an extension has its operators in the extension's schema, which the search path omits. Without
    # the schema's name PostgreSQL would compare citext as text.
    return f"OPERATOR({quote_identifier(left.schema)}.=)" if is_own else "="


def text(expression: str) -> str:
    """Return the text of an expression by its type's output function; NULL for NULL."""
    # The type's output function, as in COPY and in the stream: silver's own readings convert these texts. A
    # cast to text would differ for some types (bool, inet).
    return f"CASE WHEN {expression} IS DISTINCT FROM NULL THEN format('%s', {expression}) END"
