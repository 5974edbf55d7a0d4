"""Queries of pg_catalog about tables: one query for each kind of fact, one row type for each query.

The queries decide nothing; `bronze.catalog.select` combines the facts. Each query reads all tables together.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import psycopg

from deltasmelt.bronze.catalog.keys import UniqueIndex, identity_of
from deltasmelt.bronze.catalog.source_table import Partition
from deltasmelt.bronze.comments import LONGEST, Comments, bounded
from deltasmelt.bronze.drift.storage import Part, Storage, StoredColumn
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.conversion import server_encoding, to_utf8
from deltasmelt.bronze.postgres.partition_tree import TREE
from deltasmelt.bronze.postgres.unnamed import unnamed_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence


# The query returns bytes in the database's own encoding: a character that UTF-8 lacks, or bytes that are no
# text, must not fail the whole query. `_texts` writes the bytes of an inconvertible comment as \xNN.
_QUERY: Final = """
    SELECT d.objoid, d.objsubid, convert_to(left(d.description, %(longest)s), getdatabaseencoding())
    FROM pg_description d
    WHERE d.classoid = 'pg_class'::regclass AND d.objoid = ANY (%(oids)s::oid[])
"""
_LOGGER = logging.getLogger("deltasmelt.reader")
_REFUSED: Final[set[str]] = set()
"""Databases whose refusal was already logged as a warning."""


def comments_of(
    connection: psycopg.Connection[Any], columns: Mapping[int, Collection[int]]
) -> dict[int, Comments] | None:
    """Return the present comments of tables, by OID; of a root, not of the leaves. None: the server refuses.

    Args:
        connection: idle, or inside the transaction whose snapshot the query uses.
        columns: by table OID, the attnums of the replicated columns; comments of other columns are left out.
    """
    parameters = {"oids": list(columns), "longest": LONGEST + 1}
    try:
        with connection.transaction():  # a savepoint: a refusal leaves the caller's transaction usable
            rows = connection.execute(_QUERY, parameters).fetchall()
    except psycopg.DataError as error:
        # The server validates the bytes, too: one comment in a foreign encoding, as a template database may
        # bring, fails the query. Comments hold up no rows, so the reader continues without comments.
        level = logging.DEBUG if connection.info.dsn in _REFUSED else logging.WARNING
        _REFUSED.add(connection.info.dsn)
        _LOGGER.log(
            level,
            "comments of the source's tables are skipped, because PostgreSQL refuses to return them: %s",
            error,
        )
        return None
    texts = _texts(connection, [row[2] for row in rows])
    comments: dict[int, dict[int, str]] = defaultdict(dict)
    for (oid, attnum, _), text in zip(rows, texts, strict=True):
        if attnum == 0 or attnum in columns[oid]:
            comments[oid][attnum] = bounded(text)
    return {oid: Comments(oid, comments[oid].pop(0, None), comments[oid]) for oid in columns}


def _texts(connection: psycopg.Connection[Any], comments: list[bytes]) -> list[str]:
    encoding = server_encoding(connection)
    converted = comments if encoding == "UTF8" else to_utf8(connection, encoding, comments)
    return [
        original.decode("ascii", "backslashreplace") if text is None else text.decode(errors="replace")
        for original, text in zip(comments, converted, strict=True)
    ]


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
_STORAGE_QUERY: Final = f"""{TREE}
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
    """Return the present storage facts of these tables, by OID.

    Args:
        connection: inside the transaction whose snapshot the queries use.
        types: by table OID and attnum, the JSON of each published column's type.
        defined: by table OID and attnum, the traces of each column's type.
    """
    parameters = {"oids": list(types), "publication": publication}
    parts: dict[int, dict[int, Part]] = defaultdict(dict)
    roots: dict[int, tuple[int, bool, int]] = {}
    for row in connection.execute(_PARTS_QUERY, parameters):
        root, oid, name, file, count, toast, attached, born, named, placed = row
        parts[root][oid] = Part(name, file, attached, born, toast)
        if oid == root:
            roots[root] = (count, named, placed or 0)
    columns: dict[int, dict[int, StoredColumn]] = defaultdict(dict)
    for oid, attnum, name, written, missing in connection.execute(_STORAGE_QUERY, parameters):
        traces = defined[oid].get(attnum, {})
        columns[oid][attnum] = StoredColumn(name, types[oid].get(attnum), written, missing, traces)
    return {oid: Storage(oid, columns[oid], parts[oid], *roots.get(oid, ())) for oid in types}


