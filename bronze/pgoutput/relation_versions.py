"""Derive from each Relation message a version of a table's shape, and where in the transaction it begins.

**The message decides** names, order, types and identity flags, because the message describes the tuples that
follow. The message lacks attnum (to distinguish a rename from drop-and-add), the tree of each type, NOT NULL
and the key, all needed by silver. The catalog and the last known version supply these. The catalog shows the
*current* table and may be ahead of the stream; the known version may be behind the stream.

**Attnums are derived**, because PostgreSQL sends none: columns arrive in the order of their attnums, and
PostgreSQL never reuses an attnum (`_attnums`). A column in doubt gets no attnum, and the reader resnapshots
its table (`bronze.store.relations.ShapeLog.unknown_columns`). A guess could put values under another column.

**Invisible here**: columns that were added and dropped between the known version and the catalog. Two
consecutive catalog polls reveal these columns (`bronze.drift.observed_storage`).

A column whose type is in neither source gets a base type of the type's oid.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (Relation)
and https://www.postgresql.org/docs/current/catalog-pg-attribute.html.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.builtin_types import builtin_type, format_type
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.retypes import kindred, same_text
from deltasmelt.bronze.rules import RuleInDoubtError, RuleLostError
from deltasmelt.bronze.shapes import BY_KEY, Column, PgType, Relation, same_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.pgoutput.earlier_changes import EarlierChanges
    from deltasmelt.bronze.pgoutput.messages import AnnouncedColumn, AnnouncedRelation, AnnouncedType
    from deltasmelt.bronze.rules import TableRules

_MOST_SETS: Final = 5000
"""Largest number of attnum sets to try; beyond this bound the message is in doubt."""


def relation_version(
    announced: AnnouncedRelation,
    from_lsn: Lsn,
    *,
    catalog: Relation | None,
    known: Relation | None,
    types: Mapping[int, AnnouncedType],
) -> Relation:
    """Return the shape that the message announces, completed from the catalog and the last known version.

    Args:
        from_lsn: commit LSN of the transaction that contains the message.
        catalog: the relation in the current catalog; None if the relation was dropped.
        known: the newest version known before the message.
        types: Type messages of this session, by oid.
    """
    versions = [version for version in (catalog, known) if version is not None]
    attnums = _attnums(announced.columns, catalog, known)
    if catalog is None or not _is_exactly(catalog, announced.columns, attnums):
        versions.reverse()  # the catalog is ahead of the stream
    columns = tuple(
        _column(column, attnum, versions, types)
        for column, attnum in zip(announced.columns, attnums, strict=True)
    )
    newest_first = [version for version in (catalog, known) if version is not None]
    key = _key(announced, columns, newest_first)
    identity = announced.replica_identity
    if identity == "f" and newest_first and newest_first[0].replica_identity == BY_KEY:
        identity = BY_KEY
        columns = tuple(replace(column, in_identity=column.name in key) for column in columns)
    return Relation(
        relation_id=announced.relation_id,
        table=_table(announced, catalog, known),
        columns=columns,
        key=key,
        replica_identity=identity,
        from_lsn=from_lsn,
        key_unique=_is_unique(key, announced, columns, versions),
        partitioned=catalog is not None and catalog.partitioned,
    )


def breaks_with(before: Sequence[Relation], relation: Relation) -> bool:
    """Check whether rows of a shape need a new copy of the table, for one of four reasons.

    * A column of the shape has no attnum.
    * PostgreSQL changed the values of a column without an event.
    * The rows of one transaction have other identifying columns before and after, and the old tuples from
      before lack the columns to compare.
    * A partitioned table changed between FULL and `BY_KEY`.

    Args:
        before: shapes that earlier rows may have, oldest first (`bronze.store.relations.ShapeLog.before`).
    """
    # Other parts of an old tuple count then, and only the partitions know since when.
    if before and {before[-1].replica_identity, relation.replica_identity} == {"f", BY_KEY}:
        return True
    types = {} if not before else {column.attnum: column.type for column in before[-1].columns}
    return any(
        column.attnum is None or (column.attnum in types and not same_text(types[column.attnum], column.type))
        for column in relation.columns
    ) or any(
        relation.after_lsn and relation.follows_old and not _names_rows_of(relation, former)
        for former in before
    )


def _names_rows_of(relation: Relation, former: Relation) -> bool:
    """Check whether old tuples of the former shape hold the columns that identify rows in the new shape."""
    if former.replica_identity == "f":
        return True
    sent = {column.attnum for column in former.columns if column.in_identity}
    return {relation.column(name).attnum for name in relation.fold_key} <= sent


def _table(announced: AnnouncedRelation, catalog: Relation | None, known: Relation | None) -> TableName:
    """Return the message's table name, except a name that existed inside one transaction only.

    A table renamed away and back leaves such a name in the message. Neither the known version nor the catalog
    has the name, and both agree on the table's real name.
    """
    if catalog is not None and known is not None and catalog.table == known.table:
        return known.table
    return announced.table


def _attnums(
    announced: Sequence[AnnouncedColumn], catalog: Relation | None, known: Relation | None
) -> list[int | None]:
    """Return the attnum of each column of a message; None for an attnum in doubt.

    The possible sets of attnums depend on no name (`_possible`). Types exclude sets, then names decide.

    So a column can only be mistaken for a column of its kind, and one of both columns was dropped.
    `bronze.drift.storage.columns_in_doubt` checks exactly this case.
    """
    before, now = _by_attnum(known), _by_attnum(catalog)
    sets = _possible(len(announced), before, now)
    if sets is None:
        return _by_name(announced, before, now)
    types = {column.type.oid: column.type for column in (*before.values(), *now.values())}
    meant = [
        types.get(column.type_oid) or builtin_type(column.type_oid, column.typmod) for column in announced
    ]

    @cache
    def is_kindred(at: int, attnum: int) -> bool:
        types_of_attnum = [columns[attnum].type for columns in (before, now) if attnum in columns]
        return any(kindred(meant[at], type_) for type_ in types_of_attnum)

    # Types exclude some sets: a column cannot mean a column with another kind of type. Only a rewrite changes
    # the kind, and a rewrite costs a snapshot anyway.
    sets = [attnums for attnums in sets if all(is_kindred(at, attnum) for at, attnum in enumerate(attnums))]
    # All columns of the only set still exist: the set holds, whatever the current column names.
    if before and len(sets) == 1 and now.keys() >= set(sets[0]):
        return list(sets[0])
    sure = before.keys() & now.keys()
    # A column of both versions may have had another name or type in between, so the second attempt ignores
    # these columns.
    for ignored in (frozenset[int](), sure):
        fitting = [
            attnums
            for attnums in sets
            if _fits(
                announced,
                attnums,
                before,
                now,
                [at for at, attnum in enumerate(attnums) if attnum not in ignored],
            )
        ]
        # These sets have the names and types of the message. Attnums on which the sets differ are in doubt.
        if fitting:
            return [choices[0] if len(set(choices)) == 1 else None for choices in zip(*fitting, strict=True)]
    # Names alone decide under one of three conditions: the attnums form a possible set; no known version
    # exists; the message has exactly the columns of the catalog or of the known version. The last condition
    # covers too many sets to try.
    named = _by_name(announced, before, now)
    exact = [version for version in (catalog, known) if version and _is_exactly(version, announced, named)]
    return named if None in named or not before or named in sets or exact else [None] * len(announced)


def _possible(count: int, before: Mapping[int, Column], now: Mapping[int, Column]) -> list[list[int]] | None:
    """Return the sets of attnums, each ascending, that a message of `count` columns can mean.

    A column of both the known version and the catalog existed when the server sent the message, whatever its
    name was. The message also has some of the columns dropped since, and the first few of the new columns.

    Args:
        before: columns of the known version; empty without a known version.

    Returns:
        The sets; an empty list if there are too many sets to try; None if the message fits no set.
    """
    sure = before.keys() & now.keys()
    dropped, new = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    extra = count - len(sure)
    # The message lacks columns that existed all the time: the publication carried other columns then
    # (`bronze.drift.membership` and `bronze.drift.storage` detect this).
    if extra < 0:
        return None
    # Without a known version the dropped columns are unknown, and every column of the catalog is possible.
    if not before:
        return (
            [list(attnums) for attnums in combinations(new, extra)]
            if comb(len(new), extra) <= _MOST_SETS
            else []
        )
    # PostgreSQL assigns attnums in order, so a table with a new column also has every earlier new column that
    # still exists.
    firsts = range(min(extra, len(new)) + 1)
    if sum(comb(len(dropped), extra - first) for first in firsts) > _MOST_SETS:
        return []
    return [
        sorted((*sure, *new[:first], *chosen))
        for first in firsts
        for chosen in combinations(dropped, extra - first)
    ]


def _fits(
    announced: Sequence[AnnouncedColumn],
    attnums: Sequence[int],
    before: Mapping[int, Column],
    now: Mapping[int, Column],
    places: Iterable[int],
) -> bool:
    """Check whether the columns at these places have names and types of the known or current columns."""
    return all(
        any(
            column is not None and column.name == announced[at].name and _same_type(column, announced[at])
            for column in (before.get(attnums[at]), now.get(attnums[at]))
        )
        for at in places
    )


def _by_name(
    announced: Sequence[AnnouncedColumn], before: Mapping[int, Column], now: Mapping[int, Column]
) -> list[int | None]:
    """Return the attnums by name alone, for a message that fits no set because a type has changed since."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for columns in (before, now):
        for attnum, column in columns.items():
            numbers[column.name].add(attnum)
    # A name of two attnums is in doubt.
    attnums = [min(numbers[field.name]) if len(numbers[field.name]) == 1 else None for field in announced]
    named = [attnum for attnum in attnums if attnum is not None]
    # If the order differs from the order of attnums, all columns are in doubt.
    return attnums if named == sorted(set(named)) else [None] * len(announced)


