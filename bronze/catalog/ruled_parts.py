"""Find the partitions that have the rules of their root, also after they left the root. Pure.

A partition's name has no entry in the pipeline file: its rows are protected by the rules of its root. So a
partition that leaves its root must not arrive under another name (`bronze.catalog.ruled_tables`). Who knows
that a relation was such a partition:

* **the record of the root**, until the root's next copy, or until the root's name is forgotten;
* **the stream**, which names a partition before its first change (`bronze.drift.streamed`);
* **the process**, for all partitions that its polls saw (`bronze.reader.polled_rules`);
* **the relation's own mark** (`bronze.store.marks.detached_app`), which has no end. Its value is the oid of
  the root. A poll sets the mark of each partition that left its root, whether a pattern selects the partition
  or not, and before the root's record forgets the partition. A root that has no record yet (it waits for a
  copy, or has a problem) protects no partition after a restart: its partitions get the mark at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.drift.observed_storage import ObservedStorage
    from deltasmelt.bronze.drift.streamed import StreamedParts
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.rules import Rules


def known_parts(
    rules: Rules,
    tables: Iterable[SourceTable],
    names: Callable[[int], Collection[TableName]],
    observed: Callable[[TableName], ObservedStorage | None],
    streamed: Mapping[TableName, StreamedParts],
) -> dict[int, int]:
    """Return the roots of recorded and streamed partitions of tables with rules, by oid of the partition."""
    oids = {table.table: table.relation.relation_id for table in tables if table.table in rules.tables}
    roots = set(rules.ruled)
    # The record may be under a former name.
    roots.update(name for table in roots & oids.keys() for name in names(oids[table]))
    parts: dict[int, int] = {}
    for root in roots:
        if (known := observed(root)) is not None:
            relation_id = known.storage.relation_id
            parts |= dict.fromkeys(recorded_parts(known) - {relation_id}, relation_id)
        if root in oids and root in streamed:
            parts |= dict.fromkeys(streamed[root].named, oids[root])
    return parts


def recorded_parts(known: ObservedStorage) -> set[int]:
    """Return the oids of a table and of its partitions in all recorded polls."""
    return {*known.storage.parts, *(() if known.read is None else known.read.parts)}


def present_parts(tables: Iterable[SourceTable]) -> dict[int, int]:
    """Return the tables of their present partitions, by oid of the partition."""
    roots = ((table.relation.relation_id, table) for table in tables)
    return {oid: root for root, table in roots for oid in relations_of(table) if oid != root}


def left_parts(known: Mapping[int, int], tables: Iterable[SourceTable]) -> dict[int, int]:
    """Return the partitions that are no longer partitions of their roots, each with the root, by oid."""
    present = present_parts(tables)
    return {oid: root for oid, root in known.items() if present.get(oid) != root}


def relations_of(table: SourceTable) -> set[int]:
    """Return the oids of a table and of its partitions."""
    return {table.relation.relation_id, *(() if table.storage is None else table.storage.parts)}
