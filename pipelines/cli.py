"""The command `smelt`: parses, calls, and nothing else.

Each command imports what it needs when it runs. So ``smelt --help`` and ``smelt status`` start without Spark,
Great Expectations or the database driver. `pipelines.terminal` prints results and errors.
"""

from __future__ import annotations

import logging
import os
import sys
from enum import StrEnum
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipelines.sql_shell.row_format import RowFormat  # noqa: TC001 - typer looks at annotations
from pipelines.terminal import failures
from pipelines.terminal.interrupts import Terminated
from pipelines.terminal.output import Format, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bronze.lake.location import Layer
    from pipelines.settings import Pipeline

app = typer.Typer(
    name="smelt",
    help="Carry PostgreSQL's changes into Delta tables: raw records, row state, documents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

File = Annotated[Path, typer.Argument(metavar="FILE", help="The pipeline file.")]
OutputFormat = Annotated[Format, typer.Option("--output", help="Text for people, or JSON for programs.")]
UntilCaughtUp = Annotated[
    bool,
    typer.Option("--until-caught-up", help="Stop when what was there at the start is processed."),
]


class RebuiltLayer(StrEnum):
    """The layers that `smelt rebuild` can rebuild."""

    silver = "silver"
    gold = "gold"


# Typer brings its own copy of click and names only this class of its hierarchy: BadParameter is a UsageError,
# which is a ClickException.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER", "PGSERVICE")

_log: Path | None = None


@app.callback(invoke_without_command=True)
def smelt(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[  # noqa: ARG001 - taken out of the arguments by `main`, shown here
        bool,
        typer.Option("--debug", help="Show the traceback of an error; allowed anywhere."),
    ] = False,
) -> None:
    """Carry PostgreSQL's changes into Delta tables: raw records, row state, documents."""
    if version:
        typer.echo(f"deltasmelt {_version()}")
        raise typer.Exit


@app.command()
def demo(
    *,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds for which the shop makes changes.")] = 60.0,
    folder: Annotated[Path, typer.Option(help="Folder for the demo's lake and files.")] = Path("demo-lake"),
    dsn: Annotated[
        str | None,
        typer.Option(help="Connection string of your own server; its role must be able to create databases."),
    ] = None,
    rate: Annotated[float, typer.Option(min=0.1, help="The shop's transactions per second.")] = 150.0,
) -> None:
    """Run the whole pipeline on a demo shop. It uses an embedded PostgreSQL and needs no set-up."""
    from pipelines.demo.demo import run_demo

    _start("demo")
    run_demo(Output(), folder=folder, seconds=seconds, rate=rate, dsn=dsn)


@app.command()
def init(
    *,
    dsn: Annotated[
        str | None,
        typer.Option(help="Connection string; default: libpq's PGHOST, PGDATABASE, PGSERVICE …"),
    ] = None,
    out: Annotated[Path, typer.Option(help="Pipeline file to write; documents/ is made beside it.")] = Path(
        "pipeline.yml"
    ),
    schema: Annotated[
        list[str] | None, typer.Option(metavar="SCHEMA", help="Only tables of this schema; may be repeated.")
    ] = None,
) -> None:
    """Write a pipeline file and draft documents. They follow the source's foreign keys."""
    from pipelines.init.command import run_init

    if dsn is None and not any(name in os.environ for name in _LIBPQ):
        raise typer.BadParameter("no database is given: use --dsn postgresql://user@host:5432/database")
    _start("init")
    run_init(Output(), dsn=dsn, out=out, schemas=schema or [])


@app.command()
def check(
    file: File,
    *,
    offline: Annotated[bool, typer.Option("--offline", help="Check files and lake only.")] = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Report what would stop or degrade the pipeline, with remedies."""
    from pipelines.commands.check import show_check

    show_check(_load(file), Output(output), offline=offline)


@app.command()
def run(file: File, *, until_caught_up: UntilCaughtUp = False) -> None:
    """Run all stages: the reader (bronze), silver and gold."""
    _run(file, ("bronze", "silver", "gold"), "run", until_caught_up=until_caught_up)


@app.command()
def bronze(file: File, *, until_caught_up: UntilCaughtUp = False) -> None:
    """Run only the reader: from the server's WAL into bronze."""
    _run(file, ("bronze",), "bronze", until_caught_up=until_caught_up)


@app.command()
def silver(file: File, *, until_caught_up: UntilCaughtUp = False) -> None:
    """Run only silver: from bronze's raw records to row state."""
    _run(file, ("silver",), "silver", until_caught_up=until_caught_up)


@app.command()
def gold(file: File, *, until_caught_up: UntilCaughtUp = False) -> None:
    """Run only gold: from silver's row state to documents."""
    _run(file, ("gold",), "gold", until_caught_up=until_caught_up)


@app.command()
def status(
    file: File,
    *,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")] = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Show lag, slot health, tables, documents and open errors."""
    from pipelines.runtime.reader_process import without_pandas

    without_pandas()
    from pipelines.commands.status import show_status

    show_status(_open(file), Output(output), watch=watch)


@app.command()
def sql(
    file: File,
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="[SQL]", help="Spark SQL over bronze.*, silver.*, gold.*; without it, a shell."
        ),
    ] = None,
    *,
    script: Annotated[
        str | None, typer.Option("--file", "-f", metavar="SCRIPT", help="Run a file of statements.")
    ] = None,
    as_of: Annotated[str | None, typer.Option(metavar="LSN|TIME", help="Query an earlier state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Most rows to show as a table.")] = 1000,
    output: Annotated[
        RowFormat | None, typer.Option(help="A table of --limit rows, or a format of all rows.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="PATH", help="A new file for the rows; for parquet also a folder.")
    ] = None,
) -> None:
    """Query the lake by Spark SQL, all tables at one consistent cut.

    Without a statement: a shell on a terminal; from a pipe, its statements.

    \b
      smelt sql pipeline.yml
      smelt sql pipeline.yml "SELECT count(*) FROM silver.orders"
      smelt sql pipeline.yml -f report.sql --as-of 2026-01-31T12:00Z
      echo "SHOW TABLES IN gold" | smelt sql pipeline.yml
      smelt sql pipeline.yml "SELECT * FROM gold.customer" --to c.parquet
    """  # noqa: D301 - click keeps the lines after its mark
    from pipelines.commands.sql import Asked, run_sql

    if statement is not None and script is not None:
        raise typer.BadParameter("give a statement or --file, not both")
    run_sql(_open(file), Asked(statement, script, as_of, limit, output, to), Output())


@app.command()
def explain(
    file: File,
    document: Annotated[str | None, typer.Argument(help="Name of the document.")] = None,
    *,
    schema: Annotated[
        bool,
        typer.Option("--schema", help="Its JSON Schema; without a document, that of document files."),
    ] = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Show how changes reach a document: tables, columns, join paths."""
    from pipelines.commands.explain import show_document_schema, show_explanation, show_file_schema

    pipeline = _load(file)
    if document is None:
        if not schema:
            raise typer.BadParameter("name a document, or use --schema for the JSON Schema of document files")
        show_file_schema(Output(output))
    elif schema:
        show_document_schema(pipeline, document, Output(output))
    else:
        show_explanation(pipeline, document, Output(output))


@app.command()
def preview(
    file: File,
    document: Annotated[str, typer.Argument(help="Name of the document.")],
    key: Annotated[list[str], typer.Option("--key", help="Its key; repeat the option for a composite key.")],
) -> None:
    """Print one document as JSON, as silver's newest cut gives it."""
    from pipelines.commands.preview import run_preview

    run_preview(_open(file), document, key, Output())


@app.command()
def verify(
    file: File,
    *,
    document: Annotated[str | None, typer.Option(help="Only this document.")] = None,
    sample: Annotated[
        float | None, typer.Option(min=0.000001, max=1.0, help="Compare only this fraction of the keys.")
    ] = None,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Compare gold with a full rebuild. Prints the first differences at gold's recorded cut."""
    from pipelines.commands.verify import run_verify

    run_verify(_open(file), Output(output), document=document, sample=sample)


@app.command()
def quality(
    file: File,
    *,
    report: Annotated[Path | None, typer.Option(help="Write an HTML report to this file.")] = None,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Check data quality. Expectations come from the source's constraints and your suites."""
    from pipelines.commands.quality import run_quality_checks

    run_quality_checks(_open(file), Output(output), report=report)


@app.command()
def snapshot(
    file: File,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE...", help="Tables or patterns, e.g. public.order_*")
    ] = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="All tables of the pipeline.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the snapshots, or only request them.")] = True,
) -> None:
    """Resnapshot whole tables as of now. A reader may run meanwhile, or none."""
    from pipelines.runtime.reader_process import without_pandas

    without_pandas()
    from pipelines.commands.snapshot import run_snapshot

    run_snapshot(_load(file), tables or [], Output(), every=every, wait=wait, command="smelt snapshot")


@app.command()
def rebuild(
    file: File,
    layer: Annotated[RebuiltLayer, typer.Argument(help="silver (from bronze) or gold (from silver).")],
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="One table or document.")] = None,
) -> None:
    """Rebuild silver from bronze, or gold from silver. The server is not needed."""
    from pipelines.commands.rebuild import run_rebuild

    run_rebuild(_open(file), layer.value, name, Output())


