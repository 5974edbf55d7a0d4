"""The source's tables: the selection, shapes and keys, and the reasons why a table cannot be carried.

Set-based queries read all tables in one round trip for each kind of fact, in one REPEATABLE READ transaction,
so that the facts are consistent. The columns are the columns that pgoutput announces: without dropped columns
and unpublished generated columns, after column lists, ordered by attnum.

A partitioned table is a single table, the root: the stream names the root (``publish_via_partition_root``). A
child of table inheritance is a separate table.

A problem stops a single table (`SourceTable.problem`); no function raises for the state of a single table.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import psycopg

from deltasmelt.bronze.catalog.keys import (
    Generated,
    Identity,
    UniqueIndex,
    choose_key,
    identity_of,
    key_override,
    refuses_updates,
)
from deltasmelt.bronze.catalog.one_snapshot import in_parts, is_idle, may_be_damage, one_snapshot, or_damaged
from deltasmelt.bronze.catalog.problems import (
    damaged,
    of_identity,
    table_problems,
    unreadable,
    with_name_clashes,
    without_name,
)
from deltasmelt.bronze.catalog.publication import (
    SINCE_GENERATED,
    Member,
    Publication,
    is_published,
    read_publication,
)
from deltasmelt.bronze.catalog.queries import (
    ColumnRow,
    RelationRow,
    Size,
    columns_of,
    comments_of,
    partitions_of,
    relation_rows,
    sizes_of,
    storage_of,
    unique_indexes_of,
)
from deltasmelt.bronze.catalog.ruled_tables import with_rules
from deltasmelt.bronze.catalog.source_table import Partition, SkippedRelation, SourceTable, TableFacts
from deltasmelt.bronze.catalog.types import TypeTrees, resolve_types
from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.unnamed import unnamed_tables
from deltasmelt.bronze.shapes import BY_KEY, Column, Relation

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName


_LOGGER = logging.getLogger("deltasmelt.reader")


@dataclass(frozen=True, slots=True)
class _Context:
    """Facts of all relations to describe, by OID."""

    columns: Mapping[int, Sequence[ColumnRow]]
    indexes: Mapping[int, Sequence[UniqueIndex]]
    partitions: Mapping[int, Sequence[Partition]]
    types: TypeTrees
    publication: Publication | None
    publication_name: str
    keys: Mapping[str, Sequence[str]]
    manage: bool
    version: int
    # tables whose column list follows the rules of the pipeline file
    ruled: Collection[TableName] = ()


def select_tables(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    *,
    sizes: bool = True,
    storage: bool = False,
    recorded: Mapping[TableName, int] = MappingProxyType({}),
) -> list[SourceTable]:
    """Return the tables that the patterns select, in name order, each with problems.

    Not selected are views, materialized views, foreign, unlogged and temporary tables, partitions, and
    objects of the system or of an extension; `skipped_relations` names them.

    Args:
        connection: idle, or inside the transaction whose snapshot the queries use.
        sizes: whether to measure the tables; otherwise the estimates of the last ANALYZE serve.
        storage: whether to read comments and the facts that `bronze.drift.storage` compares.
        recorded: numbers of the rules by which the lake carries tables (`bronze.store.rule_marks`).

    Raises:
        ConfigurationError: a table in `source.keys` has an invalid name.
        psycopg.errors.SerializationFailure: the catalog changes meanwhile; a retry reads the new state.
    """
    rules = source.rules.tables
    ruled = {table for table in rules if rules[table].decides_list(recorded.get(table, 0))}

    def read(rows: Sequence[RelationRow]) -> list[SourceTable]:
        context = _context(connection, rows, source.publication, source.keys, manage=source.manage)
        context = replace(context, ruled=ruled)
        parts = {
            row.oid: [part.oid for part in context.partitions.get(row.oid, ())] or [row.oid] for row in rows
        }
        measured = sizes_of(connection, parts, measure=sizes)
        tables = [_described(row, context, measured[row.oid]) for row in rows]
        return _with_storage(connection, source.publication, tables, context.types) if storage else tables

    try:
        tables, _ = _selected(connection, source, lambda rows: (read(rows), []))
        return with_rules(connection, source, tables, recorded)
    except psycopg.DatabaseError as error:
        if not is_idle(connection) or not may_be_damage(error):  # the caller's snapshot stays as old
            raise
        before = _selected(connection, source, lambda rows: in_parts(connection, rows, read))[1]
    tables, failed = _selected(connection, source, lambda rows: in_parts(connection, rows, read))
    if new := set(failed) - set(before):
        raise psycopg.errors.SerializationFailure("; ".join(f"{row.table}: {reason}" for row, reason in new))
    return with_rules(connection, source, tables, recorded)


def _selected(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    read: Callable[[Sequence[RelationRow]], tuple[list[SourceTable], list[tuple[RelationRow, str]]]],
) -> tuple[list[SourceTable], list[tuple[RelationRow, str]]]:
    """Read the tables in one snapshot; a failed table is in both results: with a problem, and as failed."""
    with one_snapshot(connection):
        unnamed = unnamed_tables(connection)
        rows = [
            row
            for row in relation_rows(connection, unnamed=unnamed)
            if row.why_skipped is None and _matches(row.table, source)
        ]
        tables, failed = read(rows)
        tables += _damaged(connection, source, failed)
    named = {table.table: (oid, table) for oid, table in sorted(unnamed.items()) if table.is_table}
    tables += [
        _undescribed(oid, "r", without_name(table))
        for name, (oid, table) in named.items()
        if _matches(name, source)
    ]
    return with_name_clashes(sorted(tables, key=lambda table: table.table)), failed


def _described(row: RelationRow, context: _Context, size: Size) -> SourceTable:
    """Return a table; an unforeseen failure becomes a problem of this table alone."""
    try:
        return _source_table(row, context, size)
    except SmeltError:
        raise
    except Exception as error:
        _LOGGER.exception("the catalog's description of %s cannot be read", row.table)
        problem = unreadable(row.table, "the catalog's description of the table cannot be read", error)
        return _undescribed(row.oid, row.kind, problem)


def _damaged(
    connection: psycopg.Connection[Any], source: SourceSettings, failed: Sequence[tuple[RelationRow, str]]
) -> list[SourceTable]:
    """Return the tables that the server cannot print, with all remaining facts and without a shape."""
    problems = {row: damaged(row.table, reason) for row, reason in failed}
    bare = {row: _undescribed(row.oid, row.kind, problem) for row, problem in problems.items()}

    def read(rows: Sequence[RelationRow]) -> list[tuple[RelationRow, SourceTable]]:
        keys, manage = source.keys, source.manage
        # The remaining facts include whether the publication makes the application's UPDATEs fail: the reader
        # removes even a damaged table from the publication.
        context = _context(connection, rows, source.publication, keys, manage=manage, printed=False)
        described = [(row, _described(row, context, Size())) for row in rows]
        return [
            (row, replace(table, relation=bare[row].relation, problems=(problems[row], *table.problems)))
            for row, table in described
        ]

    return list((bare | dict(in_parts(connection, list(bare), read)[0])).values()) if bare else []


def _undescribed(oid: int, kind: str, problem: TableError) -> SourceTable:
    relation = Relation(oid, problem.table, columns=(), key=(), replica_identity="d", from_lsn=ZERO)
    return SourceTable(problem.table, relation, kind=kind, problems=(problem,))


def skipped_relations(connection: psycopg.Connection[Any], source: SourceSettings) -> list[SkippedRelation]:
    """Return the relations that the patterns match but do not select, with reasons."""
    exact = [pattern for pattern in source.tables if not any(sign in pattern for sign in "*?[")]
    skipped = []
    for row in relation_rows(connection, unnamed=unnamed_tables(connection)):
        if (reason := row.why_skipped) is None or not _matches(row.table, source):
            continue
        # A partition appears only if a pattern without wildcards names the partition: its rows are not
        # missing.
        if row.is_partition and not any(row.table.matches(pattern) for pattern in exact):
            continue
        skipped.append(SkippedRelation(row.table, reason))
    return skipped


def describe_relation(
    connection: psycopg.Connection[Any],
    relation_id: int,
    keys: Mapping[str, Sequence[str]],
    publication: str | None = None,
) -> Relation | None:
    """Return the present shape of one table, or None if the table does not exist (any more).

    `keys` are the key overrides of the pipeline file. The column lists and generated columns of `publication`
    apply; without a publication every column counts, except generated columns.

    Raises:
        DamagedError: the server cannot print the catalog's description of the table.
    """
    relations = or_damaged(
        connection, lambda: describe_relations(connection, [relation_id], keys, publication)
    )
    return relations.get(relation_id)


def describe_relations(
    connection: psycopg.Connection[Any],
    relation_ids: Collection[int],
    keys: Mapping[str, Sequence[str]],
    publication: str | None = None,
) -> dict[int, Relation]:
    """Return the present shapes of tables, by pg_class.oid; without OIDs that are no tables (any more).

    The arguments have the meaning of `describe_relation`'s.
    """
    with one_snapshot(connection):
        named = set(relation_ids) - set(unnamed_tables(connection))
        rows = [row for row in relation_rows(connection, named) if row.kind in ("r", "p")] if named else []
        if not rows:
            return {}
        context = _context(connection, rows, publication, keys)
    return {row.oid: _source_table(row, context, Size()).relation for row in rows}


def _with_storage(
    connection: psycopg.Connection[Any], publication: str, tables: Sequence[SourceTable], trees: TypeTrees
) -> list[SourceTable]:
    columns = {
        table.relation.relation_id: {
            column.attnum: column.type for column in table.relation.columns if column.attnum is not None
        }
        for table in tables
    }
    types = {
        oid: {attnum: type_.to_json() for attnum, type_ in of_table.items()}
        for oid, of_table in columns.items()
    }
    defined = {
        oid: {attnum: trees.written(type_) for attnum, type_ in of_table.items()}
        for oid, of_table in columns.items()
    }
    storage, comments = storage_of(connection, publication, types, defined), comments_of(connection, types)
    return [
        replace(
            table,
            storage=storage[table.relation.relation_id],
            comments=None if comments is None else comments[table.relation.relation_id],
        )
        for table in tables
    ]


def _matches(table: TableName, source: SourceSettings) -> bool:
    if any(table.matches(pattern) for pattern in source.exclude):
        return False
    return any(table.matches(pattern) for pattern in source.tables)


def _context(
    connection: psycopg.Connection[Any],
    rows: Sequence[RelationRow],
    publication: str | None,
    keys: Mapping[str, Sequence[str]],
    *,
    manage: bool = True,
    printed: bool = True,
) -> _Context:
    oids = [row.oid for row in rows]
    columns = columns_of(connection, oids, printed=printed)
    filters = oids if printed else ()
    return _Context(
        columns=columns,
        indexes=unique_indexes_of(connection, oids),
        partitions=partitions_of(connection, [row.oid for row in rows if row.kind == "p"]),
        types=resolve_types(
            connection, (column.type_oid for of_table in columns.values() for column in of_table)
        ),
        publication=None if publication is None else read_publication(connection, publication, filters),
        publication_name=publication or "",
        keys=keys,
        manage=manage,
        version=connection.info.server_version,
    )


def _source_table(row: RelationRow, context: _Context, size: Size) -> SourceTable:
    publication = context.publication
    member = None if publication is None else publication.member(row.table)
    rows = context.columns.get(row.oid, ())
    published = [
        column for column in rows if is_published(column.attnum, column.generated, publication, member)
    ]
    indexes = tuple(context.indexes.get(row.oid, ()))
    identity = identity_of(row.replica_identity, indexes)
    partitions = tuple(context.partitions.get(row.oid, ()))
    generated = Generated(
        {
            column.name: column.generated == "s" and context.version >= SINCE_GENERATED
            for column in rows
            if column.generated and column not in published
        },
        refused=context.version >= SINCE_GENERATED,
    )
    # Each leaf's own replica identity decides the contents of an old tuple. `ALTER TABLE … REPLICA IDENTITY`
    # on the root does not change the leaves, so the leaves are checked too.
    leaves = {partition.table: partition.identity for partition in partitions}
    # The reader sets the column list of a table with rules a moment later, after it knows the key.
    unlisted = Member() if row.table in context.ruled else member
    keyed = [
        column for column in rows if is_published(column.attnum, column.generated, publication, unlisted)
    ]
    choice = choose_key(
        row.table,
        {column.name: column.not_null for column in keyed},
        indexes,
        identity,
        override=key_override(row.table, context.keys),
        partitions=leaves,
        generated=generated,
    )
    partitioned = row.kind == "p"
    by_key = partitioned and identity.mode == "f" and choice.guarded
    logged = Identity(BY_KEY, choice.key) if by_key else identity
    relation = Relation(
        relation_id=row.oid,
        table=row.table,
        columns=tuple(_column(column, logged, context.types) for column in published),
        key=choice.key,
        replica_identity=logged.mode,
        from_lsn=ZERO,
        key_unique=any(index.plain and set(index.columns) <= set(choice.key) for index in indexes),
        partitioned=partitioned,
    )
    unpublished = tuple(column.name for column in rows if not column.generated and column not in published)
    facts = TableFacts(
        relation=relation,
        role=row.role,
        owner=row.owner,
        owned=row.owned,
        manage=context.manage,
        publication=context.publication_name,
        selectable=row.selectable,
        schema_usable=row.schema_usable,
        row_security=row.row_security,
        identity=identity,
        unpublished=unpublished,
        member=member,
        partitioned=partitioned,
        partitions=partitions,
        refuses_updates=refuses_updates(row.table, identity, leaves, generated),
    )
    # The reader sets the operations of its own publication a moment later; these operations count.
    carried = publication is not None and (
        publication.carries_updates or (context.manage and publication.ours)
    )
    return SourceTable(
        table=row.table,
        relation=relation,
        kind=row.kind,
        rows_estimate=size.rows,
        bytes=size.bytes,
        pages=size.pages,
        problems=(*of_identity(choice.problems, facts, publication), *table_problems(facts, publication)),
        partitions=tuple(partition.table for partition in partitions),
        indexes=indexes,
        owner=row.owner,
        owned=row.owned,
        unpublished=unpublished,
        identities=tuple(leaves.values()) or (identity,),
        blocked=carried and member is not None and facts.refuses_updates,
    )


def _column(column: ColumnRow, identity: Identity, types: TypeTrees) -> Column:
    return Column(
        name=column.name,
        attnum=column.attnum,
        type=types.tree(column.type_oid, column.typmod, column.collation),
        type_text=column.type_text,
        not_null=column.not_null,
        in_identity=identity.covers([column.name]),
        missing=column.missing,
    )
