"""Findings about the publication: gaps, the privileges to close the gaps, and effects on the source."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.problems import COPY_ONLY
from deltasmelt.bronze.catalog.publication import read_publication
from deltasmelt.bronze.checks.finding import Finding
from deltasmelt.bronze.figures import counted
from deltasmelt.bronze.identifiers import quote_identifier
from deltasmelt.bronze.setup.publication import publication_statements

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import psycopg

    from deltasmelt.bronze.catalog.publication import Publication
    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings

_WANTED_ALL_THE_SAME: Final = COPY_ONLY | {"table-not-published", "publication-partition-root"}
"""Problems that do not keep a table out of the publication."""
_NEXT_TABLE: Final = ", ONLY "
_SHOWN: Final = 5


def publication_findings(
    connection: psycopg.Connection[Any],
    source: SourceSettings,
    tables: Sequence[SourceTable],
    *,
    may_create: bool,
    role: str,
) -> Iterator[Finding]:
    """Yield findings about the publication; `may_create` means that `role` has CREATE on the database."""
    ruled = [table.wanted.relation_id for table in tables if table.wanted is not None]
    publication = read_publication(connection, source.publication, ruled)
    unpublished = [
        table for table in tables if all(problem.code in _WANTED_ALL_THE_SAME for problem in table.problems)
    ]
    statements = publication_statements(
        publication,
        source.publication,
        [table.table for table in unpublished],
        via_root=source.manage or any(table.kind == "p" for table in unpublished),
        wanted={table.table: table.wanted for table in unpublished if table.wanted is not None},
    )
    subject = f"publication {source.publication}"
    if statements:
        yield from _to_do(source, publication, unpublished, statements, may_create=may_create, role=role)
    if publication is None:
        return
    for table in tables:
        if table.blocked:
            generated = any(problem.code == "identity-generated" for problem in table.problems)
            part = "and not the generated columns of its" if generated else "without"
            yield Finding(
                level="error",
                code="publication-blocks-updates",
                subject=str(table.table),
                message=f"{subject} contains this table {part} replica identity: UPDATEs and DELETEs of the "
                "table fail",
                remedy=_out_of(publication, table, source),
            )
    for table in tables:
        if table.unpublished and all(problem.code != "publication-column-list" for problem in table.problems):
            yield Finding(
                level="info",
                code="publication-columns",
                subject=str(table.table),
                message=f"the column list of {subject} leaves out {', '.join(table.unpublished)}; silver "
                "has no such "
                "columns",
            )
    selected = {table.table for table in tables}
    unselected = sorted(str(table) for table in publication.members if table not in selected)
    if unselected:
        yield Finding(
            level="info",
            code="publication-carries-more",
            subject=subject,
            message=f"the publication also contains {len(unselected)} tables that the patterns do not "
            f"select: {', '.join(unselected[:_SHOWN])}" + (" …" if len(unselected) > _SHOWN else ""),
        )


def _to_do(
    source: SourceSettings,
    publication: Publication | None,
    tables: Sequence[SourceTable],
    statements: Sequence[str],
    *,
    may_create: bool,
    role: str,
) -> Iterator[Finding]:
    subject = f"publication {source.publication}"
    missing = publication is None
    state = "does not exist" if missing else "does not contain all tables that the pipeline reads"
    sql = " ".join(statements)
    if not source.manage:
        code = "publication-missing" if missing else "publication-incomplete"
        yield Finding(
            level="error",
            code=code,
            subject=subject,
            message=f"{state}, and source.manage is false",
            remedy=f"as owner of the tables: {sql}",
        )
        return
    foreign = [
        table
        for table in tables
        if not table.owned and (publication is None or publication.member(table.table) is None)
    ]
    reasons = []
    if publication is None and not may_create:
        reasons.append("the role lacks CREATE on the database")
    if publication is not None and not publication.owned:
        reasons.append(f"the role does not own the publication (the owner is {publication.owner})")
    if foreign:
        names = ", ".join(str(table.table) for table in foreign[:_SHOWN])
        names += " …" if len(foreign) > _SHOWN else ""
        reasons.append(f"the role does not own {len(foreign)} of the tables ({names})")
    if reasons:
        remedy = f"as owner of the tables and the publication, or as a superuser: {sql}"
        if publication is not None and publication.owned:
            remedy += " or leave the tables out with source.exclude"
        else:
            remedy = f"set source.manage to false, since the role may change nothing; then, {remedy}"
        yield Finding(
            level="error",
            code="publication-privilege",
            subject=subject,
            message=f"{state}, and role {role} cannot {'create' if missing else 'correct'} it: "
            f"{'; '.join(reasons)}",
            remedy=remedy,
        )
    else:
        yield Finding(
            level="info",
            code="publication-to-do",
            subject=subject,
            message=f"{state}; the next start runs: {' '.join(map(_shortened, statements))}",
        )


def _shortened(statement: str) -> str:
    """Return a statement that a person need not run, with few of its tables without columns and filter."""
    first, *others = statement.split(_NEXT_TABLE)
    hidden = {table for table in others[_SHOWN - 1 : -1] if "(" not in table}
    if not hidden:
        return statement
    *shown, last = (table for table in others if table not in hidden)
    return f"{_NEXT_TABLE.join([first, *shown])}, … {counted(len(hidden), 'more table')} …{_NEXT_TABLE}{last}"


def _out_of(publication: Publication, table: SourceTable, source: SourceSettings) -> str:
    cure = table.problems[0].remedy or ""
    if not (source.manage and publication.ours and publication.may_lose(table.table)):
        return cure
    drop = f"ALTER PUBLICATION {quote_identifier(publication.name)} DROP TABLE ONLY {table.table.quoted};"
    return f"{drop} or: start the reader, which runs this statement; or: {cure}"