def _by_attnum(version: Relation | None) -> dict[int, Column]:
    if version is None:
        return {}
    return {column.attnum: column for column in version.columns if column.attnum is not None}


def _is_exactly(
    version: Relation, announced: Sequence[AnnouncedColumn], attnums: Sequence[int | None]
) -> bool:
    """Check whether a version has exactly the message's columns, with names and types."""
    columns = _by_attnum(version)
    return len(columns) == len(announced) and all(
        attnum is not None
        and attnum in columns
        and columns[attnum].name == column.name
        and _same_type(columns[attnum], column)
        for column, attnum in zip(announced, attnums, strict=True)
    )


def _same_type(column: Column, announced: AnnouncedColumn) -> bool:
    """Compare oid and typmod; without the typmod of a domain, which the message lacks."""
    if column.type.oid != announced.type_oid:
        return False
    # A column of a domain announces no typmod. The typmod of its `PgType` is the domain's.
    return column.type.kind == "domain" or column.type.typmod == announced.typmod


def _column(
    announced: AnnouncedColumn,
    attnum: int | None,
    versions: Sequence[Relation],
    types: Mapping[int, AnnouncedType],
) -> Column:
    """Return the column, completed from the first version that has the column with this type."""
    similar = [column for version in versions for column in version.columns if _same_type(column, announced)]
    former = next((column for column in similar if attnum is not None and column.attnum == attnum), None)
    type_ = former or next(iter(similar), None)
    tree = type_.type if type_ is not None else _base_type(announced, types)
    return Column(
        name=announced.name,
        attnum=attnum,
        type=tree,
        type_text=type_.type_text if type_ is not None else format_type(tree),
        not_null=former is not None and former.not_null,
        in_identity=announced.in_identity,
        missing=None if former is None else former.missing,
    )


