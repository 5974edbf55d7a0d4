"""Silver beside PostgreSQL, every row by content, both at one LSN.

Why what it says is right:

* **One LSN.** The source's rows are those of an exported snapshot at S (`bronze.snapshot`). Silver's are
  those that it stores, with bronze's window up to S folded over them (`silver.fresh`): what silver holds at
  S, whole transactions, whether a cycle ends there or not. So a running pipeline goes on, and is not waited
  for longer than bronze takes to S. Where nothing runs, bronze is read up to S first.
* **The stored rows.** Rows that the window does not touch are those of the table as it is stored: of its
  newest version, or where a cycle has passed S meanwhile, of the newest cut at or before S. What somebody
  writes into a table between that cut and the cycle is seen by the next comparison.
* **The same value path.** The source's text becomes values by the same expressions as silver's. Otherwise a
  difference could be one of rendering.
* **Nothing compared is said to be equal.** A table that cannot be compared is told with the reason, and the
  proof then fails.

Both sides are compared by Spark (`silver.verify`): no row comes to this process but the few that are shown.
"""

from __future__ import annotations

import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from bronze.catalog.select import select_tables, skipped_relations
from bronze.lake.control_tables import ControlTables
from bronze.postgres.connection import connect, translated
from bronze.progress import snapshot_view
from bronze.store.relations import read_relations
from pipelines.proof.load import Load
from pipelines.proof.sample import has_sample, in_spark
from pipelines.proof.scratch import scratch_lake
from pipelines.proof.source_copy import SourceCopy
from pipelines.runtime.named_tables import named_tables
from pipelines.runtime.progress_text import snapshot_text
from pipelines.runtime.reached import reach
from silver.errors import table_error
from silver.fresh import FreshTables
from silver.run.masters import is_local, runs_locally
from silver.run.sessions import own_session
from silver.schema.catalog import histories, history_of, silver_catalog
from silver.verify.compare import TableComparison, compare
from silver.verify.source_rows import source_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import DataFrame, SparkSession

    from bronze.catalog.source_table import SourceTable
    from bronze.identifiers import TableName
    from bronze.lake.location import Lake
    from bronze.lsn import Lsn
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output
    from silver.fresh import Head
    from silver.schema.catalog import SilverTable

_SAY_SECONDS: Final = 5.0
_LOOK_SECONDS: Final = 0.1
_LONG_SECONDS: Final = 86_400.0
_SIDE_BY_SIDE: Final = 2
"""Tables that are compared at once: the driver plans one while another's tasks run."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """A table that could not be compared, and why."""

    name: str
    reason: str


@dataclass(slots=True)
class Proof:
    """What came of it.

    Attributes:
        compared: tables and histories.
        unproven: those that could not be.
        sources: the source's table of each name in `compared`.
        seconds: that the source was read for.
    """

    compared: list[TableComparison] = field(default_factory=list)
    unproven: list[Unproven] = field(default_factory=list)
    sources: dict[str, TableName] = field(default_factory=dict)
    seconds: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether silver holds what the source does, as far as was asked."""
        return not self.unproven and all(one.equal for one in self.compared)

    def wrong_tables(self) -> list[TableName]:
        """The source's tables of which something was wrong."""
        return sorted({self.sources[one.name] for one in self.compared if not one.equal})


