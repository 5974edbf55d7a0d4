"""Keys of silver's tables as informational constraints, in Unity Catalog alone.

Databricks takes a constraint with RELY as a fact, and omits work because of the constraint. So a constraint
exists only while the fact is true. A key is stated once a cut names the table with the key, if the source
enforces the key (a unique index over NOT NULL columns) and silver's columns are NOT NULL too. The statement
is dropped before the cycle that folds a shape with another key. A new process first reads the stated keys
from the catalog.

Silver's own statements make every column nullable, because the source may drop its NOT NULL, and a constraint
must stop no rows. So the lake's owner sets NOT NULL (`docs/catalogs.md`).

A refusal is logged once, is not retried by this process, and stops no rows, also of a DROP.

Unity Catalog stores names of tables and constraints in lower case. So all comparisons use lower case, and no
key is stated for two tables with equal lower-case names.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.silver.schema.catalog import SilverTable

_LOGGER: Final = logging.getLogger("deltasmelt.run")
_LINES: Final = 300
"""Length of a logged reason."""


def constraint_of(name: str) -> str:
    """Return the name of a table's constraint: unique within a schema, and recognisable as deltasmelt's."""
    return f"{name}__deltasmelt_key"


def held_key(table: SilverTable) -> tuple[str, ...]:
    """Return the key enforced by the source, without NULL; empty for no such key."""
    key_columns = set(table.key)
    not_null = {column.name for column in table.columns if column.not_null}
    # A history has many rows for one key.
    if table.history or not table.relation.key_unique or not key_columns <= not_null:
        return ()
    return table.key


def statements(address: str, name: str, *, old: tuple[str, ...], new: tuple[str, ...]) -> list[str]:
    """Return the statements for replacing one stated key by another; an empty key stands for none. Pure."""
    if old == new:
        return []
    constraint = quote(constraint_of(name))
    drop = f"ALTER TABLE {address} DROP CONSTRAINT IF EXISTS {constraint}"
    columns = ", ".join(map(quote, new))
    add = f"ALTER TABLE {address} ADD CONSTRAINT {constraint} PRIMARY KEY ({columns}) RELY"
    return [*([drop] if old else []), *([add] if new else [])]


@dataclass(slots=True)
class KeyStatements:
    """The stated keys, and the statements for changes. Pure.

    Attributes:
        stated: columns of deltasmelt's constraints, by table; all names in lower case, here and below.
        not_null: NOT NULL columns in the catalog, by table.
        tried: tables whose key this process has tried to state.
        nullable: tables in `tried` with a nullable key column.
    """

    catalog: str
    stated: dict[str, tuple[str, ...]] = field(default_factory=dict)
    not_null: Mapping[str, Collection[str]] = field(default_factory=dict)
    tried: set[str] = field(default_factory=set)
    nullable: list[str] = field(default_factory=list)

    def released(self, tables: Iterable[SilverTable]) -> list[str]:
        """Return statements for dropping keys that the newest shapes of the tables lack."""
        sql, tables = [], list(tables)
        distinct = {table.name for table in _distinct(tables)}
        for table in tables:
            name = table.name.lower()
            recorded_key = self.stated.get(name, ())
            if recorded_key and (table.name not in distinct or recorded_key != _lower(held_key(table))):
                sql += self._put(name, ())
                self.tried.discard(name)
        return sql

    def added(self, cut: Cut, tables: Iterable[SilverTable]) -> list[str]:
        """Return statements for the keys of a cut's tables, each once."""
        sql = []
        for table in _distinct(tables):
            name, key = table.name.lower(), held_key(table)
            # A table with a shape newer than the cut waits for the next.
            waits = table.name not in cut.tables or table.relation.from_lsn > cut.commit_lsn
            if not key or waits or self.stated.get(name) or name in self.tried:
                continue
            self.tried.add(name)
            if set(_lower(key)) <= set(self.not_null.get(name, ())):
                sql += self._put(name, key)
            else:
                self.nullable.append(table.name)
        return sql

    def _put(self, name: str, key: tuple[str, ...]) -> list[str]:
        address = ".".join(map(quote, (self.catalog, "silver", name)))
        recorded_key = self.stated.get(name, ())
        self.stated[name] = _lower(key)
        return statements(address, name, old=recorded_key, new=key)


class CatalogKeys:
    """States the keys of silver's tables in one catalog, in a session with access to the catalog."""

    def __init__(self, spark: SparkSession, catalog: str) -> None:
        self._spark = spark
        self._catalog = catalog
        self._keys = self._read()

    def release(self, tables: Iterable[SilverTable]) -> None:
        """Drop, before a cycle, the keys that the newest shapes of the tables lack."""
        if self._keys is not None:
            self._run(self._keys.released(tables))

    def state(self, cut: Cut, tables: Iterable[SilverTable]) -> None:
        """State the keys of the tables in a cut of silver (`KeyStatements.added`)."""
        if self._keys is None:
            return
        self._run(self._keys.added(cut, tables))
        if self._keys.nullable:
            _LOGGER.info(
                "no key is stated in %s for %s: columns of their keys may be NULL there (docs/catalogs.md)",
                self._catalog,
                ", ".join(self._keys.nullable),
            )
            self._keys.nullable.clear()

    def _read(self) -> KeyStatements | None:
        """Return the catalog's stated keys; log a failure and return None."""
        schema, silver = f"{quote(self._catalog)}.information_schema", literal("silver")
        try:
            keys = self._spark.sql(
                f"SELECT table_name, constraint_name, column_name FROM {schema}.key_column_usage "
                f"WHERE table_schema = {silver} ORDER BY table_name, constraint_name, ordinal_position"
            ).collect()
            columns = self._spark.sql(
                f"SELECT table_name, column_name FROM {schema}.columns "
                f"WHERE table_schema = {silver} AND is_nullable = 'NO'"
            ).collect()
        except Exception as error:  # noqa: BLE001 - a catalog without them; rows go on
            _LOGGER.warning("keys cannot be declared in %s: %s", self._catalog, _short(error))
            return None
        return read_keys(self._catalog, keys, columns)

    def _run(self, sql: Iterable[str]) -> None:
        for statement in sql:
            try:
                self._spark.sql(statement)
            except Exception as error:  # noqa: BLE001 - a constraint is information; rows go on without it
                _LOGGER.warning(
                    "the catalog refused this statement; run it by hand: %s: %s", statement, _short(error)
                )


def read_keys(catalog: str, keys: Iterable[Sequence[str]], columns: Iterable[Sequence[str]]) -> KeyStatements:
    """Return the keys in rows of the catalog's information schema. Pure.

    `keys` are table, constraint and column, in the order of the constraint's columns; `columns` are table and
    column of the NOT NULL columns.
    """
    key_columns: dict[str, tuple[str, ...]] = {}
    for table, constraint, column in keys:
        if constraint.lower() == constraint_of(table).lower():
            name = table.lower()
            key_columns[name] = (*key_columns.get(name, ()), column.lower())
    not_null: dict[str, set[str]] = defaultdict(set)
    for table, column in columns:
        not_null[table.lower()].add(column.lower())
    return KeyStatements(catalog, key_columns, not_null)


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)


def _distinct(tables: Iterable[SilverTable]) -> list[SilverTable]:
    """Return the tables with distinct names in lower case."""
    listed = list(tables)
    names = Counter(table.name.lower() for table in listed)
    return [table for table in listed if names[table.name.lower()] == 1]


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:_LINES]
