"""Compare for `smelt verify`, without printing: silver with PostgreSQL, gold with a full rebuild."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.commands.context import documents_named, open_gold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.gold.verify.verify import Verification
    from deltasmelt.pipelines.proof.against_source import Proof
    from deltasmelt.pipelines.proof.documents import ServerDocument
    from deltasmelt.pipelines.proof.load import Load
    from deltasmelt.pipelines.proof.sides import Unproven
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output
    from deltasmelt.silver.verify.compare import TableComparison

# A table, an uncomparable table, a document as computed by the server, all tables together, or a document
# compared with a full rebuild.
Compared: TypeAlias = "TableComparison | Unproven | ServerDocument | Proof | Verification"


@dataclass(frozen=True, slots=True)
class Verified:
    """The results of both comparisons.

    Attributes:
        proof: results for silver's tables; None without tables to compare.
        documents: results of the comparison with a full rebuild, in order.
        not_asked: tables and documents in the newest cuts outside the arguments or the pipeline file.
        sample: the compared fraction of keys; None for all keys.
    """

    proof: Proof | None
    documents: list[Verification]
    not_asked: tuple[str, ...] = ()
    sample: float | None = None

    @property
    def holds(self) -> bool:
        """True if every requested comparison took place and found equality."""
        return not self.problems()

    def problems(self) -> list[str]:
        """Descriptions of everything unequal or not compared."""
        problems = []
        if self.proof is not None:
            differing = [
                f"silver.{comparison.name}" for comparison in self.proof.compared if not comparison.equal
            ]
            problems += [f"not equal to PostgreSQL: {', '.join(differing)}"] if differing else []
            unproven = [f"silver.{comparison.name}" for comparison in self.proof.unproven]
            problems += [f"not compared: {', '.join(unproven)}"] if unproven else []
            differing = [f"gold.{document.name}" for document in self.proof.documents if document.differing]
            problems += [f"documents not equal to PostgreSQL's: {', '.join(differing)}"] if differing else []
            # The server never computes documents of tables with rules; each result has this reason.
            server_documents = [document for document in self.proof.documents if not document.ruled]
            if server_documents and not any(
                document.compared or document.empty for document in server_documents
            ):
                problems.append("no document was compared with PostgreSQL's")
        unequal = [
            f"gold.{verification.document}" for verification in self.documents if not verification.equal
        ]
        problems += [f"not equal to a full rebuild: {', '.join(unequal)}"] if unequal else []
        if not problems and self._compared_nothing():
            problems.append(
                "nothing was compared: the sample contains no row and no document; use a larger sample"
            )
        return problems

    def left_out(self) -> dict[str, int]:
        """Return how many requested comparisons did not take place; each result has its reason."""
        proof = self.proof
        tables = [] if proof is None else proof.compared
        documents = [] if proof is None else proof.documents
        return {
            "tables": 0 if proof is None else len(proof.unproven),
            "columns": sum(len(table.columns_not_compared) for table in tables),
            "rows": sum(table.rows_not_compared for table in tables),
            "document types": sum(1 for document in documents if document.reason and not document.empty),
            "documents": sum(document.withdrawn for document in documents),
            "fields": sum(len(document.left_out) for document in documents),
        }

    def _compared_nothing(self) -> bool:
        """Check whether a sample left nothing to compare."""
        if self.sample is None:
            return False
        tables = [] if self.proof is None else self.proof.compared
        rows = sum(table.source_rows + table.silver_rows for table in tables)
        return rows + sum(document.compared for document in self.documents) == 0


def compare(
    pipeline: Pipeline,
    session: Callable[[], AbstractContextManager[SparkSession]],
    output: Output,
    *,
    tables: Sequence[str] | None,
    documents: Sequence[str],
    load: Load | None = None,
    report: Callable[[Compared], None] = lambda _: None,
) -> Verified:
    """Compare tables (None: no table; empty: all tables), then documents.

    Args:
        pipeline: the pipeline.
        session: returns the session, at its first use.
        output: takes progress.
        tables: names or patterns of tables.
        documents: names of documents.
        load: limits of the server's load, and the compared share of rows.
        report: receives each result at once.

    Raises:
        ConfigurationError: ``pattern-matches-nothing``: no table is left to compare.
        SmeltError: no such table or document; the server or the lake cannot be reached.
    """
    proof: Proof | None = None
    stored = _stored(pipeline)
    sample = None if load is None else load.sample
    if tables is not None:
        from deltasmelt.pipelines.proof.against_source import prove  # noqa: PLC0415 - a document alone needs none of it

        proof = prove(
            pipeline,
            session,
            output,
            names=tables,
            documents=[document for name in documents for document in documents_named(pipeline, name)],
            load=load,
            report=report,
        )
        report(proof)
    compared: list[Verification] = []
    if documents:
        with session() as spark:
            compared = _documents(spark, pipeline, documents, sample=sample, output=output, report=report)
    compared_names = {f"gold.{name}" for name in documents}
    if proof is not None:
        compared_names |= {f"silver.{comparison.name}" for comparison in proof.compared}
        compared_names |= {f"silver.{unproven.name}" for unproven in proof.unproven}
    return Verified(proof, compared, tuple(name for name in stored if name not in compared_names), sample)


def _stored(pipeline: Pipeline) -> list[str]:
    """Return the tables and documents of the newest cuts."""
    control = ControlTables(pipeline.lake_address())
    layers: tuple[Layer, ...] = ("silver", "gold")
    cuts = [(layer, control.latest_cut(layer)) for layer in layers]
    return [f"{layer}.{name}" for layer, cut in cuts if cut is not None for name in sorted(cut.tables)]


def documents_like(pipeline: Pipeline, name: str | None) -> list[str]:
    """Return the names of the documents that match a name or pattern; None matches all.

    Raises:
        ConfigurationError: no document matches, or a file is wrong.
    """
    return [document.name for document in documents_named(pipeline, name, matches=fnmatchcase)]


def _documents(
    spark: SparkSession,
    pipeline: Pipeline,
    names: Sequence[str],
    *,
    sample: float | None,
    output: Output,
    report: Callable[[Compared], None],
) -> list[Verification]:
    from deltasmelt.gold.verify.verify import verify  # noqa: PLC0415 - loads Spark

    lake = pipeline.lake_address()
    gold = open_gold(spark, pipeline, ControlTables(lake))
    results = []
    for name in names:
        with output.waiting(f"comparing gold.{name} with a full rebuild"):
            result = verify(spark, lake, gold.built(name), sample=sample)
        report(result)
        results.append(result)
    return results
