"""What every build of a document works with, and what one build is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bronze.identifiers import TableName
from gold.builder.lost_values import lost_query, note
from gold.compile.query import FLAGS
from gold.tree.derived import may_be_lost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bronze.lake.control import Cut, Run
    from bronze.lake.location import Lake
    from gold.builder.gold_table import GoldTable
    from gold.builder.kept import Kept
    from gold.builder.memory import Room
    from gold.builder.sizing import Sizing
    from gold.builder.widths import TableSizes
    from gold.compile.query import TableSql
    from gold.tree.nodes import Tree
    from silver.run.table_log import SilverLog


@dataclass(frozen=True, slots=True)
class Workplace:
    """What all builds of one document share.

    Attributes:
        spark: its own session.
        lake: where the tables lie.
        table: the document's.
        silver: the logs of silver's tables.
        kept: rows that are computed once for all their readers, until the build ends.
        sizing: what fits into memory.
        room: the memory that all documents share.
    """

    spark: SparkSession
    lake: Lake
    table: GoldTable
    silver: SilverLog
    kept: Kept
    sizing: Sizing
    room: Room

    def sizes(self, tree: Tree) -> dict[TableName, tuple[int, int]]:
        """Rows and bytes of the silver tables, as they are now."""
        return {name: self.silver.size(table.name) for name, table in tree.tables().items()}

    def tasks(self) -> int:
        """Tasks that Spark makes of what it shuffles."""
        given = self.spark.conf.get("spark.sql.shuffle.partitions", None) or ""
        return int(given) if given.isdecimal() else 200  # Databricks has `auto`

    def count_flagged(self, flags: Sequence[str], query: str, run: Run) -> None:
        """Note how often what may happen in a document did; `query` counts it."""
        if flags:
            row = self.spark.sql(query).first()
            run.details |= {FLAGS[flag]: 0 if row is None else int(row[flag]) for flag in flags}

    def count_lost(self, tree: Tree, relation: TableSql, run: Run) -> None:
        """Note how many values that a document reads silver could not hold."""
        query = lost_query(tree, relation)
        columns = may_be_lost(tree)
        for row in self.spark.sql(query).collect() if query is not None else ():
            table = TableName.parse(row["name"])
            note(run, table, columns[table], row["lost"])


@dataclass(frozen=True, slots=True)
class Build:
    """One build.

    Attributes:
        tree: the document, resolved against the catalog of the cut.
        cut: the silver cut to build.
        relation: gives the view of each silver table at the cut.
        sizes: of these tables.
        run: its record, which it fills in.
    """

    tree: Tree
    cut: Cut
    relation: TableSql
    sizes: TableSizes
    run: Run