def prove(
    pipeline: Pipeline,
    spark_for: Callable[[], AbstractContextManager[SparkSession]],
    output: Output,
    *,
    names: Sequence[str] = (),
    load: Load | None = None,
    tell: Callable[[TableComparison | Unproven], None] = lambda _: None,
    given: SparkSession | None = None,
    command: str = "smelt verify",
) -> Proof:
    """Compare tables with the source.

    Args:
        pipeline: the pipeline.
        spark_for: gives a session, while the source is read.
        output: takes progress.
        names: tables or patterns; none: all.
        load: how much of the server it may take.
        tell: is told each table's result at once.
        given: a session that is there already, if any.
        command: who we are, for the lake's lock.

    Raises:
        ConfigurationError: ``table-unknown``.
        SmeltError: the server or the lake cannot be reached.
    """
    load = load or Load()
    tables = _tables(pipeline, names)
    proof, lake = Proof(), pipeline.lake_address()

    def told(found: TableComparison | Unproven) -> None:
        if isinstance(found, Unproven):
            proof.unproven.append(found)
        else:
            proof.compared.append(found)
        tell(found)

    for table in tables:
        if table.problem is not None:
            told(Unproven(table.table.silver_name, table.problem.message))
    tables = [table for table in tables if table.problem is None]
    if not tables:
        return proof
    local = (
        runs_locally(given) if given is not None else is_local(pipeline.spark.get("spark.master", "local"))
    )
    with scratch_lake(lake, tasks_are_local=local) as scratch:
        copy, begun = SourceCopy(pipeline, tables, scratch, load), time.monotonic()
        copy.start()
        bronze = _Bronze(pipeline, copy, output, command)
        bronze.start()
        try:
            with spark_for() as spark:
                _wait(copy, output)
                taken = copy.result()
                proof.seconds = time.monotonic() - begun
                for failed in taken.failed:
                    told(Unproven(failed.table.silver_name, failed.message))
                wanted = taken.lsns
                left = {table.table for table in tables} - wanted.keys()
                for name in sorted(left - {failed.table for failed in taken.failed}):
                    told(Unproven(name.silver_name, "its rows could not be read at the source"))
                if wanted:
                    with output.waiting("waiting for bronze to reach the source's rows"):
                        bronze.wait()
                        bronze.reach(max(wanted.values()))  # where tables were taken in several rounds
                sides = _Sides(spark, pipeline, scratch, load.sample)
                try:
                    for lsn in sorted(set(wanted.values())):
                        some = [table for table in wanted if wanted[table] == lsn]
                        with output.waiting(f"comparing {len(some)} tables as of {lsn}"):
                            sides.compare(some, lsn, told, proof.sources)
                finally:
                    sides.close()
        finally:
            bronze.stop()
            copy.stop()
            bronze.join()
    return proof


class _Bronze(threading.Thread):
    """Has bronze reach the first snapshot's LSN while its rows are read and Spark starts."""

    def __init__(self, pipeline: Pipeline, copy: SourceCopy, output: Output, command: str) -> None:
        super().__init__(name="smelt-verify-bronze", daemon=True)
        self._pipeline = pipeline
        self._copy = copy
        self._output = output
        self._command = command
        self._failure: BaseException | None = None
        self._stop_asked = threading.Event()

    def run(self) -> None:
        """Until it is there, or the copy has ended without a snapshot."""
        try:
            lsn = self._copy.exported(_LONG_SECONDS)
            if lsn is not None:
                self.reach(lsn)
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._failure = error

    def reach(self, lsn: Lsn) -> None:
        """Return when bronze is there, or it was told to stop."""
        reach(self._pipeline, lsn, self._output, self._command, self._stop_asked)

    def stop(self) -> None:
        """Have it end soon."""
        self._stop_asked.set()

    def wait(self) -> None:
        """Wait for its end.

        Raises:
            SmeltError: what stopped the reader.
        """
        while self.is_alive():
            self.join(_LOOK_SECONDS)
        if self._failure is not None:
            raise self._failure


def _tables(pipeline: Pipeline, names: Sequence[str]) -> list[SourceTable]:
    source = pipeline.source
    with translated(source), connect(source, application_name="deltasmelt verify") as connection:
        tables = select_tables(connection, source)
        skipped = skipped_relations(connection, source) if names else []
    return named_tables(names, tables, skipped) if names else list(tables)


