"""Which columns identify a row, and whether PostgreSQL delivers them. Pure: values in, a decision out.

Silver folds by a row key. The key must be in every old tuple, or a DELETE or a key change cannot be
attributed to a row. What an old tuple holds is the table's *replica identity*: nothing, the primary key, a
chosen unique index, or the full row. And once a table without a usable identity is published, PostgreSQL
refuses the application's own UPDATEs and DELETEs on it. So a table is only taken with a key that its
identity covers; everything else is an error of that table with the statement that cures it.

Order of precedence: the override of the pipeline file, the primary key, the replica identity index. A
primary key outside the identity (``REPLICA IDENTITY USING INDEX`` on another index) is never delivered with
a DELETE; there the identity index, which identifies rows just as well, is the key.

A *deferrable* primary key is no replica identity: PostgreSQL skips it (RelationGetIndexList).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from bronze.errors import ConfigurationError, TableError
from bronze.identifiers import TableName, quote_identifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


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
        mode: pg_class.relreplident: d(efault) n(othing) f(ull) i(ndex). columns: columns of the identity;
        empty for ``n``, for ``d`` without a usable primary key, and for ``f``.
    """

    mode: str
    columns: tuple[str, ...] = ()

    def covers(self, columns: Sequence[str]) -> bool:
        """Whether an old tuple holds all of these columns."""
        return self.mode == "f" or (bool(columns) and set(columns) <= set(self.columns))


@dataclass(frozen=True, slots=True)
class KeyChoice:
    """The row key of a table, and what is wrong with it."""

    key: tuple[str, ...]
    problems: list[TableError] = field(default_factory=list)


def identity_of(mode: str, indexes: Sequence[UniqueIndex]) -> Identity:
    """The identity that PostgreSQL derives from relreplident and the indexes."""
    usable = [index for index in indexes if index.plain and index.immediate]
    chosen = [
        index for index in usable if (mode == "d" and index.primary) or (mode == "i" and index.identity)
    ]
    return Identity(mode, chosen[0].columns if chosen else ())


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
) -> KeyChoice:
    """Decide on the key of one table.

    Args:
        table: its name.
        columns: its columns, with whether each is NOT NULL.
        indexes: its unique indexes.
        identity: its own replica identity.
        override: key columns of the pipeline file.
        partitions: identities of the leaf partitions; they, not the root's, decide what is logged.
    """
    unknown = [name for name in override if name not in columns]
    if unknown:
        return KeyChoice((), [_unknown_columns(table, unknown, columns)])
    key = tuple(override) or _own_key(indexes, identity)
    if not key:
        return KeyChoice((), [_no_key(table, columns, indexes)])
    problems = []
    if not identity.covers(key):
        problems.append(_uncovered(table, table, key, identity, columns=columns, indexes=indexes))
    for partition, its_identity in (partitions or {}).items():
        if not its_identity.covers(key):
            problems.append(_uncovered(table, partition, key, its_identity, columns=columns, indexes=()))
            break  # the remedy names every partition's cure in the same words
    return KeyChoice(key, problems)


def _own_key(indexes: Sequence[UniqueIndex], identity: Identity) -> tuple[str, ...]:
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
        "the table has no primary key and no replica identity index, so its rows cannot be told apart; "
        "it is left out of the publication, where its UPDATEs and DELETEs would fail",
        code="table-without-key",
        remedy=f"{cure} or take the table off the patterns with source.exclude",
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
            said = f"{which} has REPLICA IDENTITY NOTHING; published, its UPDATEs and DELETEs would fail"
        case "d" if primary is not None and not primary.immediate:
            code = "replica-identity-missing"
            said = (
                f"the primary key of {which} is deferrable, which is no replica identity; "
                "published, its UPDATEs and DELETEs would fail"
            )
        case _ if not identity.columns:
            code = "replica-identity-missing"
            said = f"{which} has no usable replica identity; published, its UPDATEs and DELETEs would fail"
        case _:
            code = "key-not-in-identity"
            said = f"old rows of {which} carry {_list(identity.columns)} only, not the key {_list(key)}"
    return TableError(table, said, code=code, remedy=_identity_cure(holder, key, columns, indexes))


def _identity_cure(
    holder: TableName, key: Sequence[str], columns: Mapping[str, bool], indexes: Sequence[UniqueIndex]
) -> str:
    primary = next((index for index in indexes if index.primary and index.immediate), None)
    if primary is not None and set(key) <= set(primary.columns):
        return f"ALTER TABLE {holder.quoted} REPLICA IDENTITY DEFAULT;"
    candidate = _candidate(columns, [index for index in indexes if set(key) <= set(index.columns)])
    if candidate is not None:
        return f"ALTER TABLE {holder.quoted} REPLICA IDENTITY USING INDEX {quote_identifier(candidate.name)};"
    return f"ALTER TABLE {holder.quoted} REPLICA IDENTITY FULL;"


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
