"""One way to write a table: require the layer's lease, run the statement, check what was committed.

* **Before a statement** the lease of the layer is required (`bronze.lake.leases.still_writing`): a process
  that stood still, or lost the store, for longer than the lease writes nothing. In a lake without leases the
  layer's lock holds (`pipelines.runtime.locks`). A scratch lake belongs to one process anyway.
* **The commit is expected** in the table's log: a log in a store or a catalog is read again afterwards
  (`silver.run.table_log`), whether the statement failed, answered, or its answer was lost.
* **The mark is part of the commit** (`silver.run.marks`). After a kill, or a lost answer, the next attempt
  finds the mark, and the window counts as done.
* **After a statement that carries a window** `SilverLog.committed` reads the log, and `gold.builder.document`
  that of a document. A version that went back means that somebody put the table back; a newer version without
  the mark means that the commit was lost.

No other module runs statements that write tables of silver or gold (`tests/silver/run/test_writer.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.leases import still_writing
from deltasmelt.bronze.lake.location import address_of
from deltasmelt.silver.fold.upsert import as_merge
from deltasmelt.silver.run.marks import telling
from deltasmelt.silver.spark.tuning import mark_settings, settings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Row, SparkSession

    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.silver.fold.upsert import Insert, Upsert
    from deltasmelt.silver.run.marks import Mark
    from deltasmelt.silver.run.table_log import SilverLog


@dataclass(frozen=True, slots=True)
class Writer:
    """Runs the statements that write one layer's tables. Any thread may use it, with a session of its own.

    `log` has the logs of silver's tables, where the caller goes on reading them.
    """

    lake: Lake
    layer: Layer
    log: SilverLog | None = None

    def check(self, name: str | None = None) -> None:
        """Require the lease and expect a commit, as each statement does; a commit without Spark calls this.

        Raises:
            TransientError: ``lease-lost``: nothing more may be written.
        """
        still_writing(self.lake, self.layer)
        if self.log is not None and name is not None:
            self.log.expect(name)

    def run(
        self,
        session: SparkSession,
        name: str,
        *statements: str,
        plan: Mapping[str, str] | None = None,
        needed: Mapping[str, str] | None = None,
    ) -> list[Row]:
        """Run statements on a table, each a commit from which the rest follows; return the last one's rows.

        The settings `plan` only make the statements fast; without those in `needed` they must not run.
        """
        rows: list[Row] = []
        for statement in statements:
            self.check(name)
            with settings(session, plan or {}, needed=needed):
                rows = session.sql(statement).collect()
        return rows

    def merge(self, session: SparkSession, name: str, upsert: Upsert, mark: Mark, *, column: str) -> None:
        """Run a MERGE under its mark; `column` is one of the table that holds LSNs."""
        how = telling(session, self.lake.uri(self.layer, name), mark)
        upsert = replace(upsert, on=(*how.conditions(f"t.{column}"), *upsert.on))
        self.run(session, name, as_merge(self.lake.sql(self.layer, name), upsert), needed=how.settings)

    def insert(
        self, session: SparkSession, name: str, rows: Insert, mark: Mark, *, replaces: bool = False
    ) -> None:
        """Add rows to a table under their mark, or replace all rows of the table.

        An ALTER under this mark would count as the window, so the mark is set for this statement alone. Where
        the table has the mark already, Delta would skip what mends the rows: then none is set.
        """
        if self.lake.place.needs_session:
            self.write(session, name, rows.query(), mark, replaces=replaces)
            return
        statement = rows.into(self.lake.sql(self.layer, name), replaces=replaces)
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
        """Add a query's rows to a catalog's table under their mark, or replace all rows of the table.

        With `reshapes` the table also gets the query's columns, in the same commit.
        """
        from pyspark.sql.functions import lit  # noqa: PLC0415 - a cycle without work loads no Spark

        self.check(name)
        writer = session.sql(query).writeTo(address_of(self.lake.uri(self.layer, name)))
        if mark.is_new:
            writer = writer.option("userMetadata", mark.said)
            writer = writer.option("txnAppId", mark.app).option("txnVersion", str(int(mark.lsn)))
        if reshapes:
            writer = writer.option("overwriteSchema", "true")
        if replaces:
            writer.overwrite(lit(True))
        else:
            writer.append()
