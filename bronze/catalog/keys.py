"""Which columns identify a row, and whether PostgreSQL delivers them. Pure: values in, a decision out.

**Why a key.** Silver folds by a row key. The key must be in every old tuple, or a DELETE or a key change
cannot be attributed to a row. What an old tuple holds is the table's replica identity: nothing, the primary
key, a chosen unique index, or the full row. Once a table without a usable identity is published, PostgreSQL
refuses the application's own UPDATEs and DELETEs on it. So a table is only taken with a key that its identity
covers. Everything else is an error of that table, with the statement that cures it.

**Which key.** In this order: the override of the pipeline file, the primary key, the replica identity index.
`_own_key` says when the index comes first.

**Generated columns** are computed by the server and come with changes only where a publication of PostgreSQL
18 says so (`Generated`).

**Partitioned tables.** The stream speaks of the root, and the leaves decide what is logged (`_partial`).

PostgreSQL docs: https://www.postgresql.org/docs/current/logical-replication-publication.html and
https://www.postgresql.org/docs/current/sql-altertable.html (REPLICA IDENTITY).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError, TableError
from deltasmelt.bronze.identifiers import TableName, quote_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_SHOWN: Final = 10
"""Partitions that a message names; its remedy has all of them."""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index of a table.

    Attributes:
        columns: key columns in the index's order, without INCLUDE columns.
        plain: valid, not partial, without expressions.
        immediate: not deferrable.
        identity: chosen by REPLICA IDENTITY USING INDEX.
    """

    name: str
    columns: tuple[str, ...]
    primary: bool = False
    identity: bool = False
    immediate: bool = True
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Identity:
    """What old tuples of a table (or of one partition) hold.

    Attributes:
        mode: pg_class.relreplident: d(efault) n(othing) f(ull) i(ndex).
        columns: of the identity; empty for ``n``, for ``d`` without a usable primary key, and for ``f``.
    """

    mode: str
    columns: tuple[str, ...] = ()

    def covers(self, columns: Sequence[str]) -> bool:
        """Whether an old tuple holds all of these columns."""
        return self.mode == "f" or (bool(columns) and set(columns) <= set(self.columns))


@dataclass(frozen=True, slots=True)
class Generated:
    """Generated columns of a table that its publication does not send.

    One that does not come cannot be a key. From PostgreSQL 18 on it may not even be in the replica identity
    (in REPLICA IDENTITY FULL every column is): published, the table's UPDATEs and DELETEs would fail.

    Attributes:
        columns: their names, and whether the publication of this server could be told to send them.
        refused: the server lets nobody change a published table with one in its replica identity.
    """

    columns: Mapping[str, bool] = field(default_factory=dict)
    refused: bool = False


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """The row key of a table, and what is wrong with it.

    Attributes:
        guarded: a unique index of the table, of a root over all its partitions, lets no two rows have the
            key, not even inside a transaction.
    """

    key: tuple[str, ...]
    problems: list[TableError] = field(default_factory=list)
    guarded: bool = False


def identity_of(mode: str, indexes: Sequence[UniqueIndex]) -> Identity:
    """The identity that PostgreSQL derives from relreplident and the indexes.

    A deferrable primary key is no replica identity: PostgreSQL skips it (RelationGetIndexList).
    """
    usable = [index for index in indexes if index.plain and index.immediate]
    chosen = [
        index for index in usable if (mode == "d" and index.primary) or (mode == "i" and index.identity)
    ]
    return Identity(mode, chosen[0].columns if chosen else ())


def refuses_updates(
    table: TableName, identity: Identity, leaves: Mapping[TableName, Identity], generated: Generated
) -> bool:
    """Check whether PostgreSQL refuses UPDATEs and DELETEs of a table as soon as it is published.

    Partitions count by their own identities; without one, the table is not carried anyway.
    """
    bare = any(its.mode != "f" and not its.columns for its in (leaves or {table: identity}).values())
    return bare or (generated.refused and bool(_holding(generated, table, identity, leaves)))


