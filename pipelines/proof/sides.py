"""Both sides of a comparison as views of one session, at one LSN after another.

A table is compared only if silver carries the table: a stopped table, or a table silver has not made, could
still be folded from bronze, and would prove nothing about the users' rows.
"""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.gold.builder.build import views_at_head
from deltasmelt.gold.verify.against_source import lost_roots, lost_values, wrong_documents
from deltasmelt.pipelines.proof.load import has_sample, in_spark
from deltasmelt.pipelines.runtime.maintenance import stops
from deltasmelt.silver.errors import failure
from deltasmelt.silver.fresh import FreshTables
from deltasmelt.silver.schema.catalog import histories, history_of, silver_catalog
from deltasmelt.silver.spark.access import access_of, child_session
from deltasmelt.silver.spark.failure_scope import is_general
from deltasmelt.silver.verify.compare import TableComparison, compare
from deltasmelt.silver.verify.source_rows import source_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.proof.documents import ServerDocument
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.fresh import Head
    from deltasmelt.silver.schema.catalog import SilverTable

_SIDE_BY_SIDE: Final = 2
"""Number of tables compared at once: the driver plans one table while another table's tasks run."""


@dataclass(frozen=True, slots=True)
class Unproven:
    """A table without a comparison, and the reason."""

    name: str
    reason: str


class Sides:
    """Both sides as views of one session, at one LSN after another."""

    def __init__(self, spark: SparkSession, pipeline: Pipeline, scratch: Lake, sample: float | None) -> None:
        lake = pipeline.lake_address()
        self._scratch = scratch
        self._settings = pipeline.silver
        self._rules = pipeline.source.rules
        # What silver keeps besides live rows, the source does not have.
        self._plain = pipeline.silver.model_copy(update={"deletes": "hard", "history": []})
        self._sample = sample
        self._control = ControlTables(lake)
        self._silver = FreshTables(spark, lake, pipeline.silver, self._control, accept_foreign=True)

    def compare(
        self,
        tables: Collection[TableName],
        lsn: Lsn,
        record: Callable[[TableComparison | Unproven], None],
        sources: dict[str, TableName],
    ) -> None:
        """Compare tables, and their histories, as of an LSN."""
        catalog = silver_catalog(read_relations(self._scratch), self._plain)
        pairs = [
            (catalog[table], stored) for table in tables for stored in self._with_history(catalog[table])
        ]
        silver = self._silver.read([stored.name for _, stored in pairs], at=lsn)
        in_silver = self._silver.catalog(silver)
        sources |= {stored.name: table.table for table, stored in pairs}
        stopped = {
            error.name: error.message
            for error in self._control.open_errors()
            if error.scope == "table" and stops(error)
        }
        pool = ThreadPoolExecutor(_SIDE_BY_SIDE)
        try:
            futures = []
            for source, stored in pairs:
                table = in_silver.get(source.table)
                if reason := self._left_out(stored, table, silver, stopped):
                    record(Unproven(stored.name, reason))
                elif table is not None:
                    futures.append(pool.submit(self._compare_table, source, stored, table, silver))
            for future in futures:
                record(future.result())
        finally:  # an interrupt waits for nothing that runs
            pool.shutdown(wait=False, cancel_futures=True)

    def document(self, document: ServerDocument) -> None:
        """Compare the server's documents with the documents gold's compiler builds from silver's rows."""
        if document.tree is None or document.reason:
            return
        names = [table.name for table in document.tree.tables().values()]
        head = self._silver.read(names, at=document.lsn)
        # After the look: at a server, a session sees the views that were there when it was cloned.
        with child_session(self._silver.session) as session:
            try:
                relation = views_at_head(session, document.tree, head)
                document.differing = wrong_documents(session, [(document.tree, document.answers)], relation)
                if document.differing and (lost := lost_values(session, document.tree, relation)):
                    roots = lost_roots(session, document.tree, document.answers, relation)
                    document.explain(lost, roots)
            except Exception as error:
                if is_general(error, session):
                    raise
                document.reason = str(error).splitlines()[0]

    def close(self) -> None:
        """Drop the views."""
        self._silver.close()

    def _with_history(self, table: SilverTable) -> Iterable[SilverTable]:
        return [table, *histories([table], self._settings)]

    def _left_out(
        self, stored: SilverTable, table: SilverTable | None, silver: Head, stopped: Mapping[str, str]
    ) -> str:
        """Return the reason against a table's or history's comparison; empty for none."""
        if table is None:
            return "silver does not know the table yet"
        for name in (
            str(stored.table),
            stored.table.silver_name,
        ):  # by either, as the reader and silver record
            if name in stopped:
                return f"an error has stopped the table: {stopped[name]}"
        if stored.name in silver.out:
            return silver.out[stored.name]
        return (
            ""
            if self._silver.is_stored(stored.name)
            else ("silver has not created the table yet; the next cycle creates it")
        )

    def _compare_table(
        self, source: SilverTable, stored: SilverTable, table: SilverTable, silver: Head
    ) -> TableComparison | Unproven:
        """Compare one table or history; an error of this comparison becomes the reason for no result."""
        with child_session(self._silver.session) as session:
            try:
                return self._compared(session, source, stored, table, silver)
            except Exception as error:
                if is_general(error, session):
                    raise
                return Unproven(stored.name, failure(table.table, error).message)

    def _compared(
        self,
        session: SparkSession,
        source: SilverTable,
        target: SilverTable,
        table: SilverTable,
        silver: Head,
    ) -> TableComparison | Unproven:
        name = target.name
        if reason := source.problem or _differs(source, table):
            return Unproven(name, str(reason))
        rows, stored = source_rows(session, self._scratch, source, silver.lsn), silver.view(name)
        if reason := _other_types(source, rows, session.table(stored)):
            return Unproven(name, reason)
        view = f"smelt_source_{uuid.uuid4().hex}"
        shared = access_of(session).share(rows, view)
        try:
            sampled = self._sample is not None and has_sample(
                source.relation, self._settings.types, self._rules
            )
            silvers = session.table(stored).columns
            if self._sample is not None and sampled:
                stored = f"(SELECT * FROM {stored} WHERE {in_spark(source.relation, self._sample)})"
            # Silver may keep columns that the source dropped, and does so until silver reads the new shape.
            shared_names = {column.name for column in source.columns}
            columns = tuple(column for column in table.columns if column.name in shared_names)
            table = replace(history_of(table) if target.history else table, columns=columns)
            comparison = compare(session, table, shared, stored, int(silver.lsn))
        finally:
            access_of(session).unshare(view)
        uncompared = tuple(name for name in silvers if name not in shared_names | table.own_columns.keys())
        return replace(comparison, columns_not_compared=uncompared, sampled=sampled)


