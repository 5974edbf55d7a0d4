"""Reasons other than the key why the reader cannot carry a table. Pure: facts in, errors out.

Each reason is an error of a single table, with the statement that cures the error. The reader checks before
it publishes or copies a table, because later the harm would be silent. Row-level security filters a snapshot,
a row filter the stream. Spark regards two columns that differ only in case as a single column.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.catalog.one_snapshot import DamagedError
from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.identifiers import TableName, folded, quote_identifier
from deltasmelt.bronze.rules import RuleInDoubtError, RuleLostError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.bronze.catalog.publication import Publication
    from deltasmelt.bronze.catalog.source_table import SourceTable, TableFacts
    from deltasmelt.bronze.postgres.unnamed import Unnamed
    from deltasmelt.bronze.shapes import Relation

RESERVED_COLUMNS: Final = frozenset(
    {
        "_commit_lsn", "_commit_ts", "_unrepresentable",  # silver's own
        "_change_type", "_commit_version", "_commit_timestamp",  # Delta refuses these with a change feed
    }
)  # fmt: skip
"""Column names that a source table may not have, in lower case."""


OF_COLUMNS: Final = frozenset({"columns-differ-only-in-case", "column-name-reserved"})
"""Problems of columns' names, which columns that do not arrive cannot have."""

COPY_ONLY: Final = frozenset(
    {"partition-privilege", "row-level-security", "schema-privilege", "table-locked", "table-privilege"}
)
"""Problems that prevent the copy of a table, but not the stream of its changes."""

_SHOWN: Final = 5
_LONGEST_WORDS: Final = 500
"""Greatest length in characters of an unforeseen error's text."""


def unreadable(table: TableName, reason: str, error: Exception) -> TableError:
    """Return the error of a table that stops for a reason that no rule knows.

    `reason` names the object that could not be read; the text of `error` becomes part of the message.
    """
    if isinstance(error, DamagedError):
        return damaged(table, str(error), reason)
    if isinstance(error, RuleInDoubtError):
        remedy = "nothing to do unless a column was renamed: the reader retries and resnapshots the table"
        return TableError(table, str(error), code="column-rule-lost", remedy=remedy)
    if isinstance(error, RuleLostError):
        return rule_lost(table, str(error))
    text = " ".join(f"{type(error).__name__}: {error}".split())[:_LONGEST_WORDS]
    return TableError(
        table,
        f"{reason}: {text}",
        code="table-unreadable",
        remedy="the error is a defect of deltasmelt; report the error with the reader's log. The reader "
        "retries and resnapshots the table automatically; to stop this, leave the table out with "
        "source.exclude",
    )


def rule_lost(table: TableName, message: str, *, detached: bool = False) -> TableError:
    """Return the error of a table whose rule in the pipeline file names a former name.

    `detached`: the rule is the rule of another table, of which the rows were a partition.
    """
    remedy = (
        f"write a separate entry under source.columns: rules, or {table}: {{}} to state that the table "
        "has none; or leave the table out with source.exclude"
        if detached
        else "write the rule for the present name under source.columns, or remove the rule of the former name"
    )
    return TableError(
        table,
        message,
        code="column-rule-lost",
        remedy=f"{remedy}; the reader resnapshots the table automatically",
    )


def damaged(table: TableName, why: str, object_name: str = "") -> TableError:
    """Return the error of a table whose catalog description fails at the server in every attempt.

    `why` is the server's message; `object_name` names the object that therefore could not be read.
    """
    message = f"the server cannot print its catalog's description of the table: {why}"
    return TableError(
        table,
        f"{object_name}: {message}" if object_name else message,
        code="table-unreadable",
        remedy="a default or a type of a column is damaged at the server, for example because an enum label "
        "was deleted by hand (`smelt explain-error table-unreadable`); repair it, or leave the table out "
        "with source.exclude",
    )


def without_name(unnamed: Unnamed) -> TableError:
    """Return the error of a table whose name no query can contain (`bronze.postgres.unnamed`)."""
    return TableError(
        unnamed.table,
        f"the name {unnamed.name} (of the table, its schema, a column, an index or a partition) cannot be "
        "converted to UTF-8",
        code="character-not-convertible",
        remedy="rename the object with characters that exist in UTF-8, or leave the table out with "
        "source.exclude; see `smelt explain-error character-not-convertible`",
    )


def table_problems(facts: TableFacts, publication: Publication | None) -> list[TableError]:
    """Return all reasons why the table cannot be carried, except the key (`bronze.catalog.keys`)."""
    return [
        *_privileges(facts),
        *_row_security(facts),
        *_publication(facts, publication),
        *column_problems(facts.relation),
        *_partitions(facts),
    ]