_SIZE_LOCK_SECONDS: Final = 2
_RELATIONS_QUERY: Final = """
    SELECT c.oid,
           n.nspname,
           c.relname,
           c.relkind::text,
           c.relpersistence::text,
           c.relispartition,
           c.relreplident::text,
           has_table_privilege(c.oid, 'SELECT'),
           has_schema_privilege(n.oid, 'USAGE'),
           row_security_active(c.oid),
           pg_get_userbyid(c.relowner),
           pg_has_role(c.relowner, 'USAGE'),
           current_user
    FROM pg_class c
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f')
      AND n.nspname !~ '^pg_'
      AND n.nspname <> 'information_schema'
      AND NOT EXISTS (SELECT FROM pg_depend d
                      WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e')
      AND (%(oids)s::oid[] IS NULL OR c.oid = ANY (%(oids)s::oid[]))
      AND c.oid <> ALL (%(unnamed)s::oid[])
    ORDER BY n.nspname, c.relname
"""
_COLUMNS_QUERY: Final = f"""{TREE},
    missing (root, attname, value) AS (
        SELECT tree.root, leaf.attname, CASE WHEN count(DISTINCT v.value) = 1 THEN min(v.value) END
        FROM tree
        JOIN pg_attribute leaf ON leaf.attrelid = tree.oid AND leaf.atthasmissing AND %(printed)s
        JOIN pg_type t ON t.oid = leaf.atttypid AND t.typdelim = ','
        CROSS JOIN LATERAL (SELECT (leaf.attmissingval::text::text[])[1]) AS v (value)
        GROUP BY tree.root, leaf.attname
    )
    SELECT a.attrelid,
           a.attnum,
           a.attname,
           a.atttypid,
           a.atttypmod,
           CASE WHEN %(printed)s THEN format_type(a.atttypid, a.atttypmod) ELSE '' END,
           a.attnotnull,
           a.attgenerated::text,
           missing.value,
           coalesce(co.collname::text, '')
    FROM pg_attribute a
    LEFT JOIN pg_collation co ON co.oid = a.attcollation AND NOT co.collisdeterministic
    LEFT JOIN missing ON missing.root = a.attrelid AND missing.attname = a.attname
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
"""
"""A column's `missing` value is an array with one element, printed as array text. Read as text[], the array
gives the text of the type's own output function, unless the type separates elements by another character than
a comma. A partitioned root has no `missing` value; all its partitions got an equal value.
"""
_INDEXES_QUERY: Final = """
    SELECT i.indrelid,
           c.relname,
           ARRAY(SELECT a.attname::text
                 FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, position)
                 JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                 WHERE k.position <= i.indnkeyatts
                 ORDER BY k.position),
           i.indisprimary,
           i.indisreplident,
           i.indimmediate,
           i.indisvalid AND i.indpred IS NULL AND i.indexprs IS NULL
    FROM pg_index i
    JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indrelid = ANY (%(oids)s::oid[]) AND i.indisunique AND i.indislive
    ORDER BY i.indrelid, c.relname
"""
_PARTITIONS_QUERY: Final = f"""{TREE}
    SELECT tree.root,
           c.oid,
           n.nspname,
           c.relname,
           c.relkind::text,
           c.relpersistence::text,
           c.relreplident::text,
           row_security_active(c.oid),
           has_table_privilege(c.oid, 'SELECT'),
           has_schema_privilege(n.oid, 'USAGE')
    FROM tree
    JOIN pg_class c ON c.oid = tree.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind <> 'p'
    ORDER BY n.nspname, c.relname
"""
_MEASURED_QUERY: Final = """
    SELECT c.oid,
           greatest(c.reltuples, 0)::bigint,
           coalesce(pg_table_size(c.oid), 0),
           coalesce(pg_relation_size(c.oid), 0) / current_setting('block_size')::bigint
    FROM pg_class c
    WHERE c.oid = ANY (%(oids)s::oid[])
"""
_ESTIMATED_QUERY: Final = """
    SELECT c.oid,
           greatest(c.reltuples, 0)::bigint,
           c.relpages::bigint * current_setting('block_size')::bigint,
           c.relpages::bigint
    FROM pg_class c
    WHERE c.oid = ANY (%(oids)s::oid[])
"""


class RelationRow(NamedTuple):
    """A row of pg_class with the privileges of our role, which `role` names."""

    oid: int
    schema: str
    name: str
    kind: str
    persistence: str
    is_partition: bool
    replica_identity: str
    selectable: bool
    schema_usable: bool
    row_security: bool
    owner: str
    owned: bool
    role: str

    @property
    def table(self) -> TableName:
        """The name of the relation."""
        return TableName(self.schema, self.name)

    @property
    def why_skipped(self) -> str | None:
        """The reason why the stream never names this relation; None for a table of the stream."""
        if self.is_partition:
            return "a partition is replicated through the root of its table: name the root"
        if self.persistence == "u":
            return "an unlogged table is not in the write-ahead log"
        if self.persistence == "t":
            return "a temporary table is not in the write-ahead log"
        return {
            "v": "a view stores no rows",
            "m": "a materialized view cannot be published",
            "f": "the rows of a foreign table are on another server",
        }.get(self.kind)


