"""A fingerprint of all that the catalog says of the tables that are read: cheap enough to ask every second.

It is new whenever a statement may have changed rows without an event, or the publication. An ALTER TABLE that
rewrites a table or a partition, or adds a column, writes its row in pg_class; so does a DROP TABLE. A
partition that comes or goes writes pg_inherits. The publication's parts are rows of their own. Each such
write makes a new version of the row, which has a new xmin. What VACUUM and ANALYZE note in pg_class is
written in place.

A primary key or an identity index that is dropped leaves rows as they are. But the application's UPDATEs of
a published table fail from then on, so the rows of pg_index that make an identity belong here.

A label of an enum is a row of pg_enum, and an attribute of a composite one of pg_attribute. Both are asked
for the types that the tables' columns have, and where there are none, not at all.

**Columns** that are renamed or dropped write pg_attribute alone, which for all tables would cost ten times
all the rest. So `ColumnsFingerprint` asks for these rows only when the server has counted an update of
pg_attribute (https://www.postgresql.org/docs/current/monitoring-stats.html). A session reports what it
counted within a second of its commit while it is busy, and within ten when it is idle from then on.

Equal fingerprints say nothing of tables that are not known yet, of columns where `track_counts` is off or the
server is PostgreSQL 14, of other indexes and of comments. The full look, now and then, finds those.
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
           (SELECT concat_ws(' ', count(*), {_HASH.format("i.indexrelid, i.xmin")})
            FROM pg_index i
            WHERE i.indrelid = ANY (%(oids)s::oid[]) AND (i.indisprimary OR i.indisreplident)),
           (SELECT concat_ws(' ', p.oid, p.xmin) FROM pg_publication p WHERE p.pubname = %(publication)s),
           (SELECT concat_ws(' ', count(*), {_HASH.format("r.oid, r.xmin")})
            FROM pg_publication_rel r JOIN pg_publication p ON p.oid = r.prpubid
            WHERE p.pubname = %(publication)s){{schemas}}{{types}}
"""
_SCHEMAS: Final = f""",
           (SELECT concat_ws(' ', count(*), {_HASH.format("s.oid, s.xmin")})
            FROM pg_publication_namespace s JOIN pg_publication p ON p.oid = s.pnpubid
            WHERE p.pubname = %(publication)s)"""


_TYPES: Final = f""",
           (SELECT concat_ws(' ', count(*), {_HASH.format("e.oid, e.xmin")})
            FROM pg_enum e WHERE e.enumtypid = ANY (%(types)s::oid[])),
           (SELECT concat_ws(' ', count(*), {_HASH.format("a.attrelid, a.attnum, a.xmin")})
            FROM pg_type t JOIN pg_attribute a ON a.attrelid = t.typrelid
            WHERE t.oid = ANY (%(types)s::oid[]) AND t.typrelid <> 0 AND a.attnum > 0)"""
_UPDATES: Final = "SELECT pg_stat_get_tuples_updated('pg_catalog.pg_attribute'::regclass)"
_COLUMNS: Final = f"""
    SELECT concat_ws(' ', count(*), {_HASH.format("a.attrelid, a.attnum, a.xmin")})
    FROM pg_attribute a WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0
"""


class ColumnsFingerprint:
    """A fingerprint of the columns of tables, read anew when the server counted an update of pg_attribute."""

    def __init__(self) -> None:
        self._of: tuple[int, Collection[int]] | None = None
        self._read = ""

    def read(self, connection: psycopg.Connection[Any], oids: Collection[int]) -> str:
        """Return the fingerprint; before PostgreSQL 15, where to ask for the count is not cheap, always one.

        Args:
            connection: in autocommit mode.
            oids: of the tables.
        """
        if connection.info.server_version < 150000:
            return ""
        updates = connection.execute(_UPDATES).fetchone()
        of = (0 if updates is None else int(updates[0]), oids)
        if of != self._of:
            row = connection.execute(_COLUMNS.encode(), {"oids": list(oids)}).fetchone()
            self._of, self._read = of, "" if row is None else str(row[0])
        return self._read


def catalog_fingerprint(
    connection: psycopg.Connection[Any], publication: str, oids: Collection[int], types: Collection[int] = ()
) -> tuple[Any, ...]:
    """A fingerprint of the catalog's state now; equal where nothing of this kind happened.

    Args:
        connection: in autocommit mode.
        publication: its name.
        oids: of the tables and all their partitions.
        types: OIDs of the enums and composites that their columns are made of.
    """
    schemas = _SCHEMAS if connection.info.server_version >= 150000 else ""
    query = _QUERY.format(schemas=schemas, types=_TYPES if types else "")
    wanted = {"oids": list(oids), "types": list(types), "publication": publication}
    row = connection.execute(query.encode(), wanted).fetchone()
    return tuple(row or ())