def of_identity(
    problems: Sequence[TableError], facts: TableFacts, publication: Publication | None
) -> list[TableError]:
    """Return a table's key problems; add to the first how the publication affects the application's writes.

    PostgreSQL refuses each UPDATE and DELETE of a table that is published without a replica identity. The
    reader removes such a table from the publication if allowed (`bronze.setup.publication`).
    """
    if not problems or not facts.refuses_updates:
        return list(problems)
    first, table = problems[0], facts.relation.table
    text, remedy = (
        "the reader leaves the table out of the publication, where its UPDATEs and DELETEs would fail",
        first.remedy,
    )
    if publication is not None and facts.member is not None and publication.carries_updates:
        text = f"publication {publication.name} contains the table, so UPDATEs and DELETEs of the table fail"
        reason, cure = _why_stays(facts, publication)
        text += f", and {reason}" if reason else " until the reader removes the table from the publication"
        remedy = f"to allow UPDATEs and DELETEs at once: {cure} then: {remedy}" if cure else remedy
    text = f"{first.message}; {text}"
    return [TableError(table, text, code=first.code, remedy=remedy), *problems[1:]]


def _why_stays(facts: TableFacts, publication: Publication) -> tuple[str, str]:
    """Return why the reader cannot remove a table from the publication, and the SQL that helps; or "", ""."""
    table = facts.relation.table
    if not publication.may_lose(table):
        scope = "all tables" if publication.all_tables else f"schema {table.schema} as a whole"
        # A single table cannot leave such a publication, so the table's old rows must be logged in full.
        holders = [partition.table for partition in facts.partitions] or [table]
        full = " ".join(f"ALTER TABLE {name.quoted} REPLICA IDENTITY FULL;" for name in holders)
        return f"a single table cannot leave a publication of {scope}", full
    drop = f"ALTER PUBLICATION {quote_identifier(publication.name)} DROP TABLE ONLY {table.quoted};"
    if not facts.manage:
        return "source.manage is false", drop
    if not publication.owned:
        return f"role {facts.role} does not own the publication (its owner is {publication.owner})", drop
    if not publication.made:
        return "deltasmelt did not create the publication, so other subscribers may read it", drop
    return "", ""


def with_name_clashes(tables: Sequence[SourceTable]) -> list[SourceTable]:
    """Return the tables; tables that need an equal silver name get a problem."""
    by_silver_name: dict[str, list[SourceTable]] = defaultdict(list)
    for table in tables:
        by_silver_name[table.table.silver_name].append(table)
    checked = []
    for table in tables:
        rivals = [rival for rival in by_silver_name[table.table.silver_name] if rival is not table]
        if rivals:
            problem = TableError(
                table.table,
                f"{', '.join(str(rival.table) for rival in rivals)} needs the same silver table "
                f"{table.table.silver_name}",
                code="silver-name-clash",
                remedy="leave all but one of these tables out with source.exclude, or rename a table at the "
                "source",
            )
            table = replace(table, problems=(*table.problems, problem))  # noqa: PLW2901 - the same table, amended
        checked.append(table)
    return checked


def _privileges(facts: TableFacts) -> Iterator[TableError]:
    table = facts.relation.table
    if not facts.schema_usable:
        yield TableError(
            table,
            f"the role has no USAGE on schema {table.schema}",
            code="schema-privilege",
            remedy=f"as its owner: GRANT USAGE ON SCHEMA {quote_identifier(table.schema)} "
            f"TO {quote_identifier(facts.role)};",
        )
    if not facts.selectable:
        yield TableError(
            table,
            "SELECT on the table is missing, so it cannot be copied",
            code="table-privilege",
            remedy=f"as its owner: GRANT SELECT ON {table.quoted} TO {quote_identifier(facts.role)};",
        )
    yield from _partition_privileges(facts)


def _partition_privileges(facts: TableFacts) -> Iterator[TableError]:
    closed = {partition.table.schema for partition in facts.partitions if not partition.schema_usable}
    closed -= {facts.relation.table.schema}  # `_privileges` reports the root's schema
    unreadable = [partition.table for partition in facts.partitions if not partition.selectable]
    if not closed and not unreadable:
        return
    role, grants, lacks = quote_identifier(facts.role), [], []
    if closed:
        lacks.append(f"USAGE on schema {', '.join(sorted(closed))}")
        schemas = ", ".join(quote_identifier(schema) for schema in sorted(closed))
        grants.append(f"GRANT USAGE ON SCHEMA {schemas} TO {role};")
    if unreadable:
        examples = ", ".join(map(str, unreadable[:_SHOWN])) + (" …" if len(unreadable) > _SHOWN else "")
        lacks.append(f"SELECT on {len(unreadable)} of {len(facts.partitions)} partitions ({examples})")
        grants.append(f"GRANT SELECT ON {', '.join(name.quoted for name in unreadable)} TO {role};")
    yield TableError(
        facts.relation.table,
        f"the role has no {' and '.join(lacks)}, so the table cannot be copied: a copy reads each partition",
        code="partition-privilege",
        remedy=f"as their owner: {' '.join(grants)}",
    )


