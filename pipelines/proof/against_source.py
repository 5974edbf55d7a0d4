"""Compare silver with PostgreSQL, every row by content, both at one LSN.

Why the comparison is right:

* **One LSN.** The source's rows come from an exported snapshot at S (`bronze.snapshot`). Silver's rows are
  the stored rows with bronze's window up to S folded over them (`silver.fresh`): silver at S, in whole
  transactions, whether or not a cycle ends at S. So a running pipeline continues, and the comparison waits
  only until bronze reaches S. Without a running pipeline, the comparison first reads bronze up to S.
* **The stored rows.** Rows outside the window come from the stored table: from the newest version, or, after
  a cycle has passed S meanwhile, from the newest cut at or before S. The next comparison sees foreign writes
  to the table between this cut and the cycle.
* **The same value path.** The expressions of silver also turn the source's text into values. Otherwise a
  difference could be a difference of rendering.
* **No empty success.** A table without a comparison is reported with the reason, and the proof fails.

For each document, the server computes some instances in the same snapshot (`pipelines.proof.documents`), and
gold's compiler builds the same instances from silver's rows at S (`gold.verify.against_source`).
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.catalog.select import skipped_relations
from deltasmelt.bronze.checks.inheritance import inheritance_findings
from deltasmelt.bronze.checks.ownership import require_own
from deltasmelt.bronze.checks.recorded_rules import select_recorded
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.figures import clock_text, counted
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.copies import scratch_lake
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.progress import snapshot_view
from deltasmelt.pipelines.proof.documents import ServerDocument, ServerDocuments
from deltasmelt.pipelines.proof.load import Load
from deltasmelt.pipelines.proof.sides import Sides, Unproven
from deltasmelt.pipelines.proof.source_copy import SourceCopy
from deltasmelt.pipelines.runtime.named_tables import named_tables
from deltasmelt.pipelines.runtime.progress_text import snapshot_text
from deltasmelt.pipelines.runtime.wait_for_bronze import reach
from deltasmelt.pipelines.spark.session_owner import runs_here

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.gold.language.document import Document
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output
    from deltasmelt.silver.verify.compare import TableComparison


class CatchingUp(threading.Thread):
    """A thread for bronze to reach the first snapshot's LSN, while the rows are read and Spark starts."""

    def __init__(self, pipeline: Pipeline, copy: SourceCopy, output: Output, command: str) -> None:
        super().__init__(name="smelt-verify-bronze", daemon=True)
        self._pipeline = pipeline
        self._copy = copy
        self._output = output
        self._command = command
        self._failure: BaseException | None = None
        self._stop_requested = threading.Event()

    def run(self) -> None:
        """Read until bronze reaches the LSN, or the copy ends without a snapshot."""
        try:
            lsn = self._copy.exported(_LONG_SECONDS)
            if lsn is not None:
                self.reach(lsn)
        except BaseException as error:  # noqa: BLE001 - raised by `check`
            self._failure = error

    def reach(self, lsn: Lsn) -> None:
        """Wait until bronze reaches the LSN, or for `stop`."""
        reach(self._pipeline, lsn, self._output, self._command, self._stop_requested)

    def stop(self) -> None:
        """Request the thread's end."""
        self._stop_requested.set()

    def check(self) -> None:
        """Raise the error of the thread."""
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Wait for the thread's end; raise as `check` does."""
        while self.is_alive():
            self.join(_POLL_SECONDS)
        self.check()


_REPORT_SECONDS: Final = 5.0
_POLL_SECONDS: Final = 0.1
_LONG_SECONDS: Final = 86_400.0
_SIDE_BY_SIDE: Final = 2
"""Number of tables compared at once: the driver plans one table while another table's tasks run."""


@dataclass(slots=True)
class Proof:
    """The result of the comparison.

    Attributes:
        compared, unproven: tables and histories with and without a comparison.
        sources: the source's table of each name in `compared`.
        seconds: duration of reading the source.
        documents: documents computed by the server.
    """

    compared: list[TableComparison] = field(default_factory=list)
    unproven: list[Unproven] = field(default_factory=list)
    sources: dict[str, TableName] = field(default_factory=dict)
    seconds: float = 0.0
    documents: list[ServerDocument] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """True if silver and documents equal the source, within the requested scope."""
        equal = all(comparison.equal for comparison in self.compared) and not any(
            document.differing for document in self.documents
        )
        return equal and not self.unproven

    def wrong_tables(self) -> list[TableName]:
        """Return the source's tables repairable by a resnapshot: more is wrong than ended versions."""
        repairable = (comparison for comparison in self.compared if comparison.counts.keys() - {"versions"})
        return sorted({self.sources[comparison.name] for comparison in repairable})


