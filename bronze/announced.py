"""From a Relation message to a version of a table's shape.

The message decides names, order, types and identity flags, for it describes the tuples that follow. It lacks
what silver needs besides: attnum (to tell a rename from drop-and-add), the tree of each type, NOT NULL, the
key. Those come from the catalog, which shows the table *as of now* and may be ahead of the stream. So:

* where the catalog has every column of the message under its name with its type, it is believed;
* where they are not, the catalog has moved on: what the last known version of the relation says of a column
  of the same name and type still holds; a column new to us is matched with the catalog by name, its type
  tree taken only where the type agrees;
* a column that neither knows has no attnum, and a base type of its oid.

What cannot be seen: a column dropped and added again with the same name and type, both while the catalog is
read from behind that point. PostgreSQL's stream carries no attnum.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.builtin_types import builtin_type, format_type
from bronze.shapes import Column, PgType, Relation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bronze.lsn import Lsn
    from bronze.messages import AnnouncedColumn, AnnouncedRelation, AnnouncedType


def relation_version(
    announced: AnnouncedRelation,
    from_lsn: Lsn,
    *,
    catalog: Relation | None,
    known: Relation | None,
    types: Mapping[int, AnnouncedType],
) -> Relation:
    """The shape that the message announces, completed from the catalog and from the last known version.

    Args:
        announced: the Relation message.
        from_lsn: commit LSN of the transaction in which it came.
        catalog: the relation as the catalog has it now; None where it is gone.
        known: the newest version known before.
        types: Type messages of this session, by oid.
    """
    sources = [version for version in (known, catalog) if version is not None]
    if catalog is not None and _has_columns(catalog, announced):
        sources = [catalog]
    columns = tuple(_column(column, sources, types) for column in announced.columns)
    return Relation(
        relation_id=announced.relation_id,
        table=announced.table,
        columns=columns,
        key=_key(announced, [version for version in (catalog, known) if version is not None]),
        replica_identity=announced.replica_identity,
        from_lsn=from_lsn,
    )


def same_shape(one: Relation, other: Relation) -> bool:
    """Whether two versions differ in nothing but where they begin."""
    return (one.relation_id, one.table, one.columns, one.key, one.replica_identity) == (
        other.relation_id, other.table, other.columns, other.key, other.replica_identity,
    )  # fmt: skip


def _has_columns(version: Relation, announced: AnnouncedRelation) -> bool:
    columns = {column.name: column for column in version.columns}
    return all(
        column.name in columns and _same_type(columns[column.name], column) for column in announced.columns
    )


def _same_type(column: Column, announced: AnnouncedColumn) -> bool:
    """A column of a domain announces no typmod; that of its `PgType` is the domain's own."""
    if column.type.oid != announced.type_oid:
        return False
    return column.type.kind == "domain" or column.type.typmod == announced.typmod


def _column(
    announced: AnnouncedColumn, sources: list[Relation], types: Mapping[int, AnnouncedType]
) -> Column:
    namesakes = [column for source in sources for column in source.columns if column.name == announced.name]
    for column in namesakes:
        if _same_type(column, announced):
            return Column(
                name=announced.name,
                attnum=column.attnum,
                type=column.type,
                type_text=column.type_text,
                not_null=column.not_null,
                in_identity=announced.in_identity,
                missing=column.missing,
            )
    type_ = _base_type(announced, types)
    return Column(
        name=announced.name,
        attnum=namesakes[-1].attnum if namesakes else None,
        type=type_,
        type_text=format_type(type_),
        not_null=False,
        in_identity=announced.in_identity,
    )


def _base_type(announced: AnnouncedColumn, types: Mapping[int, AnnouncedType]) -> PgType:
    """A type of which only the oid, and perhaps the name, is known."""
    named = types.get(announced.type_oid)
    if named is not None:
        return PgType("base", named.name, named.schema, named.oid, announced.typmod)
    return builtin_type(announced.type_oid, announced.typmod)


def _key(announced: AnnouncedRelation, versions: list[Relation]) -> tuple[str, ...]:
    """The key of the first version with the announced identity; else of any; else the identity's own columns.

    A key that names a column which is not announced belongs to another shape.
    """
    names = {column.name for column in announced.columns}
    usable = [version for version in versions if names.issuperset(version.key)]
    for version in sorted(usable, key=lambda version: not _same_identity(version, announced)):
        return version.key
    if announced.replica_identity in "di":
        return _identity(announced)
    return ()


def _same_identity(version: Relation, announced: AnnouncedRelation) -> bool:
    if version.replica_identity != announced.replica_identity:
        return False
    return announced.replica_identity in "nf" or _identity(version) == _identity(announced)


def _identity(relation: Relation | AnnouncedRelation) -> tuple[str, ...]:
    return tuple(column.name for column in relation.columns if column.in_identity)
