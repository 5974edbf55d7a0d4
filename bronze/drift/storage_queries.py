"""What `bronze.drift.storage` compares, asked of pg_catalog: two round trips for all tables together."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final

from bronze.drift.storage import Part, Storage, StoredColumn
from bronze.postgres.partition_tree import TREE

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

_PARTS_QUERY: Final = f"""{TREE}
    SELECT tree.root,
           c.oid,
           c.oid::regclass::text,
           c.relfilenode::bigint,
           c.relnatts,
           c.reltoastrelid::bigint,
           tree.attached,
           c.oid = tree.root OR EXISTS (
               SELECT
               FROM pg_attribute a
               JOIN pg_attribute made ON made.attrelid = a.attrelid AND made.attname = 'tableoid'
               WHERE a.attrelid = c.oid AND a.attnum > 0
                 AND a.xmin = made.xmin AND a.cmin = made.cmin),
           c.oid = tree.root AND EXISTS (
               SELECT
               FROM pg_publication_rel r
               JOIN pg_publication p ON p.oid = r.prpubid
               WHERE r.prrelid = c.oid AND p.pubname = %(publication)s),
           CASE WHEN c.oid = tree.root THEN (
               SELECT d.xmin::text::bigint
               FROM pg_depend d
               WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.objsubid = 0
                 AND d.refclassid = 'pg_namespace'::regclass
               LIMIT 1) END
    FROM tree
    JOIN pg_class c ON c.oid = tree.oid
"""

_COLUMNS_QUERY: Final = f"""{TREE}
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


def storage_of(
    connection: psycopg.Connection[Any],
    publication: str,
    types: Mapping[int, Mapping[int, str]],
    defined: Mapping[int, Mapping[int, Mapping[str, int]]],
) -> dict[int, Storage]:
    """What the catalog says of these tables now, by OID.

    Args:
        connection: inside the transaction whose snapshot is to be used.
        publication: its name.
        types: JSON of the type of each published column, by attnum, of each table, by OID.
        defined: traces of these types, likewise.
    """
    wanted = {"oids": list(types), "publication": publication}
    parts: dict[int, dict[int, Part]] = defaultdict(dict)
    roots: dict[int, tuple[int, bool, int]] = {}
    for row in connection.execute(_PARTS_QUERY, wanted):
        root, oid, name, file, count, toast, attached, born, named, placed = row
        parts[root][oid] = Part(name, file, attached, born, toast)
        if oid == root:
            roots[root] = (count, named, placed or 0)
    columns: dict[int, dict[int, StoredColumn]] = defaultdict(dict)
    for oid, attnum, name, written, missing in connection.execute(_COLUMNS_QUERY, wanted):
        traces = defined[oid].get(attnum, {})
        columns[oid][attnum] = StoredColumn(name, types[oid].get(attnum), written, missing, traces)
    return {oid: Storage(oid, columns[oid], parts[oid], *roots.get(oid, ())) for oid in types}