def _row_security(facts: TableFacts) -> Iterator[TableError]:
    holders = [facts.relation.table] if facts.row_security else []
    holders += [partition.table for partition in facts.partitions if partition.row_security]
    if holders:
        yield TableError(
            facts.relation.table,
            f"row-level security of {holders[0]} applies to the pipeline's role and would hide rows from "
            "the snapshot",
            code="row-level-security",
            remedy=f"as a superuser: ALTER ROLE {quote_identifier(facts.role)} BYPASSRLS; "
            "or leave the table out with source.exclude",
        )


def _publication(facts: TableFacts, publication: Publication | None) -> Iterator[TableError]:
    member, table = facts.member, facts.relation.table
    if member is None:
        yield from _unpublished(facts, publication)
        return
    assert publication is not None  # noqa: S101 - it has this member
    name = quote_identifier(publication.name)
    statement = f"ALTER PUBLICATION {name} DROP TABLE ONLY {table.quoted}; "
    statement += f"ALTER PUBLICATION {name} ADD TABLE ONLY {table.quoted};"
    if facts.partitioned and not publication.via_root and not (facts.manage and publication.owned):
        yield TableError(
            table,
            f"publication {publication.name} sends the changes of partitions under the partitions' names, "
            "and the reader may not change the publication",
            code="publication-partition-root",
            remedy=f"as its owner: ALTER PUBLICATION {name} SET (publish_via_partition_root = true);",
        )
    if member.row_filter is not None:
        yield TableError(
            table,
            f"publication {publication.name} sends only some rows: WHERE {member.row_filter}",
            code="publication-row-filter",
            remedy=f"{statement} (without the filter; silver would otherwise not equal the source)",
        )
    needed = [*facts.relation.key, *facts.identity.columns]
    omitted = [column for column in dict.fromkeys(needed) if column in facts.unpublished]
    if omitted:
        yield TableError(
            table,
            f"the column list of publication {publication.name} leaves out {', '.join(omitted)}; the key or "
            "the replica identity needs these columns",
            code="publication-column-list",
            remedy=f"{statement} (or with a column list that contains these columns)",
        )


def _unpublished(facts: TableFacts, publication: Publication | None) -> Iterator[TableError]:
    """Yield the error of a table that the reader must not add to the publication; other tables continue."""
    table = facts.relation.table
    if facts.manage:
        if not facts.owned:
            reason = f"role {facts.role} does not own the table (its owner is {facts.owner})"
        elif publication is not None and not publication.owned:
            reason = f"role {facts.role} does not own the publication (its owner is {publication.owner})"
        else:
            return
    elif publication is None:
        return  # a missing publication is an error of the pipeline, not of each table
    else:
        reason = "source.manage is false"
    add = f"ALTER PUBLICATION {quote_identifier(facts.publication)} ADD TABLE ONLY {table.quoted};"
    if publication is None:
        add = f"GRANT {quote_identifier(facts.owner)} TO {quote_identifier(facts.role)};"
    if facts.refuses_updates:  # in the publication, the application's writes would fail
        add = f"(only after the table has a replica identity: its UPDATEs and DELETEs would fail) {add}"
    yield TableError(
        table,
        f"publication {facts.publication} does not contain the table, and the reader may not add the table: "
        f"{reason}",
        code="table-not-published",
        remedy=f"as owner: {add} or leave the table out with source.exclude",
    )


def column_problems(relation: Relation) -> Iterator[TableError]:
    """Yield the errors of columns' names (`OF_COLUMNS`)."""
    table = relation.table
    names_by_fold: dict[str, list[str]] = defaultdict(list)
    for column in relation.columns:
        names_by_fold[folded(column.name)].append(column.name)
    for names in names_by_fold.values():
        if len(names) > 1:
            yield TableError(
                table,
                f"columns {', '.join(names)} differ only in case, which Spark does not distinguish",
                code="columns-differ-only-in-case",
                remedy=f"ALTER TABLE {table.quoted} RENAME COLUMN {quote_identifier(names[1])} TO …; "
                "or exclude one with source.columns",
            )
    reserved = [column.name for column in relation.columns if folded(column.name) in RESERVED_COLUMNS]
    if reserved:
        yield TableError(
            table,
            f"column {reserved[0]} has a name that silver or Delta reserves",
            code="column-name-reserved",
            remedy=f"ALTER TABLE {table.quoted} RENAME COLUMN {quote_identifier(reserved[0])} TO …; "
            "or exclude it with source.columns",
        )


def _partitions(facts: TableFacts) -> Iterator[TableError]:
    for partition in facts.partitions:
        if partition.kind == "f" or partition.persistence == "u":
            kind = "a foreign table" if partition.kind == "f" else "unlogged"
            yield TableError(
                facts.relation.table,
                f"its partition {partition.table} is {kind}, so its changes are not in the write-ahead log",
                code="partition-not-logged",
                remedy=f"ALTER TABLE {facts.relation.table.quoted} DETACH PARTITION {partition.table.quoted};"
                + ("" if partition.kind == "f" else f" or ALTER TABLE {partition.table.quoted} SET LOGGED;"),
            )
