"""Run statements over the lake in a borrowed session: a notebook's, or a server's.

In a shared catalog, schemas named like the layers (`pipelines.spark.lake_sql`) may belong to the user. So
each table that a statement names is a temporary view under a unique name here, and the reader replaces
nothing of the session's owner. Every view pins a version, even of tables shown at their
newest state: Spark executes an UPDATE through an unpinned view.

Each version of a table has one view, however many statements and moments name the version (`Views`). At a
Spark Connect server a view stays until the lake is closed and never changes its meaning: a DataFrame shows
equal rows whenever the DataFrame is run.

Names that SQL composes at run time (``IDENTIFIER('silver.' || …)``) find nothing, nor does ``SHOW TABLES IN
silver``.
"""

from __future__ import annotations

import threading
import uuid
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.suggestions import suggestion
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.pipelines.spark.lake_sql import LakeSql
from deltasmelt.pipelines.spark.sql_names import aliased
from deltasmelt.silver.spark.access import access_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.consistent_cut import ConsistentCut
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.spark.sql_names import TableAddress

OLD_VERSIONS: Final = "spark.databricks.delta.vacuum.enforceTimeTravelWithinDeletedFileRetentionDuration"
"""Delta's setting that refuses an idle table's version by its age; deltasmelt's cuts decide instead."""


class Views:
    """Temporary views in one session, by their SELECT."""

    def __init__(self) -> None:
        self._prefix = f"smelt_{uuid.uuid4().hex[:12]}"
        self._lock = threading.Lock()
        self._names: dict[str, str] = {}

    def named(self, spark: SparkSession, select: str) -> str:
        """Return the name of a SELECT's view; create the view if needed."""
        with self._lock:
            if select not in self._names:
                name = f"{self._prefix}_{len(self._names)}"
                spark.sql(f"CREATE TEMPORARY VIEW {name} AS {select}")
                self._names[select] = name
            return self._names[select]

    def drop(self, spark: SparkSession) -> None:
        """Drop all views from the session."""
        with self._lock:
            while self._names:
                _, name = self._names.popitem()
                spark.sql(f"DROP VIEW IF EXISTS {name}")


class BorrowedSql(LakeSql):
    """Statements over one lake at one cut, in any session.

    `views` are the session's views, which stay while DataFrames may name them.
    """

    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, cut: ConsistentCut, views: Views | None = None
    ) -> None:
        super().__init__(spark, pipeline, cut)
        self._temporary = True
        # A server resolves names on each run of a DataFrame; a JVM resolves them once, so the view may go.
        self._stay = not access_of(spark).shares_views
        self._views = views if views is not None and self._stay else Views()
        self._versions: dict[TableAddress, int | None] = {}

    @property
    def session(self) -> SparkSession:
        """The session that runs the statements."""
        return self._spark

    @property
    def tables(self) -> list[str]:
        """Names of all tables that a statement can read, for example ``silver.orders``."""
        return [f"{layer}.{name}" for layer, name in self._known]

    def table(self, name: str) -> DataFrame:
        """Return one table by a name of `tables`; case only counts between names that differ in nothing else.

        Raises:
            DefiniteError: ``sql-table``: no table has this name at this cut; or Spark refuses the query.
        """
        from pyspark.errors import PySparkException  # noqa: PLC0415 - Spark is up by now

        qualified = {f"{layer}.{table}": (layer, table) for layer, table in self._known}
        alike = [known for known in qualified if known.lower() == name.lower()]
        found = name if name in qualified else alike[0] if len(alike) == 1 else None
        if found is None:
            raise DefiniteError(
                f"no table {name} exists as of {self.cut.commit_lsn}{suggestion(name, qualified)}",
                code="sql-table",
                where="table",
            )
        try:
            return self._spark.sql(self._view(qualified[found])[1])
        except PySparkException as error:
            raise self._refused(error) from None

    def forget(self) -> None:
        """Drop the views of the session."""
        self._views.drop(self._spark)

    def _version(self, table: TableAddress) -> int | None:
        if table not in self._versions:
            self._versions[table] = super()._version(table)
        return self._versions[table]

    def _answer(
        self,
        statement: str,
        names: list[TableAddress],  # noqa: ARG002 - those are words of the statement, these its tables
        *,
        alone: bool = False,  # noqa: ARG002 - such views are for sessions of our own
    ) -> DataFrame:
        try:
            return self._spark.sql(
                aliased(
                    statement,
                    self._known,
                    lambda table: self._views.named(self._spark, self._view(table)[1]),
                )
            )
        finally:
            if not self._stay:
                self.forget()
