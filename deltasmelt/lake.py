"""An open lake for programs: the commands, as methods that return values.

The methods contain no logic. Each method calls the functions of its command.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from deltasmelt.bronze.checks.ownership import refuse_others
from deltasmelt.bronze.store.ownership import require_own_lake
from deltasmelt.pipelines.commands.comparing import compare, documents_like
from deltasmelt.pipelines.commands.context import documents_named, require_lake
from deltasmelt.pipelines.commands.preview import preview_document
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.moments import moment_of
from deltasmelt.pipelines.private import require_report
from deltasmelt.pipelines.proof.load import Load
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.borrowed_sql import BorrowedSql
from deltasmelt.pipelines.spark.held_session import HeldSession
from deltasmelt.pipelines.spark.lake_sql import cut_of
from deltasmelt.pipelines.terminal.output import SilentOutput

if TYPE_CHECKING:
    from datetime import datetime
    from types import TracebackType

    from pyspark.sql import DataFrame

    from deltasmelt.bronze.checks.finding import Finding
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.commands.comparing import Verified
    from deltasmelt.pipelines.health.status import Status
    from deltasmelt.pipelines.quality.expectations import QualityResult
    from deltasmelt.pipelines.settings import Pipeline


def open_lake(file: str | Path) -> OpenLake:
    """Open a lake; see `deltasmelt.open`."""
    lake = OpenLake(load_pipeline(file))
    try:
        with lake._held.serving_tables():  # noqa: SLF001 - our own class
            require_own_lake(lake.pipeline.lake_address(), lake.pipeline.pipeline)
    except BaseException:
        lake.close()
        raise
    return lake


class OpenLake:
    """The lake of one pipeline; made by `deltasmelt.open`.

    The methods `at`, `sql`, `table`, `preview`, `verify` and `quality` need Spark and start Spark at the
    first call; a lake in a catalog needs Spark from `deltasmelt.open` on. An existing session of the process
    (a notebook's, Databricks') is borrowed and never stopped. `close` stops an owned session, and its
    DataFrames end with the session.

    **While the pipeline runs.** `sql` and `table` read the newest state at the call: silver's newest cut for
    tables of silver alone, otherwise the newest cut of gold. Two calls may read two moments. Compare or join
    tables of one `at`. A DataFrame keeps the moment of its creation, whatever the pipeline writes meanwhile,
    as long as `lake.retention` keeps the files.

    Args:
        pipeline: the loaded pipeline file.

    Attributes:
        pipeline: the loaded pipeline file.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self.pipeline = pipeline
        self._held = HeldSession(pipeline)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<lake of pipeline {self.pipeline.pipeline} in {self.pipeline.path}>"

    def close(self) -> None:
        """Stop a Spark session started for this lake; leave any other session unchanged.

        At a Spark Connect server, DataFrames from this lake's `sql` end too, because their views are dropped.
        """
        self._held.close()

    def at(self, as_of: str | datetime | int | None = None) -> Moment:
        """Return all layers as of one commit.

        Args:
            as_of: an LSN (``"0/16B3748"`` or a number), or a time (UTC without a zone). The moment is the
                newest cut at or before; None means the newest cut.

        Raises:
            ConfigurationError: ``as-of``: neither an LSN nor a time.
            DefiniteError: ``layer-empty`` or ``no-cut``: the lake has no cut, or none old enough.
        """
        return self._moment(as_of)

    def sql(self, query: str, as_of: str | datetime | int | None = None) -> DataFrame:
        """Run Spark SQL; ``bronze.*``, ``silver.*`` and ``gold.*`` are as of one commit.

        >>> lake.sql("SELECT * FROM silver.orders JOIN gold.customer USING (id)")  # doctest: +SKIP

        Args:
            query: one statement; to name its result, use the DataFrame's `createOrReplaceTempView`.
            as_of: as for `at`.

        Raises:
            DefiniteError: ``sql-table`` or ``sql``: Spark refuses the statement; ``spark-died``: the session
                has ended, and the next call starts another; or as `at`.
            ConfigurationError: as `at`.
        """
        return self._moment(as_of, query).sql(query)

    def table(self, name: str, as_of: str | datetime | int | None = None) -> DataFrame:
        """Return one table: ``silver.orders``, ``gold.customer``, ``bronze.changes``.

        Args:
            name: layer and table, as in SQL but without quotes.
            as_of: as for `at`.

        Raises:
            DefiniteError: ``sql-table``: no table has the name; ``spark-died``; or as `at`.
            ConfigurationError: as `at`.
        """
        return self._moment(as_of, name).table(name)

    def status(self) -> Status:
        """Return the lag of each stage, slot, tables, documents and open errors.

        Only a lake in a catalog needs Spark. The status also works without an answer of the server.

        >>> [error.code for error in lake.status().errors]                        # doctest: +SKIP
        []

        Raises:
            SmeltError: the lake cannot be read.
        """
        with self._held.serving_tables():
            return read_status(self.pipeline)

    def check(self, *, offline: bool = False) -> list[Finding]:
        """Return everything that would stop or degrade the pipeline, errors first; change nothing.

        Args:
            offline: check files and lake alone.
        """
        with self._held.serving_tables():
            return run_check(self.pipeline, offline=offline)

    def preview(
        self, document: str, key: str | float | Sequence[str | float], *, fresh: bool = False
    ) -> dict[str, Any]:
        """Return one document as built now from silver's newest cut.

        Args:
            document: name of the document.
            key: key of the root; for a composite key its values in order.
            fresh: build the document from rows at the log's head.

        Returns:
            The document; numbers with a fraction as `Decimal`, with every digit.

        Raises:
            DefiniteError: ``document-not-found``, ``document-key``, or the reason against the document.
            ConfigurationError: ``document-unknown``, or a file is wrong.
        """
        documents_named(self.pipeline, document)
        self._require_lake()
        values = key if isinstance(key, Sequence) and not isinstance(key, str) else [key]
        with self._held.working() as spark:
            text = preview_document(spark, self.pipeline, document, list(map(str, values)), fresh=fresh)
        built: dict[str, Any] = json.loads(text, parse_float=Decimal)
        return built

    def verify(
        self,
        tables: Sequence[str] = (),
        document: str | None = None,
        *,
        sample: float | None = None,
        max_connections: int | None = None,
        rate: int | None = None,
    ) -> Verified:
        """Compare silver with PostgreSQL row by row, both at one LSN, and gold with a full rebuild.

        >>> lake.verify(["public.orders"]).holds                                  # doctest: +SKIP
        True

        Args:
            tables: names or patterns; with tables, documents are compared only by name.
            document: name or pattern; with a document, tables are compared only by name.
            sample: compared fraction of keys, above 0 and up to 1; None for all keys.
            max_connections: parallel connections to the server, up to 64; None: as many as for snapshots.
            rate: largest bytes of text per second from the server; None for no limit.

        Raises:
            ConfigurationError: ``argument-invalid``: a number is out of its bounds; ``table-unknown`` or
                ``document-unknown``.
            SmeltError: the server or the lake cannot be reached.
        """
        load = Load(connections=max_connections, rate=rate, sample=sample)
        documents = documents_like(self.pipeline, document) if document is not None or not tables else []
        self._require_lake()
        with self._held.serving_tables():
            return compare(
                self.pipeline,
                self._held.working,
                SilentOutput(),
                tables=tables if tables or document is None else None,
                documents=documents,
                load=load,
            )

    def quality(self, report: str | Path | None = None) -> QualityResult:
        """Check the data's promises: the source's constraints, the lake's own rules, your suites.

        >>> lake.quality().summary()                                              # doctest: +SKIP

        Args:
            report: file for the HTML report; None for no report.

        Raises:
            ConfigurationError: ``quality-missing``: Great Expectations is not installed;
                ``report-unwritable``; or a file is wrong.
        """
        from deltasmelt.pipelines.quality.run import run_quality  # noqa: PLC0415 - loads what derives expectations

        self._require_lake()
        refuse_others(self.pipeline.source, self.pipeline.lake_address(), self.pipeline.pipeline)
        file = None if report is None else Path(report)
        if file is not None:
            require_report(file)
        with self._held.working() as spark:
            return run_quality(spark, self.pipeline, report=file)

    def _require_lake(self) -> None:
        with self._held.serving_tables():
            require_lake(self.pipeline)

    def _moment(self, as_of: str | datetime | int | None, statement: str | None = None) -> Moment:
        at = moment_of(as_of, where="as_of")
        self._require_lake()
        with self._held.serving_tables():
            cut = cut_of(self.pipeline, at, statement=statement)
        with self._held.death_reported():
            spark = self._held.get()
            return Moment(BorrowedSql(spark, self.pipeline, cut, self._held.views), self._held)


class Moment:
    """The lake as of one commit; made by `OpenLake.at`. Everything returned is of this commit."""

    def __init__(self, sql: BorrowedSql, held: HeldSession) -> None:
        self._sql = sql
        self._held = held

    def __repr__(self) -> str:
        return f"<moment {self.commit_lsn}, {len(self.tables)} tables>"

    @property
    def commit_lsn(self) -> Lsn:
        """LSN of the last visible commit; prints in PostgreSQL's notation."""
        return self._sql.cut.commit_lsn

    @property
    def commit_ts(self) -> datetime | None:
        """Time of this commit at the source."""
        return self._sql.cut.commit_ts

    @property
    def tables(self) -> list[str]:
        """Names for `table`; ``control.*`` and ``quality.*`` have their present state."""
        return self._sql.tables

    def sql(self, query: str) -> DataFrame:
        """Run Spark SQL as `OpenLake.sql` does, at this moment."""
        with self._held.death_reported(self._sql.session):
            return self._sql.query(query)

    def table(self, name: str) -> DataFrame:
        """Return a table as `OpenLake.table` does, at this moment."""
        with self._held.death_reported(self._sql.session):
            return self._sql.table(name)
