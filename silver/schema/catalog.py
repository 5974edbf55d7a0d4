"""Derive silver tables from the source's relations: names, columns, Spark types, keys. Needs no Spark.

Gold, quality and the commands find here all they need to know of silver, except how rows get into silver.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError, TableError
from deltasmelt.bronze.identifiers import folded
from deltasmelt.silver.schema.types import Reading, reading

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import PgType, Relation
    from deltasmelt.silver.settings import SilverSettings

COMMIT_LSN: Final = "_commit_lsn"
COMMIT_TS: Final = "_commit_ts"
UNREPRESENTABLE: Final = "_unrepresentable"

OWN_COLUMNS: Final = {COMMIT_LSN: "BIGINT", COMMIT_TS: "TIMESTAMP", UNREPRESENTABLE: "MAP<STRING, STRING>"}
"""Columns of every silver table after the source's own columns, in this order."""

DELETED: Final = "_deleted"
"""With soft deletes, the column after `OWN_COLUMNS`: whether the source no longer has the row. Never NULL."""

HISTORY_SUFFIX: Final = "__history"
"""The end of a history's name, after the name of its table."""

VALID_FROM_LSN: Final = "_valid_from_lsn"
VALID_TO_LSN: Final = "_valid_to_lsn"
VALID_FROM: Final = "_valid_from"
VALID_TO: Final = "_valid_to"
HISTORY_COLUMNS: Final = {
    VALID_FROM_LSN: "BIGINT",
    VALID_TO_LSN: "BIGINT",
    VALID_FROM: "TIMESTAMP",
    VALID_TO: "TIMESTAMP",
}
"""Columns of a history table after `OWN_COLUMNS`. The version without an end is the current version."""


