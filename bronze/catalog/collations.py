"""Collations of columns: which order text by code points, as silver and gold do, and which do not."""

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
"""How the database's lower() differs from taking each letter to its plain small letter; else NULL.

``ascii``: letters of ASCII alone; ``full``: by Unicode's full rules; else a locale with rules of its own.
PostgreSQL 14 does not name the provider, and 17 renamed the locale; both are read by name from JSON.
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
    """Return the columns of these tables whose collation orders text otherwise, with its name."""
    rows = connection.execute(_OTHER_ORDERS, {"oids": list(oids)})
    return {(TableName(schema, table), column): collation for schema, table, column, collation in rows}