def _wait(copy: SourceCopy, output: Output) -> None:
    """Wait for the source's rows, and say now and then how far they are."""
    said = time.monotonic()
    with output.waiting("reading the source's rows"):
        while not copy.wait(_LOOK_SECONDS):
            if time.monotonic() - said > _SAY_SECONDS:
                said = time.monotonic()
                counters = copy.counters()
                view = snapshot_view(counters["snapshots"], time.time())
                text = counters["copies_wait"] or ("" if view is None else snapshot_text(view))
                if text:
                    output.say(f"{time.strftime('%H:%M:%S')} {text}")


class _Sides:
    """Both sides as views of one session, at one LSN after the other."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, scratch: Lake, sample: float | None) -> None:
        lake = pipeline.lake_address()
        self._spark = spark
        self._scratch = scratch
        self._settings = pipeline.silver
        # What silver keeps besides live rows, the source does not have.
        self._plain = pipeline.silver.model_copy(update={"deletes": "hard", "history": []})
        self._sample = sample
        self._silver = FreshTables(spark, lake, pipeline.silver, ControlTables(lake))
        self._views: list[str] = []

    def compare(
        self,
        tables: Collection[TableName],
        lsn: Lsn,
        told: Callable[[TableComparison | Unproven], None],
        sources: dict[str, TableName],
    ) -> None:
        """Compare tables, and their histories, as of an LSN."""
        known = silver_catalog(read_relations(self._scratch), self._plain)
        asked = [(known[table], one) for table in tables for one in self._with_history(known[table])]
        silver = self._silver.look([one.name for _, one in asked], at=lsn)
        there = self._silver.catalog(silver)
        sources |= {one.name: table.table for table, one in asked}
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            futures = [
                pool.submit(self._one, table, one, there.get(table.table), silver) for table, one in asked
            ]
            for future in futures:
                told(future.result())

    def close(self) -> None:
        """Forget the views."""
        for view in self._views:
            self._spark.catalog.dropGlobalTempView(view)
        self._silver.close()

    def _with_history(self, table: SilverTable) -> Iterable[SilverTable]:
        return [table, *histories([table], self._settings)]

    def _one(
        self, source: SilverTable, asked: SilverTable, table: SilverTable | None, silver: Head
    ) -> TableComparison | Unproven:
        """One table or history; of a value that no rule gives, the error is the reason."""
        name = asked.name
        if name in silver.out or table is None:
            return Unproven(name, silver.out.get(name, "silver does not know the table yet"))
        if why := source.problem or _differs(source, table):
            return Unproven(name, str(why))
        session = own_session(self._spark)
        rows, stored = source_rows(session, self._scratch, source, silver.lsn), silver.view(name)
        if why := _other_types(source, rows, session.table(stored)):
            return Unproven(name, why)
        view = f"smelt_source_{uuid.uuid4().hex}"
        rows.createOrReplaceGlobalTempView(view)
        self._views.append(view)
        if self._sample is not None and has_sample(source.relation, self._settings.types):
            stored = f"(SELECT * FROM {stored} WHERE {in_spark(source.relation, self._sample)})"
        table = history_of(table) if asked.history else table
        try:
            return compare(session, table, f"global_temp.{view}", stored, int(silver.lsn))
        except Exception as error:
            found = table_error(table.table, str(error))
            if found is None:
                raise
            return Unproven(name, found.message)


def _differs(source: SilverTable, silver: SilverTable) -> str:
    """What keeps two shapes from being compared column by column; empty where nothing does."""
    lacks = [one.name for one in source.columns if one.name not in {c.name for c in silver.columns}]
    if lacks:
        return f"silver has no column {', '.join(lacks)} yet"
    if silver.key != source.key:
        return f"its key is {', '.join(silver.key)} in silver and {', '.join(source.key)} at the source"
    return ""


def _other_types(source: SilverTable, rows: DataFrame, stored: DataFrame) -> str:
    for column in source.columns:
        there, here = (frame.schema[column.name].dataType.simpleString() for frame in (rows, stored))
        if there != here:
            return f"column {column.name} is {here} in silver and {there} at the source"
    return ""
