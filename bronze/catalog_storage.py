"""What `bronze.storage` compares, asked of pg_catalog: three round trips for all tables together."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from bronze.storage import Part, Storage, StoredColumn

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

_TREE: Final = """
    WITH RECURSIVE tree (root, oid, attached) AS (
        SELECT r.oid, r.oid, 0::bigint FROM unnest(%(oids)s::oid[]) AS r (oid)
        UNION ALL
        SELECT tree.root, i.inhrelid, i.xmin::text::bigint
        FROM tree
        JOIN pg_class parent ON parent.oid = tree.oid AND parent.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = tree.oid
    )
"""

_PARTS_QUERY: Final = f"""{_TREE}
    SELECT tree.root,
           c.oid,
           c.oid::regclass::text,
           c.relfilenode::bigint,
           tree.attached,
           c.oid = tree.root OR EXISTS (
               SELECT
               FROM pg_attribute a
               JOIN pg_attribute made ON made.attrelid = a.attrelid AND made.attname = 'tableoid'
               WHERE a.attrelid = c.oid AND a.attnum > 0
                 AND a.xmin = made.xmin AND a.cmin = made.cmin)
    FROM tree
    JOIN pg_class c ON c.oid = tree.oid
"""

_COLUMNS_QUERY: Final = f"""{_TREE}
    SELECT a.attrelid,
           a.attnum,
           a.attname,
           a.xmin::text::bigint,
           a.atthasmissing OR EXISTS (
               SELECT
               FROM tree
               JOIN pg_attribute leaf ON leaf.attrelid = tree.oid AND leaf.attname = a.attname
               WHERE tree.root = a.attrelid AND leaf.atthasmissing)
    FROM pg_attribute a
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
"""

_MEMBERS_QUERY: Final = """
    SELECT c.oid, coalesce(r.oid, {namespace} CASE WHEN p.puballtables THEN p.oid END, 0)::bigint
    FROM pg_publication p
    JOIN pg_class c ON c.oid = ANY (%(oids)s::oid[])
    LEFT JOIN pg_publication_rel r ON r.prpubid = p.oid AND r.prrelid = c.oid
    {join}
    WHERE p.pubname = %(publication)s
"""


def storage_of(
    connection: psycopg.Connection[Any], types: Mapping[int, Mapping[int, str]], publication: str
) -> dict[int, Storage]:
    """What the catalog says of these tables now, by OID.

    Args:
        connection: inside the transaction whose snapshot is to be used.
        types: JSON of the type of each published column, by attnum, of each table, by OID.
        publication: whose members they are.
    """
    wanted = {"oids": list(types), "publication": publication}
    parts: dict[int, dict[int, Part]] = defaultdict(dict)
    for root, oid, name, file, attached, born in connection.execute(_PARTS_QUERY, wanted):
        parts[root][oid] = Part(name, file, attached, born)
    columns: dict[int, dict[int, StoredColumn]] = defaultdict(dict)
    for oid, attnum, name, written, missing in connection.execute(_COLUMNS_QUERY, wanted):
        columns[oid][attnum] = StoredColumn(name, types[oid].get(attnum), written, missing)
    schemas = connection.info.server_version >= 150000
    query = _MEMBERS_QUERY.format(
        namespace="s.oid," if schemas else "",
        join="LEFT JOIN pg_publication_namespace s ON s.pnpubid = p.oid AND s.pnnspid = c.relnamespace"
        if schemas
        else "",
    )
    members: dict[int, int] = dict(connection.execute(query.encode(), wanted).fetchall())
    return {oid: Storage(oid, members.get(oid, 0), columns[oid], parts[oid]) for oid in types}
