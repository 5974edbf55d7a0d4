"""Run statements of `smelt sql --fresh` over silver at the log's head, ahead of the next cycle.

Each statement sees bronze's content from the statement's beginning: all named tables as of one commit
(`silver.fresh`), and `bronze.changes` up to this commit. Silver folds only the tables that a statement names.
Gold's tables hold the result of gold's last cycle, so a statement cannot read them. `smelt preview --fresh`
assembles one document from fresh rows.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.consistent_cut import ConsistentCut
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.spark.lake_sql import LakeSql
from deltasmelt.pipelines.spark.sql_names import named_tables, odd_views, with_views
from deltasmelt.silver.fresh import FreshTables
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.spark.sql_names import TableAddress


class FreshSql(LakeSql):
    """Statements over one lake, each at the log's head at its beginning; `spark` is an own session."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline) -> None:
        lake = pipeline.lake_address()
        # Views have their tables' names, so that a statement finds `orders.id` in `silver.orders`.
        self._plain: dict[str, str] = {}
        self._tables = FreshTables(
            spark, lake, pipeline.silver, ControlTables(lake), named=lambda name: self._plain.get(name, name)
        )
        super().__init__(self._tables.session, pipeline)

    def query(self, statement: str) -> DataFrame:
        """Run a statement after folding the silver tables that the statement names.

        Raises:
            DefiniteError: the statement names gold, or a table that cannot be shown at the log's head; or
                Spark refuses the statement.
        """
        from pyspark.errors import PySparkException  # noqa: PLC0415 - Spark is up by now

        statement, known = self.readable(statement), self._tables.names()
        self._plain = _qualified_views(known)
        named = [name for _, name in named_tables(statement, [("silver", name) for name in known])]
        if named_tables(statement, [("gold", name) for name in self.documents]):
            raise DefiniteError(
                "gold's tables have the state of gold's last cycle, and cannot be read at the log's head",
                code="not-at-head",
                where="SQL",
                remedy="read without --fresh; `smelt preview FILE DOCUMENT --key K --fresh` shows a document",
            )
        try:
            head = self._tables.read(named)
        except PySparkException as error:
            raise self._refused(error) from None
        self.move(ConsistentCut(Cut("silver", head.lsn, head.commit_ts, {}, datetime.now(UTC))))
        views: dict[TableAddress, str] = {("silver", name): head.view(name) for name in named}
        return super().query(with_views(statement, views))

    def close(self) -> None:
        """Drop the views of the tables."""
        self.forget()
        self._tables.close()


def _qualified_views(names: Iterable[str]) -> dict[str, str]:
    """Return view names for tables whose names differ in case alone; other views have table names."""
    known: list[TableAddress] = [("silver", name) for name in names]
    views = odd_views(known)
    return {
        name: view.strip("`") for (layer, name), view in views.items() if view != quote(f"{layer}.{name}")
    }
