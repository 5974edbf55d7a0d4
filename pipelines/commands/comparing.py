"""The work of `smelt verify` without its printing: silver beside PostgreSQL, gold beside a full rebuild."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, TypeAlias

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.pipelines.commands.context import documents_named, open_gold
from deltasmelt.pipelines.spark.session import active_session

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

Compared: TypeAlias = "TableComparison | Unproven | ServerDocument | Proof | Verification"
"""A table, a table that could not be compared, a document as the server computed it, all tables together, or
a document beside a full rebuild."""


@dataclass(frozen=True, slots=True)
class Verified:
    """What came of both comparisons.

    Attributes:
        proof: of silver's tables; None where none was asked for.
        documents: compared with a full rebuild, one after the other.
        not_asked: tables and documents of the newest cuts that the arguments, or the pipeline file, left out.
        sample: the fraction of keys that was compared; None: all.
    """

    proof: Proof | None
    documents: list[Verification]
    not_asked: tuple[str, ...] = ()
    sample: float | None = None

    @property
    def holds(self) -> bool:
        """Whether all that was asked for could be compared, and is equal."""
        return not self.problems()

    def problems(self) -> list[str]:
        """What is not equal or was not compared, in words."""
        problems = []
        if self.proof is not None:
            wrong = [f"silver.{one.name}" for one in self.proof.compared if not one.equal]
            problems += [f"not equal to PostgreSQL: {', '.join(wrong)}"] if wrong else []
            left = [f"silver.{one.name}" for one in self.proof.unproven]
            problems += [f"not compared: {', '.join(left)}"] if left else []
            wrong = [f"gold.{one.name}" for one in self.proof.documents if one.wrong]
            problems += [f"documents not equal to PostgreSQL's: {', '.join(wrong)}"] if wrong else []
            asked = self.proof.documents
            if asked and not any(one.compared or one.empty for one in asked):
                problems.append("no document was compared with PostgreSQL's")
        unequal = [f"gold.{one.document}" for one in self.documents if not one.equal]
        problems += [f"not equal to a full rebuild: {', '.join(unequal)}"] if unequal else []
        if not problems and self._compared_nothing():
            problems.append("nothing was compared: the sample has no row and no document; take a larger one")
        return problems

    def left_out(self) -> dict[str, int]:
        """Return how much of what was asked for was not compared; each result says why."""
        proof = self.proof
        tables = [] if proof is None else proof.compared
        documents = [] if proof is None else proof.documents
        return {
            "tables": 0 if proof is None else len(proof.unproven),
            "columns": sum(len(one.columns_not_compared) for one in tables),
            "rows": sum(one.rows_not_compared for one in tables),
            "document types": sum(1 for one in documents if one.reason and not one.empty),
            "documents": sum(one.withdrawn for one in documents),
            "fields": sum(len(one.left_out) for one in documents),
        }

    def _compared_nothing(self) -> bool:
        """Check whether a sample left nothing to compare."""
        if self.sample is None:
            return False
        tables = [] if self.proof is None else self.proof.compared
        rows = sum(one.source_rows + one.silver_rows for one in tables)
        return rows + sum(one.compared for one in self.documents) == 0


def compare(
    pipeline: Pipeline,
    session: Callable[[], AbstractContextManager[SparkSession]],
    output: Output,
    *,
    tables: Sequence[str] | None,
    documents: Sequence[str],
    load: Load | None = None,
    tell: Callable[[Compared], None] = lambda _: None,
) -> Verified:
    """Compare tables, none where they are None and all where they are empty, then documents.

    Args:
        pipeline: the pipeline.
        session: gives a session, when it is first needed.
        output: takes progress.
        tables: names or patterns.
        documents: names.
        load: how much of the server it may take, and how much of either is compared.
        tell: is told each result at once.

    Raises:
        ConfigurationError: ``pattern-matches-nothing``: there is no table to compare.
        SmeltError: no such table or document; the server or the lake cannot be reached.
    """
    proof: Proof | None = None
    stored = _stored(pipeline)
    sample = None if load is None else load.sample
    if tables is not None:
        from deltasmelt.pipelines.proof.against_source import prove  # noqa: PLC0415 - a document alone needs none of it

        given = active_session()
        proof = prove(
            pipeline,
            session,
            output,
            names=tables,
            documents=[one for name in documents for one in documents_named(pipeline, name)],
            load=load,
            tell=tell,
            given=given,
        )
        tell(proof)
    compared: list[Verification] = []
    if documents:
        with session() as spark:
            compared = _documents(spark, pipeline, documents, sample=sample, output=output, tell=tell)
    asked = {f"gold.{name}" for name in documents}
    if proof is not None:
        asked |= {f"silver.{one.name}" for one in proof.compared}
        asked |= {f"silver.{one.name}" for one in proof.unproven}
    return Verified(proof, compared, tuple(name for name in stored if name not in asked), sample)


def _stored(pipeline: Pipeline) -> list[str]:
    """Return the tables and documents of the newest cuts."""
    control = ControlTables(pipeline.lake_address())
    layers: tuple[Layer, ...] = ("silver", "gold")
    cuts = [(layer, control.latest_cut(layer)) for layer in layers]
    return [f"{layer}.{name}" for layer, cut in cuts if cut is not None for name in sorted(cut.tables)]


def documents_like(pipeline: Pipeline, name: str | None) -> list[str]:
    """The names of documents that a name or pattern means; None means all.

    Raises:
        ConfigurationError: there is none of that name or pattern, or a file is wrong.
    """
    return [found.name for found in documents_named(pipeline, name, matches=fnmatchcase)]


def _documents(
    spark: SparkSession,
    pipeline: Pipeline,
    names: Sequence[str],
    *,
    sample: float | None,
    output: Output,
    tell: Callable[[Compared], None],
) -> list[Verification]:
    from deltasmelt.gold.verify.verify import verify  # noqa: PLC0415 - loads Spark

    lake = pipeline.lake_address()
    gold = open_gold(spark, pipeline, ControlTables(lake))
    results = []
    for name in names:
        with output.waiting(f"comparing gold.{name} with a full rebuild"):
            result = verify(spark, lake, gold.built(name), sample=sample)
        tell(result)
        results.append(result)
    return results
