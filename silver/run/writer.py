"""One way to write a table: require the layer's lease, run the statement, check the commit.

* **Before a statement** the writer requires the lease of the layer (`bronze.lake.leases.still_writing`). A
  process that paused, or lost the store, for longer than the lease writes nothing. In a lake without leases
  the layer's lock protects the tables (`pipelines.runtime.locks`). A scratch lake belongs to one process.
* **The mark is part of the commit** (`silver.run.marks`). After a kill, or a lost answer, the next attempt
  finds the mark, and the window counts as done.
* **After a statement with a window** `SilverLog.committed` reads the log, and `gold.builder.document` reads a
  document's log. An older version means a rolled back table. A newer version without the mark means a lost
  commit.

No other module writes tables of silver or gold by statements (`tests/silver/run/test_writer.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.delta import make_room
from deltasmelt.bronze.lake.leases import still_writing
from deltasmelt.bronze.lake.location import address_of
from deltasmelt.silver.fold.upsert import as_merge
from deltasmelt.silver.run import empty_tables
from deltasmelt.silver.run.marks import writer_of
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.spark.tuning import mark_settings, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Row, SparkSession

    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.silver.fold.upsert import Insert, Upsert
    from deltasmelt.silver.run.marks import Mark
    from deltasmelt.silver.run.table_log import SilverLog
    from deltasmelt.silver.schema.catalog import SilverTable


@dataclass(frozen=True, slots=True)
class Writer:
    """Runs statements that write one layer's tables. Threads share a writer, each with a separate session.

    `log` is the reader of silver's logs, if the caller continues to read the logs.
    """

    lake: Lake
    layer: Layer
    log: SilverLog | None = None

    def check(self, name: str | None = None) -> None:
        """Require the lease and expect a commit, before each statement and each commit without Spark.

        Raises:
            TransientError: ``lease-lost``: the process may write nothing more.
        """
        still_writing(self.lake, self.layer)
        if self.log is not None and name is not None:
            # After success, failure or a lost answer, a log in a store or a catalog is read again.
            self.log.expect(name)

    def run(
        self,
        session: SparkSession,
        name: str,
        *statements: str,
        plan: Mapping[str, str] | None = None,
        needed: Mapping[str, str] | None = None,
    ) -> list[Row]:
        """Run statements on a table, each with its own commit; return the last statement's rows.

        The settings `plan` only make the statements fast; without the settings `needed` no statement runs.
        """
        rows: list[Row] = []
        for statement in statements:
            self.check(name)
            with settings(session, plan or {}, needed=needed):
                rows = session.sql(statement).collect()
        return rows

    def create(self, session: SparkSession, table: SilverTable) -> list[str]:
        """Create a silver table without rows; return statements that only cluster the table.

        A table that exists stays as it is.
        """
        uri, place = self.lake.uri(self.layer, table.name), self.lake.place
        make_room(uri)
        properties = ddl.properties_of(table, checkpoints=place.checkpoint_interval)
        first, *later = ddl.create(
            self.lake.sql(self.layer, table.name), table, checkpoints=place.checkpoint_interval
        )
        copies = self.lake.folder is not None and not later
        kind = empty_tables.kind_of(session, table, properties) if copies else None
        self.check(table.name)
        if not empty_tables.copied(kind, uri, table, properties):
            self.run(session, table.name, first)
            empty_tables.remember(kind, uri, table, properties)
        return later

    def merge(self, session: SparkSession, name: str, upsert: Upsert, mark: Mark, *, column: str) -> None:
        """Run a MERGE under its mark; `column` is an LSN column of the table."""
        how = writer_of(session, self.lake.uri(self.layer, name), mark)
        upsert = replace(upsert, on=(*how.conditions(f"t.{column}"), *upsert.on))
        self.run(session, name, as_merge(self.lake.sql(self.layer, name), upsert), needed=how.settings)

    def insert(
        self, session: SparkSession, name: str, rows: Insert, mark: Mark, *, replaces: bool = False
    ) -> None:
        """Add rows to a table under a mark, or replace all rows of the table."""
        if self.lake.place.marks_in_metadata:
            self.write(session, name, rows.query(), mark, replaces=replaces)
            return
        statement = rows.into(self.lake.sql(self.layer, name), replaces=replaces)
        # The mark is set for the INSERT alone, because an ALTER under the mark would count as the window. An
        # INSERT at the table's present mark has no mark: Delta would skip the rows that correct the table.
        self.run(session, name, statement, needed=mark_settings(mark.app, mark.lsn, mark.position))

    def write(
        self,
        session: SparkSession,
        name: str,
        query: str,
        mark: Mark,
        *,
        replaces: bool,
        reshapes: bool = False,
    ) -> None:
        """Add a query's rows to a catalog's table under a mark, or replace all rows of the table.

        With `reshapes` the table also gets the query's columns, in the same commit.
        """
        from pyspark.sql.functions import lit  # noqa: PLC0415 - a cycle without work loads no Spark

        self.check(name)
        writer = session.sql(query).writeTo(address_of(self.lake.uri(self.layer, name)))
        if mark.is_new:
            writer = writer.option("userMetadata", mark.user_metadata)
            writer = writer.option("txnAppId", mark.app).option("txnVersion", str(int(mark.lsn)))
        if reshapes:
            writer = writer.option("overwriteSchema", "true")
        if replaces:
            writer.overwrite(lit(True))
        else:
            writer.append()
