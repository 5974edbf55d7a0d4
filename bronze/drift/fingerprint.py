"""A fingerprint of all that the catalog says of the tables that are read: cheap enough to ask every second.

It is new whenever a statement may have changed rows without an event, or the publication. An ALTER TABLE that
rewrites a table or a partition, or adds a column, writes its row in pg_class; so does a DROP TABLE. A
partition that comes or goes writes pg_inherits. The publication's parts are rows of their own. Each such
write makes a new version of the row, which has a new xmin. What VACUUM and ANALYZE note in pg_class is
written in place.

Equal fingerprints say nothing of what hangs on no such row: a type that changes without a rewrite, a label of
an enum, a field of a composite type. (pg_attribute alone would cost ten times all the rest.) Nor do they of
tables that are not known yet. The full look, now and then, finds those.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

_HASH: Final = "coalesce(bit_xor(hashtextextended(concat_ws(' ', {}), 0)), 0)"
_QUERY: Final = f"""
    SELECT (SELECT concat_ws(' ', count(*), {_HASH.format("c.oid, c.xmin")})
            FROM pg_class c WHERE c.oid = ANY (%(oids)s::oid[])),
           (SELECT concat_ws(' ', count(*), {_HASH.format("i.inhrelid, i.inhparent, i.xmin")})
            FROM pg_inherits i WHERE i.inhparent = ANY (%(oids)s::oid[])),
           (SELECT concat_ws(' ', p.oid, p.xmin) FROM pg_publication p WHERE p.pubname = %(publication)s),
           (SELECT concat_ws(' ', count(*), {_HASH.format("r.oid, r.xmin")})
            FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
            WHERE p.pubname = %(publication)s){{schemas}}
"""
_SCHEMAS: Final = f""",
           (SELECT concat_ws(' ', count(*), {_HASH.format("s.oid, s.xmin")})
            FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
            WHERE p.pubname = %(publication)s)"""


def catalog_fingerprint(
    connection: psycopg.Connection[Any], publication: str, oids: Collection[int]
) -> tuple[Any, ...]:
    """A fingerprint of the catalog's state now; equal where nothing of this kind happened.

    Args:
        connection: in autocommit mode.
        publication: its name.
        oids: of the tables and all their partitions.
    """
    schemas = _SCHEMAS if connection.info.server_version >= 150000 else ""
    query = _QUERY.format(schemas=schemas)
    row = connection.execute(query.encode(), {"oids": list(oids), "publication": publication}).fetchone()
    return tuple(row or ())