_QUOTED: Final = re.compile(r"`(?:[^`]|``)*`")
_WITHOUT_EQUALITY: Final = re.compile(r"\b(?:MAP|VARIANT)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SilverColumn:
    """A column of a silver table that comes from the source.

    Attributes:
        spark_type: Spark's type as DDL, e.g. ``DECIMAL(12,2)`` or ``ARRAY<STRING>``.
        attnum: pg_attribute.attnum, which survives a rename.
        not_null: whether the source declares the column NOT NULL. Silver itself allows NULL, because a value
            may be unrepresentable.
        overridden: whether the pipeline file chose the Spark type (`silver.types`).
        missing: text of the column's value in rows older than the column; None: NULL.
    """

    name: str
    spark_type: str
    attnum: int | None
    not_null: bool
    reading: Reading
    type: PgType = field(compare=False)
    overridden: bool = False
    missing: str | None = None
    comment: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class SilverTable:
    """A silver table, described by its newest relation version.

    Attributes:
        name: name within the layer: ``orders``, ``sales__orders``.
        columns: the source's columns in the source's order, without `OWN_COLUMNS`, which follow in the table.
        soft: whether deleted rows stay, marked.
        history: whether the rows are versions of the source's rows.
        cluster: columns by which Delta groups rows in files, in place of the key; none: by the key.
        problem: why silver cannot carry the table; its columns then have the mapped types. Equal tables may
            have different problems, as an exception equals no other.
    """

    table: TableName
    name: str
    columns: tuple[SilverColumn, ...]
    key: tuple[str, ...]
    relation: Relation
    soft: bool = False
    history: bool = False
    cluster: tuple[str, ...] = ()
    problem: TableError | None = field(default=None, compare=False)

    @property
    def own_columns(self) -> dict[str, str]:
        """Deltasmelt's own columns with their types, in their order."""
        soft = {DELETED: "BOOLEAN"} if self.soft else {}
        return {**OWN_COLUMNS, **soft, **(HISTORY_COLUMNS if self.history else {})}

    @property
    def versioned(self) -> bool:
        """Check whether the table also holds former rows of the source."""
        return self.soft or self.history

    def column(self, name: str) -> SilverColumn:
        """Return the column with a name; raise a KeyError if no column has the name."""
        return self.columns[self.position(name)]

    def position(self, name: str) -> int:
        """Return the index of the column with a name; raise a KeyError if no column has the name."""
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position
        raise KeyError(name)


def silver_table(relation: Relation, settings: SilverSettings) -> SilverTable:
    """Return the silver table of a relation version.

    Raises:
        ConfigurationError: a type override to a type that cannot read PostgreSQL's text.
    """
    columns = []
    comments = {} if relation.comments is None else relation.comments.columns
    for column in relation.columns:
        chosen = settings.types.get(f"{relation.table}.{column.name}")
        spark_reading = reading(column.type, chosen)
        columns.append(
            SilverColumn(
                column.name,
                spark_reading.ddl,
                column.attnum,
                column.not_null,
                spark_reading,
                column.type,
                overridden=chosen is not None,
                missing=column.missing,
                comment=None if column.attnum is None else comments.get(column.attnum),
            )
        )
    return SilverTable(
        relation.table,
        relation.table.silver_name,
        tuple(columns),
        relation.key,
        relation,
        soft=settings.deletes == "soft",
        cluster=_clustered_by(relation, settings),
    )


def _clustered_by(relation: Relation, settings: SilverSettings) -> tuple[str, ...]:
    """Return the settings' columns that the table has; `smelt check` reports the others."""
    named = next((names for text, names in settings.cluster.items() if is_named(relation.table, [text])), [])
    existing = {column.name for column in relation.columns}
    return tuple(name for name in dict.fromkeys(named) if name in existing)


def history_of(table: SilverTable) -> SilverTable:
    """Return the table that keeps the versions of a table's rows."""
    return replace(table, name=f"{table.name}{HISTORY_SUFFIX}", soft=False, history=True, cluster=())


def is_named(table: TableName, texts: Iterable[str]) -> bool:
    """Check whether the pipeline file names a table, in any spelling."""
    return any(text in {str(table), table.quoted, f"{table.schema}.{table.name}"} for text in texts)


def histories(tables: Iterable[SilverTable], settings: SilverSettings) -> list[SilverTable]:
    """Return the history tables that the settings request."""
    return [history_of(table) for table in tables if is_named(table.table, settings.history)]


def check_table(table: SilverTable, tables: Iterable[SilverTable], settings: SilverSettings) -> None:
    """Raise a TableError if silver cannot find a table's rows by the key, or if a name of the table is taken.

    `tables` are all existing and coming tables; an excluded table needs no name.
    """
    for name in table.key:
        column = table.column(name)
        # Spark has no equality for a map, as of hstore.
        if _WITHOUT_EQUALITY.search(_QUOTED.sub("", column.spark_type)):
            raise TableError(
                table.table,
                f"the key contains {name} of type {column.type.name}: Spark cannot compare "
                f"{column.spark_type}",
                code="key-type",
                remedy=f"read the column as text, silver.types: {{{table.table}.{name}: string}}; or set "
                "another key in source.keys",
            )
    history = histories([table], settings)
    reserved = {name for table_or_history in [table, *history] for name in table_or_history.own_columns}
    clash = next((column.name for column in table.columns if folded(column.name) in reserved), None)
    if clash is not None:
        raise TableError(
            table.table,
            f"column {clash} has the name of a column that silver adds",
            code="silver-settings-clash",
            remedy=f"ALTER TABLE {table.table.quoted} RENAME COLUMN … TO …; or change silver.deletes or "
            "silver.history",
        )
    if not settings.history:
        return
    names = {version_table.name for version_table in history}
    # Of two tables with a clash silver rejects both, so that no rows mix.
    for rival in tables:
        if rival.table == table.table:
            continue
        if rival.name in names:
            message = (
                f"the history of the table needs the name silver.{history[0].name}, which belongs to "
                f"{rival.table}"
            )
        elif any(version_table.name == table.name for version_table in histories([rival], settings)):
            message = (
                f"the table needs the name silver.{table.name}, which belongs to the history of {rival.table}"
            )
        else:
            continue
        raise TableError(
            table.table,
            message,
            code="silver-settings-clash",
            remedy="leave one of the two tables out: source.exclude, or silver.history",
        )


_made: Final[dict[TableName, tuple[Relation, SilverSettings, SilverTable]]] = {}
"""By name, the last table that `silver_catalog` derived, with the relation and settings behind the table.

Each cycle needs all tables, and most are as before.
"""
_MOST_MADE: Final = 2
"""Number of derived tables for each table of a catalog above which the tables are derived again."""


def silver_catalog(relations: Sequence[Relation], settings: SilverSettings) -> dict[TableName, SilverTable]:
    """Return the newest shape of each table, by its newest name.

    A table whose columns the settings cannot read has a `SilverTable.problem`.
    """
    # A relation (by id) counts only under the name of its newest version.
    newest: dict[int, Relation] = {}
    for relation in relations:
        former = newest.get(relation.relation_id)
        if former is None or relation.from_lsn >= former.from_lsn:
            newest[relation.relation_id] = relation
    # Of several relations with one name, dropped and recreated, the newest counts.
    by_name: dict[TableName, Relation] = {}
    for relation in newest.values():
        namesake = by_name.get(relation.table)
        if namesake is None or relation.from_lsn > namesake.from_lsn:
            by_name[relation.table] = relation
    # Names of tables that are gone; the second half may be another lake's tables.
    if len(_made) > _MOST_MADE * max(len(by_name), 100):
        _made.clear()
    return {table: _carried(relation, settings) for table, relation in sorted(by_name.items())}


def _carried(relation: Relation, settings: SilverSettings) -> SilverTable:
    cached = _made.get(relation.table)
    if cached is not None and cached[0] is relation and cached[1] is settings:
        return cached[2]
    try:
        table = silver_table(relation, settings)
    except ConfigurationError as error:
        # A change of one column at the source must not stop other tables.
        problem = TableError(relation.table, error.message, code=error.code, remedy=error.remedy)
        plain = silver_table(relation, settings.model_copy(update={"types": {}}))
        # A raise extends the problem's traceback, so each table gets its own problem.
        return replace(plain, problem=problem)
    _made[relation.table] = relation, settings, table
    return table
