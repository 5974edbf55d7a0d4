"""The source's tables: which are selected, their shapes and keys, and what keeps one from being taken.

Everything is read set-based, one round trip for each kind of fact, in one REPEATABLE READ transaction so
that the facts fit together. Columns are those that pgoutput announces: dropped and unpublished generated
ones are left out, column lists of the publication hold, order is by attnum.

Partitioned tables are one table, their root: the stream names the root (``publish_via_partition_root``),
but what an old tuple holds is decided by each leaf's own replica identity, which ``ALTER TABLE … REPLICA
IDENTITY`` on the root does not touch; so the leaves are checked too. Children of table inheritance are
tables of their own.

A problem stops its table alone (`SourceTable.problem`); nothing here raises for the state of a single table.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg.pq import TransactionStatus

from bronze.identifiers import TableName
from bronze.keys import Identity, UniqueIndex, choose_key, identity_of, key_override
from bronze.lsn import ZERO
from bronze.pgtypes import TypeTrees, resolve_types
from bronze.publication import Member, Publication, read_publication
from bronze.shapes import Column, Relation
from bronze.table_problems import Partition, TableFacts, table_problems, with_name_clashes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from bronze.errors import TableError
    from bronze.settings import SourceSettings

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
      AND (%(oid)s::oid IS NULL OR c.oid = %(oid)s::oid)
    ORDER BY n.nspname, c.relname
"""

_COLUMNS_QUERY: Final = """
    SELECT a.attrelid,
           a.attnum,
           a.attname,
           a.atttypid,
           a.atttypmod,
           format_type(a.atttypid, a.atttypmod),
           a.attnotnull,
           a.attgenerated::text
    FROM pg_attribute a
    WHERE a.attrelid = ANY (%(oids)s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attrelid, a.attnum
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

_PARTITIONS_QUERY: Final = """
    WITH RECURSIVE tree (root, oid) AS (
        SELECT r.oid, r.oid FROM unnest(%(oids)s::oid[]) AS r (oid)
        UNION ALL
        SELECT tree.root, i.inhrelid
        FROM tree
        JOIN pg_class parent ON parent.oid = tree.oid AND parent.relkind = 'p'
        JOIN pg_inherits i ON i.inhparent = tree.oid
    )
    SELECT tree.root, c.oid, n.nspname, c.relname, c.relkind::text, c.relpersistence::text, c.relreplident::text,
           row_security_active(c.oid)
    FROM tree
    JOIN pg_class c ON c.oid = tree.oid
    JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind <> 'p'
    ORDER BY n.nspname, c.relname
"""

_SIZES_QUERY: Final = """
    SELECT c.oid, greatest(c.reltuples, 0)::bigint, coalesce(pg_table_size(c.oid), 0), coalesce(pg_relation_size(c.oid), 0)
    FROM pg_class c
    WHERE c.oid = ANY (%(oids)s::oid[])
"""
_ESTIMATED_SIZES_QUERY: Final = """
    SELECT c.oid, greatest(c.reltuples, 0)::bigint,
           c.relpages::bigint * current_setting('block_size')::bigint,
           c.relpages::bigint * current_setting('block_size')::bigint
    FROM pg_class c
    WHERE c.oid = ANY (%(oids)s::oid[])
