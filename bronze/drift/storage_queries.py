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
    types: Mapping[int, Mapping[int, str]],
    defined: Mapping[int, Mapping[int, Mapping[str, int]]],
) -> dict[int, Storage]:
    """What the catalog says of these tables now, by OID.

    Args:
        connection: inside the transaction whose snapshot is to be used.
        types: JSON of the type of each published column, by attnum, of each table, by OID.
        defined: traces of these types, likewise.
    """
    wanted = {"oids": list(types)}
    parts: dict[int, dict[int, Part]] = defaultdict(dict)
    attnums: dict[int, int] = dict.fromkeys(types, 0)
    for root, oid, name, file, count, attached, born in connection.execute(_PARTS_QUERY, wanted):
        parts[root][oid] = Part(name, file, attached, born)
        if oid == root:
            attnums[root] = count
    columns: dict[int, dict[int, StoredColumn]] = defaultdict(dict)
    for oid, attnum, name, written, missing in connection.execute(_COLUMNS_QUERY, wanted):
        traces = defined[oid].get(attnum, {})
        columns[oid][attnum] = StoredColumn(name, types[oid].get(attnum), written, missing, traces)
    return {oid: Storage(oid, columns[oid], parts[oid], attnums[oid]) for oid in types}
