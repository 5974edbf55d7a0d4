"""How much a build assembles, and so how: from silver's statistics, from earlier builds, or weighed.

What all tables of a document hold bounds each of its documents. If even that is small, nothing more is asked.
Otherwise the largest document follows from the largest that the last builds made and the rows that came to it
since (`gold.builder.growth`). Where none is known, it follows from how many rows one parent has at most
in each table.

If that is more than the heap has room for, the documents are weighed (`gold.builder.weights`). A document
that is then too large is refused, before it ends the JVM and with it every other document. A bound that only
grows passes the room at some time, however small the documents are. Then all are weighed once, and the bound
is what that found. Documents that really are large would be weighed in each build: where the largest has more
than half of the room, the affected ones alone are weighed.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
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

_UNTOLD: Final = 64 * 2**30
"""Bytes of a heap of which nothing is known."""

LARGEST: Final = "largest_document_bytes"
"""In a run's details: bytes as JSON that no document of the table has more of, about."""


def machine_of(spark: SparkSession) -> Machine:
    """Where the tasks of a session run, by its settings; Spark's own defaults where they say nothing.

    A server that does not even tell its master says nothing of its memory: nothing is refused there.
    """
    master = setting(spark, "spark.master", "")
    if not master:
        return Machine(_UNTOLD, os.cpu_count() or 1)
    if is_local(master):
        heap = bytes_of(setting(spark, "spark.driver.memory", "1g"), unit="m")
        return Machine(heap, cores_of(master, machine=os.cpu_count() or 1))
    heap = bytes_of(setting(spark, "spark.executor.memory", "1g"), unit="m")
    return Machine(heap, int(setting(spark, "spark.executor.cores", "1")), "spark.executor.memory")


class Sizing:
    """Sizes of one document's builds."""

    def __init__(self, spark: SparkSession, machine: Machine) -> None:
        self._spark = spark
        self.machine = machine
        self._heaviest = 0

    def is_small(self, tree: Tree, tables: TableSizes) -> bool:
        """Check whether statistics alone bound each document so low that nothing else is asked."""
        return most(tree, tables) <= self.machine.room // 8

    def of_all(self, tree: Tree, relation: TableSql, tables: TableSizes, *, tasks: int) -> tuple[Plan, int]:
        """How all documents are built, and the bytes of the largest.

        Raises:
            DefiniteError: one has no room.
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
        """How some documents are built, and the bytes of the largest of all, if that is known.

        Args:
            tree: the document.
            relation: gives the SQL relation of each silver table.
            tables: their sizes.
            roots: which.
            number: how many there are.
            grown: what came to documents, by table.
            known: bytes of the largest document before, where that is known.
            tasks: that Spark would make.

        Raises:
            DefiniteError: one has no room.
        """
        bound = known
        if known is not None:
            each, times = below(tree, tables), places(tree)
            more = (one.rows * each.get(name, 0) + one.bytes * times[name] for name, one in grown.items())
            bound = known + sum(more)
        deeper = any(grown[name].rows for name in recursions(tree) & grown.keys())
        of_all: int | None
        if deeper and not self.is_small(tree, tables):
            # A row that came to a recursion brings all that is below it: nobody knows how much.
            largest = self._weighed(tree, relation, tables, roots)
            of_all = None if known is None else max(largest, known)
        elif (largest := self._bound(tree, relation, tables, bound)) > self.machine.room:
            largest, of_all = self._weighed_some(tree, relation, tables, roots, known)
        else:
            of_all = largest
        total = max(number * average(tree, tables), min(number * largest, most(tree, tables)))
        return assembly_plan(Sizes(number, total, largest), self.machine, tasks=tasks), of_all

    def of_one(self, tree: Tree, relation: TableSql, tables: TableSizes, roots: Roots) -> Plan:
        """How the one document of a relation is made.

        Raises:
            DefiniteError: it has no room.
        """
        largest = self._largest(tree, relation, tables, roots)
        return assembly_plan(Sizes(1, largest, largest), self.machine, tasks=1)

    def _largest(self, tree: Tree, relation: TableSql, tables: TableSizes, roots: Roots | None) -> int:
        """Bytes of the largest document, rather too many than too few.

        Raises:
            DefiniteError: it has no room.
        """
        bound = self._bound(tree, relation, tables, None)
        return bound if bound <= self.machine.room else self._weighed(tree, relation, tables, roots)

    def _bound(self, tree: Tree, relation: TableSql, tables: TableSizes, known: int | None) -> int:
        """Bytes that no document has more of, by statistics alone."""
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
        with settings(self._spark, {**LEAN, **SINGLE_TASK}):  # of so few rows one task makes the groups
            rows = self._spark.sql(fans_query(nodes, relation, tables)).collect()
        return {int(row["node"]): int(row["most"]) for row in rows}

    def _weighed_some(
        self, tree: Tree, relation: TableSql, tables: TableSizes, roots: Roots, known: int | None
    ) -> tuple[int, int | None]:
        """Return the bytes of the largest of some documents, and of all, if that is known.

        Raises:
            DefiniteError: one of the some has no room.
        """
        if 2 * self._heaviest <= self.machine.room:
            self._heaviest = self._weighed(tree, relation, tables, None, refuses=False)
            if self._heaviest <= self.machine.room:
                return self._heaviest, self._heaviest
        largest = self._weighed(tree, relation, tables, roots)
        # Those that are not built now are as large as they were.
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
        others = f"; {times - 1:,} more are too large" if times > 1 else ""
        return DefiniteError(
            f"the document with the key {key} would have about {_megabytes(largest)}, and a heap of "
            f"{_megabytes(self.machine.heap)} has room for {_megabytes(self.machine.room)}{others}",
            code="document-too-large",
            where=tree.name,
            remedy="give its largest `many` a `limit` or `cap`, or count its rows instead; or, in the "
            f"pipeline file, spark: {{{self.machine.setting}: {heap}g}}, where the machine has that",
        )


def _megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"
