"""`smelt verify`: compare silver with PostgreSQL, and gold with a full rebuild.

`smelt verify --repair` also resnapshots unequal tables, and carries them to silver and gold.

A resnapshot replaces a table's rows in one cut, also rows without a counterpart, while the stream continues.
If a pipeline runs, the pipeline's stages carry the rows on; otherwise this process runs the stages.

For a table with deleted rows or versions, a resnapshot ends the rows missing at the source and adds the
different rows. A resnapshot cannot decide between two rows of one key: the remedy for such a table is `smelt
rebuild FILE silver TABLE`, as far back as bronze reaches.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import counted, seconds_text
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.commands.comparing import Verified, compare, documents_like
from deltasmelt.pipelines.commands.context import require_lake, spark_for
from deltasmelt.pipelines.commands.run import run_layers
from deltasmelt.pipelines.commands.snapshot import run_snapshot
from deltasmelt.pipelines.terminal.failures import TABLES_STOPPED, Failure
from deltasmelt.pipelines.terminal.output import ERROR, GOOD, WARNING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.gold.verify.verify import Difference, Verification
    from deltasmelt.pipelines.commands.comparing import Compared
    from deltasmelt.pipelines.proof.against_source import Proof
    from deltasmelt.pipelines.proof.documents import ServerDocument
    from deltasmelt.pipelines.proof.load import Load
    from deltasmelt.pipelines.proof.sides import Unproven
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output
    from deltasmelt.silver.verify.compare import TableComparison, WrongRow


def repair(pipeline: Pipeline, tables: Sequence[TableName], output: Output, *, command: str) -> None:
    """Resnapshot tables and carry them to silver and gold; `command` names the command for the lake's lock.

    Raises:
        SmeltError: the server or the lake cannot be reached.
        Failure: some table cannot be resnapshotted.
    """
    # What is between double quotes means itself and is no pattern.
    names = [table.quoted for table in tables]
    run_snapshot(pipeline, names, output, all_tables=False, wait=True, command=command)
    layers: tuple[Layer, ...] = ("silver", "gold") if pipeline.gold.documents else ("silver",)
    for layer in layers:
        try:
            run_layers(pipeline, output, layers=[layer], until_caught_up=True, command=command)
        except Failure as failure:
            if failure.exit_code != TABLES_STOPPED:
                raise
            output.report(str(failure))  # others may stand still; these are compared once more
        except DefiniteError as error:
            if error.code != "already-running":
                raise
            output.report(f"the running pipeline updates {', '.join(map(str, tables))} in {layer}")


_SHOWN: Final = 5
"""Largest number of unequal documents in the output."""
_NAMED: Final = 10
"""Largest number of tables and documents in one line."""


def run_verify(
    pipeline: Pipeline,
    output: Output,
    *,
    tables: Sequence[str] = (),
    document: str | None = None,
    load: Load | None = None,
    repairs: bool = False,
) -> None:
    """Compare silver with the source, and gold with a full rebuild at its recorded cut; print differences.

    Args:
        pipeline: the pipeline.
        output: takes results and progress.
        tables: tables or patterns to compare; with tables, documents are compared only by name.
        document: name or pattern of documents; with a document, tables are compared only by name.
        load: limits of the server's load, and the compared share of both sides.
        repairs: resnapshot unequal tables, and compare these tables once more.

    Raises:
        SmeltError: no such table or document; the server or the lake cannot be reached.
        Failure: something is unequal, or could not be compared.
    """
    names = documents_like(pipeline, document) if document is not None or not tables else []
    require_lake(pipeline)
    first = _compare(pipeline, output, tables if tables or document is None else None, names, load)
    if repairs and first.proof is not None and (unequal := first.proof.wrong_tables()):
        _repair(pipeline, unequal, output)
        # The second comparison covers all rows, also after a sample: the snapshots replaced all rows.
        second = _compare(
            pipeline,
            output,
            [table.quoted for table in unequal],
            sorted(
                {verification.document for verification in first.documents if not verification.equal}
                | {result.name for result in first.proof.documents if result.differing}
            ),
            None if load is None else replace(load, sample=None),
        )
        first = _together(first, second)
    if output.json:
        output.value(_plain(first))
    else:
        _print_left_out(first, output)
    if problems := first.problems():
        raise Failure("; ".join(problems))


def _compare(
    pipeline: Pipeline,
    output: Output,
    tables: Sequence[str] | None,
    documents: Sequence[str],
    load: Load | None,
) -> Verified:
    """Compare, and print each result."""
    sample = None if load is None else load.sample

    def report(result: Compared) -> None:
        if not output.json:
            _print(result, output, sample)

    with ExitStack() as stack:
        open_sessions: list[SparkSession] = []

        @contextmanager
        def session() -> Iterator[SparkSession]:
            """Return one session for both parts, started at the first use."""
            if not open_sessions:
                open_sessions.append(stack.enter_context(spark_for(pipeline, output)))
            yield open_sessions[0]

        return compare(
            pipeline, session, output, tables=tables, documents=documents, load=load, report=report
        )


def _together(first: Verified, second: Verified) -> Verified:
    """Return the results with the second comparison of unequal parts in the place of the first."""
    proof = first.proof
    if proof is not None and second.proof is not None:
        names = {comparison.name for comparison in second.proof.compared} | {
            comparison.name for comparison in second.proof.unproven
        }
        equal = [comparison for comparison in proof.compared if comparison.name not in names]
        unproven = [comparison for comparison in proof.unproven if comparison.name not in names]
        compared_names = {document.name for document in second.proof.documents}
        proof = replace(
            proof,
            compared=equal + second.proof.compared,
            unproven=unproven + second.proof.unproven,
            documents=[document for document in proof.documents if document.name not in compared_names]
            + second.proof.documents,
        )
    names = {verification.document for verification in second.documents}
    documents = [
        verification for verification in first.documents if verification.document not in names
    ] + second.documents
    return replace(first, proof=proof, documents=documents)


def _repair(pipeline: Pipeline, tables: Sequence[TableName], output: Output) -> None:

    repair(pipeline, tables, output, command="smelt verify --repair")
    output.report(f"resnapshotted from the source: {', '.join(map(str, tables))}")


def _plain(results: Verified) -> dict[str, object]:
    compared = () if results.proof is None else results.proof.compared
    unproven = () if results.proof is None else results.proof.unproven
    return {
        "tables": [
            {
                **asdict(comparison),
                "lsn": str(Lsn(comparison.lsn)),
                "equal": comparison.equal,
            }
            for comparison in compared
        ],
        "not_compared": [asdict(comparison) for comparison in unproven],
        "documents_at_source": [
            {
                "document": document.name,
                "lsn": str(document.lsn),
                "compared": document.compared,
                "not_compared": document.reason,
                "fields_not_compared": list(document.left_out),
                "values_not_held": document.lost,
                "equal": None if document.reason and not document.differing else not document.differing,
                "wrong": [asdict(difference) for difference in document.differing[:_SHOWN]],
            }
            for document in (() if results.proof is None else results.proof.documents)
        ],
        "documents": [
            {
                **asdict(verification),
                "commit_lsn": str(Lsn(verification.commit_lsn)),
                "equal": verification.equal,
            }
            for verification in results.documents
        ],
        "left_out": results.left_out(),
        "not_asked": list(results.not_asked),
    }


def _print_left_out(results: Verified, output: Output) -> None:
    """Print how much was not compared."""
    # Otherwise a reader may take the lines above for the whole.
    counts = [counted(times, name.removesuffix("s")) for name, times in results.left_out().items() if times]
    if counts:
        output.line(f"not compared, see the lines above: {', '.join(counts)}", style=WARNING)
    if results.not_asked:
        names = ", ".join(results.not_asked[:_NAMED])
        unnamed = len(results.not_asked) - _NAMED
        output.line(f"not selected: {names}{f' and {unnamed:,} more' if unnamed > 0 else ''}")


def _print(result: Compared, output: Output, sample: float | None) -> None:
    from deltasmelt.gold.verify.verify import Verification  # noqa: PLC0415 - loads Spark
    from deltasmelt.pipelines.proof.against_source import Proof  # noqa: PLC0415 - likewise
    from deltasmelt.pipelines.proof.documents import ServerDocument  # noqa: PLC0415 - likewise

    if isinstance(result, Verification):
        _print_document(result, output, sample)
    elif isinstance(result, ServerDocument):
        _print_server_document(result, output)
    elif isinstance(result, Proof):
        _print_proof(result, output, sample)
    else:
        _print_table(result, output, sample)


def _print_proof(proof: Proof, output: Output, sample: float | None) -> None:
    if proof.compared:
        rows = sum(comparison.source_rows for comparison in proof.compared)
        share = "" if sample is None else f", a sample of {sample:g}"
        output.report(f"{counted(rows, 'row')} of the source read in {seconds_text(proof.seconds)}{share}")


def _print_table(result: TableComparison | Unproven, output: Output, sample: float | None) -> None:
    from deltasmelt.pipelines.proof.sides import Unproven  # noqa: PLC0415 - as above
    from deltasmelt.silver.schema.catalog import HISTORY_SUFFIX  # noqa: PLC0415
    from deltasmelt.silver.verify.rows import KINDS  # noqa: PLC0415

    if isinstance(result, Unproven):
        output.line(f"silver.{result.name}: not compared: {result.reason}", style=WARNING)
        return
    at = f"as of {Lsn(result.lsn)}"
    scope = f" of a sample of {sample:g}" if result.sampled else ""
    if result.equal:
        rows = counted(result.silver_rows, "row")
        output.line(f"silver.{result.name}: equal to PostgreSQL {at}; {rows}{scope}", style=GOOD)
        _print_uncompared(result, output)
        return
    counts = f"{counted(result.source_rows, 'row')} at the source{scope}, {result.silver_rows:,} in silver"
    output.line(f"silver.{result.name}: not equal to PostgreSQL {at}; {counts}", style=ERROR)
    for kind, count in result.counts.items():
        output.line(f"  {counted(count, 'row')}: {KINDS[kind]}")
    for row in result.first:
        _print_row(row, KINDS[row.kind], output)
    if sum(result.counts.values()) > len(result.first):
        output.line("  …")
    rebuilds = f"smelt rebuild FILE silver {result.name.removesuffix(HISTORY_SUFFIX)}"
    retakes = f"smelt verify FILE --table {result.table} --repair"
    output.line(f"  remedy: {rebuilds if 'versions' in result.counts else retakes}")
    _print_uncompared(result, output)


def _print_uncompared(result: TableComparison, output: Output) -> None:
    """Print the columns and rows of a table, or of its source, without a comparison."""
    from deltasmelt.silver.schema.catalog import HISTORY_SUFFIX  # noqa: PLC0415 - loads Spark

    reasons = []
    if result.columns_not_compared:
        reasons.append(f"column {', '.join(result.columns_not_compared)}: the source has no such column")
    if result.rows_not_compared:
        noun = "ended version" if result.name.endswith(HISTORY_SUFFIX) else "deleted row"
        count = counted(result.rows_not_compared, noun)
        reasons.append(f"{count}, which only silver has")
    if result.rows_elsewhere:
        reasons.append(result.rows_elsewhere)
    for reason in reasons:
        output.line(f"  not compared: {reason}", style=WARNING)


def _print_row(row: WrongRow, text: str, output: Output) -> None:
    output.line(f"  {row.key} {text}")
    for cell in row.cells:
        source, silver = (("NULL" if value is None else value) for value in (cell.source, cell.silver))
        output.line(f"    {cell.column}: {source} at the source, {silver} in silver")


def _print_server_document(document: ServerDocument, output: Output) -> None:
    from deltasmelt.gold.verify.against_source import KINDS  # noqa: PLC0415 - loads Spark

    if document.reason:
        text = f"gold.{document.name}: not compared with PostgreSQL's documents: {document.reason}"
        output.line(text, style=WARNING)
        return
    text = f"PostgreSQL's documents as of {document.lsn}; a sample of {document.compared:,}"
    if document.differing:
        output.line(f"gold.{document.name}: not equal to {text}", style=ERROR)
        output.line(
            f"  {counted(len(document.differing), 'document')} from silver's rows not equal to the server's "
            "documents"
        )
        for difference in document.differing[:_SHOWN]:
            place = _place(difference.difference, "PostgreSQL")
            output.line(f"  {difference.key} {KINDS[difference.kind]}{place}")
        if document.lost:
            output.line(f"  a possible cause: values that silver's types cannot hold: {document.lost}")
        output.line(
            "  remedy: compare silver first (the lines above); if silver is equal, report this as a defect"
        )
    else:
        output.line(f"gold.{document.name}: equal to {text}", style=GOOD)
    if document.withdrawn:
        text = (
            f"{counted(document.withdrawn, 'document')} with differences, from values that silver's types "
            f"cannot hold: {document.lost}"
        )
        output.line(f"  not compared with PostgreSQL: {text}", style=WARNING)
    for reason in document.left_out:
        output.line(f"  not compared with PostgreSQL: {reason}", style=WARNING)


def _print_document(result: Verification, output: Output, sample: float | None) -> None:
    from deltasmelt.gold.verify.verify import KINDS  # noqa: PLC0415 - loads Spark

    scope = "" if sample is None else f" (a sample of {sample:g})"
    compared = f"{counted(result.compared, 'document')} compared{scope}, version {result.version}"
    at = f"as of {Lsn(result.commit_lsn)}"
    if result.equal:
        output.line(f"gold.{result.document}: equal to a full rebuild {at}; {compared}", style=GOOD)
        return
    output.line(f"gold.{result.document}: not equal to a full rebuild {at}; {compared}", style=ERROR)
    for kind, count in result.counts.items():
        output.line(f"  {counted(count, 'document')}: {KINDS[kind]}")
    for difference in result.first:
        output.line(f"  {difference.key} {KINDS[difference.kind]}{_place(difference.difference, 'rebuilt')}")
    if sum(result.counts.values()) > len(result.first):
        output.line("  …")
    output.line("  remedy: smelt rebuild FILE gold " + result.document)


def _place(difference: Difference | None, label: str) -> str:
    if difference is None:
        return ""
    stored = "nothing" if difference.stored is None else difference.stored
    rebuilt = "nothing" if difference.rebuilt is None else difference.rebuilt
    place = difference.path or "the order of its fields"
    return f" at {place}\n    in gold:  {stored}\n    {label}: {' ' * max(0, 8 - len(label))}{rebuilt}"
