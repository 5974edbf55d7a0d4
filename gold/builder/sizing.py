"""Bound the bytes of a build's documents, and choose a plan by the bound.

The content of all tables together bounds each document. If even this bound is small, gold needs no further
query. Otherwise the bound is the largest document of earlier builds plus the rows that came to documents
since (`gold.builder.growth`). Without an earlier build, the bound follows from the highest number of rows
that a parent has in each table.

If the bound exceeds the heap's room, gold weighs the documents (`gold.builder.weights`). Gold then refuses a
document that is too large, before the document ends the JVM, and every further document with it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import counted, setting_text
from deltasmelt.bronze.lake.catalog.session import is_local
from deltasmelt.gold.builder.memory import Machine, Plan, Sizes, assembly_plan, bytes_of
from deltasmelt.gold.builder.spark_settings import LEAN, SINGLE_TASK
from deltasmelt.gold.builder.weights import BYTES, fans_query, weights_query
from deltasmelt.gold.builder.widths import average, below, many, most, places, recursions
from deltasmelt.silver.spark.tuning import cores_of, setting, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.builder.growth import Growth
    from deltasmelt.gold.builder.weights import Roots
    from deltasmelt.gold.builder.widths import TableSizes
    from deltasmelt.gold.compile.query import TableSql
    from deltasmelt.gold.tree.nodes import Tree

_UNKNOWN_HEAP: Final = 64 * 2**30
"""Bytes of a heap of unknown size."""

LARGEST: Final = "largest_document_bytes"
"""Key in a run's details: approximate bytes, as JSON, that no document of the table exceeds."""


def machine_of(spark: SparkSession) -> Machine:
    """Return the heap and cores of a session's tasks, from its settings; Spark's own defaults if not set."""
    master = setting(spark, "spark.master", "")
    # A server that does not name its master does not name its memory either; gold then refuses no document.
    if not master:
        return Machine(_UNKNOWN_HEAP, os.cpu_count() or 1)
    if is_local(master):
        heap = bytes_of(setting(spark, "spark.driver.memory", "1g"), unit="m")
        return Machine(heap, cores_of(master, machine=os.cpu_count() or 1))
    heap = bytes_of(setting(spark, "spark.executor.memory", "1g"), unit="m")
    return Machine(heap, int(setting(spark, "spark.executor.cores", "1")), "spark.executor.memory")


