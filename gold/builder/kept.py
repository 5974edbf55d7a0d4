"""Rows of a session that are computed once for all their readers, under names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from silver.run.masters import computed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Kept:
    """The kept rows of one session.

    Local checkpoints, not a cache: MERGE refuses a cached source, and Spark's cache is one for all sessions,
    so a document that is done would take equal rows away from one that is not. Spark drops the rows when
    nothing refers to them any longer.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._views: list[str] = []

    def keep(self, query: str, view: str) -> None:
        """Compute a query, under a name."""
        computed(self._spark.sql(query)).createOrReplaceTempView(view)
        self._views.append(view)

    def forget(self) -> None:
        """Forget all of them."""
        for view in self._views:
            self._spark.catalog.dropTempView(view)
        self._views.clear()
