"""From a Relation message to a version of a table's shape.

**What the message decides**: names, order, types and identity flags, for it describes the tuples that follow.
It lacks what silver needs besides: attnum (to tell a rename from drop-and-add), the tree of each type, NOT
NULL, the key. Those come from the catalog and from the last known version. The catalog shows the table *as of
now* and may be ahead of the stream; the known version may be behind it.

**Which columns a message means**, although PostgreSQL sends no attnum: they come in the order of their
attnums, and an attnum never comes back (`_attnums`). Columns that are in doubt have no attnum: their table is
resnapshotted (`bronze.store.relations.ShapeLog.unknown_columns`), for a guess could put values under another
column.

**What cannot be seen here**: columns that came and went between the known version and the catalog. Two looks
at the catalog tell those (`bronze.drift.observed_storage`).

A column whose type neither knows has a base type of its oid.

PostgreSQL docs: https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html (Relation)
and https://www.postgresql.org/docs/current/catalog-pg-attribute.html.

The shape version that each Relation message of a session begins, and where in its transaction it begins.

`bronze.pgoutput.relation_versions` tells what the columns are. Here it is told from which change on they
are: the message itself has no LSN, so a version begins after the last change before it
(`Relation.after_lsn`), unless the rows before it had the same shape.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import cache
from itertools import combinations
from math import comb
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.builtin_types import builtin_type, format_type
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.retypes import kindred, same_text
from deltasmelt.bronze.shapes import BY_KEY, Column, PgType, Relation, same_shape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.pgoutput.earlier_changes import EarlierChanges
    from deltasmelt.bronze.pgoutput.messages import AnnouncedColumn, AnnouncedRelation, AnnouncedType

_MOST_SETS: Final = 5000
"""Sets of attnums that are looked through; beyond it the message is in doubt."""


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
    versions = [version for version in (catalog, known) if version is not None]
    attnums = _attnums(announced.columns, catalog, known)
    if catalog is None or not _is_exactly(catalog, announced.columns, attnums):
        versions.reverse()  # the catalog has moved on
    columns = tuple(
        _column(column, attnum, versions, types)
        for column, attnum in zip(announced.columns, attnums, strict=True)
    )
    both = [version for version in (catalog, known) if version is not None]
    key = _key(announced, columns, both)
    identity = announced.replica_identity
    if identity == "f" and both and both[0].replica_identity == BY_KEY:
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
    """Whether rows of a shape cannot follow those before it without a copy, for one of four reasons.

    * It cannot be told which columns they mean.
    * PostgreSQL made other values of a column's without an event.
    * Rows of one transaction are known by other columns before and after, and old tuples from before cannot
      be compared.
    * Of a partitioned table's old tuples something else counts; when that began, the partitions alone know.

    Args:
        before: shapes that rows before it may have, oldest first (`bronze.store.relations.ShapeLog.before`).
        relation: the shape.
    """
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
    """Whether old tuples of the former shape hold the columns by which the other one tells rows."""
    if former.replica_identity == "f":
        return True
    sent = {column.attnum for column in former.columns if column.in_identity}
    return {relation.column(name).attnum for name in relation.fold_key} <= sent


def _table(announced: AnnouncedRelation, catalog: Relation | None, known: Relation | None) -> TableName:
    """The message's name, but for one that the table had inside of a transaction alone.

    Renamed away and back, that is nobody's name. Such a message tells a name that neither the known version
    nor the catalog has, and they agree.
    """
    if catalog is not None and known is not None and catalog.table == known.table:
        return known.table
    return announced.table


def _attnums(
    announced: Sequence[AnnouncedColumn], catalog: Relation | None, known: Relation | None
) -> list[int | None]:
    """The attnum of each column of a message; None where it is in doubt.

    Which sets of attnums it can mean depends on no name (`_possible`), but on types a little: no column may
    mean one of another kind, unless a rewrite made it that, which costs a snapshot anyway. Where one set is
    left, of columns that are still there, it is that, whatever they are called by now. Else those fit whose
    columns have its names and types. Where more than one fits, the attnums on which they differ are in doubt.
    Where none fits, the names alone decide, if they make one of these sets; or, where there are too many to
    try, if the message has just the columns of the catalog, or of the known version.

    So a column that is taken for another one is of its kind, and one of the two is gone:
    `bronze.drift.storage.columns_in_doubt` asks for just that.
    """
    before, now = _by_attnum(known), _by_attnum(catalog)
    sets = _possible(len(announced), before, now)
    if sets is None:
        return _by_name(announced, before, now)
    types = {column.type.oid: column.type for column in (*before.values(), *now.values())}
    meant = [types.get(one.type_oid) or builtin_type(one.type_oid, one.typmod) for one in announced]

    @cache
    def is_kindred(at: int, attnum: int) -> bool:
        found = [columns[attnum].type for columns in (before, now) if attnum in columns]
        return any(kindred(meant[at], type_) for type_ in found)

    sets = [one for one in sets if all(is_kindred(at, attnum) for at, attnum in enumerate(one))]
    if before and len(sets) == 1 and now.keys() >= set(sets[0]):
        return list(sets[0])
    sure = before.keys() & now.keys()
    # A column that was there all the time may have had another name or type in between.
    for but in (frozenset[int](), sure):
        fitting = [
            one
            for one in sets
            if _fits(announced, one, before, now, [at for at, each in enumerate(one) if each not in but])
        ]
        if fitting:
            return [one[0] if len(set(one)) == 1 else None for one in zip(*fitting, strict=True)]
    named = _by_name(announced, before, now)
    whole = [version for version in (catalog, known) if version and _is_exactly(version, announced, named)]
    return named if None in named or not before or named in sets or whole else [None] * len(announced)


def _possible(count: int, before: Mapping[int, Column], now: Mapping[int, Column]) -> list[list[int]] | None:
    """The sets of attnums, each ascending, that a message of some length can mean.

    A column that both the known version and the catalog have was there when the message was made, under
    whatever name. Beside these it had some of the columns that are gone by now, and the first few of those
    that are new: attnums are given in order, so whoever had a new column had each one before it that is
    still there. Without a known version nobody knows what is gone, and any of the catalog's columns will do.

    Args:
        count: how many columns the message has.
        before: the known version's columns; empty where there is none.
        now: the catalog's.

    Returns:
        None where the message lacks columns that were there all the time, which others see to: other columns
        were published then (`bronze.drift.membership`, `bronze.drift.storage`). An empty list where there are
        too many sets to try.
    """
    sure = before.keys() & now.keys()
    gone, new = sorted(before.keys() - now.keys()), sorted(now.keys() - before.keys())
    more = count - len(sure)
    if more < 0:
        return None
    if not before:
        return [list(one) for one in combinations(new, more)] if comb(len(new), more) <= _MOST_SETS else []
    firsts = range(min(more, len(new)) + 1)
    if sum(comb(len(gone), more - first) for first in firsts) > _MOST_SETS:
        return []
    return [
        sorted((*sure, *new[:first], *some)) for first in firsts for some in combinations(gone, more - first)
    ]


def _fits(
    announced: Sequence[AnnouncedColumn],
    attnums: Sequence[int],
    before: Mapping[int, Column],
    now: Mapping[int, Column],
    places: Iterable[int],
) -> bool:
    """Whether the columns at these places have names and types that the known columns had, or have."""
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
    """Attnums by the names alone, where no set of them fits: a column's type may be another by now.

    A name that stands for two attnums is in doubt, and so is all where the order is not that of attnums.
    """
    numbers: dict[str, set[int]] = defaultdict(set)
    for columns in (before, now):
        for attnum, column in columns.items():
            numbers[column.name].add(attnum)
    found = [min(numbers[one.name]) if len(numbers[one.name]) == 1 else None for one in announced]
    named = [attnum for attnum in found if attnum is not None]
    return found if named == sorted(set(named)) else [None] * len(announced)


def _by_attnum(version: Relation | None) -> dict[int, Column]:
    if version is None:
        return {}
    return {column.attnum: column for column in version.columns if column.attnum is not None}


def _is_exactly(
    version: Relation, announced: Sequence[AnnouncedColumn], attnums: Sequence[int | None]
) -> bool:
    """Whether a version has the message's columns, with their names and types."""
    columns = _by_attnum(version)
    return len(columns) == len(announced) and all(
        attnum is not None
        and attnum in columns
        and columns[attnum].name == column.name
        and _same_type(columns[attnum], column)
        for column, attnum in zip(announced, attnums, strict=True)
    )


