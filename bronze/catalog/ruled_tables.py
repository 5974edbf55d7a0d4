"""Apply the rules of `source.columns` and `source.where` to the selected tables, and find wrong rules.

**The application comes first.** PostgreSQL refuses each UPDATE and DELETE of a table whose column list lacks
a column of the replica identity, or whose filter reads a column outside of the replica identity. So such a
rule is an error of the table before any publication changes, and a table that gets into this state later
(another primary key) leaves the publication at the next poll, or its list grows.

**A wrong rule stops its table.** A rule for a column that does not exist may be misspelt, and then the values
that it should protect would arrive. So the table is not carried until the file is right.

**A rename does not end a rule.** A rule names a table and a column. After a rename at the source, the rule
would name nothing, and values would arrive under the new name. So the table gets an error until the pipeline
file has the new name (`with_lost_rules`). The same holds for a partition that leaves a ruled table, and for a
ruled table that becomes a partition of another table. Once the root's record lacks a detached partition, only
the partition's own mark shows where its rows come from (`detached_parts`).

**The publication must already obey.** Changes of a table are carried only while the publication's list and
filter are those of the rules; otherwise the reader changes the publication first, or the table has an error.

PostgreSQL docs: https://www.postgresql.org/docs/current/logical-replication-row-filter.html and
https://www.postgresql.org/docs/current/logical-replication-col-lists.html.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.problems import rule_lost
from deltasmelt.bronze.catalog.publication import Member, Wanted, is_published, read_publication
from deltasmelt.bronze.catalog.queries import columns_of
from deltasmelt.bronze.catalog.row_filters import PrintedFilter, read_filter
from deltasmelt.bronze.config.suggestions import nearest
from deltasmelt.bronze.drift.membership import SINCE_SCHEMAS
from deltasmelt.bronze.errors import TableError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.publication import Publication
    from deltasmelt.bronze.catalog.queries import ColumnRow
    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.drift.observed_storage import ObservedStorage
    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.rules import Rules, TableRules

_REPLACED: Final = frozenset({"publication-column-list", "publication-row-filter"})
"""Problems of a publication that the rules correct, or for which this module has an error of its own."""


_HARMFUL: Final = frozenset({"column-rule-key", "row-filter-columns"})
"""Problems with which the publication makes UPDATEs and DELETEs of the table fail."""


def with_rules(
    connection: psycopg.Connection[Any], source: SourceSettings, tables: Sequence[SourceTable]
) -> list[SourceTable]:
    """Return the tables with the shapes that the lake knows, and with the problems of their rules.

    `connection` is in autocommit mode.
    """
    rules = source.rules
    named = [table for table in tables if table.table in rules.tables and table.relation.columns]
    if not named:
        return list(tables)
    oids = [table.relation.relation_id for table in named]
    publication = read_publication(connection, source.publication, oids)
    columns = columns_of(connection, oids, printed=False)
    ruled = {}
    for table in named:
        of_table, rows = rules.table(table.table), columns[table.relation.relation_id]
        wanted = _wanted(table, of_table, rows, publication)
        printed = (
            read_filter(connection, table.table, of_table.where, rows)
            if of_table.where and connection.info.server_version >= SINCE_SCHEMAS
            else None
        )
        if isinstance(printed, PrintedFilter):
            wanted = replace(wanted, printed=printed.text)
        if connection.info.server_version < SINCE_SCHEMAS and (of_table.where or wanted.columns):
            own = [_too_old(table.table)]
        else:
            own = _wrong_rules(table, of_table, [row.name for row in rows], printed)
        ruled[table.table] = _with_problems(source, replace(table, wanted=wanted), publication, own)
    return [ruled.get(table.table, table) for table in tables]


def with_lost_rules(
    rules: Rules,
    tables: Sequence[SourceTable],
    names: Callable[[int], Collection[TableName]],
    observed: Callable[[TableName], ObservedStorage | None],
    detached: Callable[[Collection[int]], Collection[int]],
) -> list[SourceTable]:
    """Return the tables; a table or column that left its rule is a problem of the table.

    Args:
        names: returns every recorded name of a relation, by oid.
        observed: returns the recorded storage of a table, with the former names of its columns.
        detached: returns the relations, by oid, that are recorded as former partitions of ruled tables.
    """
    if not rules.tables:
        return list(tables)
    checked, former_parts = [], detached([table.relation.relation_id for table in tables])
    for table in tables:
        message = None
        relation_id = table.relation.relation_id
        parts = () if table.storage is None else sorted(table.storage.parts.keys() - {relation_id})
        former = rules.renamed(names(relation_id), table.table)
        attached = next(filter(None, (rules.renamed(names(oid), table.table) for oid in parts)), None)
        if former is not None:
            message = f"the table was called {former}, for which the pipeline file has rules"
        elif attached is not None:
            message = f"{attached}, for which the pipeline file has rules, is a partition of the table now"
        elif relation_id in former_parts and table.table not in rules.tables:
            message = "the table was a partition of a table for which the pipeline file has rules"
        elif lost := _renamed_columns(rules.table(table.table), table.storage, observed(table.table)):
            message = f"column {lost[0][1]} was called {lost[0][0]}, for which source.columns has a rule"
        problems = () if message is None else (rule_lost(table.table, message),)
        checked.append(replace(table, problems=(*table.problems, *problems)))
    return checked


def detached_parts(
    rules: Rules,
    tables: Sequence[SourceTable],
    names: Callable[[int], Collection[TableName]],
    observed: Callable[[TableName], ObservedStorage | None],
) -> list[int]:
    """Return the oids of tables without an entry that were partitions of a ruled table at a recorded poll."""
    ruled = set(rules.ruled)
    for table in tables:
        if table.table in rules.ruled:
            ruled |= set(names(table.relation.relation_id))  # the record may be under a former name
    others = [table.relation.relation_id for table in tables if table.table not in rules.tables]
    return [oid for oid in others if ruled_root(oid, ruled, observed) is not None]


def ruled_root(
    relation_id: int,
    roots: Iterable[TableName],
    observed: Callable[[TableName], ObservedStorage | None],
) -> TableName | None:
    """Return the root that had a relation as partition at a recorded poll; None without one."""
    for root in sorted(roots):
        known = observed(root)
        if known is None or known.storage.relation_id == relation_id:
            continue
        polls = (known.storage, known.read) if known.read is not None else (known.storage,)
        if any(relation_id in poll.parts for poll in polls):
            return root
    return None


def _renamed_columns(
    rules: TableRules, storage: Storage | None, observed: ObservedStorage | None
) -> list[tuple[str, str]]:
    """Return the former and the present name of each column that lost its rule since the recorded poll."""
    if storage is None or observed is None or observed.storage.relation_id != storage.relation_id:
        return []
    before, now = (
        {attnum: column.name for attnum, column in state.columns.items()}
        for state in (observed.storage, storage)
    )
    return rules.lost(before, now)


def _wrong_rules(
    table: SourceTable,
    rules: TableRules,
    names: Sequence[str],
    printed: PrintedFilter | TableError | None,
) -> list[TableError]:
    """Return the errors of the rules themselves."""
    errors = [*_unknown(table.table, rules, names), *_protected_keys(table, rules)]
    if isinstance(printed, TableError):
        errors.append(printed)
    elif printed is not None and (outside := _outside(table, printed.columns)):
        errors.append(_filter_columns(table.table, outside))
    return errors


def _with_problems(
    source: SourceSettings,
    table: SourceTable,
    publication: Publication | None,
    own: Sequence[TableError],
) -> SourceTable:
    """Return a table with the problems of its rules and of the publication, and with the ruled shape."""
    wanted, rules = table.wanted, source.rules.table(table.table)
    assert wanted is not None  # noqa: S101 - the caller has set it
    member = None if publication is None else publication.member(table.table)
    problems = [
        _with_clause(problem, wanted, table.table)
        for problem in table.problems
        if problem.code not in _REPLACED
    ]
    harmful = any(problem.code in _HARMFUL for problem in own)
    limited = member is not None and (member.columns is not None or member.row_filter is not None)
    if not own and publication is not None and member is not None and not wanted.is_met(member):
        own = _unchangeable(source, table, wanted, publication)
    return replace(
        table,
        relation=rules.shape(table.relation),
        problems=(*problems, *own),
        blocked=table.blocked or (harmful and limited),
    )


def _wanted(
    table: SourceTable, rules: TableRules, columns: Sequence[ColumnRow], publication: Publication | None
) -> Wanted:
    """Return the membership that the rules demand, without the server's print of the filter."""
    excluded = any(rules.action(column.name) == "exclude" for column in columns)
    listed = [
        column
        for column in columns
        if is_published(column.attnum, column.generated, publication, Member())
        and rules.action(column.name) != "exclude"
    ]
    return Wanted(
        relation_id=table.relation.relation_id,
        columns=tuple(column.name for column in listed) if excluded else None,
        attnums=frozenset(column.attnum for column in listed) if excluded else None,
        where=rules.where,
    )


