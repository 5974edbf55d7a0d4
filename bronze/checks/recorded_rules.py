"""Select tables together with the lake's record of their rules, for commands without a reader.

The reader compares names and partitions with its own record (`bronze.reader.carried_tables`). Other commands
read the record from the lake here, and write nothing. Without the record, a renamed table would have no
rules, and a command would read clear values.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.catalog.ruled_parts import known_parts, left_parts
from deltasmelt.bronze.catalog.ruled_tables import with_lost_rules
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.store.catalog_log import STORAGE, recorded_storages
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.bronze.store.rule_marks import detached_of, recorded_rules

if TYPE_CHECKING:
    from collections.abc import Collection

    import psycopg

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake


def select_recorded(
    connection: psycopg.Connection[Any], source: SourceSettings, lake: Lake | None, *, sizes: bool = True
) -> list[SourceTable]:
    """Return the selected tables; a table that left its rule since the lake's record has a problem.

    Args:
        connection: as in `select_tables`.
        source: names the tables and the rules.
        lake: the pipeline's own lake; None without one.
        sizes: as in `select_tables`.

    Raises:
        TransientError: ``lake-unwritable``: the lake cannot be read.
    """
    rules = source.rules
    if lake is None or not rules.tables:
        return select_tables(connection, source, sizes=sizes)
    uri = lake.uri("bronze", CHANGES)
    with lake_failures(uri, "bronze"):
        changes, shapes = delta.open_table(uri), read_relations(lake)
        storages = recorded_storages(lake.uri("control", STORAGE))
    if changes is None:
        return select_tables(connection, source, sizes=sizes)
    numbers = recorded_rules(changes, rules.tables.keys() | {shape.table for shape in shapes})
    tables = select_tables(connection, source, sizes=sizes, storage=True, recorded=numbers)
    recorded: dict[int, set[TableName]] = {}
    for shape in shapes:
        recorded.setdefault(shape.relation_id, set()).add(shape.table)

    def names(relation_id: int) -> set[TableName]:
        return recorded.get(relation_id, set())

    left = left_parts(known_parts(rules, tables, names, storages.get, {}), tables)

    def detached(relations: Collection[int]) -> dict[int, int]:
        return {**left, **detached_of(changes, relations)}

    return with_lost_rules(rules, tables, names, storages.get, detached)
