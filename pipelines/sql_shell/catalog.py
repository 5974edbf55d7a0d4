r"""The lake's tables at a cut, for ``\d`` and for completion; no Spark.

Names and versions come from the cut. Columns come from Delta's log at the version, PostgreSQL's types and
keys from the newest shapes in `bronze.relations` that begin at or before the cut.
"""

from __future__ import annotations

import fnmatch
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.pipelines.spark.lake_sql import tables_at
from deltasmelt.silver.schema.catalog import histories, silver_catalog
from deltasmelt.silver.schema.fields import fields_of
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.bronze.lake.consistent_cut import ConsistentCut
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable


class Cells(NamedTuple):
    """A table to print: `right` names the columns flush right, `head` is a line before the table."""

    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    right: tuple[str, ...] = ()
    head: str = ""


def tables_listed(tables: Iterable[tuple[TableInfo, int | None]]) -> Cells:
    """Return tables with their numbers of columns and rows; an unknown number of rows is ``?``."""
    rows = [
        (table.layer, table.name, str(len(table.columns)), "?" if count is None else f"{count:,}")
        for table, count in tables
    ]
    return Cells(("layer", "table", "columns", "rows"), rows, right=("columns", "rows"))


def columns_listed(table: TableInfo) -> Cells:
    """Return the columns of a table; for a source table also their types at the source."""
    state = "in its present state" if table.version is None else f"version {table.version}"
    if table.source is None:
        rows = [(column.name, column.spark_type) for column in table.columns]
        return Cells(("column", "type"), rows, head=f"{table.sql_name}, {state}")
    of_source = [
        (column.name, column.spark_type, column.source_type or "", _constraint(column))
        for column in table.columns
    ]
    head = f"{table.sql_name}, {state}, from {table.source}"
    return Cells(("column", "type", "PostgreSQL", "there"), of_source, head=head)


def _constraint(column: ColumnInfo) -> str:
    if column.in_key:
        return "key"
    return "not null" if column.not_null else ""


_AT_ONCE: Final = 16
"""Number of logs read in parallel; in an object store each read takes some round trips."""


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    """A column of a table in the lake.

    Attributes:
        spark_type: type as DDL.
        source_type: PostgreSQL's type as spelled by format_type(); None for a column unknown to the source.
        not_null: True if the source declares NOT NULL.
        in_key: True if the column belongs to the key.
    """

    name: str
    spark_type: str
    source_type: str | None = None
    not_null: bool = False
    in_key: bool = False


@dataclass(frozen=True, slots=True)
class TableInfo:
    """A table of the lake at a cut.

    `version` is None for the newest; `source` is the table's name at the source, None for other tables.
    """

    layer: Layer
    name: str
    version: int | None
    columns: tuple[ColumnInfo, ...]
    source: str | None = None

    @property
    def full_name(self) -> str:
        """Layer and name."""
        return f"{self.layer}.{self.name}"

    @property
    def sql_name(self) -> str:
        """The name for a statement, in backticks if needed."""
        return f"{self.layer}.{sql_identifier(self.name)}"


def sql_identifier(name: str) -> str:
    """Return a name for a statement, in backticks if needed."""
    plain = name.isascii() and name.isidentifier()
    return name if plain else quote(name)


class CutCatalog:
    """The tables of a lake at one cut; read at the first use."""

    def __init__(self, pipeline: Pipeline, cut: ConsistentCut) -> None:
        self._pipeline = pipeline
        self._lake = pipeline.lake_address()
        self._cut = cut

    @cached_property
    def tables(self) -> tuple[TableInfo, ...]:
        """Return all tables: first those of the cut, then the tables at their present state."""
        versions, shapes = self._cut.versions, self._shapes()

        def read(table: tuple[Layer, str]) -> TableInfo:
            layer, name = table
            shape = shapes.get(name) if layer == "silver" else None
            return _table_info(layer, name, versions.get(table), self._open(layer, name), shape)

        with ThreadPoolExecutor(_AT_ONCE) as pool:
            return tuple(pool.map(read, tables_at(self._lake, self._cut)))

    def rows(self, tables: Sequence[TableInfo]) -> list[int | None]:
        """Return the number of rows of each table by Delta's statistics; None without statistics."""
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            # Deleted rows do not count: this reads the deletion vectors.
            return list(pool.map(lambda table: self._open(table.layer, table.name).row_count(), tables))

    def _open(self, layer: Layer, name: str) -> Table:
        return delta.open_at(self._lake.uri(layer, name), self._cut.versions.get((layer, name)))

    def matching(self, pattern: str) -> list[TableInfo]:
        """Return the tables for a name (``orders``, ``silver.*``), or raise a DefiniteError."""
        lower_pattern = pattern.replace("`", "").lower()
        tables = [
            table
            for table in self.tables
            if any(fnmatch.fnmatchcase(name.lower(), lower_pattern) for name in (table.full_name, table.name))
        ]
        if not tables:
            names = [table.full_name for table in self.tables]
            hint = "" if _is_pattern(lower_pattern) else suggestion(lower_pattern, names)
            raise DefiniteError(f"no table {pattern} exists at this cut{hint}", code="sql-table", where="SQL")
        return tables

    def _shapes(self) -> dict[str, SilverTable]:
        settings = self._pipeline.silver
        relations = [
            relation for relation in read_relations(self._lake) if relation.from_lsn <= self._cut.commit_lsn
        ]
        tables = list(silver_catalog(relations, settings).values())
        return {table.name: table for table in [*tables, *histories(tables, settings)]}


def is_list(pattern: str) -> bool:
    r"""Check whether ``\d`` lists a pattern's tables, rather than each table's columns."""
    return not pattern or _is_pattern(pattern)


def _is_pattern(text: str) -> bool:
    return any(sign in text for sign in "*?[")


def _table_info(
    layer: Layer, name: str, version: int | None, table: Table, shape: SilverTable | None
) -> TableInfo:
    fields = fields_of(json.loads(table.schema().to_json()))
    source_columns = {} if shape is None else {column.name: column for column in shape.relation.columns}
    key = () if shape is None else shape.key
    columns = tuple(
        ColumnInfo(
            field.name,
            field.ddl,
            source_columns[field.name].type_text if field.name in source_columns else None,
            not_null=field.name in source_columns and source_columns[field.name].not_null,
            in_key=field.name in key,
        )
        for field in fields
    )
    return TableInfo(layer, name, version, columns, None if shape is None else str(shape.table))


def names_of(tables: Iterable[TableInfo]) -> dict[str, tuple[str, ...]]:
    """Return columns by table's full name, for completion."""
    return {table.full_name: tuple(column.name for column in table.columns) for table in tables}
