"""Apply the rules of `source.columns` and `source.where` to the selected tables, and find wrong rules.

**The application comes first.** PostgreSQL refuses each UPDATE and DELETE of a table whose column list lacks
a column of the replica identity, or whose filter reads a column outside of the replica identity. So such a
rule is an error of the table before any publication changes, and a table that gets into this state later
(another primary key) leaves the publication at the next poll, or its list grows.

**A wrong rule stops its table.** A rule for a column that does not exist may be misspelt, and then the values
that it should protect would arrive. So the table is not carried until the file is right.

**A rename does not end a rule.** A rule names a table and a column. After a rename at the source, the rule
would name nothing, and values would arrive under the new name. So the table gets an error until the pipeline
file has the new name (`with_lost_rules`). A partition that leaves a ruled table gets this error too, as does
a root that gets a ruled table as partition; the running stream leaves such a root out at the partition's
announcement (`bronze.pgoutput.decoder`). `bronze.catalog.ruled_parts` knows such partitions.

**What a person limited stays limited.** Only a rule `exclude` decides on the column list, and only a
condition on the row filter. A list or filter that deltasmelt did not set is never replaced by another that
sends more: the table has an error instead. The number of the recorded rules knows who set list and filter
(`bronze.rules.OUR_LIST`), also after the entry left the pipeline file (`_without_entry`): such a list is
examined for harm, and a table that lost it is not sent in full before a person decides.

**The publication must already obey.** Changes of a table are carried only while the publication's list and
filter are those of the rules; otherwise the reader changes the publication first, or the table has an error.

PostgreSQL docs: https://www.postgresql.org/docs/current/logical-replication-row-filter.html and
https://www.postgresql.org/docs/current/logical-replication-col-lists.html.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.catalog.harmful_members import harmful_members
from deltasmelt.bronze.catalog.problems import OF_COLUMNS, column_problems, rule_lost
from deltasmelt.bronze.catalog.publication import Member, Wanted, is_published, read_publication
from deltasmelt.bronze.catalog.queries import columns_of
from deltasmelt.bronze.catalog.row_filters import PrintedFilter, read_filter
from deltasmelt.bronze.catalog.ruled_parts import relations_of
from deltasmelt.bronze.config.suggestions import nearest
from deltasmelt.bronze.drift.membership import SINCE_SCHEMAS
from deltasmelt.bronze.errors import TableError
from deltasmelt.bronze.identifiers import quote_identifier
from deltasmelt.bronze.rules import OUR_FILTER, OUR_LIST, OURS, ruled_partition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.publication import Publication
    from deltasmelt.bronze.catalog.queries import ColumnRow
    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.drift.observed_storage import ObservedStorage
    from deltasmelt.bronze.drift.storage import Storage
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.rules import Rules, TableRules


def with_rules(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Sequence[SourceTable],
    recorded: Mapping[TableName, int],
) -> list[SourceTable]:
    """Return the tables with the shapes that the lake knows, and with the problems of their rules.

    Args:
        connection: a connection in autocommit mode.
        recorded: numbers of the rules by which the lake carries tables (`bronze.store.rule_marks`).
    """
    rules = source.rules
    named = [table for table in tables if table.table in rules.tables and table.relation.columns]
    former = [t for t in tables if t.table not in rules.tables and recorded.get(t.table, 0) & OURS]
    if not named and not former:
        return list(tables)
    oids = [table.relation.relation_id for table in named]
    publication = read_publication(connection, source.publication, oids)
    columns = columns_of(connection, oids, printed=False)
    harmful = harmful_members(connection, source.publication)
    ruled = {}
    for table in named:
        of_table, rows = rules.table(table.table), columns[table.relation.relation_id]
        number = recorded.get(table.table, 0)
        wanted = _wanted(table, of_table, rows, publication, number)
        printed = (
            read_filter(connection, table.table, of_table.where, table.relation.relation_id, tuple(rows))
            if of_table.where and connection.info.server_version >= SINCE_SCHEMAS
            else None
        )
        if isinstance(printed, PrintedFilter):
            wanted = replace(wanted, printed=printed.text)
        if connection.info.server_version < SINCE_SCHEMAS and (of_table.where or wanted.columns):
            own = [_too_old(table.table)]
        else:
            own = _wrong_rules(table, of_table, [row.name for row in rows], printed)
        unmatched = of_table.unmatched([row.name for row in rows])
        asked = replace(table, wanted=wanted, unmatched=unmatched)
        ruled[table.table] = _with_problems(
            source, asked, publication, own, number, harmful=table.table in harmful
        )
    ruled |= {t.table: _without_entry(t, publication, harmful=t.table in harmful) for t in former}
    return [ruled.get(table.table, table) for table in tables]


def _without_entry(table: SourceTable, publication: Publication | None, *, harmful: bool) -> SourceTable:
    """Return a table whose entry was removed; the publication may still have the list or the filter."""
    if publication is not None and publication.member(table.table) is not None:
        return replace(table, blocked=table.blocked or harmful)
    problem = TableError(
        table.table,
        "the pipeline file has no rules for the table any longer, and the publication has lost the list or "
        "the filter of the former rules: without them, columns or rows would arrive that never did",
        code="publication-rules",
        remedy=f"write the rules again, or request the whole table: source.columns: {{{table.table}: {{}}}}",
    )
    return replace(table, problems=(*table.problems, problem))


def with_lost_rules(
    rules: Rules,
    tables: Sequence[SourceTable],
    names: Callable[[int], Collection[TableName]],
    observed: Callable[[TableName], ObservedStorage | None],
    detached: Callable[[Collection[int]], Mapping[int, int]],
) -> list[SourceTable]:
    """Return the tables; a table or column that left its rule is a problem of the table.

    Args:
        names: returns every recorded name of a relation, by oid.
        observed: returns the recorded storage of a table, with the former names of its columns.
        detached: returns the roots of relations that are recorded as partitions of ruled tables, by oid.
    """
    if not rules.tables:
        return list(tables)
    checked, roots = [], detached([oid for table in tables for oid in relations_of(table)])
    for table in tables:
        message, detached_rows = None, False
        relation_id = table.relation.relation_id
        parts = sorted(relations_of(table) - {relation_id})
        former = rules.renamed(names(relation_id), table.table)
        former_names = [table.partitions, *(names(oid) for oid in parts)]
        attached = next(filter(None, (rules.renamed(of_part, table.table) for of_part in former_names)), None)
        if former is not None:
            message = f"the table was called {former}, for which the pipeline file has rules"
        elif attached is not None:
            message = ruled_partition(attached)
        elif table.table not in rules.tables and any(
            roots.get(oid, relation_id) != relation_id for oid in relations_of(table)
        ):
            detached_rows = True
            what = "the table" if relation_id in roots else "a partition of the table"
            message = f"{what} was a partition of a table for which the pipeline file has rules"
        elif lost := _renamed_columns(rules.table(table.table), table.storage, observed(table.table)):
            message = f"column {lost[0][1]} was called {lost[0][0]}, for which source.columns has a rule"
        problems = () if message is None else (rule_lost(table.table, message, detached=detached_rows),)
        checked.append(replace(table, problems=(*table.problems, *problems)))
    return checked


def unmatched_patterns(tables: Iterable[SourceTable]) -> list[TableError]:
    """Return a warning for each table with patterns that match no column; such a table is carried."""
    return [
        TableError(
            table.table,
            f"source.columns has patterns that match no column now: {', '.join(table.unmatched)}",
            code="column-rule-unmatched",
            remedy="correct the pattern, unless it is for columns that do not exist yet",
        )
        for table in tables
        if table.unmatched
    ]


def rules_without_table(
    rules: Rules, tables: Sequence[SourceTable], known: Collection[TableName] = ()
) -> list[TableError]:
    """Return the errors of entries that name no selected table: the meant table would arrive in clear.

    `known` are all names in `bronze.relations`, the only record: such a table was dropped or renamed.
    """
    names = {table.table for table in tables}
    roots = {leaf: table.table for table in tables for leaf in table.partitions}
    errors = []
    for name in sorted(rules.tables.keys() - names - set(known)):
        near = roots[name] if name in roots else nearest(str(name), [str(table) for table in sorted(names)])
        reason = f"is a partition of {near}" if name in roots else "is not a table that source.tables selects"
        errors.append(
            TableError(
                name,
                f"source.columns or source.where has rules for {name}, which {reason}",
                code="rule-table-unknown",
                remedy=f"write {near} if this table is meant, or remove the rules"
                if near
                else "correct the name, or remove the rules; the form is schema.table, and case matters",
            )
        )
    return errors


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
    errors = [*_unknown(table.table, rules, names), *_protected_keys(table, rules, names)]
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
    recorded: int,
    *,
    harmful: bool,
) -> SourceTable:
    """Return a table with the problems of its rules and of the publication, and with the ruled shape."""
    wanted, rules = table.wanted, source.rules.table(table.table)
    assert wanted is not None  # noqa: S101 - the caller has set it
    member = None if publication is None else publication.member(table.table)
    # Problems of the publication that the rules correct, or for which this module has an error of its own.
    replaced = {
        "publication-column-list": rules.decides_list(recorded),
        "publication-row-filter": rules.decides_filter(recorded),
    }
    problems = [
        _with_clause(problem, wanted, table.table)
        for problem in table.problems
        if not replaced.get(problem.code, False) and problem.code not in OF_COLUMNS
    ]
    problems += column_problems(rules.shape(table.relation))
    if not own and publication is not None and member is not None and not wanted.is_met(member):
        own = _unchangeable(source, table, wanted, publication, member)
    # After the removal nothing would record a person's list, so the table stays and the error has the SQL.
    leaves = harmful and member is not None and wanted.widens(member) is None
    if harmful and publication is not None:
        stays = not (leaves and source.manage and publication.ours and publication.may_lose(table.table))
        own = [_failing(problem, publication) for problem in own] if stays else own
    return replace(
        table,
        relation=rules.shape(table.relation),
        problems=(*problems, *own),
        blocked=table.blocked or leaves,
    )


def _wanted(
    table: SourceTable,
    rules: TableRules,
    columns: Sequence[ColumnRow],
    publication: Publication | None,
    recorded: int,
) -> Wanted:
    """Return the membership that the rules demand, without the server's print of the rules' filter."""
    present = (None if publication is None else publication.member(table.table)) or Member()
    if rules.decides_list(recorded):
        limited = any(rules.action(column.name) == "exclude" for column in columns)
        listed = [
            column
            for column in columns
            if is_published(column.attnum, column.generated, publication, Member())
            and rules.action(column.name) != "exclude"
        ]
    else:
        limited = present.columns is not None
        listed = [column for column in columns if column.attnum in (present.columns or ())]
    return Wanted(
        relation_id=table.relation.relation_id,
        columns=tuple(column.name for column in listed) if limited else None,
        attnums=frozenset(column.attnum for column in listed) if limited else None,
        where=rules.where,
        printed=None if rules.decides_filter(recorded) else present.row_filter,
        may_extend=rules.all_columns or bool(recorded & OUR_LIST),
        may_refilter=rules.all_rows or bool(recorded & OUR_FILTER),
        needed=frozenset(
            column.attnum for column in columns if _is_full(table) or column.name in _key_columns(table)
        ),
    )


def _key_columns(table: SourceTable) -> set[str]:
    return {*table.relation.key, *(name for identity in table.identities for name in identity.columns)}


def _is_full(table: SourceTable) -> bool:
    return any(identity.mode == "f" for identity in table.identities)


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


def _protected_keys(table: SourceTable, rules: TableRules, names: Sequence[str]) -> list[TableError]:
    """Return the errors of rules that the key or the replica identity does not allow."""
    errors = []
    excludes = any(rules.action(name) == "exclude" for name in names)
    hidden = sorted(name for name in _key_columns(table) if rules.action(name) == "exclude")
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
    elif excludes and _is_full(table):
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


def _failing(problem: TableError, publication: Publication) -> TableError:
    """Return the problem of a table whose UPDATEs and DELETEs fail now, with the SQL that ends this."""
    name, table = quote_identifier(publication.name), problem.table
    return TableError(
        table,
        f"{problem.message}; publication {publication.name} makes UPDATEs and DELETEs of the table fail now",
        code=problem.code,
        remedy="to allow UPDATEs and DELETEs at once, as owner of the publication: "
        f"ALTER PUBLICATION {name} DROP TABLE ONLY {table.quoted}; then: {problem.remedy}",
    )


def _unchangeable(
    source: SourceSettings, table: SourceTable, wanted: Wanted, publication: Publication, member: Member
) -> list[TableError]:
    """Return the error of a table that the publication sends otherwise, if the reader may not change this."""
    widened = wanted.widens(member)
    whole = publication.all_tables or table.table.schema in publication.schemas
    if whole:
        scope = "all tables" if publication.all_tables else f"schema {table.table.schema}"
        reason = f"it is a publication of {scope}, which has no rules for a single table"
    elif not source.manage:
        reason = "source.manage is false"
    elif not publication.owned:
        reason = f"its owner is {publication.owner}"
    elif not publication.made:
        reason = "deltasmelt did not create the publication, so other subscribers may read it"
    elif not table.owned:
        reason = f"the owner of the table is {table.owner}"
    elif widened is not None:
        reason = widened
    else:
        return []
    sql = " ".join(["BEGIN;", *wanted.statements(publication.name, table.table), "COMMIT;"])
    remedy = f"as owner, run: {sql}"
    if whole:
        remedy = "give the pipeline its own publication"
    elif source.manage and not publication.made:
        remedy += " Or give the pipeline its own publication."
    elif widened is not None:
        remedy = f"write under source.columns and source.where what the publication leaves out; or {remedy}"
    return [
        TableError(
            table.table,
            f"publication {publication.name} does not send the table as source.columns and source.where "
            f"demand, and the reader may not change the publication: {reason}",
            code="publication-rules",
            remedy=remedy,
        )
    ]


def _with_clause(problem: TableError, wanted: Wanted, table: TableName) -> TableError:
    """Return a problem whose remedy adds the table as the rules demand."""
    remedy = str(problem.remedy or "").replace(
        f"ADD TABLE ONLY {table.quoted};", f"ADD TABLE {wanted.clause(table)};"
    )
    return TableError(problem.table, problem.message, code=problem.code, remedy=remedy or problem.remedy)