def _same_type(column: Column, announced: AnnouncedColumn) -> bool:
    """A column of a domain announces no typmod; that of its `PgType` is the domain's own."""
    if column.type.oid != announced.type_oid:
        return False
    return column.type.kind == "domain" or column.type.typmod == announced.typmod


def _column(
    announced: AnnouncedColumn,
    attnum: int | None,
    versions: Sequence[Relation],
    types: Mapping[int, AnnouncedType],
) -> Column:
    """The column, with what the first version that has it under this type says of it."""
    alike = [column for version in versions for column in version.columns if _same_type(column, announced)]
    same = next((column for column in alike if attnum is not None and column.attnum == attnum), None)
    type_ = same or next(iter(alike), None)
    tree = type_.type if type_ is not None else _base_type(announced, types)
    return Column(
        name=announced.name,
        attnum=attnum,
        type=tree,
        type_text=type_.type_text if type_ is not None else format_type(tree),
        not_null=same is not None and same.not_null,
        in_identity=announced.in_identity,
        missing=None if same is None else same.missing,
    )


def _base_type(announced: AnnouncedColumn, types: Mapping[int, AnnouncedType]) -> PgType:
    """A type of which only the oid, and perhaps the name, is known."""
    named = types.get(announced.type_oid)
    if named is not None:
        return PgType("base", named.name, named.schema, named.oid, announced.typmod)
    return builtin_type(announced.type_oid, announced.typmod)


