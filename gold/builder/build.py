"""Values and views that every build of a document uses.

A build reads silver's tables through views of its own Spark session, at a cut or at the log's head.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.gold.builder.lost_values import lost_query, note
from deltasmelt.gold.compile.query import FLAGS
from deltasmelt.gold.tree.derived import may_be_lost
from deltasmelt.gold.tree.nodes import ascii_word
from deltasmelt.silver.schema.live_rows import is_live, live_rows
from deltasmelt.silver.spark.access import computed, computed_with
from deltasmelt.silver.spark.small_reads import table_at
from deltasmelt.silver.spark.tuning import setting

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.control import Cut, Run
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.gold.builder.gold_table import GoldTable
    from deltasmelt.gold.builder.memory import Room
    from deltasmelt.gold.builder.sizing import Sizing
    from deltasmelt.gold.builder.widths import TableSizes
    from deltasmelt.gold.compile.query import TableSql
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.silver.fresh import Head
    from deltasmelt.silver.run.table_log import SilverLog


class ComputedViews:
    """Computed rows of one session, as temporary views: rows with several readers are computed once."""

    def __init__(self, spark: SparkSession) -> None:
        self.spark = spark
        self._views: list[str] = []

    def keep(self, query: str, view: str, counts: Sequence[str] = (), *, now: bool = True) -> dict[str, Any]:
        """Compute a query's rows once, and register the rows as a view; return counts of the rows by name.

        `counts` are aggregates with a name each; the job that computes the rows computes them too. With `now`
        false, each reader of the view computes the rows.
        """
        # Local checkpoints, not cached tables. MERGE refuses a cached source. All sessions also have one
        # cache in common, so a finished document would remove equal rows of an unfinished one. Spark drops
        # checkpointed rows when nothing refers to the rows any longer.
        frame = self.spark.sql(query)
        found: dict[str, Any] = {}
        if counts:
            frame, found = computed_with(frame, counts)
        elif now:
            frame = computed(frame)
        self.add(frame, view)
        return found

    def add(self, frame: DataFrame, view: str) -> str:
        """Register computed rows as a view; return the view's name as Spark SQL."""
        frame.createOrReplaceTempView(view)
        self._views.append(view)
        return view

    def forget(self) -> None:
        """Drop all registered views."""
        for view in self._views:
            self.spark.catalog.dropTempView(view)
        self._views.clear()


class CutViews:
    """Views of silver's tables in a cut, for many cycles: Spark lists the log once for each version.

    A view is made again if the cut names another version, id or mark (`Cut.identity`), or lacks one of them.
    A silver table that was rolled back or recreated reaches its former versions again, with other rows.
    """

    def __init__(self, spark: SparkSession, lake: Lake) -> None:
        self._spark = spark
        self._lake = lake
        self._identities: dict[str, tuple[int, int, Lsn]] = {}

    def at(self, tree: Tree, cut: Cut) -> Callable[[TableName], str]:
        """Return a function from each table of a document to the view of its live rows at the cut."""
        names: dict[TableName, str] = {}
        for name, table in tree.tables().items():
            view = view_of(name)
            identity = cut.identity(table.name)
            if identity is None or self._identities.get(view) != identity:
                self._identities.pop(view, None)
                rows = table_at(self._spark, self._lake, "silver", table.name, cut.tables[table.name])
                live_rows(rows).createOrReplaceTempView(view)
                if identity is not None:
                    self._identities[view] = identity
            names[name] = view
        return names.__getitem__


def views_at_head(spark: SparkSession, tree: Tree, head: Head) -> Callable[[TableName], str]:
    """Return a function from each table of a document to the view of its live rows at the log's head.

    Raises:
        DefiniteError: a table cannot be shown at the log's head.
    """
    names: dict[TableName, str] = {}
    for name, table in tree.tables().items():
        rows = spark.sql(f"SELECT * FROM {head.view(table.name)} WHERE {is_live(table)}")
        names[name] = view_of(name)
        rows.createOrReplaceTempView(names[name])
    return names.__getitem__


def view_of(name: TableName) -> str:
    """Return the name of a table's view, unique per table: ``"a.b"."c"`` and ``"a"."b.c"`` are two tables."""
    return f"silver_{ascii_word(str(name))}_{hashlib.sha256(name.quoted.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class BuildContext:
    """Values that all builds of one document share.

    Attributes:
        spark: the document's own Spark session.
        silver: the logs of silver's tables.
        computed: rows that a build computes once for several readers, until the build ends.
        sizing: decides how many documents fit into memory.
        room: the memory that all documents share.
    """

    spark: SparkSession
    lake: Lake
    table: GoldTable
    silver: SilverLog
    computed: ComputedViews
    sizing: Sizing
    room: Room

    def sizes(self, tree: Tree) -> dict[TableName, tuple[int, int]]:
        """Return the present rows and bytes of the silver tables."""
        return {name: self.silver.size(table.name) for name, table in tree.tables().items()}

    def tasks(self) -> int:
        """Return the number of tasks that Spark makes for a shuffle."""
        given = setting(self.spark, "spark.sql.shuffle.partitions", "")
        return int(given) if given.isdecimal() else 200  # Databricks has `auto`

    def count_flagged(self, flags: Sequence[str], query: str, run: Run) -> None:
        """Record in the run how often each flagged event happened in a document; `query` counts events."""
        if flags:
            row = self.spark.sql(query).first()
            run.details |= {FLAGS[flag]: 0 if row is None else int(row[flag]) for flag in flags}

    def count_lost(self, tree: Tree, relation: TableSql, run: Run) -> None:
        """Record in the run how many values of the document's columns silver could not hold."""
        query = lost_query(tree, relation)
        columns = may_be_lost(tree)
        for row in self.spark.sql(query).collect() if query is not None else ():
            table = TableName.parse(row["name"])
            note(run, table, columns[table], row["lost"])


@dataclass(frozen=True, slots=True)
class Build:
    """One build of a document.

    Attributes:
        tree: the document, resolved against the catalog of the cut.
        cut: the silver cut to build.
        relation: gives the view of each silver table at the cut.
        sizes: rows and bytes of these silver tables.
        run: the build's record; the build fills in its fields.
    """

    tree: Tree
    cut: Cut
    relation: TableSql
    sizes: TableSizes
    run: Run