def _differs(source: SilverTable, silver: SilverTable) -> str:
    """Return the obstacle to a column by column comparison of two shapes; empty for none."""
    missing = [
        column.name for column in source.columns if column.name not in {c.name for c in silver.columns}
    ]
    if missing:
        return f"silver has no column {', '.join(missing)} yet; {_shape_remedy(source)}"
    if silver.key != source.key:
        return f"the key is {', '.join(silver.key)} in silver and {', '.join(source.key)} at the source"
    return ""


def _other_types(source: SilverTable, rows: DataFrame, stored: DataFrame) -> str:
    for column in source.columns:
        if column.name not in stored.columns:
            return (
                f"silver's table has no column {column.name}; `smelt snapshot FILE {source.table}` adds the "
                "column"
            )
        source_type, stored_type = (
            frame.schema[column.name].dataType.simpleString() for frame in (rows, stored)
        )
        if source_type != stored_type:
            return (
                f"column {column.name} is {stored_type} in silver, "
                f"{source_type} at the source; {_shape_remedy(source)}"
            )
    return ""


def _shape_remedy(source: SilverTable) -> str:
    """Return how a changed shape reaches silver; a running reader sees the shape within half a minute."""
    command = f"smelt snapshot FILE {source.table}"
    return (
        "silver gets the new shape after the reader's next catalog poll and silver's next cycle, or by "
        f"`{command}`"
    )