def _base_type(announced: AnnouncedColumn, types: Mapping[int, AnnouncedType]) -> PgType:
    """Return a type of which only the oid, and perhaps the name, is known."""
    named = types.get(announced.type_oid)
    if named is not None:
        return PgType("base", named.name, named.schema, named.oid, announced.typmod)
    return builtin_type(announced.type_oid, announced.typmod)


def _key(
    announced: AnnouncedRelation, columns: Sequence[Column], versions: Sequence[Relation]
) -> tuple[str, ...]:
    """Return the key of the first version with the announced identity, else the first version's key."""
    names = {column.attnum: column.name for column in columns if column.attnum is not None}
    identity = {column.attnum for column in columns if column.in_identity}
    keys = []
    for version in versions:
        attnums = [version.column(name).attnum for name in version.key]
        # Compare by attnum, whatever the columns' names were. A key with an unannounced column belongs to
        # another shape.
        if all(attnum in names for attnum in attnums):
            identity_of_version = "f" if version.replica_identity == BY_KEY else version.replica_identity
            is_same = identity_of_version == announced.replica_identity and (
                announced.replica_identity in "nf"
                or identity == {column.attnum for column in version.columns if column.in_identity}
            )
            keys.append((not is_same, tuple(names[attnum] for attnum in attnums if attnum is not None)))
    for _, key in sorted(keys, key=lambda ranked: ranked[0]):
        return key
    # Without any version the identity's columns are the key.
    if announced.replica_identity in "di":
        return tuple(column.name for column in columns if column.in_identity)
    return ()