class Sizing:
    """Bounds and plans for the builds of one document."""

    def __init__(self, spark: SparkSession, machine: Machine) -> None:
        self._spark = spark
        self.machine = machine
        self._heaviest = 0

    def is_small(self, tree: Tree, tables: TableSizes) -> bool:
        """Check whether statistics alone give each document so low a bound that no query is needed."""
        return most(tree, tables) <= self.machine.room // 8

    def of_all(self, tree: Tree, relation: TableSql, tables: TableSizes, *, tasks: int) -> tuple[Plan, int]:
        """Return a plan for building all documents, and the bytes of the largest.

        Raises:
            DefiniteError: a document has no room.
        """
        documents = tables[tree.root.table.table][0]
        largest = self._largest(tree, relation, tables, None)
        total = max(documents * average(tree, tables), largest)
        return assembly_plan(Sizes(documents, total, largest), self.machine, tasks=tasks), largest

    def of_some(
        self,
        tree: Tree,
        relation: TableSql,
        tables: TableSizes,
        *,
        roots: Roots,
        number: int,
        grown: Mapping[TableName, Growth],
        known: int | None,
        tasks: int,
    ) -> tuple[Plan, int | None]:
        """Return a plan for building some documents, and the bytes of the largest of all, or None if unknown.

        Args:
            tree: the document, resolved against a catalog.
            relation: gives the SQL relation of each silver table.
            tables: rows and bytes of each silver table.
            roots: the documents to build, as a view.
            number: how many documents to build.
            grown: growth of documents, by table.
            known: bytes of the largest document before; None if unknown.
            tasks: number of tasks that Spark would make.

        Raises:
            DefiniteError: a document has no room.
        """
        bound = known
        if known is not None:
            each, times = below(tree, tables), places(tree)
            more = (one.rows * each.get(name, 0) + one.bytes * times[name] for name, one in grown.items())
            bound = known + sum(more)
        deeper = any(grown[name].rows for name in recursions(tree) & grown.keys())
        of_all: int | None
        if deeper and not self.is_small(tree, tables):
            # A row that came to a recursion brings all rows below, and their number is unknown.
            largest = self._weighed(tree, relation, tables, roots)
            of_all = None if known is None else max(largest, known)
        elif (largest := self._bound(tree, relation, tables, bound)) > self.machine.room:
            largest, of_all = self._weighed_some(tree, relation, tables, roots, known)
        else:
            of_all = largest
        total = max(number * average(tree, tables), min(number * largest, most(tree, tables)))
        return assembly_plan(Sizes(number, total, largest), self.machine, tasks=tasks), of_all

    def of_one(self, tree: Tree, relation: TableSql, tables: TableSizes, roots: Roots) -> Plan:
        """Return a plan for building the only document of a relation.

        Raises:
            DefiniteError: the document has no room.
        """
        largest = self._largest(tree, relation, tables, roots)
        return assembly_plan(Sizes(1, largest, largest), self.machine, tasks=1)

    def _largest(self, tree: Tree, relation: TableSql, tables: TableSizes, roots: Roots | None) -> int:
        """Return the bytes of the largest document, rather too many than too few."""
        bound = self._bound(tree, relation, tables, None)
        return bound if bound <= self.machine.room else self._weighed(tree, relation, tables, roots)

    def _bound(self, tree: Tree, relation: TableSql, tables: TableSizes, known: int | None) -> int:
        """Return bytes that no document exceeds, without weighing."""
        bound = most(tree, tables)
        if self.is_small(tree, tables):
            return bound
        if known is not None and known <= self.machine.room:
            return min(known, bound)
        return min(bound, most(tree, tables, self._fans(tree, relation, tables)))

    def _fans(self, tree: Tree, relation: TableSql, tables: TableSizes) -> dict[int, int]:
        nodes = many(tree)
        if not nodes:
            return {}
        with settings(self._spark, {**LEAN, **SINGLE_TASK}):  # one task groups so few rows
            rows = self._spark.sql(fans_query(nodes, relation, tables)).collect()
        return {int(row["node"]): int(row["most"]) for row in rows}

    def _weighed_some(
        self, tree: Tree, relation: TableSql, tables: TableSizes, roots: Roots, known: int | None
    ) -> tuple[int, int | None]:
        """Return the bytes of the largest of some documents, and of all documents, or None if unknown."""
        # A bound that only grows exceeds the room at some time, even with small documents. Gold then weighs
        # all documents once, and the heaviest weight is the new bound. For truly large documents every build
        # would weigh all. So if the heaviest has more than half of the room, gold weighs only the affected
        # documents.
        if 2 * self._heaviest <= self.machine.room:
            self._heaviest = self._weighed(tree, relation, tables, None, refuses=False)
            if self._heaviest <= self.machine.room:
                return self._heaviest, self._heaviest
        largest = self._weighed(tree, relation, tables, roots)
        # Documents outside this build are as large as before.
        return largest, None if known is None else max(largest, known)

    def _weighed(
        self,
        tree: Tree,
        relation: TableSql,
        tables: TableSizes,
        roots: Roots | None,
        *,
        refuses: bool = True,
    ) -> int:
        query = weights_query(tree, relation, tables, roots)
        key = ", ".join(f"CAST(k{i} AS STRING)" for i in range(len(tree.key)))
        with settings(self._spark, LEAN):
            row = self._spark.sql(
                f"SELECT max({BYTES}) AS largest, max_by(concat_ws(', ', {key}), {BYTES}) AS key,\n"
                f"count_if({BYTES} > {self.machine.room}) AS times FROM (\n{query}\n)"
            ).collect()[0]
        largest = int(row["largest"] or 0)
        if refuses and largest > self.machine.room:
            raise self._too_large(tree, largest, str(row["key"]), int(row["times"]))
        return largest

    def _too_large(self, tree: Tree, largest: int, key: str, times: int) -> DefiniteError:
        heap = -(-self.machine.heap_for(largest) // 2**30)
        others = f"; {counted(times - 1, 'more document')} too large" if times > 1 else ""
        return DefiniteError(
            f"the document with the key {key} needs about {setting_text(largest)}, but a heap of "
            f"{setting_text(self.machine.heap)} has room for {setting_text(self.machine.room)}{others}",
            code="document-too-large",
            where=tree.name,
            remedy="set `limit` or `cap` on its largest `many`, or count its rows instead; or, if the "
            f"machine has the memory, in the pipeline file: spark: {{{self.machine.setting}: {heap}g}}",
        )
