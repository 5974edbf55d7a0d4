"""The silver tables that a source's relations give: names, columns, Spark types, keys. Needs no Spark.

What gold, quality and the commands need to know of silver is here, but not how rows get there.
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
"""Columns that every silver table carries after the source's own, in this order."""

DELETED: Final = "_deleted"
"""With soft deletes, the column after them: whether the source no longer has the row. Never NULL."""

HISTORY_SUFFIX: Final = "__history"
"""What the name of a history has after its table's."""

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
"""Columns of a history table after `OWN_COLUMNS`. The version without an end is the current one."""


_QUOTED: Final = re.compile(r"`(?:[^`]|``)*`")
_WITHOUT_EQUALITY: Final = re.compile(r"\b(?:MAP|VARIANT)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SilverColumn:
    """A column of a silver table that comes from the source.

    Attributes:
        spark_type: Spark's type as DDL, e.g. ``DECIMAL(12,2)`` or ``ARRAY<STRING>``.
        attnum: pg_attribute.attnum, which survives a rename.
        not_null: whether the source declares it so. Silver itself allows NULL: a value may be
            unrepresentable.
        reading: how PostgreSQL's text becomes the value.
        type: PostgreSQL's type.
        overridden: whether the pipeline file chose the Spark type (`silver.types`).
        missing: text of the value that rows from before the column have in it; None: NULL.
        comment: that it has at the source now; None where it has none.
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
    """A silver table as its newest relation version describes it.

    Attributes:
        name: name within the layer: ``orders``, ``sales__orders``.
        columns: the source's columns in its order; `OWN_COLUMNS` follow them and are not listed.
        key: columns that identify a row.
        relation: the version that this was made from.
        soft: whether deleted rows stay, marked.
        history: whether the rows are versions of the source's rows.
        cluster: columns by which rows are put together in files, in place of the key; none: by the key.
        problem: why the table cannot be carried; its columns are then those of the mapped types.
    """

    table: TableName
    name: str
    columns: tuple[SilverColumn, ...]
    key: tuple[str, ...]
    relation: Relation
    soft: bool = False
    history: bool = False
    cluster: tuple[str, ...] = ()
    problem: TableError | None = None

    @property
    def own_columns(self) -> dict[str, str]:
        """Our own columns with their types, in their order."""
        soft = {DELETED: "BOOLEAN"} if self.soft else {}
        return {**OWN_COLUMNS, **soft, **(HISTORY_COLUMNS if self.history else {})}

    @property
    def versioned(self) -> bool:
        """Whether the table also holds what the source no longer has."""
        return self.soft or self.history

    def column(self, name: str) -> SilverColumn:
        """The column of that name.

        Raises:
            KeyError: there is none.
        """
        return self.columns[self.position(name)]

    def position(self, name: str) -> int:
        """The index of the column of that name among `columns`.

        Raises:
            KeyError: there is none.
        """
        for position, column in enumerate(self.columns):
            if column.name == name:
                return position
        raise KeyError(name)


def silver_table(relation: Relation, settings: SilverSettings) -> SilverTable:
    """The silver table of one relation version.

    Raises:
        ConfigurationError: a type override that PostgreSQL's text cannot be read as.
    """
    columns = []
    comments = {} if relation.comments is None else relation.comments.columns
    for column in relation.columns:
        chosen = settings.types.get(f"{relation.table}.{column.name}")
        how = reading(column.type, chosen)
        columns.append(
            SilverColumn(
                column.name,
                how.ddl,
                column.attnum,
                column.not_null,
                how,
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
    """What the settings name for a table of the columns that it has; `smelt check` tells of others."""
    named = next((names for text, names in settings.cluster.items() if is_named(relation.table, [text])), [])
    there = {column.name for column in relation.columns}
    return tuple(name for name in dict.fromkeys(named) if name in there)


def history_of(table: SilverTable) -> SilverTable:
    """The table that keeps the versions of a table's rows."""
    return replace(table, name=f"{table.name}{HISTORY_SUFFIX}", soft=False, history=True, cluster=())


def is_named(table: TableName, texts: Iterable[str]) -> bool:
    """Whether the pipeline file names a table, in whichever spelling."""
    return any(text in {str(table), table.quoted, f"{table.schema}.{table.name}"} for text in texts)


def histories(tables: Iterable[SilverTable], settings: SilverSettings) -> list[SilverTable]:
    """The history tables that the settings ask for."""
    return [history_of(table) for table in tables if is_named(table.table, settings.history)]


def check_table(table: SilverTable, tables: Iterable[SilverTable], settings: SilverSettings) -> None:
    """Check whether silver can find a table's rows by its key, and whether it uses no name that silver needs.

    Args:
        table: which.
        tables: those that there are, or that are to come; one that is left out needs no name.
        settings: what they ask for.

    Raises:
        TableError: Spark has no equality of a key's type (a map, as of hstore). Or one of its columns, or
            another table, has the name of what the settings ask for: of two tables both are refused, so that
            no rows mix.
    """
    for name in table.key:
        column = table.column(name)
        if _WITHOUT_EQUALITY.search(_QUOTED.sub("", column.spark_type)):
            raise TableError(
                table.table,
                f"its key has {name}, which is {column.type.name}: Spark cannot compare {column.spark_type}",
                code="key-type",
                remedy=f"read it as text, silver.types: {{{table.table}.{name}: string}}; "
                "or name another key in source.keys",
            )
    history = histories([table], settings)
    wanted = {name for one in [table, *history] for name in one.own_columns}
    clash = next((column.name for column in table.columns if folded(column.name) in wanted), None)
    if clash is not None:
        raise TableError(
            table.table,
            f"its column {clash} has the name of a column that silver adds",
            code="silver-settings-clash",
            remedy=f"ALTER TABLE {table.table.quoted} RENAME COLUMN … TO …; or change silver.deletes or "
            "silver.history",
        )
    if not settings.history:
        return
    names = {one.name for one in history}
    for other in tables:
        if other.table == table.table:
            continue
        if other.name in names:
            said = f"its history needs the name silver.{history[0].name}, which is that of {other.table}"
        elif any(one.name == table.name for one in histories([other], settings)):
            said = f"it needs the name silver.{table.name}, which is the history of {other.table}"
        else:
            continue
        raise TableError(
            table.table,
            said,
            code="silver-settings-clash",
            remedy="leave one of them out: source.exclude, or silver.history",
        )


_made: Final[dict[TableName, tuple[Relation, SilverSettings, SilverTable]]] = {}
"""By name, the table that `silver_catalog` made last, and what it made the table from.

Each cycle asks for all tables, those that were dropped years ago included.
"""


def silver_catalog(relations: Sequence[Relation], settings: SilverSettings) -> dict[TableName, SilverTable]:
    """The newest shape of each table, by its newest name.

    A relation (by id) counts under the name of its newest version alone; of several relations with one name,
    dropped and recreated, the newest counts. A table whose columns cannot be read as the settings say is
    there with its `SilverTable.problem`: what became of one column at the source must not stop the others.
    """
    newest: dict[int, Relation] = {}
    for relation in relations:
        known = newest.get(relation.relation_id)
        if known is None or relation.from_lsn >= known.from_lsn:
            newest[relation.relation_id] = relation
    by_name: dict[TableName, Relation] = {}
    for relation in newest.values():
        other = by_name.get(relation.table)
        if other is None or relation.from_lsn > other.from_lsn:
            by_name[relation.table] = relation
    return {table: _carried(relation, settings) for table, relation in sorted(by_name.items())}


def _carried(relation: Relation, settings: SilverSettings) -> SilverTable:
    known = _made.get(relation.table)
    if known is not None and known[0] is relation and known[1] is settings:
        return known[2]
    try:
        table = silver_table(relation, settings)
    except ConfigurationError as error:
        problem = TableError(relation.table, error.message, code=error.code, remedy=error.remedy)
        plain = silver_table(relation, settings.model_copy(update={"types": {}}))
        return replace(plain, problem=problem)  # who raises a problem adds to its traceback: each has its own
    _made[relation.table] = relation, settings, table
    return table