def prove(
    pipeline: Pipeline,
    spark_for: Callable[[], AbstractContextManager[SparkSession]],
    output: Output,
    *,
    names: Sequence[str] = (),
    documents: Sequence[Document] = (),
    load: Load | None = None,
    report: Callable[[TableComparison | Unproven | ServerDocument], None] = lambda _: None,
    command: str = "smelt verify",
) -> Proof:
    """Compare tables with the source.

    Args:
        pipeline: the pipeline.
        spark_for: returns a session, while the source is read.
        output: takes progress.
        names: tables or patterns; empty for all.
        documents: documents for the server to compute.
        load: limits of the server's load, and the sample.
        report: receives each table's result at once.
        command: name of the command for the lake's lock.

    Raises:
        ConfigurationError: ``table-unknown``; ``pattern-matches-nothing``: no table is left to compare.
        SmeltError: the server or the lake cannot be reached.
    """
    load = load or Load()
    tables, copied_with = _tables(pipeline, names)
    proof, lake = Proof(), pipeline.lake_address()

    def record(comparison: TableComparison | Unproven) -> None:
        if isinstance(comparison, Unproven):
            proof.unproven.append(comparison)
        else:
            comparison = replace(comparison, rows_elsewhere=copied_with.get(comparison.table, ""))
            proof.compared.append(comparison)
        report(comparison)

    tables = _without_problems(tables, record)
    if not tables:
        return proof
    with scratch_lake(lake, tasks_are_local=runs_here(pipeline.spark)) as scratch:
        server_documents = ServerDocuments(pipeline, documents, tables)
        copy, start = SourceCopy(pipeline, tables, scratch, load, server_documents), time.monotonic()
        copy.start()
        bronze = CatchingUp(pipeline, copy, output, command)
        bronze.start()
        try:
            with spark_for() as spark:
                _wait(copy, bronze, output)
                rows_taken = copy.result()
                proof.seconds = time.monotonic() - start
                for failed in rows_taken.failed:
                    record(Unproven(failed.table.silver_name, failed.message))
                lsns = rows_taken.lsns
                unread = {table.table for table in tables} - lsns.keys()
                unread -= {failed.table for failed in rows_taken.failed}
                for name in sorted(unread):
                    record(
                        Unproven(name.silver_name, "the rows of the table could not be read at the source")
                    )
                if lsns:
                    with output.waiting("waiting for bronze to reach the source's rows"):
                        bronze.wait()
                        bronze.reach(max(lsns.values()))  # tables copied in several rounds differ in LSN
                        proof.documents = server_documents.result()
                sides = Sides(spark, pipeline, scratch, load.sample)
                for lsn in sorted(set(lsns.values())):
                    at_lsn = [table for table in lsns if lsns[table] == lsn]
                    with output.waiting(f"comparing {counted(len(at_lsn), 'table')} as of {lsn}"):
                        sides.compare(at_lsn, lsn, record, proof.sources)
                for document in proof.documents:
                    with output.waiting(f"comparing gold.{document.name} with PostgreSQL's documents"):
                        sides.document(document)
                    report(document)
                sides.close()  # not after an interrupt: Spark would not answer
        finally:
            bronze.stop()
            copy.stop()
            bronze.join()
    return proof


def _tables(pipeline: Pipeline, names: Sequence[str]) -> tuple[list[SourceTable], dict[str, str]]:
    """Return the tables to compare, and the tables with rows of unselected tables at the source."""
    source = pipeline.source
    with translated(source), connect(source, application_name="deltasmelt verify") as connection:
        require_own(connection, source, pipeline.lake_address(), pipeline.pipeline)
        tables = select_recorded(connection, source, pipeline.lake_address())
        skipped = skipped_relations(connection, source) if names else []
        inherited = [
            finding for finding in inheritance_findings(connection, tables) if finding.level == "warning"
        ]
    if not tables:
        cut = ControlTables(pipeline.lake_address()).latest_cut("silver")
        silver_tables = ", ".join(sorted(cut.tables)) if cut is not None else ""
        raise ConfigurationError(
            f"nothing to compare: no table matches source.tables ({', '.join(source.tables)}); silver has "
            f"{silver_tables or 'no table'}",
            code="pattern-matches-nothing",
            where=address_of(source),
            remedy="correct source.tables, or set the server and database of this lake",
        )
    chosen = named_tables(names, tables, skipped) if names else list(tables)
    return chosen, {finding.subject: finding.message for finding in inherited}


def _without_problems(tables: Sequence[SourceTable], record: Callable[[Unproven], None]) -> list[SourceTable]:
    for table in tables:
        if table.problem is not None:
            record(Unproven(table.table.silver_name, table.problem.message))
    return [table for table in tables if table.problem is None]


def _wait(copy: SourceCopy, bronze: CatchingUp, output: Output) -> None:
    """Wait for the source's rows, and report their progress now and then."""
    reported_at = time.monotonic()
    with output.waiting("reading the source's rows"):
        while not copy.wait(_POLL_SECONDS):
            bronze.check()  # without it, the rows are read in vain
            if time.monotonic() - reported_at > _REPORT_SECONDS:
                reported_at = time.monotonic()
                counters = copy.counters()
                view = snapshot_view(counters["snapshots"], time.time())
                text = counters["copies_wait"] or ("" if view is None else snapshot_text(view))
                if text:
                    output.report(f"{clock_text()} {text}")
