"""`smelt verify`: silver beside PostgreSQL, and gold beside a full rebuild."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from bronze.lake.control_tables import ControlTables
from bronze.lsn import Lsn
from pipelines.commands.context import documents_named, load_documents_of, open_gold, require_lake, spark_for
from pipelines.spark.session import active_session
from pipelines.terminal.failures import Failure
from pipelines.terminal.output import seconds_text
from pipelines.terminal.waiting import ERROR, GOOD, WARNING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from pyspark.sql import SparkSession

    from bronze.identifiers import TableName
    from gold.verify.verify import Verification, Wrong
    from pipelines.proof.against_source import Proof
    from pipelines.proof.load import Load
    from pipelines.proof.sides import Unproven
    from pipelines.settings import Pipeline
    from pipelines.terminal.output import Output
    from silver.verify.compare import TableComparison, WrongRow


def run_verify(
    pipeline: Pipeline,
    output: Output,
    *,
    tables: Sequence[str] = (),
    document: str | None = None,
    load: Load | None = None,
    repairs: bool = False,
) -> None:
    """Compare silver with the source, and gold with a full rebuild at its recorded cut; print what differs.

    Args:
        pipeline: the pipeline.
        output: takes results and progress.
        tables: tables or patterns to compare; with them, documents are compared only where one is named.
        document: name or pattern of documents; with it, tables are compared only where some are named.
        load: how much of the server it may take, and how much of either is compared.
        repairs: take tables that differ again, and compare these once more.

    Raises:
        SmeltError: no such table or document; the server or the lake cannot be reached.
        Failure: something is not as it should be, or could not be compared.
    """
    names = _documents(pipeline, document) if document is not None or not tables else []
    require_lake(pipeline)
    found = _look(pipeline, output, tables if tables or document is None else None, names, load)
    if repairs and found.proof is not None and (wrong := found.proof.wrong_tables()):
        _repair(pipeline, wrong, output)
        # All of their rows, also after a sample: all were taken.
        again = _look(
            pipeline,
            output,
            [table.quoted for table in wrong],
            [one.document for one in found.documents if not one.equal],
            None if load is None else replace(load, sample=None),
        )
        found = _together(found, again)
    if output.json:
        output.value(_plain(found))
    if problems := _problems(found):
        raise Failure("; ".join(problems))


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of both parts; no proof where no table was asked for."""

    proof: Proof | None
    documents: list[Verification]


def _look(
    pipeline: Pipeline,
    output: Output,
    tables: Sequence[str] | None,
    documents: Sequence[str],
    load: Load | None,
) -> _Found:
    """Compare tables, none where they are None, and documents."""
    proof: Proof | None = None
    compared: list[Verification] = []
    with ExitStack() as stack:
        held: list[SparkSession] = []

        @contextmanager
        def session() -> Iterator[SparkSession]:
            """One session for both parts, started when the first needs it."""
            if not held:
                held.append(stack.enter_context(spark_for(pipeline, output)))
            yield held[0]

        if tables is not None:
            proof = _prove(pipeline, session, output, tables, load)
        if documents:
            sample = None if load is None else load.sample
            with session() as spark:
                compared = verify_documents(spark, pipeline, list(documents), sample=sample, output=output)
    return _Found(proof, compared)


def _together(first: _Found, again: _Found) -> _Found:
    """The second look at what was wrong, in the place of the first."""
    proof = first.proof
    if proof is not None and again.proof is not None:
        names = {one.name for one in again.proof.compared} | {one.name for one in again.proof.unproven}
        kept = [one for one in proof.compared if one.name not in names]
        left = [one for one in proof.unproven if one.name not in names]
        proof = replace(proof, compared=kept + again.proof.compared, unproven=left + again.proof.unproven)
    names = {one.document for one in again.documents}
    documents = [one for one in first.documents if one.document not in names] + again.documents
    return _Found(proof, documents)


def _problems(found: _Found) -> list[str]:
    problems = []
    if found.proof is not None:
        wrong = [f"silver.{one.name}" for one in found.proof.compared if not one.equal]
        problems += [f"not equal to PostgreSQL: {', '.join(wrong)}"] if wrong else []
        left = [f"silver.{one.name}" for one in found.proof.unproven]
        problems += [f"not compared: {', '.join(left)}"] if left else []
    unequal = [f"gold.{one.document}" for one in found.documents if not one.equal]
    problems += [f"not equal to a full rebuild: {', '.join(unequal)}"] if unequal else []
    return problems


def _documents(pipeline: Pipeline, name: str | None) -> list[str]:
    if name is not None and "*" in name:
        known = [found.name for found in load_documents_of(pipeline)]
        return [one for one in known if fnmatchcase(one, name)]
    return [found.name for found in documents_named(pipeline, name)]


def _prove(
    pipeline: Pipeline,
    session: Callable[[], AbstractContextManager[SparkSession]],
    output: Output,
    tables: Sequence[str],
    load: Load | None,
) -> Proof:
    from pipelines.proof.against_source import prove  # noqa: PLC0415 - a document alone needs none of it

    def tell(found: TableComparison | Unproven) -> None:
        if not output.json:
            _say_table(found, output)

    proof = prove(pipeline, session, output, names=tables, load=load, tell=tell, given=active_session())
    if proof.compared and not output.json:
        rows = sum(one.source_rows for one in proof.compared)
        said = "" if load is None or load.sample is None else f", a sample of {load.sample:g}"
        output.say(f"{rows:,} rows of the source were read in {seconds_text(proof.seconds)}{said}")
    return proof


