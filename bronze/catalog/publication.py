"""The present state of a publication: members, columns, row filters, and published operations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg

from deltasmelt.bronze.catalog.row_filters import printed_unlocked
from deltasmelt.bronze.drift.membership import SINCE_SCHEMAS, published_schemas
from deltasmelt.bronze.identifiers import TableName, quote_identifier
from deltasmelt.bronze.postgres.unnamed import unnamed_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

SINCE_GENERATED: Final = 180000
"""First version that may publish generated columns, and refuses writes if a needed column is unpublished."""


NOT_PRINTED: Final = "(…)"
"""Text of a row filter that was not requested: the server prints filters by functions, and these may fail."""

_LOCK_MILLISECONDS: Final = 200
_PRINTS: Final[dict[tuple[Any, ...], str]] = {}
"""Prints of stored filters."""

OPERATIONS: Final = ("insert", "update", "delete", "truncate")

MADE: Final = "made by deltasmelt"
"""Prefix of the comment on a publication that deltasmelt created and may therefore shrink or drop."""


def is_made_by_us(comment: str | None) -> bool:
    """Check whether a publication's comment names deltasmelt as creator. Pure."""
    return comment is not None and (comment == MADE or comment.startswith(f"{MADE}:"))


@dataclass(frozen=True, slots=True)
class Member:
    """The membership of a table in a publication."""

    # attnums of the column list; None means all columns
    columns: frozenset[int] | None = None
    # the WHERE clause, or `NOT_PRINTED`; None without a filter
    row_filter: str | None = None


