"""The silver tables that a source's relations give: names, columns, Spark types, keys. Needs no Spark.

What gold, quality and the commands need to know of silver is here; how rows get there is not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from silver.types import Reading, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bronze.identifiers import TableName
    from bronze.shapes import Relation
    from silver.settings import SilverSettings

COMMIT_LSN: Final = "_commit_lsn"
COMMIT_TS: Final = "_commit_ts"
UNREPRESENTABLE: Final = "_unrepresentable"

OWN_COLUMNS: Final = {COMMIT_LSN: "BIGINT", COMMIT_TS: "TIMESTAMP", UNREPRESENTABLE: "MAP<STRING, STRING>"}
"""Columns that every silver table carries after the source's own, in this order."""


@dataclass(frozen=True, slots=True)
class SilverColumn:
    """A column of a silver table that comes from the source.

    Attributes:
        spark_type: Spark's type as DDL, e.g. ``DECIMAL(12,2)`` or ``ARRAY<STRING>``.
        attnum: pg_attribute.attnum, which survives a rename.
        not_null: whether the source declares it so. Silver itself allows NULL: a value may be
            unrepresentable.
        reading: how PostgreSQL's text becomes the value.
        missing: text of the value that rows from before the column have in it; None: NULL.
    """

    name: str
    spark_type: str
    attnum: int | None
    not_null: bool
    reading: Reading
    missing: str | None = None


@dataclass(frozen=True, slots=True)
class SilverTable:
    """A silver table as its newest relation version describes it.

    Attributes:
        name: name within the layer: ``orders``, ``sales__orders``.
        columns: the source's columns in its order; `OWN_COLUMNS` follow them and are not listed.
        key: columns that identify a row.
        relation: the version that this was made from.
    """

    table: TableName
    name: str
    columns: tuple[SilverColumn, ...]
    key: tuple[str, ...]
    relation: Relation

    def column(self, name: str) -> SilverColumn:
        """The column of that name.

        Raises:
            KeyError: there is none.
        """
        return self.columns[self.position(name)]

    def position(self, name: str) -> int:
        """Where the column of that name stands among `columns`.

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
    for column in relation.columns:
        how = reading(column.type, settings.types.get(f"{relation.table}.{column.name}"))
        columns.append(
            SilverColumn(column.name, how.ddl, column.attnum, column.not_null, how, column.missing)
        )
    return SilverTable(relation.table, relation.table.silver_name, tuple(columns), relation.key, relation)


def silver_catalog(relations: Sequence[Relation], settings: SilverSettings) -> dict[TableName, SilverTable]:
    """The newest shape of each table, by its newest name.

    A relation (by id) counts under the name of its newest version alone; of several relations with one name,
    dropped and made again, the newest counts.

    Raises:
        ConfigurationError: as `silver_table`.
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
    return {table: silver_table(relation, settings) for table, relation in sorted(by_name.items())}