def key_override(table: TableName, keys: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """The columns that the pipeline file names as this table's key; empty where it names none.

    Raises:
        ConfigurationError: a table of `keys` is not spelt as schema.table.
    """
    for text, columns in keys.items():
        try:
            name = TableName.parse(text)
        except ValueError as error:
            raise ConfigurationError(
                str(error),
                code="key-table-invalid",
                where="source.keys",
                remedy="write schema.table: [column, …]",
            ) from None
        if name == table:
            return tuple(columns)
    return ()


def choose_key(
    table: TableName,
    columns: Mapping[str, bool],
    indexes: Sequence[UniqueIndex],
    identity: Identity,
    *,
    override: Sequence[str] = (),
    partitions: Mapping[TableName, Identity] | None = None,
    generated: Generated | None = None,
) -> KeyChoice:
    """Decide on the key of one table.

    Args:
        table: its name.
        columns: its columns that are published, with whether each is NOT NULL.
        indexes: its unique indexes.
        identity: its own replica identity.
        override: key columns of the pipeline file.
        partitions: identities of the leaf partitions; they, not the root's, decide what is logged.
        generated: its generated columns that are not published.
    """
    hidden = generated or Generated()
    unknown = [name for name in override if name not in columns]
    if unknown:
        return KeyChoice((), [_unknown_columns(table, unknown, columns)])
    key = tuple(override) or _own_key(indexes, identity)
    if not key:
        return KeyChoice((), [_no_key(table, columns, indexes)])
    if nullable := [name for name in override if not columns[name]]:
        return KeyChoice((), [_nullable(table, nullable)])
    if lacking := [name for name in key if name in hidden.columns]:
        return KeyChoice((), [_generated_key(table, lacking, hidden, columns, indexes)])
    guarded = any(index.plain and index.immediate and set(index.columns) <= set(key) for index in indexes)
    problems = []
    if not identity.covers(key):
        problems.append(_uncovered(table, table, key, identity, columns=columns, indexes=indexes))
    leaves = partitions or {}
    if hidden.refused and (held := _holding(hidden, table, identity, leaves)):
        problems.append(_generated_identity(table, held, hidden, key, columns=columns, indexes=indexes))
    bare = [leaf for leaf, its_identity in leaves.items() if not its_identity.covers(key)]
    partial = [leaf for leaf, its_identity in leaves.items() if its_identity.mode != "f"]
    if bare:
        problem = _uncovered(table, bare[0], key, leaves[bare[0]], columns=columns, indexes=())
        problem.remedy = _full(bare)
        problems.append(problem)
    elif partial and identity.mode == "f" and not guarded:
        problems.append(_partial(table, key, partial))
    return KeyChoice(key, problems, guarded)


def _own_key(indexes: Sequence[UniqueIndex], identity: Identity) -> tuple[str, ...]:
    """The primary key, or the identity index where a DELETE does not deliver the primary key.

    That is so with ``REPLICA IDENTITY USING INDEX`` on another index, which identifies rows just as well.
    """
    primary = next((index.columns for index in indexes if index.primary), ())
    if identity.mode == "i" and identity.columns and not identity.covers(primary):
        return identity.columns
    return primary


def _unknown_columns(table: TableName, unknown: Sequence[str], columns: Mapping[str, bool]) -> TableError:
    return TableError(
        table,
        f"the key override names {_list(unknown)}, which the table does not have",
        code="key-column-unknown",
        remedy=f"correct source.keys in the pipeline file; published columns are {_list(sorted(columns))}",
    )


def _nullable(table: TableName, names: Sequence[str]) -> TableError:
    cure = ", ".join(f"ALTER COLUMN {quote_identifier(name)} SET NOT NULL" for name in names)
    return TableError(
        table,
        f"the key override names {_list(names)}, which may be NULL; PostgreSQL keeps several rows with NULL "
        "there, which nothing tells apart",
        code="key-nullable",
        remedy=f"ALTER TABLE {table.quoted} {cure}; or name other columns under source.keys",
    )


def _no_key(table: TableName, columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]) -> TableError:
    candidate = _candidate(columns, indexes)
    if candidate is not None:
        cure = f"ALTER TABLE {table.quoted} REPLICA IDENTITY USING INDEX {quote_identifier(candidate.name)};"
    else:
        cure = (
            f"ALTER TABLE {table.quoted} ADD PRIMARY KEY (…); or name unique columns under source.keys "
            f"and ALTER TABLE {table.quoted} REPLICA IDENTITY FULL;"
        )
    return TableError(
        table,
        "the table has no primary key and no replica identity index, so its rows cannot be identified",
        code="table-without-key",
        remedy=f"{cure} or leave the table out with source.exclude",
    )


def _holding(
    hidden: Generated, table: TableName, identity: Identity, leaves: Mapping[TableName, Identity]
) -> list[TableName]:
    """The table, or partitions of it, whose identity holds a generated column that is not sent."""
    return [
        holder
        for holder, its in (leaves or {table: identity}).items()
        if hidden.columns and (its.mode == "f" or set(its.columns) & hidden.columns.keys())
    ]


def _generated_key(
    table: TableName,
    lacking: Sequence[str],
    hidden: Generated,
    columns: Mapping[str, bool],
    indexes: Sequence[UniqueIndex],
) -> TableError:
    return TableError(
        table,
        f"the key has the generated column {_list(lacking)}, which the publication does not send",
        code="key-generated",
        remedy=f"{_sent(lacking, hidden)}{_other_identity([table], (), columns, indexes)}",
    )


def _generated_identity(
    table: TableName,
    holders: Sequence[TableName],
    hidden: Generated,
    key: Sequence[str],
    *,
    columns: Mapping[str, bool],
    indexes: Sequence[UniqueIndex],
) -> TableError:
    which = "" if list(holders) == [table] else f" of {_list([str(holder) for holder in holders[:_SHOWN]])}"
    return TableError(
        table,
        f"the replica identity{which} holds the generated column {_list(list(hidden.columns))}, which the "
        "publication does not send",
        code="identity-generated",
        remedy=f"{_sent(list(hidden.columns), hidden)}{_other_identity(holders, key, columns, indexes)}",
    )


