"""Selection of tables by names and patterns of a command line. Pure."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.pipelines.selected import selected, there_are

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.catalog.source_table import SkippedRelation, SourceTable


def named_tables(
    names: Sequence[str], tables: Sequence[SourceTable], skipped: Sequence[SkippedRelation]
) -> list[SourceTable]:
    """Return the tables for names and patterns, in name order.

    Raises:
        ConfigurationError: ``table-unknown``: a name or pattern matches no table of the pipeline.
    """
    by_name = {table.table: table for table in tables}
    return [by_name[table] for table in known_tables(names, list(by_name), skipped)]


def known_tables(
    names: Sequence[str], tables: Sequence[TableName], skipped: Sequence[SkippedRelation] = ()
) -> list[TableName]:
    """Return the names among `tables` that names and patterns select, in order.

    Raises:
        ConfigurationError: ``table-unknown``: a name or pattern matches no table.
    """
    chosen = selected(
        names,
        lambda name: [table for table in tables if is_named(table, name)],
        lambda name: _unknown(name, tables, skipped),
    )
    return sorted(chosen)


def is_named(table: TableName, name: str) -> bool:
    """Check whether a name or pattern of a command line selects a table."""
    try:
        if TableName.parse(name) == table:
            return True
    except ValueError:
        pass
    return table.matches(name)


def _unknown(
    name: str, tables: Sequence[TableName], skipped: Sequence[SkippedRelation]
) -> ConfigurationError:
    reason = next((relation.reason for relation in skipped if is_named(relation.table, name)), None)
    table_names = [str(table) for table in tables]
    bare = [str(table) for table in tables if table.name == name]
    near = bare or difflib.get_close_matches(name, table_names, n=1, cutoff=0.5)
    if reason is not None:
        remedy = f"{reason}; name another table"
    elif near:
        remedy = f"did you mean {near[0]}?"
    else:
        remedy = f"use schema.table or a pattern; {there_are(table_names)}"
    return ConfigurationError(
        f"{name!r} is not a table of this pipeline", code="table-unknown", remedy=remedy
    )
