"""Queries of `smelt init`: the source's tables, reasons against carrying a table, foreign keys.

A pipeline would see the same tables (`bronze.catalog.select`), so the written file runs: the same keys, the
same problems, partitions as their root. All facts come from one state of the catalog.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import sql

from deltasmelt.bronze.catalog.one_snapshot import may_be_damage, one_snapshot
from deltasmelt.bronze.catalog.queries import relation_rows
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.identifiers import TableName, pattern_of
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.gold.drafting.foreign_keys import Described, ForeignKey
from deltasmelt.pipelines.health.numeric_digits import counted_tables
from deltasmelt.pipelines.quality.constraints import read_constraints
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.settings import SilverSettings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.bronze.catalog.numeric_values import NumericValues
    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.errors import TableError

_CURED_BY_OWNERS: Final = frozenset(
    {
        "table-without-key", "replica-identity-nothing", "replica-identity-missing", "key-not-in-identity",
        "key-generated", "identity-generated",
        "columns-differ-only-in-case", "column-name-reserved", "partition-not-logged", "silver-name-clash",
        "table-unreadable",
    }
)  # fmt: skip
"""Problems with a cure at the table alone. Privileges, which are granted, keep no table out."""

_EXCLUDE: Final = re.compile(r";? *\bor (?:take|leave) the table (?:off|out)[^;]*source\.exclude$")
_SHOWN: Final = 5
_COUNTED: Final = 50_000
_NOT_COUNTED: Final = (
    psycopg.errors.InsufficientPrivilege,
    psycopg.errors.LockNotAvailable,
    psycopg.errors.QueryCanceled,
)


@dataclass(frozen=True, slots=True)
class Excluded:
    """A table outside the pipeline, with the cure."""

    table: TableName
    reason: str
    remedy: str


@dataclass(frozen=True, slots=True)
class SourceCatalog:
    """The contents of the database."""

    database: str
    # schemas with tables, in name order
    schemas: tuple[str, ...]
    tables: tuple[SourceTable, ...]
    excluded: tuple[Excluded, ...]
    # `tables` with their foreign keys
    described: tuple[Described, ...]
    # names of existing slots and publications
    names_taken: frozenset[str]
    # facts from the rows of numeric columns whose decimal may not hold every value, by their names in
    # `silver.types`
    numbers: Mapping[str, NumericValues] = field(default_factory=dict)


def read_catalog(
    connection: psycopg.Connection[Any], source: SourceSettings, schemas: Sequence[str] = ()
) -> SourceCatalog:
    """Read the source's catalog.

    Args:
        connection: an idle connection in autocommit mode.
        schemas: schemas to read; empty for all.

    Raises:
        ConfigurationError: a named schema has no tables, or the database has no tables.
        DefiniteError: the database has tables, and a pipeline can carry none.
        psycopg.Error: the server failed.
    """
    try:
        return _read_catalog(connection, source, schemas, [])
    except psycopg.DatabaseError as error:
        # A lasting failure of a table's description shows only in two snapshots, not in the single snapshot
        # of all facts. So describe the tables one by one, and repeat the snapshot for the readable tables.
        if not may_be_damage(error):
            raise
        every = select_tables(connection, source.model_copy(update={"tables": ["*.*"]}), sizes=False)
        broken = [table for table in every if table.problem and table.problem.code == "table-unreadable"]
        if not broken:
            raise
    return _read_catalog(connection, source, schemas, broken)


def _read_catalog(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    schemas: Sequence[str],
    broken: Sequence[SourceTable],
) -> SourceCatalog:
    with one_snapshot(connection):
        names = _schemas(connection)
        if not names:
            raise _no_tables(connection, source)
        for schema_name in schemas:
            if schema_name not in names:
                raise ConfigurationError(
                    f"schema {schema_name!r} has no tables{suggestion(schema_name, names)}",
                    code="no-tables",
                    where=address_of(source),
                    remedy="name another --schema, or omit --schema for all schemas",
                )
        chosen = [schema for schema in names if not schemas or schema in schemas]
        patterns = [pattern_of(schema) for schema in chosen]
        without = [
            *source.exclude,
            *(pattern_of(broken_table.table.schema, broken_table.table.name) for broken_table in broken),
        ]
        selection = {"tables": patterns, "exclude": without}
        tables = select_tables(connection, source.model_copy(update=selection), sizes=False)
        tables = sorted([*tables, *broken], key=lambda table: table.table)
        tables = [table for table in tables if table.table.schema in chosen]
        good, excluded = _carried(tables)
        if not good:
            raise _none_carried(source, excluded)
        return SourceCatalog(
            database=connection.info.dbname,
            schemas=tuple(chosen),
            tables=tuple(good),
            excluded=tuple(excluded),
            described=tuple(_described(connection, good)),
            names_taken=frozenset(
                name
                for (name,) in connection.execute(
                    "SELECT slot_name::text FROM pg_replication_slots "
                    "UNION SELECT pubname::text FROM pg_publication"
                )
            ),
            numbers={
                f"{shape.table}.{name}": values
                for shape, counts in counted_tables(connection, good, SilverSettings())
                for name, values in (counts.columns if counts else {}).items()
            },
        )


def _schemas(connection: psycopg.Connection[Any]) -> list[str]:
    """Return the schemas with at least one logged table."""
    rows = relation_rows(connection)
    return sorted({row.schema for row in rows if row.kind in "rp" and row.persistence == "p"})


def _carried(tables: Sequence[SourceTable]) -> tuple[list[SourceTable], list[Excluded]]:
    """Split the tables into carried and excluded; of several tables with one silver name, carry the first."""
    good: list[SourceTable] = []
    excluded = []
    silver_names: set[str] = set()
    for table in tables:
        silver_name = table.table.silver_name
        problems = [problem for problem in table.problems if problem.code in _CURED_BY_OWNERS]
        obstacles = [problem for problem in problems if problem.code != "silver-name-clash"]
        if obstacles or silver_name in silver_names:
            excluded.append(_excluded(table.table, (obstacles or problems)[0]))
        else:
            silver_names.add(silver_name)
            good.append(table)
    return good, excluded


def _excluded(table: TableName, problem: TableError) -> Excluded:
    """Return the exclusion without the remedy to exclude the table, which already happens."""
    return Excluded(table, problem.message, _EXCLUDE.sub("", problem.remedy or ""))


def _described(connection: psycopg.Connection[Any], tables: Sequence[SourceTable]) -> list[Described]:
    owning = {
        (TableName(schema, table), constraint)
        for schema, table, constraint in connection.execute(
            """
            SELECT n.nspname::text, c.relname::text, con.conname::text
            FROM pg_constraint con
            JOIN pg_class c ON c.oid = con.conrelid
            JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE con.contype = 'f' AND con.confdeltype = 'c' AND con.conparentid = 0
            """
        )
    }
    keys: dict[TableName, list[ForeignKey]] = defaultdict(list)
    for key in read_constraints(connection).foreign_keys:
        if key.weak is None or "PERIOD" not in key.weak:
            keys[key.child].append(
                ForeignKey(key.columns, key.parent, key.referenced, (key.child, key.name) in owning)
            )
    joined = {
        name for child, table_keys in keys.items() for key in table_keys for name in (child, key.target)
    }
    return [
        Described(
            silver_table(table.relation, SilverSettings()),
            tuple(keys[table.table]),
            tuple(index.columns for index in table.indexes if index.plain),
            table.rows_estimate or (_counted(connection, table.table) if table.table in joined else 0),
        )
        for table in tables
    ]


def _counted(connection: psycopg.Connection[Any], table: TableName) -> int:
    """Return the row count of a never analysed table, such as a small table; 0 if unknown."""
    # The count stops at a limit; a larger table returns the limit.
    query = sql.SQL("SELECT count(*) FROM (SELECT FROM {} LIMIT {}) AS few").format(
        sql.Identifier(table.schema, table.name), sql.Literal(_COUNTED)
    )
    try:
        with connection.transaction():
            connection.execute("SET LOCAL lock_timeout = '1s'")
            connection.execute("SET LOCAL statement_timeout = '5s'")
            row = connection.execute(query).fetchone()
            connection.execute("SET LOCAL lock_timeout = 0")
            connection.execute("SET LOCAL statement_timeout = 0")
    except _NOT_COUNTED:
        return 0
    return 0 if row is None else int(row[0])


def _no_tables(connection: psycopg.Connection[Any], source: SourceSettings) -> ConfigurationError:
    databases = [
        name
        for (name,) in connection.execute(
            "SELECT datname::text FROM pg_database WHERE datallowconn AND NOT datistemplate "
            "AND datname <> current_database() ORDER BY datname"
        )
    ]
    listed = f" (others of this server: {', '.join(databases[:20])})" if databases else ""
    return ConfigurationError(
        "the database has no tables",
        code="no-tables",
        where=address_of(source),
        remedy=f"use the database that contains your tables{listed}, or create tables first",
    )


def _none_carried(source: SourceSettings, excluded: Sequence[Excluded]) -> DefiniteError:
    reasons = "\n".join(f"{exclusion.table}: {exclusion.reason}" for exclusion in excluded[:_SHOWN])
    omitted = f"\nand {len(excluded) - _SHOWN} more" if len(excluded) > _SHOWN else ""
    return DefiniteError(
        f"none of the tables can be replicated\n{reasons}{omitted}",
        code="no-tables",
        where=address_of(source),
        remedy=excluded[0].remedy,
    )
