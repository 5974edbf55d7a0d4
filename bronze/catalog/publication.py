"""A publication as it is: its members, their columns and row filters, the operations that it carries."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.drift.membership import SINCE_SCHEMAS, published_schemas
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.unnamed import unnamed_tables

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    import psycopg


SINCE_GENERATED: Final = 180000
"""Version that may publish generated columns, and that refuses changes where it should but does not."""


NOT_PRINTED: Final = "(…)"
"""A row filter that nobody asked for: the server prints each by functions, which may fail."""

OPERATIONS: Final = ("insert", "update", "delete", "truncate")

MADE: Final = "made by deltasmelt"
"""How the comment of a publication begins that deltasmelt made: it may lose tables, and be dropped."""


def is_made_by_us(comment: str | None) -> bool:
    """Check whether a publication's comment says that deltasmelt made it. Pure."""
    return comment is not None and (comment == MADE or comment.startswith(f"{MADE}:"))


@dataclass(frozen=True, slots=True)
class Member:
    """How a publication carries one table.

    Attributes:
        columns: attnums of its column list; None where all columns are published.
        row_filter: its WHERE clause, or `NOT_PRINTED`; None where there is none.
    """

    columns: frozenset[int] | None = None
    row_filter: str | None = None


@dataclass(frozen=True, slots=True)
class Publication:
    """A publication as the catalog has it.

    Attributes:
        owner: role that owns it; `owned` tells whether we may act as that role.
        made: deltasmelt made it. Any other may feed other subscribers too.
        operations: those of insert, update, delete, truncate that it publishes.
        generated: whether stored generated columns are published where no column list speaks (PostgreSQL 18).
        lists_generated: whether a column list may name generated columns (PostgreSQL 18).
    """

    name: str
    owner: str
    owned: bool
    all_tables: bool
    operations: frozenset[str]
    via_root: bool
    generated: bool = False
    lists_generated: bool = False
    made: bool = False
    schemas: frozenset[str] = frozenset()
    members: Mapping[TableName, Member] = field(default_factory=dict)

    @property
    def carries_updates(self) -> bool:
        """Whether PostgreSQL asks for a replica identity of each table that it carries."""
        return not self.operations.isdisjoint({"update", "delete"})

    @property
    def ours(self) -> bool:
        """Whether deltasmelt made it, and this role may change it."""
        return self.owned and self.made

    def may_lose(self, table: TableName) -> bool:
        """Whether `table` can be taken out: it is named itself, and in no other way."""
        return table in self.members and not self.all_tables and table.schema not in self.schemas

    def member(self, table: TableName) -> Member | None:
        """How it carries `table`; None where it does not."""
        direct = self.members.get(table)
        if direct is not None:
            return direct
        return Member() if self.all_tables or table.schema in self.schemas else None


def is_published(attnum: int, generated: str, publication: Publication | None, member: Member | None) -> bool:
    """Check whether pgoutput sends a column; PostgreSQL 18 sends generated ones if so published."""
    if member is not None and member.columns is not None:
        listed = attnum in member.columns
        return listed and (not generated or (publication is not None and publication.lists_generated))
    if generated:
        return generated == "s" and publication is not None and publication.generated
    return True


def read_publication(
    connection: psycopg.Connection[Any], name: str, printed: Collection[int] = ()
) -> Publication | None:
    """Return the publication of that name in the connected database, or None.

    Args:
        connection: idle or inside a transaction.
        name: of the publication.
        printed: pg_class.oid of tables whose row filter is to be printed.
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
        "p.prattrs::int2[], CASE WHEN p.prqual IS NULL THEN NULL WHEN p.prrelid = ANY (%(printed)s::oid[]) "
        "THEN pg_get_expr(p.prqual, p.prrelid) ELSE %(not_printed)s END"
        if version >= SINCE_SCHEMAS
        else "NULL::int2[], NULL::text"
    )
    rows = connection.execute(
        f"""
        SELECT n.nspname, c.relname, {details}
        FROM pg_publication_rel p
        JOIN pg_class c ON c.oid = p.prrelid
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE p.prpubid = %(oid)s AND c.oid <> ALL (%(unnamed)s::oid[])
        """,
        {
            "oid": oid,
            "unnamed": list(unnamed_tables(connection)),
            "printed": list(printed),
            "not_printed": NOT_PRINTED,
        },
    )
    return {
        TableName(schema, table): Member(None if columns is None else frozenset(columns), row_filter)
        for schema, table, columns, row_filter in rows
    }
