"""Columns with personal values (`quality.masked`), followed from the source into every layer.

A run shows examples of breaches. The values of a masked column must not appear in any example, in any layer.
So a doubtful case is masked:

* silver: the column under its own name, in the table and in its history. Columns kept by silver after the
  source dropped, renamed or retyped them have values of unknown origin: in a table with a masked column, all
  kept columns are masked. A table of unknown shape is masked whole.
* gold: each field of a document with any input from a masked column, by any path. A field with nested fields
  is masked as one, and so are columns outside the definition. An unresolvable document, or a document built
  by another definition than the present, is masked whole.
* bronze: `new` and `old` contain the values of all tables, so both are masked as soon as any column is.
* a rule in SQL: as soon as any column is masked, only results of ``SELECT * FROM {batch} WHERE …`` are shown.

NULL appears as NULL: a missing value is no personal value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.gold.builder.spark_settings import HASH, LSN
from deltasmelt.gold.compile.query import KEY
from deltasmelt.gold.tree.nodes import Aggregate, Child, Flattened, Many, Nested, Value
from deltasmelt.pipelines.quality.suite_files import QUERY
from deltasmelt.silver.schema.catalog import (
    DELETED,
    HISTORY_COLUMNS,
    HISTORY_SUFFIX,
    OWN_COLUMNS,
    UNREPRESENTABLE,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Node, Scope, Tree, TreeField
    from deltasmelt.pipelines.quality.expectations import Expectation
    from deltasmelt.silver.schema.catalog import SilverTable

MASK: Final = "***"
_PLAIN: Final = re.compile(
    r"\s*SELECT\s+\*\s+FROM\s+\{batch\}\s+WHERE\b(?!.*(?:\bUNION\b|\|>))", re.IGNORECASE | re.DOTALL
)
"""A rule with unchanged rows of the suite's table: no text before or after WHERE adds other columns."""
_BRONZE: Final = frozenset({"new", "old"})
_SILVERS: Final = frozenset({*OWN_COLUMNS, DELETED, *HISTORY_COLUMNS})
"""Columns added by silver."""


@dataclass(frozen=True, slots=True)
class Masks:
    """The masked columns of every table in a cut, in lower case; tables without any have no entry."""

    masked: Mapping[str, frozenset[str]]

    def hides(self, expectation: Expectation, column: str) -> bool:
        """Check whether a value under this name in an expectation's result is masked."""
        # Only a plain rule returns the suite's own columns: `max(email) AS id` has the name of an unmasked
        # column.
        if QUERY in expectation.kwargs and not _PLAIN.match(str(expectation.kwargs[QUERY])):
            return bool(self.masked)
        # `references`: its keys are values of this table's columns, too.
        tables = (expectation.qualified, str(expectation.kwargs.get("references")))
        return any(column.casefold() in self.masked.get(table, ()) for table in tables)

    def touches(self, expectation: Expectation) -> bool:
        """Check whether an expectation may read a table with a masked column."""
        tables = {expectation.qualified, expectation.kwargs.get("references")}
        return bool(self.masked if QUERY in expectation.kwargs else tables & self.masked.keys())


def parse_masked(
    names: Iterable[str], catalog: Mapping[TableName, SilverTable], columns: Mapping[str, Sequence[str]]
) -> dict[TableName, set[str]]:
    """Return the columns of `quality.masked`.

    Args:
        names: ``schema.table.column``; also of a column still in silver alone.
        catalog: silver's tables.
        columns: present columns of silver's tables (``silver.orders``), if known.

    Raises:
        ConfigurationError: no table has a column of the name.
    """
    existing = {
        f"{table}.{column}": (table, column)
        for table, shape in catalog.items()
        for column in (*(column.name for column in shape.columns), *_only_in_silver(shape, columns))
    }
    masked: dict[TableName, set[str]] = {}
    for name in names:
        # A misspelt mask would show the values to be hidden.
        if name not in existing:
            raise ConfigurationError(
                f"quality.masked names {name!r}, which is not a column of a "
                f"table{suggestion(name, existing)}",
                code="mask-unknown",
                remedy="correct the name (schema.table.column), or remove it",
            )
        table, column = existing[name]
        masked.setdefault(table, set()).add(column)
    return masked