def _key(
    announced: AnnouncedRelation, columns: Sequence[Column], versions: Sequence[Relation]
) -> tuple[str, ...]:
    """The key of the first version with the announced identity; else of any; else the identity's own columns.

    Columns are the same by attnum, whatever they were called. A key with a column that is not announced
    belongs to another shape.
    """
    names = {column.attnum: column.name for column in columns if column.attnum is not None}
    identity = {column.attnum for column in columns if column.in_identity}
    keys = []
    for version in versions:
        attnums = [version.column(name).attnum for name in version.key]
        if all(attnum in names for attnum in attnums):
            said = "f" if version.replica_identity == BY_KEY else version.replica_identity
            same = said == announced.replica_identity and (
                announced.replica_identity in "nf"
                or identity == {column.attnum for column in version.columns if column.in_identity}
            )
            keys.append((not same, tuple(names[attnum] for attnum in attnums if attnum is not None)))
    for _, key in sorted(keys, key=lambda one: one[0]):
        return key
    if announced.replica_identity in "di":
        return tuple(column.name for column in columns if column.in_identity)
    return ()


def _is_unique(
    key: tuple[str, ...],
    announced: AnnouncedRelation,
    columns: Sequence[Column],
    versions: Sequence[Relation],
) -> bool:
    """What the first version with this key says of it; an identity index is unique."""
    identity = {column.name for column in columns if column.in_identity}
    if announced.replica_identity in "di" and identity and identity <= set(key):
        return True
    attnums = {column.attnum for column in columns if column.name in key}
    for version in versions:
        if {version.column(name).attnum for name in version.key} == attnums:
            return version.key_unique
    return False


class ShapeVersions:
    """The newest version of each relation as this session knows it.

    Args:
        describe: as `StreamDecoder`.
        known: as `StreamDecoder`.
        recorded: as `StreamDecoder`.
    """

    def __init__(
        self,
        describe: Callable[[int, Lsn], Relation | None],
        known: Iterable[Relation],
        recorded: Callable[[int, Lsn], Relation | None],
    ) -> None:
        self._describe = describe
        self._recorded = recorded
        self._newest = {version.relation_id: version for version in sorted(known, key=lambda one: one.place)}
        self._types: dict[int, AnnouncedType] = {}

    def note_type(self, announced: AnnouncedType) -> None:
        """Take in a Type message."""
        self._types[announced.oid] = announced

    def begin(self, announced: AnnouncedRelation, commit_lsn: Lsn, earlier: EarlierChanges) -> Relation:
        """The version that a Relation message of a kept table begins.

        Args:
            announced: the message, with the name under which the table is kept.
            commit_lsn: of its transaction.
            earlier: the transaction's changes before it.
        """
        one = announced.relation_id
        known, catalog = self._newest.get(one), self._describe(one, commit_lsn)
        # Asked after the catalog: a table cannot be altered before its snapshot's shape is recorded. A
        # version of this very transaction is left by a session that failed, and may be a later one of it.
        recorded = self._recorded(one, Lsn(commit_lsn - 1))
        if recorded is not None and (known is None or known.place < recorded.place):
            known = recorded
        version = relation_version(announced, commit_lsn, catalog=catalog, known=known, types=self._types)
        if known is not None and same_shape(version, known):
            # The transaction's rows before the message had this shape as well.
            begins: int = known.after_lsn if known.from_lsn == commit_lsn else ZERO
        else:
            begins = earlier.last_if_any_of(one)
        follows_old = bool(begins) and earlier.may_hold_old_tuples(one)
        version = replace(version, after_lsn=Lsn(begins), follows_old=follows_old)
        self._newest[one] = version
        return version