def _repair(pipeline: Pipeline, tables: Sequence[TableName], output: Output) -> None:
    from pipelines.commands.repair import repair  # noqa: PLC0415 - as above

    repair(pipeline, tables, output, command="smelt verify --repair")
    output.say(f"taken from the source again: {', '.join(map(str, tables))}")


def verify_documents(
    spark: SparkSession, pipeline: Pipeline, names: list[str], *, sample: float | None, output: Output
) -> list[Verification]:
    """Compare documents with a full rebuild one after the other, and print each result as text."""
    from gold.verify.verify import verify  # noqa: PLC0415 - loads Spark

    lake = pipeline.lake_address()
    gold = open_gold(spark, pipeline, ControlTables(lake))
    results = []
    for name in names:
        with output.waiting(f"comparing gold.{name} with a full rebuild"):
            result = verify(spark, lake, gold.built(name), sample=sample)
        if not output.json:
            _say(result, output, sample)
        results.append(result)
    return results


def _plain(found: _Found) -> dict[str, object]:
    compared = () if found.proof is None else found.proof.compared
    unproven = () if found.proof is None else found.proof.unproven
    return {
        "tables": [
            {
                **asdict(one),
                "lsn": str(Lsn(one.lsn)),
                "equal": one.equal,
            }
            for one in compared
        ],
        "not_compared": [asdict(one) for one in unproven],
        "documents": [
            {**asdict(one), "commit_lsn": str(Lsn(one.commit_lsn)), "equal": one.equal}
            for one in found.documents
        ],
    }


def _say_table(found: TableComparison | Unproven, output: Output) -> None:
    from pipelines.proof.sides import Unproven  # noqa: PLC0415 - as above
    from silver.schema.catalog import HISTORY_SUFFIX  # noqa: PLC0415
    from silver.verify.rows import KINDS  # noqa: PLC0415

    if isinstance(found, Unproven):
        output.line(f"silver.{found.name}: not compared: {found.reason}", style=WARNING)
        return
    at = f"as of {Lsn(found.lsn)}"
    if found.equal:
        rows = f"{found.silver_rows:,} {'row' if found.silver_rows == 1 else 'rows'}"
        output.line(f"silver.{found.name}: equal to PostgreSQL {at}; {rows}", style=GOOD)
        return
    counts = f"{found.source_rows:,} rows at the source, {found.silver_rows:,} in silver"
    output.line(f"silver.{found.name}: not equal to PostgreSQL {at}; {counts}", style=ERROR)
    for kind, count in found.counts.items():
        output.line(f"  {count:,} {'row' if count == 1 else 'rows'}: {KINDS[kind]}")
    for wrong in found.first:
        _say_row(wrong, KINDS[wrong.kind], output)
    if sum(found.counts.values()) > len(found.first):
        output.line("  …")
    rebuilds = f"smelt rebuild FILE silver {found.name.removesuffix(HISTORY_SUFFIX)}"
    retakes = f"smelt verify FILE --table {found.table} --repair"
    output.line(f"  remedy: {rebuilds if 'versions' in found.counts else retakes}")


def _say_row(wrong: WrongRow, said: str, output: Output) -> None:
    output.line(f"  {wrong.key} {said}")
    for cell in wrong.cells:
        source, silver = (("NULL" if one is None else one) for one in (cell.source, cell.silver))
        output.line(f"    {cell.column}: {source} at the source, {silver} in silver")


def _say(result: Verification, output: Output, sample: float | None) -> None:
    from gold.verify.verify import KINDS  # noqa: PLC0415 - loads Spark

    of = "" if sample is None else f" (a sample of {sample:g})"
    compared = f"{result.compared:,} documents compared{of}, version {result.version}"
    at = f"as of {Lsn(result.commit_lsn)}"
    if result.equal:
        output.line(f"gold.{result.document}: equal to a full rebuild {at}; {compared}", style=GOOD)
        return
    output.line(f"gold.{result.document}: not equal to a full rebuild {at}; {compared}", style=ERROR)
    for kind, count in result.counts.items():
        output.line(f"  {count:,} {'document' if count == 1 else 'documents'}: {KINDS[kind]}")
    for wrong in result.first:
        output.line(f"  {wrong.key} {KINDS[wrong.kind]}{_where(wrong)}")
    if sum(result.counts.values()) > len(result.first):
        output.line("  …")
    output.line("  remedy: smelt rebuild FILE gold " + result.document)


def _where(wrong: Wrong) -> str:
    found = wrong.difference
    if found is None:
        return ""
    stored = "nothing" if found.stored is None else found.stored
    rebuilt = "nothing" if found.rebuilt is None else found.rebuilt
    return f" at {found.path or 'the order of its fields'}\n    in gold:  {stored}\n    rebuilt:  {rebuilt}"