@app.command()
def maintain(file: File, *, output: OutputFormat = Format.TEXT) -> None:
    """Compact, cluster and vacuum silver and gold. What lake.retention needs is kept."""
    from pipelines.commands.maintain import run_maintain

    run_maintain(_open(file), Output(output))


@app.command()
def drop(file: File) -> None:
    """Remove the slot and the publication; the lake is kept."""
    from pipelines.commands.drop import run_drop

    run_drop(_load(file), Output())


def main(arguments: Sequence[str] | None = None) -> None:
    """The console script, and the entry point of a job's task.

    Returns normally on success: a job runner that calls this function takes any SystemExit for a failure.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given or bool(os.environ.get("SMELT_DEBUG"))
    logging.getLogger().addHandler(logging.NullHandler())  # until there is a log file, print nothing
    code = 0
    try:
        result = app([word for word in given if word != "--debug"], prog_name="smelt", standalone_mode=False)
        code = result if isinstance(result, int) else 0
        if code == failures.INTERRUPTED:  # typer makes Ctrl-C a result
            failures.report(KeyboardInterrupt())
    except typer.Abort:
        code = failures.report(KeyboardInterrupt())
    except _CommandLineError as error:
        error.show()
        code = failures.USAGE
    except BrokenPipeError:  # whoever reads our output has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = failures.STOPPED
    except (Exception, KeyboardInterrupt, Terminated) as error:  # noqa: BLE001 - reported, all of them
        code = failures.report(error, debug=debug, log=_log)
    if code:
        sys.exit(code)


def _version() -> str:
    try:
        return metadata.version("deltasmelt")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"


def _run(file: Path, layers: Sequence[Layer], command: str, *, until_caught_up: bool) -> None:
    from pipelines.commands.run import run_layers

    pipeline = _open(file)
    run_layers(
        pipeline,
        Output(),
        layers=layers,
        until_caught_up=until_caught_up,
        command=f"smelt {command}",
    )


def _open(file: Path) -> Pipeline:
    """As `_load`; a lake of another format is refused."""
    from bronze.store.lake_format import require_format_of

    pipeline = _load(file)
    require_format_of(pipeline.lake_address())
    return pipeline


def _load(file: Path) -> Pipeline:
    from pipelines.settings import load_pipeline

    pipeline = load_pipeline(file)
    _start(pipeline.pipeline)
    return pipeline


def _start(pipeline: str) -> None:
    global _log  # noqa: PLW0603 - where the one command of this process logs to
    from pipelines.terminal.logs import start_logging

    _log = start_logging(pipeline)


if __name__ == "__main__":
    main()