def _is_unique(
    key: tuple[str, ...],
    announced: AnnouncedRelation,
    columns: Sequence[Column],
    versions: Sequence[Relation],
) -> bool:
    """Check whether the key is unique, by the first version with this key; an identity index is."""
    identity = {column.name for column in columns if column.in_identity}
    if announced.replica_identity in "di" and identity and identity <= set(key):
        return True
    attnums = {column.attnum for column in columns if column.name in key}
    for version in versions:
        if {version.column(name).attnum for name in version.key} == attnums:
            return version.key_unique
    return False


def _require_rules(
    rules: TableRules,
    names: Mapping[int, str],
    former: Relation | None,
    catalog: Relation | None,
    version: Relation,
) -> None:
    """Check that each column with a rule still has the rule under its present name.

    Args:
        names: the columns' recorded names, by attnum, also of unpublished columns.
        former: the shape before; None for a new relation.
        catalog: the present shape; None if the relation was dropped.

    Raises:
        RuleLostError: a column was renamed away from its rule, or may have been.
    """
    before = {**names, **({} if former is None else former.names)}
    if former is None and catalog is not None:
        before = {**catalog.names, **names}
    if lost := rules.lost(before, version.names):
        raise RuleLostError(f"column {lost[0][0]}, which source.columns protects, is called {lost[0][1]} now")
    if former is not None:
        if rules.changes_values and any(column.attnum is None for column in version.columns):
            raise RuleInDoubtError("a column that source.columns protects may have been renamed")
        return
    # The table may have been recreated with another name for the column. Excluded columns do not arrive.
    present = {column.name for shape in (version, catalog) if shape is not None for column in shape.columns}
    absent = [name for name in rules.unknown({*present, *names.values()}) if rules.action(name) != "exclude"]
    if absent:
        raise RuleLostError(f"the table has no column {absent[0]}, which source.columns protects")


class ShapeVersions:
    """The newest version of each relation in this session; parameters as in `StreamDecoder`."""

    def __init__(
        self,
        describe: Callable[[int, Lsn], Relation | None],
        known: Iterable[Relation],
        recorded: Callable[[int, Lsn], Relation | None],
        names: Callable[[int, TableName], Mapping[int, str]] = lambda *_: {},
    ) -> None:
        self._describe = describe
        self._names = names
        self._recorded = recorded
        self._newest = {version.relation_id: version for version in sorted(known, key=attrgetter("place"))}
        self._types: dict[int, AnnouncedType] = {}

    def note_type(self, announced: AnnouncedType) -> None:
        """Record a Type message."""
        self._types[announced.oid] = announced

    def begin(
        self,
        announced: AnnouncedRelation,
        commit_lsn: Lsn,
        earlier: EarlierChanges,
        rules: TableRules | None = None,
    ) -> Relation:
        """Return the version that a Relation message of a selected table begins.

        Args:
            announced: the message, with the name under which bronze keeps the table, and after the rules.
            rules: rules of the table's columns.

        Raises:
            RuleLostError: a column may have another name than its rule.
        """
        relation_id = announced.relation_id
        former, catalog = self._newest.get(relation_id), self._describe(relation_id, commit_lsn)
        # Read the record after the catalog: a table cannot be altered before its snapshot's shape is
        # recorded. Ignore versions of this transaction: a failed session recorded them, and they may describe
        # a later part of the transaction.
        recorded = self._recorded(relation_id, Lsn(commit_lsn - 1))
        if recorded is not None and (former is None or former.place < recorded.place):
            former = recorded
        version = relation_version(announced, commit_lsn, catalog=catalog, known=former, types=self._types)
        if rules is not None and rules.columns:
            names = self._names(relation_id, announced.table)
            _require_rules(rules, names, former, catalog, version)
        if former is not None and same_shape(version, former):
            # The transaction's rows before the message had this shape as well, so the version begins at its
            # former place.
            begins: int = former.after_lsn if former.from_lsn == commit_lsn else ZERO
        else:
            # The message has no LSN, so the version begins after the last change before the message.
            begins = earlier.last_if_any_of(relation_id)
        follows_old = bool(begins) and earlier.may_hold_old_tuples(relation_id)
        version = replace(version, after_lsn=Lsn(begins), follows_old=follows_old)
        self._newest[relation_id] = version
        return version
