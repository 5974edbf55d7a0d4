"""Images of changed rows: each change feed is read once a cycle, for all documents.

Documents share tables. So a cycle reads the feed of a table between two versions once, with all columns that
any of its documents reads. The first document that needs the images computes them, and others wait. Each
document then selects its own columns, without a job of its own. A document with derived columns computes the
images with these columns once more: an expression that fails on an old value must fail here, where a full
build follows (`gold.builder.incremental`).

* *A failed read, an outage, a cancelled statement.* Nothing is remembered, so the next document reads again.
* *The rows are lost after the read* (an executor with the last copy). All documents that need the rows fail.
  The retry of the failed documents reads the feed again.
* *Killed.* The images are rows of the Spark application alone. The next cycle reads feeds again.
* *Another session.* The rows have no plan, so no session setting changes them. A server without shared views
  reads the feed once for each document. Such images have the document's own columns, and end with its build.
"""

from __future__ import annotations

import threading
import uuid
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.delta import load
from deltasmelt.gold.builder.lost_values import counted
from deltasmelt.gold.builder.spark_settings import INTERPRETED
from deltasmelt.gold.incremental.affected import SIDE
from deltasmelt.gold.incremental.change_feed import images_query
from deltasmelt.gold.tree.derived import computed, may_be_lost, origin
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE
from deltasmelt.silver.schema.live_rows import keeps_deleted
from deltasmelt.silver.spark.access import access_of, computed_with
from deltasmelt.silver.spark.tuning import settings

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.gold.builder.build import ComputedViews
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.silver.schema.catalog import SilverTable


_FEED: Final = "feed"


@dataclass(frozen=True, slots=True)
class Images:
    """Images of a table's changed rows, at most one old and one new per key.

    Attributes:
        relation: the view of the images.
        number: number of images.
        lost: for each column, the number of values that silver could not hold.
    """

    relation: str
    number: int
    lost: Mapping[str, int]


@dataclass(slots=True)
class _Read:
    """The columns of a table that documents read, and those of them that may have lost values."""

    columns: set[str]
    lossy: set[str]


class SharedImages:
    """The images of one cycle's documents; documents in several threads use them at once."""

    def __init__(self, lake: Lake, trees: Iterable[Tree]) -> None:
        self._lake = lake
        self._read = _reads(trees)
        self._lock = threading.Lock()
        self._locks: dict[Hashable, threading.Lock] = defaultdict(threading.Lock)
        self._known: dict[Hashable, Images] = {}
        self._shared: list[tuple[SparkSession, str]] = []

    def of(self, own: ComputedViews, tree: Tree, name: TableName, between: tuple[int, int]) -> Images:
        """Return the images of a table's rows that changed in versions `between`, both included.

        `own` has the views of the document's build, also images that no other session can read.

        Raises:
            PySparkException: Spark cannot read the feed.
        """
        spark, table = own.spark, tree.tables()[name]
        if not access_of(spark).shares_views:
            return self._computed(spark, table, _reads([tree])[name], between, own.add)
        place = name, between
        with self._lock:
            lock = self._locks[place]
        with lock:
            if place not in self._known:
                self._known[place] = self._computed(spark, table, self._read[name], between, self._share)
            return self._known[place]

    def _computed(
        self,
        spark: SparkSession,
        table: SilverTable,
        read: _Read,
        between: tuple[int, int],
        share: Callable[[DataFrame, str], str],
    ) -> Images:
        lossy, (first, last) = sorted(read.lossy), between
        feed = _feed(spark, self._lake.uri("silver", table.name), first, last)
        feed.createOrReplaceTempView(_FEED)
        steps, soft = last - first + 1, keeps_deleted(feed)
        query = images_query(_FEED, table.key, sorted(read.columns), steps=steps, soft=soft)
        with settings(spark, INTERPRETED):
            counts = ["count(*) AS n", *counted(lossy, f"{SIDE} = 'new'")]
            rows, found = computed_with(spark.sql(query), counts)
        number, *lost = found.values()
        relation = share(rows, f"deltasmelt_images_{uuid.uuid4().hex}")
        return Images(relation, int(number), dict(zip(lossy, map(int, lost), strict=True)))

    def _share(self, rows: DataFrame, view: str) -> str:
        self._shared.append((rows.sparkSession, view))
        return access_of(rows.sparkSession).share(rows, view)

    def close(self) -> None:
        """Drop the images that documents share."""
        views, self._shared = self._shared, []
        for spark, view in views:
            # The session, and the view with it, may be lost. The error of the build then says why.
            with suppress(Exception):
                access_of(spark).unshare(view)


def _reads(trees: Iterable[Tree]) -> Mapping[TableName, _Read]:
    """Return the columns that documents read, by table."""
    reads: dict[TableName, _Read] = defaultdict(lambda: _Read(set(), set()))
    for tree in trees:
        lossy = may_be_lost(tree)
        for name, table in tree.tables().items():
            read = reads[name]
            read.columns |= {origin(table, one) for one in tree.reads(name) | set(table.key)}
            read.lossy |= set(lossy.get(name, ()))
            if computed(table) or name in lossy:
                read.columns.add(UNREPRESENTABLE)
    return reads


def _feed(spark: SparkSession, uri: str, first: int, last: int) -> DataFrame:
    """Return the change feed of a silver table between two versions, both included."""
    reader = (
        spark.read.format("delta")
        .option("readChangeFeed", "true")
        .option("startingVersion", str(first))
        .option("endingVersion", str(last))
    )
    feed: DataFrame = load(reader, uri)
    return feed