def _sent(names: Sequence[str], hidden: Generated) -> str:
    """The cure by the publication, where there is one."""
    if not all(hidden.columns[name] for name in names):
        return ""
    return "ALTER PUBLICATION … SET (publish_generated_columns = stored); or "


def _other_identity(
    holders: Sequence[TableName],
    key: Sequence[str],
    columns: Mapping[str, bool],
    indexes: Sequence[UniqueIndex],
) -> str:
    """The cure by an index over published columns, of which one is still to be made where there is none."""
    published = [index for index in indexes if set(index.columns) <= columns.keys()]
    cures = [_index_cure(holder, key, columns, published) for holder in holders]
    return " ".join(cure for cure in cures if cure) or (
        f"CREATE UNIQUE INDEX name ON {holders[0].quoted} (…); over ordinary NOT NULL columns, then "
        f"ALTER TABLE {holders[0].quoted} REPLICA IDENTITY USING INDEX name;"
    )


def _uncovered(
    table: TableName,
    holder: TableName,
    key: Sequence[str],
    identity: Identity,
    *,
    columns: Mapping[str, bool],
    indexes: Sequence[UniqueIndex],
) -> TableError:
    """Old tuples of `holder` (the table, or one of its partitions) lack key columns."""
    which = "the table" if holder == table else f"its partition {holder}"
    primary = next((index for index in indexes if index.primary), None)
    match identity.mode:
        case "n":
            code = "replica-identity-nothing"
            said = f"{which} has REPLICA IDENTITY NOTHING"
        case "d" if primary is not None and not primary.immediate:
            code = "replica-identity-missing"
            said = f"the primary key of {which} is deferrable, which is no replica identity"
        case _ if not identity.columns:
            code = "replica-identity-missing"
            said = f"{which} has no usable replica identity"
        case _:
            code = "key-not-in-identity"
            said = f"old rows of {which} carry {_list(identity.columns)} only, not the key {_list(key)}"
    return TableError(table, said, code=code, remedy=_identity_cure(holder, key, columns, indexes))


def _partial(table: TableName, key: Sequence[str], leaves: Sequence[TableName]) -> TableError:
    """Rows have to be identified by their content, which some leaves do not log.

    What is logged of an old row is the leaf's replica identity. What the stream says of it ('K' or 'O', the
    flags of the columns) is the root's, for the changes are published under its name. So of a root with
    REPLICA IDENTITY FULL an 'O' may hold a key among NULLs that are none, and no change says which leaf it is
    of.

    Where a unique index of the root guards the key (`KeyChoice.guarded`), that does no harm. No key ever
    holds two rows, so the key tells the row, and nothing but the key is taken from an old tuple; leaves may
    differ, come and change. Where none does, a row is identified by its whole content alone, and every leaf
    has to log it.
    """
    named = _list([str(leaf) for leaf in leaves[:_SHOWN]]) + (" …" if len(leaves) > _SHOWN else "")
    return TableError(
        table,
        f"no unique index of the whole table guards the key {_list(key)}, so old rows must be logged in "
        f"full; those of {named} are not: REPLICA IDENTITY FULL of the root does not reach its partitions",
        code="partition-identity",
        remedy=f"{_full(leaves)} or a primary key of {table.quoted} within these columns",
    )


def _full(leaves: Sequence[TableName]) -> str:
    """The cure of leaves that log too little: one statement for each."""
    return " ".join(f"ALTER TABLE {leaf.quoted} REPLICA IDENTITY FULL;" for leaf in leaves)


def _identity_cure(
    holder: TableName, key: Sequence[str], columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]
) -> str:
    cure = _index_cure(holder, key, columns, indexes)
    return cure or f"ALTER TABLE {holder.quoted} REPLICA IDENTITY FULL;"


def _index_cure(
    holder: TableName, key: Sequence[str], columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]
) -> str | None:
    """The statement that makes an index with the key's columns the identity; None where there is no such."""
    primary = next((index for index in indexes if index.primary and index.immediate), None)
    if primary is not None and set(key) <= set(primary.columns):
        return f"ALTER TABLE {holder.quoted} REPLICA IDENTITY DEFAULT;"
    candidate = _candidate(columns, [index for index in indexes if set(key) <= set(index.columns)])
    if candidate is not None:
        return f"ALTER TABLE {holder.quoted} REPLICA IDENTITY USING INDEX {quote_identifier(candidate.name)};"
    return None


def _candidate(columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]) -> UniqueIndex | None:
    """An index that REPLICA IDENTITY USING INDEX accepts: unique, plain, immediate, every column NOT NULL."""
    fit = [
        index
        for index in indexes
        if index.plain and index.immediate and all(columns.get(name, False) for name in index.columns)
    ]
    return min(fit, key=lambda index: (len(index.columns), index.name), default=None)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