"""


@dataclass(frozen=True, slots=True)
class SourceTable:
    """A selected table.

    Attributes:
        relation: its shape now; `from_lsn` is ZERO.
        kind: pg_class.relkind: ``r`` table, ``p`` root of partitions.
        rows_estimate: from the last ANALYZE; 0 where there was none.
        bytes: on disk, with out-of-line values, all partitions together.
        pages: of the main fork, all partitions together.
        problems: everything that keeps it from being taken.
        partitions: leaf partitions of a root, in name order.
        owner: role that owns it; `owned` tells whether we may act as that role.
    """

    table: TableName
    relation: Relation
    kind: str
    rows_estimate: int = 0
    bytes: int = 0
    pages: int = 0
    problems: tuple[TableError, ...] = ()
    partitions: tuple[TableName, ...] = ()
    indexes: tuple[UniqueIndex, ...] = ()
    owner: str = ""
    owned: bool = True

    @property
    def problem(self) -> TableError | None:
        """The first problem; None where the table can be taken."""
        return self.problems[0] if self.problems else None


@dataclass(frozen=True, slots=True)
class SkippedRelation:
    """What a pattern matches, but is not a table of its own to carry."""

    table: TableName
    reason: str


@dataclass(slots=True)
class _Details:
    """Facts of many relations, by OID."""

    columns: dict[int, list[tuple[Any, ...]]] = field(default_factory=lambda: defaultdict(list))
    indexes: dict[int, list[UniqueIndex]] = field(default_factory=lambda: defaultdict(list))
    partitions: dict[int, list[Partition]] = field(default_factory=lambda: defaultdict(list))
    types: TypeTrees = field(default_factory=lambda: TypeTrees({}))


def select_tables(
    connection: psycopg.Connection[Any], source: SourceSettings, *, sizes: bool = True
) -> list[SourceTable]:
    """The tables that the patterns select, in name order, each with its problems.

    Views, materialized views, foreign, unlogged and temporary tables, partitions, and what belongs to the
    system or an extension are not selected; `skipped_relations` names them.

    Args:
        connection: idle, or inside a transaction whose snapshot is to be used.
        source: patterns, key overrides and publication.
        sizes: also measure the tables; without it the estimates of the last ANALYZE serve.

    Raises:
        ConfigurationError: `source.keys` names something that is no table name.
    """
    with one_snapshot(connection):
        publication = read_publication(connection, source.publication)
        rows = [row for row in connection.execute(_RELATIONS_QUERY, {"oid": None}) if _selected(row, source)]
        details = _details(connection, [row[0] for row in rows], [row[0] for row in rows if row[3] == "p"])
        measured = _sizes(connection, rows, details, measure=sizes)
        tables = [_source_table(row, details, publication, source.keys, measured) for row in rows]
    return with_name_clashes(tables)


def skipped_relations(connection: psycopg.Connection[Any], source: SourceSettings) -> list[SkippedRelation]:
    """What the patterns match without selecting it, with the reason; partitions only where a pattern names
    them exactly.
    """
    skipped = []
    for row in connection.execute(_RELATIONS_QUERY, {"oid": None}):
        table = TableName(row[1], row[2])
        reason = _why_skipped(row)
        if reason is None or not _matches(table, source):
            continue
        if row[5] and not any(table.matches(pattern) for pattern in source.tables if not _is_wild(pattern)):
            continue
        skipped.append(SkippedRelation(table, reason))
    return skipped


def describe_relation(
    connection: psycopg.Connection[Any],
    relation_id: int,
    keys: Mapping[str, Sequence[str]],
    publication: str | None = None,
) -> Relation | None:
    """The shape of one table now, or None when there is no such table (any more).

    Args:
        connection: idle or inside a transaction. relation_id: pg_class.oid. keys: key overrides of the
        pipeline file. publication: whose column list and generated columns hold; without it every column
        but the generated ones.
    """
    with one_snapshot(connection):
        row = connection.execute(_RELATIONS_QUERY, {"oid": relation_id}).fetchone()
        if row is None or row[3] not in ("r", "p"):
            return None
        read = None if publication is None else read_publication(connection, publication)
        details = _details(connection, [relation_id], [relation_id] if row[3] == "p" else [])
        return _source_table(row, details, read, keys, {}).relation


@contextmanager
def one_snapshot(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """All statements of the block see one state of the catalog; inside a transaction, that transaction's."""
    if connection.info.transaction_status != TransactionStatus.IDLE:
        yield
        return
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        yield


def _selected(row: tuple[Any, ...], source: SourceSettings) -> bool:
    return _why_skipped(row) is None and _matches(TableName(row[1], row[2]), source)


def _matches(table: TableName, source: SourceSettings) -> bool:
    if any(table.matches(pattern) for pattern in source.exclude):
        return False
    return any(table.matches(pattern) for pattern in source.tables)


def _is_wild(pattern: str) -> bool:
    return any(sign in pattern for sign in "*?[")


def _why_skipped(row: tuple[Any, ...]) -> str | None:
    kind, persistence, is_partition = row[3:6]
    if is_partition:
        return "a partition is carried through the root of its table: name the root"
    if persistence == "u":
        return "an unlogged table is not in the write-ahead log"
    if persistence == "t":
        return "a temporary table is not in the write-ahead log"
    return {
        "v": "a view has no rows of its own",
        "m": "a materialized view cannot be published",
        "f": "a foreign table's rows are on another server",
    }.get(kind)


def _details(connection: psycopg.Connection[Any], oids: Sequence[int], roots: Sequence[int]) -> _Details:
    details = _Details()
    leaves = connection.execute(_PARTITIONS_QUERY, {"oids": list(roots)}).fetchall() if roots else []
    everything = {"oids": [*oids, *(leaf[1] for leaf in leaves)]}
    wanted = set(oids)
    for row in connection.execute(_COLUMNS_QUERY, {"oids": list(oids)}):
        details.columns[row[0]].append(row[1:])
    for relation, name, columns, primary, identity, immediate, plain in connection.execute(
        _INDEXES_QUERY, everything
    ):
        details.indexes[relation].append(
            UniqueIndex(
                name, tuple(columns), primary=primary, identity=identity, immediate=immediate, plain=plain
            )
        )
    for root, oid, schema, name, kind, persistence, identity_mode, row_security in leaves:
        details.partitions[root].append(
            Partition(
                oid=oid,
                table=TableName(schema, name),
                kind=kind,
                persistence=persistence,
                row_security=row_security,
                identity=identity_of(identity_mode, details.indexes[oid]),
            )
        )
    details.types = resolve_types(
        connection, (column[2] for oid in wanted for column in details.columns[oid])
    )
    return details