def _unknown(table: TableName, rules: TableRules, names: Sequence[str]) -> list[TableError]:
    errors = []
    for name in rules.unknown(names):
        near = nearest(name, names)
        errors.append(
            TableError(
                table,
                f"source.columns has a rule for {name}, and the table has no such column",
                code="column-rule-unknown",
                remedy=f"write {near} if this column is meant" if near else "correct or remove the rule",
            )
        )
    return errors


def _protected_keys(table: SourceTable, rules: TableRules) -> list[TableError]:
    """Return the errors of rules that the key or the replica identity does not allow."""
    errors = []
    logged = {name for identity in table.identities for name in identity.columns}
    excludes = [name for name, action in rules.columns if action == "exclude"]
    key = {*table.relation.key, *logged}
    hidden = sorted(name for name in key if rules.action(name) == "exclude")
    masked = sorted(name for name in table.relation.key if rules.action(name) == "mask")
    if hidden:
        errors.append(
            _key_error(
                table.table,
                f"source.columns excludes {', '.join(hidden)}, which the key or the replica identity needs; "
                "PostgreSQL would refuse UPDATEs and DELETEs of the table",
                "write hash instead of exclude, or choose another replica identity",
            )
        )
    elif excludes and any(identity.mode == "f" for identity in table.identities):
        errors.append(
            _key_error(
                table.table,
                "source.columns excludes a column, and the table's REPLICA IDENTITY FULL needs all columns; "
                "PostgreSQL would refuse UPDATEs and DELETEs of the table",
                f"ALTER TABLE {table.table.quoted} REPLICA IDENTITY DEFAULT; or write hash or mask instead "
                "of exclude",
            )
        )
    if masked:
        errors.append(
            _key_error(
                table.table,
                f"source.columns masks the key column {', '.join(masked)}, and masked values are not unique",
                "write hash instead of mask",
            )
        )
    return errors


