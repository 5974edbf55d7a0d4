"""Findings about the selected tables: problems, doubtful keys, skipped relations, idle patterns, types."""

from __future__ import annotations

import difflib
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.keys import key_override
from deltasmelt.bronze.catalog.ruled_tables import rules_without_table, unmatched_patterns
from deltasmelt.bronze.catalog.select import skipped_relations
from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.identifiers import TableName

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.source_table import SkippedRelation, SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.shapes import PgType

_ONE_BY_ONE: Final = 3
"""Number of similar problems from which one finding reports all together."""

_SHOWN: Final = 10

_MAPPED: Final = frozenset(
    {
        "bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric", "text", "varchar",
        "bpchar", "name", "char", "uuid", "xml", "inet", "cidr", "macaddr", "macaddr8", "bytea",
        "timestamp", "timestamptz", "date", "time", "timetz", "interval", "json", "jsonb",
        "jsonpath", "bit", "varbit", "citext", "hstore", "vector",
    }
)  # fmt: skip
"""Base types with the expected Spark type; every other base type becomes PostgreSQL's text."""

_NAMES_OBJECTS: Final = frozenset(
    {
        "regclass", "regcollation", "regconfig", "regdictionary", "regnamespace", "regoper", "regoperator",
        "regproc", "regprocedure", "regrole", "regtype",
    }
)  # fmt: skip
"""Types that hold an OID and print the object's present name."""


def table_findings(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Sequence[SourceTable],
    known: Collection[TableName] = (),
) -> Iterator[Finding]:
    """Yield findings about tables, selected or not; `known` are all names in `bronze.relations`."""
    yield from _patterns(connection, source, tables)
    for error in rules_without_table(source.rules, tables, known):
        yield Finding.of(error, str(error.table))
    for warning in unmatched_patterns(tables):
        yield replace(Finding.of(warning, str(warning.table)), level="warning")
    by_schema = _without_privilege(tables)
    for table in tables:
        for problem in table.problems:
            if problem.code == "table-not-published":
                continue  # one finding of the publication reports all such tables
            group = by_schema.get((problem.code, table.table.schema), [])
            if len(group) < _ONE_BY_ONE:
                yield Finding.of(problem, str(table.table))
            elif group[0] is table:
                yield _lacking(problem, group)
        yield from _key(table, source)
        yield from _types(table)


def _without_privilege(tables: Sequence[SourceTable]) -> dict[tuple[str, str], list[SourceTable]]:
    """Return tables that lack a privilege, by privilege and schema: one remedy cures a whole group."""
    by_schema: dict[tuple[str, str], list[SourceTable]] = defaultdict(list)
    for table in tables:
        for problem in table.problems:
            if problem.code in ("table-privilege", "schema-privilege"):
                by_schema[problem.code, table.table.schema].append(table)
    return by_schema


def _lacking(problem: TableError, tables: Sequence[SourceTable]) -> Finding:
    schema = tables[0].table.schema
    subject, names = f"schema {schema}", _names_of(tables)
    if problem.code == "schema-privilege":
        message = f"{problem.message}; {len(tables)} of the selected tables are in this schema"
        return Finding(
            level="error", code=problem.code, subject=subject, message=message, remedy=problem.remedy
        )
    quoted_names = ", ".join(table.table.quoted for table in tables)
    return Finding(
        level="error",
        code=problem.code,
        subject=subject,
        message=f"SELECT on {len(tables)} of its tables is missing, so they cannot be copied: {names}",
        remedy=str(problem.remedy).replace(tables[0].table.quoted, quoted_names),
    )


def _skipped(skipped: Sequence[SkippedRelation]) -> Iterator[Finding]:
    """Yield skipped relations with reasons; one finding reports many relations with one reason."""
    by_reason: dict[str, list[SkippedRelation]] = defaultdict(list)
    for relation in skipped:
        by_reason[relation.reason].append(relation)
    for reason, group in by_reason.items():
        if len(group) < _ONE_BY_ONE:
            for relation in group:
                yield Finding(
                    level="info",
                    code="relation-skipped",
                    subject=str(relation.table),
                    message=f"is not replicated: {reason}",
                )
        else:
            yield Finding(
                level="info",
                code="relation-skipped",
                subject="source.tables",
                message=f"{len(group)} relations are not replicated, {_names_of(group)}: {reason}",
            )


def _names_of(tables: Sequence[SourceTable] | Sequence[SkippedRelation]) -> str:
    names = ", ".join(str(table.table) for table in tables[:_SHOWN])
    return f"{names}{' …' if len(tables) > _SHOWN else ''}"


