"""A lake that a program has open: what the commands do, as methods that return values.

There is no logic here. Each method calls what its command calls.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
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
from deltasmelt.pipelines.private import require_report
from deltasmelt.pipelines.proof.load import Load
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.guest_sql import GuestSql
from deltasmelt.pipelines.spark.held_session import HeldSession
from deltasmelt.pipelines.spark.lake_sql import cut_of, moment_of
from deltasmelt.pipelines.terminal.output import Unheard

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
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
    """See `deltasmelt.open`."""
    lake = OpenLake(load_pipeline(file))
    try:
        with lake._looking():  # noqa: SLF001 - our own class
            require_own_lake(lake.pipeline.lake_address(), lake.pipeline.pipeline)
    except BaseException:
        lake.close()
        raise
    return lake


class OpenLake:
    """The lake of one pipeline; made by `deltasmelt.open`.

    Spark is needed by `at`, `sql`, `table`, `preview`, `verify` and `quality`, and only then started; of a
    lake in a catalog by everything, from `deltasmelt.open` on. A session that this process has already (a
    notebook's, Databricks') is used, and never stopped. A session of our own is stopped by `close`, and its
    DataFrames end with it.

    **When the pipeline goes on.** `sql` and `table` show what is newest when they are called: of tables of
    silver alone silver's newest cut, otherwise the newest that gold has too. Two calls may see two moments.
    What is to be compared or joined comes from one `at`. A DataFrame keeps showing the moment that it was
    made at, whatever the pipeline writes meanwhile, for as long as `lake.retention` keeps its files.

    Args:
        pipeline: a pipeline file, as loaded.

    Attributes:
        pipeline: likewise.
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
        """Stop a Spark session that was started for this lake; leave any other as it was.

        At a Spark Connect server, DataFrames that this lake's `sql` gave end then, too: their views go.
        """
        self._held.close()

    def at(self, as_of: str | datetime | int | None = None) -> Moment:
        """All layers as of one commit.

        Args:
            as_of: an LSN (``"0/16B3748"`` or a number), or a time (UTC where it names no zone). The moment is
                the newest cut at or before it; None: the newest cut there is.

        Raises:
            ConfigurationError: ``as-of``, it is neither.
            DefiniteError: ``layer-empty`` or ``no-cut``, the lake has none, or none that old.
        """
        return self._moment(as_of)

    def sql(self, query: str, as_of: str | datetime | int | None = None) -> DataFrame:
        """Run Spark SQL; ``bronze.*``, ``silver.*`` and ``gold.*`` are as of one commit.

        >>> lake.sql("SELECT * FROM silver.orders JOIN gold.customer USING (id)")  # doctest: +SKIP

        Args:
            query: one statement; to name its result, use the DataFrame's `createOrReplaceTempView`.
            as_of: as for `at`.

        Raises:
            DefiniteError: ``sql-table`` or ``sql``, Spark refuses the statement; ``spark-died``, its session
                has ended, and the next call gets another one; or as `at`.
            ConfigurationError: as `at`.
        """
        return self._moment(as_of, query).sql(query)

    def table(self, name: str, as_of: str | datetime | int | None = None) -> DataFrame:
        """One table: ``silver.orders``, ``gold.customer``, ``bronze.changes``.

        Args:
            name: layer and table, as they stand in SQL but without quotes.
            as_of: as for `at`.

        Raises:
            DefiniteError: ``sql-table``, there is none of that name; ``spark-died``; or as `at`.
            ConfigurationError: as `at`.
        """
        return self._moment(as_of, name).table(name)

    def status(self) -> Status:
        """Lag of each stage, slot, tables, documents and open errors.

        It needs no Spark but for a lake in a catalog, and works while the server is down.

        >>> [error.code for error in lake.status().errors]                        # doctest: +SKIP
        []

        Raises:
            SmeltError: the lake cannot be read.
        """
        with self._looking():
            return read_status(self.pipeline)

    def check(self, *, offline: bool = False) -> list[Finding]:
        """Everything that would stop or degrade the pipeline, errors first; changes nothing.

        Args:
            offline: look at files and lake alone.
        """
        with self._looking():
            return run_check(self.pipeline, offline=offline)

    def preview(
        self, document: str, key: str | float | Sequence[str | float], *, fresh: bool = False
    ) -> dict[str, Any]:
        """One document as it would be now, built from silver's newest cut.

        Args:
            document: its name.
            key: of the root; of a composite key its values in order.
            fresh: build it from rows at the log's head.

        Returns:
            The document; numbers with a fraction as `Decimal`, with every digit.

        Raises:
            DefiniteError: ``document-not-found``, ``document-key``, or what the document is refused for.
            ConfigurationError: ``document-unknown``, or a file is wrong.
        """
        documents_named(self.pipeline, document)
        self._require_lake()
        given = key if isinstance(key, Sequence) and not isinstance(key, str) else [key]
        with self._held.working() as spark:
            text = preview_document(spark, self.pipeline, document, list(map(str, given)), fresh=fresh)
        found: dict[str, Any] = json.loads(text, parse_float=Decimal)
        return found

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
            tables: names or patterns; with them, documents are compared only where one is named.
            document: name or pattern; with it, tables are compared only where some are named.
            sample: the fraction of keys that is compared, above 0 and up to 1; None: all.
            max_connections: to the server at once, up to 64; None: as many as snapshots have.
            rate: bytes of text a second that the server sends at most; None: as fast as it sends.

        Raises:
            ConfigurationError: ``argument-invalid``, a number is out of its bounds; ``table-unknown`` or
                ``document-unknown``.
            SmeltError: the server or the lake cannot be reached.
        """
        load = Load(connections=max_connections, rate=rate, sample=sample)
        documents = documents_like(self.pipeline, document) if document is not None or not tables else []
        self._require_lake()
        with self._looking():
            return compare(
                self.pipeline,
                self._held.working,
                Unheard(),
                tables=tables if tables or document is None else None,
                documents=documents,
                load=load,
            )

    def quality(self, report: str | Path | None = None) -> QualityResult:
        """Check what the data promises: the source's constraints, the lake's own rules, your suites.

        >>> lake.quality().summary()                                              # doctest: +SKIP

        Args:
            report: a file for the HTML report; None: none is written.

        Raises:
            ConfigurationError: ``quality-missing``, Great Expectations is not installed;
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

    def _looking(self) -> AbstractContextManager[None]:
        """A block that looks at the lake: one in a catalog through Spark, any other without."""
        return nullcontext() if self.pipeline.lake.path is not None else self._held.told()

    def _require_lake(self) -> None:
        with self._looking():
            require_lake(self.pipeline)

    def _moment(self, as_of: str | datetime | int | None, statement: str | None = None) -> Moment:
        at = moment_of(as_of, where="as_of")
        self._require_lake()
        with self._looking():
            cut = cut_of(self.pipeline, at, statement=statement)
        with self._held.told():
            spark = self._held.get()
            return Moment(GuestSql(spark, self.pipeline, cut, self._held.views), self._held)


class Moment:
    """The lake as of one commit; made by `OpenLake.at`. Everything that it gives is of that commit."""

    def __init__(self, sql: GuestSql, held: HeldSession) -> None:
        self._sql = sql
        self._held = held

    def __repr__(self) -> str:
        return f"<moment {self.commit_lsn}, {len(self.tables)} tables>"

    @property
    def commit_lsn(self) -> Lsn:
        """The last commit that is shown; prints as PostgreSQL writes it."""
        return self._sql.cut.commit_lsn

    @property
    def commit_ts(self) -> datetime | None:
        """When that was committed at the source."""
        return self._sql.cut.commit_ts

    @property
    def tables(self) -> list[str]:
        """The names that `table` takes; ``control.*`` and ``quality.*`` are shown as they are now."""
        return self._sql.tables

    def sql(self, query: str) -> DataFrame:
        """As `OpenLake.sql`, at this moment."""
        with self._held.told(self._sql.session):
            return self._sql.query(query)

    def table(self, name: str) -> DataFrame:
        """As `OpenLake.table`, at this moment."""
        with self._held.told(self._sql.session):
            return self._sql.table(name)
