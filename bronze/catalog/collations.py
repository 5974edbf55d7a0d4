"""Collations of columns: whether a collation orders text by code points, as silver and gold do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.identifiers import TableName

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

CASING: Final = """(
    SELECT CASE
        WHEN kind = 'i' OR locale = 'PG_UNICODE_FAST' THEN 'full'
        WHEN locale IN ('C', 'POSIX') THEN 'ascii'
        WHEN kind = 'c' AND locale ~ '^(tr|az|lt)' THEN locale
    END
    FROM (SELECT coalesce(to_jsonb(d) ->> 'datlocprovider', 'c') AS kind,
                 coalesce(to_jsonb(d) ->> 'datlocale', d.datctype) AS locale
          FROM pg_database d WHERE d.datname = current_database()) AS own
)"""
"""SQL for the way in which the database's lower() differs from plain lower case, letter by letter; else NULL.

``ascii``: lower() changes only letters of ASCII; ``full``: Unicode's full rules; otherwise the name of a
locale with special rules. PostgreSQL 14 has no column for the provider, and PostgreSQL 17 renamed the
locale's column; the query therefore reads both columns by name from JSON.
"""

_OTHER_ORDERS: Final = """
    SELECT n.nspname, c.relname, a.attname,
           CASE WHEN co.collprovider = 'd' THEN 'default, ' || d.datcollate ELSE co.collname END
    FROM pg_attribute a
    JOIN pg_class c ON c.oid = a.attrelid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    JOIN pg_collation co ON co.oid = a.attcollation
    JOIN pg_database d ON d.datname = current_database()
    CROSS JOIN LATERAL (
        SELECT CASE WHEN co.collprovider = 'd' THEN coalesce(to_jsonb(d) ->> 'datlocprovider', 'c')
                    ELSE co.collprovider::text END,
               CASE WHEN co.collprovider = 'd' THEN d.datcollate ELSE co.collcollate END
    ) AS by (provider, locale)
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
      AND NOT (by.provider = 'b' OR by.provider = 'c' AND by.locale ~ '^(C|POSIX)([.]|$)')
"""


def other_orders(
    connection: psycopg.Connection[Any], oids: Collection[int]
) -> dict[tuple[TableName, str], str]:
    """Return the columns whose collation does not order by code points, each with the collation."""
    rows = connection.execute(_OTHER_ORDERS, {"oids": list(oids)})
    return {(TableName(schema, table), column): collation for schema, table, column, collation in rows}