def _key_error(table: TableName, message: str, remedy: str) -> TableError:
    return TableError(table, message, code="column-rule-key", remedy=remedy)


def _outside(table: SourceTable, columns: frozenset[str]) -> list[str]:
    """Return the columns that some old row of the table lacks."""
    return sorted(
        column for column in columns if any(not identity.covers([column]) for identity in table.identities)
    )


def _filter_columns(table: TableName, outside: Sequence[str]) -> TableError:
    return TableError(
        table,
        f"the row filter of source.where reads {', '.join(outside)}, which the replica identity does not "
        "contain; PostgreSQL would refuse UPDATEs and DELETEs of the table",
        code="row-filter-columns",
        remedy=f"use columns of the primary key alone, or ALTER TABLE {table.quoted} REPLICA IDENTITY FULL;",
    )


def _too_old(table: TableName) -> TableError:
    return TableError(
        table,
        "exclude and source.where need PostgreSQL 15 or later: an older server sends every column and row",
        code="rules-need-15",
        remedy="upgrade the server, or write hash or mask instead of exclude",
    )


def _unchangeable(
    source: SourceSettings, table: SourceTable, wanted: Wanted, publication: Publication
) -> list[TableError]:
    """Return the error of a table that the publication sends otherwise, if the reader may not change this."""
    whole = publication.all_tables or table.table.schema in publication.schemas
    if whole:
        scope = "all tables" if publication.all_tables else f"schema {table.table.schema}"
        reason = f"it is a publication of {scope}, which has no rules for a single table"
    elif not source.manage:
        reason = "source.manage is false"
    elif not publication.owned:
        reason = f"its owner is {publication.owner}"
    elif not table.owned:
        reason = f"the owner of the table is {table.owner}"
    else:
        return []
    sql = " ".join(["BEGIN;", *wanted.statements(publication.name, table.table), "COMMIT;"])
    return [
        TableError(
            table.table,
            f"publication {publication.name} does not send the table as source.columns and source.where "
            f"demand, and the reader may not change the publication: {reason}",
            code="publication-rules",
            remedy="give the pipeline a publication of its own" if whole else f"as owner, run: {sql}",
        )
    ]


def _with_clause(problem: TableError, wanted: Wanted, table: TableName) -> TableError:
    """Return a problem whose remedy adds the table as the rules demand."""
    remedy = str(problem.remedy or "").replace(
        f"ADD TABLE ONLY {table.quoted};", f"ADD TABLE {wanted.clause(table)};"
    )
    return TableError(problem.table, problem.message, code=problem.code, remedy=remedy or problem.remedy)