def _sizes(
    connection: psycopg.Connection[Any], rows: Sequence[tuple[Any, ...]], details: _Details, *, measure: bool
) -> dict[int, tuple[int, int, int]]:
    """Rows, bytes and pages by OID of the table; of a root, the sums of its leaves."""
    leaves = {row[0]: [each.oid for each in details.partitions[row[0]]] or [row[0]] for row in rows}
    wanted = {"oids": [oid for oids in leaves.values() for oid in oids]}
    found: list[tuple[Any, ...]] = []
    if measure:
        try:
            with connection.transaction():
                # Measuring waits for whoever rewrites or locks a table; estimates do not.
                connection.execute(f"SET LOCAL lock_timeout = '{_SIZE_LOCK_SECONDS}s'")
                found = connection.execute(_SIZES_QUERY, wanted).fetchall()
        except psycopg.errors.LockNotAvailable:
            measure = False
    if not measure:
        found = connection.execute(_ESTIMATED_SIZES_QUERY, wanted).fetchall()
    block = connection.execute("SELECT current_setting('block_size')::int").fetchone()
    assert block is not None  # noqa: S101 - a SELECT without FROM has one row
    each = {oid: (count, size, main // block[0]) for oid, count, size, main in found}
    nothing = (0, 0, 0)
    return {
        root: (
            sum(each.get(oid, nothing)[0] for oid in oids),
            sum(each.get(oid, nothing)[1] for oid in oids),
            sum(each.get(oid, nothing)[2] for oid in oids),
        )
        for root, oids in leaves.items()
    }


def _source_table(
    row: tuple[Any, ...],
    details: _Details,
    publication: Publication | None,
    keys: Mapping[str, Sequence[str]],
    measured: Mapping[int, tuple[int, int, int]],
) -> SourceTable:
    oid, schema, name, kind, _, _, identity_mode, selectable, usable, row_security, owner, owned, role = row
    table = TableName(schema, name)
    member = None if publication is None else publication.member(table)
    every = details.columns[oid]
    published = [column for column in every if _is_published(column, publication, member)]
    indexes = tuple(details.indexes[oid])
    identity = identity_of(identity_mode, indexes)
    partitions = details.partitions[oid]
    choice = choose_key(
        table,
        {column[1]: column[5] for column in published},
        indexes,
        identity,
        key_override(table, keys),
        {partition.table: partition.identity for partition in partitions},
    )
    relation = Relation(
        relation_id=oid,
        table=table,
        columns=tuple(_column(column, identity, details.types) for column in published),
        key=choice.key,
        replica_identity=identity_mode,
        from_lsn=ZERO,
    )
    facts = TableFacts(
        relation=relation,
        role=role,
        selectable=selectable,
        schema_usable=usable,
        row_security=row_security,
        identity=identity,
        unpublished=tuple(column[1] for column in every if not column[6] and column not in published),
        member=member,
        partitions=tuple(partitions),
    )
    rows_estimate, size, pages = measured.get(oid, (0, 0, 0))
    return SourceTable(
        table=table,
        relation=relation,
        kind=kind,
        rows_estimate=rows_estimate,
        bytes=size,
        pages=pages,
        problems=(*choice.problems, *table_problems(facts, publication)),
        partitions=tuple(partition.table for partition in partitions),
        indexes=indexes,
        owner=owner,
        owned=owned,
    )


def _is_published(column: tuple[Any, ...], publication: Publication | None, member: Member | None) -> bool:
    """Whether pgoutput sends this column: generated ones only where PostgreSQL 18's publication says so."""
    attnum, generated = column[0], column[6]
    if member is not None and member.columns is not None:
        listed = attnum in member.columns
        return listed and (not generated or (publication is not None and publication.lists_generated))
    if generated:
        return generated == "s" and publication is not None and publication.generated
    return True


def _column(column: tuple[Any, ...], identity: Identity, types: TypeTrees) -> Column:
    attnum, name, type_oid, typmod, type_text, not_null, _ = column
    return Column(
        name=name,
        attnum=attnum,
        type=types.tree(type_oid, typmod),
        type_text=type_text,
        not_null=not_null,
        in_identity=identity.covers([name]),
    )