def _only_in_silver(shape: SilverTable, columns: Mapping[str, Sequence[str]]) -> set[str]:
    """Return columns of a silver table and its history unknown to the source and not added by silver."""
    name = f"silver.{shape.name}"
    stored = {*columns.get(name, ()), *columns.get(f"{name}{HISTORY_SUFFIX}", ())}
    return stored - {column.name for column in shape.columns} - _SILVERS


def masks_of(
    names: Sequence[str],
    catalog: Mapping[TableName, SilverTable],
    trees: Mapping[str, Tree],
    columns: Mapping[str, Sequence[str]],
    different: Collection[str],
) -> Masks:
    """Return the masks of all tables in a cut.

    `trees` are gold's resolved documents by name, `columns` the columns of every table in the cut. Another
    definition built the documents in `different` (`pipelines.quality.derived`).

    Raises:
        ConfigurationError: no table has a column of the name.
    """
    masked = parse_masked(names, catalog, columns)
    hidden: dict[str, Iterable[str]] = {}
    if masked:
        shapes = {shape.name: table for table, shape in catalog.items()}
        for qualified, table_columns in columns.items():
            layer, _, name = qualified.partition(".")
            if layer == "bronze":
                hidden[qualified] = _BRONZE & set(table_columns)
            elif layer == "silver":
                table = shapes.get(name) or shapes.get(name.removesuffix(HISTORY_SUFFIX))
                if table is None:
                    hidden[qualified] = table_columns
                elif table in masked:  # our own column holds texts that others could not
                    hidden[qualified] = {
                        *masked[table],
                        UNREPRESENTABLE,
                        *_only_in_silver(catalog[table], columns),
                    }
            else:
                tree = None if name in different else trees.get(name)
                hidden[qualified] = (
                    table_columns if tree is None else _of_document(tree, table_columns, masked)
                )
    lower = {
        name: frozenset(map(str.casefold, hidden_names))
        for name, hidden_names in hidden.items()
        if hidden_names
    }
    return Masks(lower)


def _of_document(tree: Tree, columns: Sequence[str], masked: Mapping[TableName, set[str]]) -> Iterable[str]:
    """Return masked columns of a document: fields with input from a masked column, unknown columns."""
    own_columns = {LSN, HASH}
    if not set(tree.key) & masked.get(tree.root.table.table, set()):
        own_columns.add(KEY)  # it holds the root's key, where no field does
    unknown = set(columns) - {field.name for field in tree.fields} - own_columns
    return _fields(tree.fields, tree.root, masked) | unknown


def _fields(fields: Iterable[TreeField], scope: Scope, masked: Mapping[TableName, set[str]]) -> set[str]:
    """Return the names of fields with any input from a masked column."""
    return {field.name for field in fields if _takes(field, scope, masked)}


def _takes(field: TreeField, scope: Scope, masked: Mapping[TableName, set[str]]) -> bool:
    if isinstance(field, Value):
        return bool(field.expression.columns & masked.get(scope.table.table, set()))
    if isinstance(field, Nested):
        return any(_takes(nested, scope, masked) for nested in field.fields)
    if isinstance(field, Flattened):
        return _takes(field.field, field.node.scope, masked)
    return _of_child(field, masked)


def _of_child(child: Child, masked: Mapping[TableName, set[str]]) -> bool:
    node: Node = child.node
    of_node = masked.get(node.scope.table.table, set())
    if isinstance(node, Aggregate) and node.measures[child.measure].column in of_node:
        return True
    if isinstance(node, Many) and node.map_by in of_node:
        return True
    return any(_takes(field, node.scope, masked) for field in node.fields) or any(
        _takes(field, link.scope, masked) for link in node.links for field in link.fields
    )
