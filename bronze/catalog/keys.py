"""The choice of a row's key, checked against the columns that PostgreSQL delivers. Pure.

**Why a key.** Silver folds by a row key. Every old tuple must contain the key; otherwise a DELETE or a key
change cannot be assigned to a row. The table's replica identity decides the contents of an old tuple:
nothing, the primary key, a chosen unique index, or the full row. For a published table without a usable
identity PostgreSQL refuses the application's own UPDATEs and DELETEs. The reader therefore carries a table
only with a key that the identity covers. Everything else is an error of the table, with the statement that
cures the error.

**Which key.** In this order: the override of the pipeline file, the primary key, the replica identity index.
`_own_key` explains when the index comes first.

**Generated columns** are computed by the server. The stream carries generated columns only from a publication
of PostgreSQL 18 that includes generated columns (`Generated`).

**Partitioned tables.** The stream names the root, but the leaves decide the contents of old tuples
(`_partial`).

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
"""Greatest number of partitions that a message names; the remedy names all."""


@dataclass(frozen=True, slots=True)
class UniqueIndex:
    """A unique index of a table."""

    name: str
    # key columns in the index's order, without INCLUDE columns
    columns: tuple[str, ...]
    primary: bool = False
    # whether REPLICA IDENTITY USING INDEX chose the index
    identity: bool = False
    # whether the constraint is not deferrable
    immediate: bool = True
    # whether the index is valid, not partial and without expressions
    plain: bool = True


@dataclass(frozen=True, slots=True)
class Identity:
    """The columns in old tuples of a table, or of one partition."""

    # pg_class.relreplident: d(efault) n(othing) f(ull) i(ndex)
    mode: str
    # columns of the identity; empty for `n`, for `d` without a usable primary key, and for `f`
    columns: tuple[str, ...] = ()

    def covers(self, columns: Sequence[str]) -> bool:
        """Check whether an old tuple contains all of these columns."""
        return self.mode == "f" or (bool(columns) and set(columns) <= set(self.columns))


@dataclass(frozen=True, slots=True)
class Generated:
    """Generated columns of a table that the publication does not send.

    A column that the publication does not send cannot be in a key. From PostgreSQL 18 on such a column must
    not be in the replica identity either (REPLICA IDENTITY FULL contains every column): once the table is
    published, UPDATEs and DELETEs would fail.
    """

    # the names, each with whether a publication of this server could send the column
    columns: Mapping[str, bool] = field(default_factory=dict)
    # whether the server refuses writes to a published table with an unsent column in its identity
    refused: bool = False


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """The row key of a table, and the problems with it."""

    key: tuple[str, ...]
    problems: list[TableError] = field(default_factory=list)
    # Whether a unique index prevents two rows with equal keys, even inside a transaction. The index belongs
    # to the table; for a partitioned root, to all partitions together.
    guarded: bool = False


def identity_of(mode: str, indexes: Sequence[UniqueIndex]) -> Identity:
    """Return the identity that PostgreSQL derives from relreplident and the indexes."""
    # A deferrable primary key is no replica identity: PostgreSQL skips the index (RelationGetIndexList).
    usable = [index for index in indexes if index.plain and index.immediate]
    chosen = [
        index for index in usable if (mode == "d" and index.primary) or (mode == "i" and index.identity)
    ]
    return Identity(mode, chosen[0].columns if chosen else ())


def refuses_updates(
    table: TableName, identity: Identity, leaves: Mapping[TableName, Identity], generated: Generated
) -> bool:
    """Check whether PostgreSQL refuses UPDATEs and DELETEs of a table as soon as the table is published."""
    # Each partition counts by its own identity. The reader never carries a table with a partition without an
    # identity.
    bare = any(leaf.mode != "f" and not leaf.columns for leaf in (leaves or {table: identity}).values())
    return bare or (generated.refused and bool(_holding(generated, table, identity, leaves)))


def key_override(table: TableName, keys: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """Return the key columns that the pipeline file names for this table; empty without an override.

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
    """Choose the key of one table.

    `columns` are the published columns, each with whether the column is NOT NULL; `generated` are the
    generated columns that are not published. `override` has the key columns of the pipeline file.
    `partitions` has the identities of the leaf partitions: the leaves, not the root, decide the contents of
    old tuples.
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
    if hidden.refused and (holders := _holding(hidden, table, identity, leaves)):
        problems.append(_generated_identity(table, holders, hidden, key, columns=columns, indexes=indexes))
    bare = [leaf for leaf, its_identity in leaves.items() if not its_identity.covers(key)]
    partial = [leaf for leaf, its_identity in leaves.items() if its_identity.mode != "f"]
    if bare:
        problem = _uncovered(table, bare[0], key, leaves[bare[0]], columns=columns, indexes=())
        problem.remedy = _full(bare)
        problems.append(problem)
    elif partial and identity.mode == "f" and not guarded:
        # With a unique index of the root over the key (`guarded`) the NULLs do no harm. No two rows ever have
        # equal keys, so the key identifies the row, and silver reads only the key of an old tuple. Leaves may
        # differ, be added and change. Without this index only the whole content identifies a row, and every
        # leaf must log the whole row.
        problems.append(_partial(table, key, partial))
    return KeyChoice(key, problems, guarded)


def _own_key(indexes: Sequence[UniqueIndex], identity: Identity) -> tuple[str, ...]:
    """Return the primary key, or the identity index if a DELETE does not deliver the primary key."""
    primary = next((index.columns for index in indexes if index.primary), ())
    if identity.mode == "i" and identity.columns and not identity.covers(primary):
        # With `REPLICA IDENTITY USING INDEX` on another index a DELETE delivers the columns of this index,
        # and the index identifies rows just as well.
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
        f"the key override names {_list(names)}, which may be NULL; PostgreSQL allows several rows with "
        "NULL in a unique column, so such a key does not identify a row",
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
        "the table has no primary key and no replica identity index, so no key identifies its rows",
        code="table-without-key",
        remedy=f"{cure} or leave the table out with source.exclude",
    )


def _holding(
    hidden: Generated, table: TableName, identity: Identity, leaves: Mapping[TableName, Identity]
) -> list[TableName]:
    """Return the table, or the partitions, whose identity contains a generated column that is not sent."""
    return [
        holder
        for holder, leaf in (leaves or {table: identity}).items()
        if hidden.columns and (leaf.mode == "f" or set(leaf.columns) & hidden.columns.keys())
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
        f"the key contains the generated column {_list(lacking)}, which the publication does not send",
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
    suffix = "" if list(holders) == [table] else f" of {_list([str(holder) for holder in holders[:_SHOWN]])}"
    return TableError(
        table,
        f"the replica identity{suffix} contains the generated column {_list(list(hidden.columns))}, which "
        "the publication does not send",
        code="identity-generated",
        remedy=f"{_sent(list(hidden.columns), hidden)}{_other_identity(holders, key, columns, indexes)}",
    )


def _sent(names: Sequence[str], hidden: Generated) -> str:
    """Return the remedy that lets the publication send the columns; empty if the server cannot send them."""
    if not all(hidden.columns[name] for name in names):
        return ""
    return "ALTER PUBLICATION … SET (publish_generated_columns = stored); or "


def _other_identity(
    holders: Sequence[TableName],
    key: Sequence[str],
    columns: Mapping[str, bool],
    indexes: Sequence[UniqueIndex],
) -> str:
    """Return the remedy by an index over other columns; without such an index, first the index itself."""
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
    """Return the error that old tuples of `holder` (the table, or a partition) lack key columns."""
    subject = "the table" if holder == table else f"its partition {holder}"
    primary = next((index for index in indexes if index.primary), None)
    match identity.mode:
        case "n":
            code = "replica-identity-nothing"
            message = f"{subject} has REPLICA IDENTITY NOTHING"
        case "d" if primary is not None and not primary.immediate:
            code = "replica-identity-missing"
            message = (
                f"the primary key of {subject} is deferrable; PostgreSQL does not use a deferrable key as "
                "replica identity"
            )
        case _ if not identity.columns:
            code = "replica-identity-missing"
            message = f"{subject} has no usable replica identity"
        case _:
            code = "key-not-in-identity"
            message = (
                f"old rows of {subject} contain only {_list(identity.columns)}, not the key {_list(key)}"
            )
    return TableError(table, message, code=code, remedy=_identity_cure(holder, key, columns, indexes))


def _partial(table: TableName, key: Sequence[str], leaves: Sequence[TableName]) -> TableError:
    """Return the error that only the content identifies rows, but some leaves do not log the content.

    The leaf's replica identity decides the logged columns of an old row. Changes are published under the
    root's name. So the root's replica identity decides how the stream describes the old row ('K' or 'O', the
    flags of the columns). An 'O' of a root with REPLICA IDENTITY FULL may therefore contain the key among
    NULLs for unlogged columns, and no change names the leaf.
    """
    examples = _list([str(leaf) for leaf in leaves[:_SHOWN]]) + (" …" if len(leaves) > _SHOWN else "")
    return TableError(
        table,
        f"no unique index of the whole table covers the key {_list(key)}, so PostgreSQL must log old rows "
        f"in full; {examples} do not log old rows in full: REPLICA IDENTITY FULL of the root does not apply "
        "to its partitions",
        code="partition-identity",
        remedy=f"{_full(leaves)} or a primary key of {table.quoted} within these columns",
    )


def _full(leaves: Sequence[TableName]) -> str:
    """Return the remedy for leaves that log too little: one statement for each leaf."""
    return " ".join(f"ALTER TABLE {leaf.quoted} REPLICA IDENTITY FULL;" for leaf in leaves)


def _identity_cure(
    holder: TableName, key: Sequence[str], columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]
) -> str:
    cure = _index_cure(holder, key, columns, indexes)
    return cure or f"ALTER TABLE {holder.quoted} REPLICA IDENTITY FULL;"


def _index_cure(
    holder: TableName, key: Sequence[str], columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]
) -> str | None:
    """Return the statement that makes an index with the key's columns the identity; None without an index."""
    primary = next((index for index in indexes if index.primary and index.immediate), None)
    if primary is not None and set(key) <= set(primary.columns):
        return f"ALTER TABLE {holder.quoted} REPLICA IDENTITY DEFAULT;"
    candidate = _candidate(columns, [index for index in indexes if set(key) <= set(index.columns)])
    if candidate is not None:
        return f"ALTER TABLE {holder.quoted} REPLICA IDENTITY USING INDEX {quote_identifier(candidate.name)};"
    return None


def _candidate(columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]) -> UniqueIndex | None:
    """Return an index for REPLICA IDENTITY USING INDEX: unique, plain, immediate, all columns NOT NULL."""
    fit = [
        index
        for index in indexes
        if index.plain and index.immediate and all(columns.get(name, False) for name in index.columns)
    ]
    return min(fit, key=lambda index: (len(index.columns), index.name), default=None)


def _list(names: Sequence[str]) -> str:
    return ", ".join(names)