@dataclass(frozen=True, slots=True)
class Wanted:
    """The membership of a table that the rules of the pipeline file demand (`bronze.rules`)."""

    relation_id: int
    # names and attnums of the column list; None means all columns
    columns: tuple[str, ...] | None = None
    attnums: frozenset[int] | None = None
    # the row filter in the pipeline file; empty without a filter
    where: str = ""
    # the row filter as the server prints it; None without a filter
    printed: str | None = None
    # whether deltasmelt set the present list, and the present filter, or an empty entry ends both
    may_extend: bool = False
    may_refilter: bool = False
    # attnums of the key and of the replica identity
    needed: frozenset[int] = frozenset()

    def widens(self, member: Member) -> str | None:
        """Return how the demanded membership would send more than a person allows; None if it does not."""
        if (
            not self.may_extend
            and member.columns is not None
            and (self.attnums is None or not self.attnums <= member.columns)
        ):
            return "its column list, which deltasmelt did not set, leaves out more columns than the rules do"
        if not self.may_refilter and member.row_filter not in (None, self.printed):
            return "its row filter, which deltasmelt did not set, is not the condition of source.where"
        return None

    def contains(self, member: Member) -> bool:
        """Check whether the publication sends the rows as demanded, with the key, if not all columns."""
        if member.columns is None or member.row_filter != self.printed:
            return False
        return self.needed <= member.columns and (self.attnums is None or member.columns <= self.attnums)

    def is_met(self, member: Member) -> bool:
        """Check whether the publication carries the table as demanded."""
        # A person's filter stays, also if the server refused to print it.
        stays = self.printed == NOT_PRINTED and member.row_filter is not None
        return member.columns == self.attnums and (stays or member.row_filter == self.printed)

    def clause(self, table: TableName) -> str:
        """Return the table with list and filter, for a statement on the publication."""
        names = "" if self.columns is None else f" ({', '.join(map(quote_identifier, self.columns))})"
        # The server's print has no comment that could hide the bracket.
        condition = self.printed or self.where
        return f"ONLY {table.quoted}{names}{f' WHERE ({condition})' if condition else ''}"

    def statements(self, publication: str, table: TableName) -> list[str]:
        """Return the SQL that replaces the membership; in one transaction no change is missed."""
        name = quote_identifier(publication)
        return [
            f"ALTER PUBLICATION {name} DROP TABLE ONLY {table.quoted};",
            f"ALTER PUBLICATION {name} ADD TABLE {self.clause(table)};",
        ]


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication in the catalog."""

    name: str
    # role that owns the publication; `owned`: whether our role may act as the owner
    owner: str
    owned: bool
    all_tables: bool
    # published operations among insert, update, delete, truncate
    operations: frozenset[str]
    via_root: bool
    # whether stored generated columns are published without a column list (PostgreSQL 18)
    generated: bool = False
    # whether a column list may name generated columns (PostgreSQL 18)
    lists_generated: bool = False
    # Whether deltasmelt created the publication. Any other publication may feed other subscribers too.
    made: bool = False
    schemas: frozenset[str] = frozenset()
    members: Mapping[TableName, Member] = field(default_factory=dict)

    @property
    def carries_updates(self) -> bool:
        """Whether PostgreSQL requires a replica identity of each published table."""
        return not self.operations.isdisjoint({"update", "delete"})

    @property
    def ours(self) -> bool:
        """Whether deltasmelt created the publication and our role may change it."""
        return self.owned and self.made

    def may_lose(self, table: TableName) -> bool:
        """Check whether `table` can be removed: published by name, not through a schema or all tables."""
        return table in self.members and not self.all_tables and table.schema not in self.schemas

    def member(self, table: TableName) -> Member | None:
        """Return the membership of `table`; None if the publication lacks the table.

        PostgreSQL ignores the filter of a table whose whole schema is in the publication, too.
        """
        if self.all_tables or table.schema in self.schemas:
            return Member()
        return self.members.get(table)


def is_published(attnum: int, generated: str, publication: Publication | None, member: Member | None) -> bool:
    """Check whether pgoutput sends a column; PostgreSQL 18 sends published generated columns."""
    if member is not None and member.columns is not None:
        listed = attnum in member.columns
        return listed and (not generated or (publication is not None and publication.lists_generated))
    if generated:
        return generated == "s" and publication is not None and publication.generated
    return True


def read_publication(
    connection: psycopg.Connection[Any], name: str, printed: Collection[int] = ()
) -> Publication | None:
    """Return the publication with this name in the connected database, or None.

    `printed` has the pg_class.oid of the tables whose row filter the server prints.
    """
    version = connection.info.server_version
    generated = "p.pubgencols::text = 's'" if version >= SINCE_GENERATED else "false"
    row = connection.execute(
        f"""
        SELECT p.oid, pg_get_userbyid(p.pubowner), pg_has_role(p.pubowner, 'USAGE'),
               p.puballtables, p.pubviaroot, {generated},
               obj_description(p.oid, 'pg_publication'),
               p.pubinsert, p.pubupdate, p.pubdelete, p.pubtruncate
        FROM pg_publication p
        WHERE p.pubname = %s
        """,
        [name],
    ).fetchone()
    if row is None:
        return None
    oid, owner, owned, all_tables, via_root, publishes_generated, comment, *published = row
    return Publication(
        name=name,
        owner=owner,
        owned=owned,
        all_tables=all_tables,
        operations=frozenset(name for name, flag in zip(OPERATIONS, published, strict=True) if flag),
        via_root=via_root,
        generated=publishes_generated,
        lists_generated=version >= SINCE_GENERATED,
        made=is_made_by_us(comment),
        schemas=frozenset(published_schemas(connection, oid)),
        members=_members(connection, oid, version, printed),
    )


def _members(
    connection: psycopg.Connection[Any], oid: int, version: int, printed: Collection[int]
) -> dict[TableName, Member]:
    details = (
        "p.prattrs::int2[], p.prqual::text, CASE WHEN p.prqual IS NOT NULL THEN ARRAY(SELECT a.attname::text "
        "FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 ORDER BY a.attnum) END"
        if version >= SINCE_SCHEMAS
        else "NULL::int2[], NULL::text, NULL::text[]"
    )
    rows = connection.execute(
        f"""
        SELECT n.nspname, c.relname, c.oid, {details}
        FROM pg_publication_rel p
        JOIN pg_class c ON c.oid = p.prrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE p.prpubid = %(oid)s AND c.oid <> ALL (%(unnamed)s::oid[])
        """,
        {"oid": oid, "unnamed": list(unnamed_tables(connection))},
    ).fetchall()
    members = {}
    for schema, table, relation, columns, stored, names in rows:
        listed = None if columns is None else frozenset(columns)
        text = None
        if stored is not None:
            text = _print(connection, relation, stored, names) if relation in printed else NOT_PRINTED
        members[TableName(schema, table)] = Member(listed, text)
    return members


def _print(connection: psycopg.Connection[Any], relation: int, stored: str, names: list[str]) -> str:
    """Return a row filter as the server prints it; `NOT_PRINTED` if the server refuses.

    ``pg_get_expr`` locks the table. One locked table must not delay all tables, so the wait is short, and a
    print is used again until the stored filter or a column's name changes. After the wait, an empty copy of
    the table serves (`bronze.catalog.row_filters`).
    """
    known = (connection.info.dsn, relation, stored, tuple(names))
    if known not in _PRINTS:
        query = (
            "SELECT pg_get_expr(prqual, prrelid) FROM pg_publication_rel "
            "WHERE prrelid = %s AND prqual::text = %s LIMIT 1"
        )
        try:
            # The rollback also ends the limit of the wait.
            with connection.transaction(force_rollback=True):
                connection.execute(f"SET LOCAL lock_timeout = '{_LOCK_MILLISECONDS}ms'")
                row = connection.execute(query, [relation, stored]).fetchone()
        except psycopg.errors.LockNotAvailable:
            row = (printed_unlocked(connection, relation, stored),)
        if row is None or row[0] is None:
            return NOT_PRINTED
        _PRINTS[known] = row[0]
    return _PRINTS[known]