def _patterns(
    connection: psycopg.Connection[Any], source: SourceSettings, tables: Sequence[SourceTable]
) -> Iterator[Finding]:
    skipped = skipped_relations(connection, source)
    yield from _skipped(skipped)
    names = [str(table.table) for table in tables]
    for pattern in source.tables:
        if any(table.table.matches(pattern) for table in tables):
            continue
        if any(relation.table.matches(pattern) for relation in skipped):
            continue
        existing = _all_tables(connection)
        excluded = any(table.matches(pattern) for table in existing)
        if excluded and tables:
            continue
        yield Finding(
            level="error" if not tables else "warning",
            code="pattern-matches-nothing",
            subject="source.tables",
            message=f"source.exclude leaves out every table that the pattern {pattern} matches"
            if excluded
            else f"the pattern {pattern} matches no table",
            remedy="correct source.exclude"
            if excluded
            else _correction("correct it", pattern, list(map(str, existing))),
        )
    for text in source.keys:
        try:
            selected = str(TableName.parse(text)) in names
        except ValueError as error:
            yield Finding(
                level="error",
                code="key-table-invalid",
                subject="source.keys",
                message=str(error),
                remedy="write schema.table: [column, …]",
            )
            continue
        if not selected:
            yield Finding(
                level="warning",
                code="key-table-unknown",
                subject="source.keys",
                message=f"source.keys names {text}, which the patterns do not select",
                remedy=_correction("remove this key, or correct the name", text, names),
            )


def _key(table: SourceTable, source: SourceSettings) -> Iterator[Finding]:
    if table.problems:
        return
    key = table.relation.key
    try:
        overridden = bool(key_override(table.table, source.keys))
    except ConfigurationError:
        overridden = False  # reported once, for source.keys
    if overridden:
        unique = [index for index in table.indexes if index.plain and set(index.columns) <= set(key)]
        if not unique:
            yield Finding(
                level="warning",
                code="key-not-unique",
                subject=str(table.table),
                message=f"no unique index covers the key {', '.join(key)} from source.keys; two rows with an "
                "equal key would stop the table",
                remedy=f"CREATE UNIQUE INDEX CONCURRENTLY ON {table.table.quoted} (…);",
            )
        return
    primary = next((index.columns for index in table.indexes if index.primary), key)
    if primary != key:
        yield Finding(
            level="info",
            code="key-is-identity-index",
            subject=str(table.table),
            message=f"old rows do not contain the primary key {', '.join(primary)}, so the replica identity "
            f"index {', '.join(key)} is the key",
            remedy=f"ALTER TABLE {table.table.quoted} REPLICA IDENTITY DEFAULT; makes it the primary key",
        )


def _types(table: SourceTable) -> Iterator[Finding]:
    as_text = [
        f"{column.name} ({column.type_text})" for column in table.relation.columns if _unmapped(column.type)
    ]
    if as_text:
        yield Finding(
            level="info",
            code="type-as-text",
            subject=str(table.table),
            message="Spark has no type for these columns or a part of them, stored as PostgreSQL's text: "
            + ", ".join(as_text),
        )
    texts = [
        f"{column.name} ({column.type_text})"
        for column in table.relation.columns
        if any(part.name in _NAMES_OBJECTS for part in column.type.parts())
    ]
    if texts:
        yield Finding(
            level="warning",
            code="type-names-objects",
            subject=str(table.table),
            message=f"these columns print the name of a database object: {', '.join(texts)}; after a rename "
            "of the object PostgreSQL shows the new name in all rows, the write-ahead log contains no "
            "change, and silver keeps the former name",
            remedy=f"store the OID or a text; or run smelt snapshot FILE {table.table} after such a rename",
        )


def _unmapped(tree: PgType) -> bool:
    """Check whether the type, or a part of the type, has no counterpart in Spark."""
    match tree.kind:
        case "array" | "domain" | "range":
            return tree.element is not None and _unmapped(tree.element)
        case "composite":
            return any(_unmapped(field) for _, field in tree.fields)
        case "enum":
            return False
        case "base":
            return tree.name not in _MAPPED
    return True


def _all_tables(connection: psycopg.Connection[Any]) -> list[TableName]:
    rows = connection.execute(
        """
        SELECT n.nspname::text, c.relname::text
        FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition
          AND n.nspname !~ '^pg_' AND n.nspname <> 'information_schema'
        """
    )
    return [TableName(schema, name) for schema, name in rows]


def _correction(message: str, name: str, names: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, names, n=1)
    return (
        f"{message}; did you mean {near[0]}?"
        if near
        else (f"{message}; the form is schema.table, and case matters")
    )