class ColumnRow(NamedTuple):
    """A row of pg_attribute."""

    relation: int
    attnum: int
    name: str
    type_oid: int
    typmod: int
    type_text: str
    not_null: bool
    # empty, `s`(tored) or `v`(irtual)
    generated: str
    # text of the column's value in rows older than the column, if the catalog has the value
    missing: str | None
    # name of a collation that is not deterministic
    collation: str


class Size(NamedTuple):
    """The size of a table: rows by the last ANALYZE (or 0), bytes on disk, pages of the main fork."""

    rows: int = 0
    bytes: int = 0
    pages: int = 0


def relation_rows(
    connection: psycopg.Connection[Any], oids: Collection[int] | None = None, *, unnamed: Collection[int] = ()
) -> list[RelationRow]:
    """Return all tables, views and foreign tables, in name order, without the system's and extensions'.

    `oids` restricts the result; `unnamed` has OIDs to leave out (`bronze.postgres.unnamed`).
    """
    parameters = {"oids": None if oids is None else list(oids), "unnamed": list(unnamed)}
    return [RelationRow(*row) for row in connection.execute(_RELATIONS_QUERY, parameters)]


def tables_of(connection: psycopg.Connection[Any]) -> set[TableName]:
    """Return all tables and partitioned roots, selected or not, except tables with an unconvertible name."""
    rows = connection.execute(
        "SELECT n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace "
        "WHERE c.relkind IN ('r', 'p') AND c.relpersistence <> 't' AND c.oid <> ALL (%s::oid[])",
        [list(unnamed_tables(connection))],
    )
    return {TableName(schema, name) for schema, name in rows}


def columns_of(
    connection: psycopg.Connection[Any], oids: Sequence[int], *, printed: bool = True
) -> dict[int, list[ColumnRow]]:
    """Return live columns of these tables, in attnum order.

    `printed` also reads `type_text` and `missing`, which the server prints by functions of each type.
    """
    columns: dict[int, list[ColumnRow]] = defaultdict(list)
    for row in connection.execute(_COLUMNS_QUERY, {"oids": list(oids), "printed": printed}):
        columns[row[0]].append(ColumnRow(*row))
    return columns


def unique_indexes_of(
    connection: psycopg.Connection[Any], oids: Sequence[int]
) -> dict[int, list[UniqueIndex]]:
    """Return the unique indexes of these tables, in name order."""
    indexes: dict[int, list[UniqueIndex]] = defaultdict(list)
    for relation, name, columns, primary, identity, immediate, plain in connection.execute(
        _INDEXES_QUERY, {"oids": list(oids)}
    ):
        indexes[relation].append(
            UniqueIndex(
                name, tuple(columns), primary=primary, identity=identity, immediate=immediate, plain=plain
            )
        )
    return indexes


def partitions_of(connection: psycopg.Connection[Any], roots: Sequence[int]) -> dict[int, list[Partition]]:
    """Return the leaf partitions of these roots, in name order, each with the leaf's replica identity."""
    partitions: dict[int, list[Partition]] = defaultdict(list)
    if not roots:
        return partitions
    leaves = connection.execute(_PARTITIONS_QUERY, {"oids": list(roots)}).fetchall()
    indexes = unique_indexes_of(connection, [leaf[1] for leaf in leaves])
    for root, oid, schema, name, kind, persistence, identity_mode, row_security, *privileges in leaves:
        partitions[root].append(
            Partition(
                oid=oid,
                table=TableName(schema, name),
                kind=kind,
                persistence=persistence,
                row_security=row_security,
                identity=identity_of(identity_mode, indexes[oid]),
                selectable=privileges[0],
                schema_usable=privileges[1],
            )
        )
    return partitions


def sizes_of(
    connection: psycopg.Connection[Any], parts: Mapping[int, Sequence[int]], *, measure: bool
) -> dict[int, Size]:
    """Return the size of each table, by OID: the sum over its `parts` (itself, or its leaf partitions).

    The connection is inside a transaction.
    """
    parameters = {"oids": [oid for oids in parts.values() for oid in oids]}
    rows: list[tuple[Any, ...]] | None = None
    if measure:
        try:
            with connection.transaction():
                # Measuring takes a lock, which waits for a session that rewrites the table. After two seconds
                # the estimates of the last ANALYZE serve instead.
                connection.execute(f"SET LOCAL lock_timeout = '{_SIZE_LOCK_SECONDS}s'")
                rows = connection.execute(_MEASURED_QUERY, parameters).fetchall()
                connection.execute("SET LOCAL lock_timeout = 0")
        except psycopg.errors.LockNotAvailable:
            rows = None
    if rows is None:
        rows = connection.execute(_ESTIMATED_QUERY, parameters).fetchall()
    sizes = {row[0]: Size(*row[1:]) for row in rows}
    return {
        oid: Size(*(sum(column) for column in zip(*(sizes.get(part, Size()) for part in oids), strict=True)))
        for oid, oids in parts.items()
    }
