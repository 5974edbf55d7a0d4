"""The command `smelt`: parses, calls, and nothing else.

Each command imports what it needs when it runs. So ``smelt --help`` and ``smelt status`` start without Spark,
Great Expectations or the database driver. `pipelines.terminal` prints results and errors.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from contextlib import nullcontext
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from deltasmelt.bronze.memory import choose_arrow_allocator, use_one_arena
from deltasmelt.pipelines.terminal import arguments, failures
from deltasmelt.pipelines.terminal.arguments import (  # noqa: TC001 - Typer reads them
    Cloud,
    File,
    OutputFormat,
    RowFormat,
)
from deltasmelt.pipelines.terminal.help_layout import Command, CommandGroup
from deltasmelt.pipelines.terminal.interrupts import Terminated
from deltasmelt.pipelines.terminal.output import Format, LogFormat, Output

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.pipelines.monitor.access import ViewOptions
    from deltasmelt.pipelines.settings import Pipeline

app = typer.Typer(
    name="smelt",
    cls=CommandGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

# Typer brings its own copy of click and names only this class of its hierarchy: BadParameter is a UsageError,
# which is a ClickException.
_CommandLineError: Any = typer.BadParameter.__mro__[2]

_SQL_COMMENT = re.compile(r"--(?!\w[\w-]*(?:=|\Z)|\Z)")
"""A statement that begins with a comment; an option is a name, or has its value behind ``=``."""

_LIBPQ = ("PGHOST", "PGHOSTADDR", "PGDATABASE", "PGUSER", "PGSERVICE")

_log: Path | None = None


class _RunOptions(NamedTuple):
    """Options of `run` and of the single stages."""

    until_caught_up: bool
    http: str | None
    http_token_file: Path | None
    metrics_port: int | None
    log_format: LogFormat


@app.callback(invoke_without_command=True)
def smelt(
    *,
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[  # noqa: ARG001 - taken out of the arguments by `main`, shown here
        bool,
        typer.Option("--debug", help="Show the traceback of an error; also after the command."),
    ] = False,
) -> None:
    """Replicate PostgreSQL to Delta Lake by change data capture.

    bronze holds the raw changes of the write-ahead log, silver the current rows, gold nested documents. A
    pipeline file names the database, the tables and the lake.
    """
    if version:
        typer.echo(f"deltasmelt {_version()}")
        raise typer.Exit


@app.command()
def demo(
    *,
    seconds: arguments.ShopSeconds = 30.0,
    folder: arguments.DemoFolder = Path("demo-lake"),
    dsn: arguments.DemoDsn = None,
    rate: arguments.ShopRate = 20.0,
) -> None:
    """Run the whole pipeline on a demo shop; needs no database.

    It starts an embedded PostgreSQL and removes it at the end. The lake and the files stay in the folder.
    """
    from deltasmelt.pipelines.demo.demo import run_demo

    _start("demo")
    run_demo(Output(), folder=folder, seconds=seconds, rate=rate, dsn=dsn)


@app.command()
def init(
    *,
    dsn: arguments.SourceDsn = None,
    out: arguments.NewFile = None,
    schema: arguments.Schemas = None,
    databricks: arguments.Databricks = None,
    cloud: arguments.CloudName = None,
    catalog: arguments.CatalogName = None,
) -> None:
    """Write a pipeline file, and draft documents from foreign keys.

    It reads the catalog of the database and creates nothing in the database. It overwrites no file. With
    --databricks it writes a bundle for an existing pipeline file, without a connection to source or
    workspace.
    """
    if databricks is not None:
        _init_databricks(databricks, out, cloud, catalog, others={"--dsn": dsn, "--schema": schema})
        return
    for option, value in {"--cloud": cloud, "--catalog": catalog}.items():
        if value is not None:
            raise typer.BadParameter("this option needs --databricks FILE", param_hint=option)
    from deltasmelt.pipelines.init.command import run_init

    if dsn is None and not any(name in os.environ for name in _LIBPQ):
        raise typer.BadParameter("no database is given: use --dsn postgresql://user@host:5432/database")
    _start("init")
    run_init(Output(), dsn=dsn, out=out or Path("pipeline.yml"), schemas=schema or [])


@app.command()
def check(file: File, *, offline: arguments.Offline = False, output: OutputFormat = Format.TEXT) -> None:
    """Report problems and their fixes.

    It checks the server's settings, the role's privileges, slot, publication, tables, documents and
    quality suites. It changes nothing; to test an object store, it writes and removes a small object. Exit
    code 1 if an error would stop the pipeline.
    """
    from deltasmelt.pipelines.commands.check import show_check

    show_check(_load(file), Output(output), offline=offline)


@app.command()
def run(
    file: File,
    *,
    until_caught_up: arguments.UntilServersEnd = False,
    http: arguments.Http = None,
    http_token_file: arguments.HttpTokenFile = None,
    metrics_port: arguments.MetricsPort = None,
    log_format: arguments.LogLines = LogFormat.TEXT,
) -> None:
    """Run all stages: bronze (the WAL reader), silver and gold.

    It runs until it is stopped (Ctrl-C or SIGTERM). The next start resumes exactly where the lake ends.
    """
    options = _RunOptions(until_caught_up, http, http_token_file, metrics_port, log_format)
    _run(file, ("bronze", "silver", "gold"), "run", options)


@app.command()
def bronze(
    file: File,
    *,
    until_caught_up: arguments.UntilServersEnd = False,
    http: arguments.Http = None,
    http_token_file: arguments.HttpTokenFile = None,
    metrics_port: arguments.MetricsPort = None,
    log_format: arguments.LogLines = LogFormat.TEXT,
) -> None:
    """Run bronze alone: read the server's WAL; needs no Spark."""
    options = _RunOptions(until_caught_up, http, http_token_file, metrics_port, log_format)
    _run(file, ("bronze",), "bronze", options)


@app.command()
def silver(
    file: File,
    *,
    until_caught_up: arguments.UntilBronze = False,
    http: arguments.Http = None,
    http_token_file: arguments.HttpTokenFile = None,
    metrics_port: arguments.MetricsPort = None,
    log_format: arguments.LogLines = LogFormat.TEXT,
) -> None:
    """Run silver alone: merge bronze's changes into tables."""
    options = _RunOptions(until_caught_up, http, http_token_file, metrics_port, log_format)
    _run(file, ("silver",), "silver", options)


@app.command()
def gold(
    file: File,
    *,
    until_caught_up: arguments.UntilSilver = False,
    http: arguments.Http = None,
    http_token_file: arguments.HttpTokenFile = None,
    metrics_port: arguments.MetricsPort = None,
    log_format: arguments.LogLines = LogFormat.TEXT,
) -> None:
    """Run gold alone: build documents from silver's tables."""
    options = _RunOptions(until_caught_up, http, http_token_file, metrics_port, log_format)
    _run(file, ("gold",), "gold", options)


@app.command()
def status(
    file: File,
    *,
    watch: arguments.Watch = False,
    schema: arguments.StatusSchema = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Show lag, slot, tables, documents and open errors.

    It needs no Spark, and works while the server is down. If the lake cannot be read, it shows the state of
    the server, and ends with exit code 1.
    """
    from deltasmelt.pipelines.commands.status import show_status, show_status_schema

    if schema:
        show_status_schema(Output(output))
        return
    show_status(_load(file), Output(output), watch=watch)


@app.command()
def tail(
    file: File,
    tables: arguments.Tables = None,
    *,
    op: arguments.Operations = None,
    from_: arguments.Start = None,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Show changes as they arrive in bronze, until Ctrl-C.

    A line for each change: time, operation, table, key, and what changed. It needs no Spark. With --output
    json every change is an object on its own line; text shows at most 1,000 changes a second, and counts the
    others.
    """
    from deltasmelt.pipelines.commands.tail import TailOptions, run_tail

    options = TailOptions(tables or (), arguments.operations_of(op), from_)
    run_tail(_load(file), options, Output(output))


@app.command()
def sql(
    file: File,
    statement: Annotated[
        str | None,
        typer.Argument(
            metavar="SQL", help=("Spark SQL over bronze.*, silver.*, gold.*; without SQL, a shell.")
        ),
    ] = None,
    *,
    script: Annotated[
        str | None, typer.Option("--file", "-f", metavar="SCRIPT", help="Run a file of statements.")
    ] = None,
    as_of: Annotated[str | None, typer.Option(metavar="LSN|TIME", help="Query an earlier state.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="Largest number of rows to print as a table.")] = 1000,
    output: Annotated[
        RowFormat | None, typer.Option(help="A table of --limit rows, or a format of all rows.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(metavar="PATH", help="A new file for the rows; for parquet also a folder.")
    ] = None,
    fresh: arguments.Fresh = False,
) -> None:
    """Query the lake with Spark SQL, all tables at one consistent cut.

    Without a statement: a shell on a terminal; from a pipe, its statements.
    """
    from deltasmelt.pipelines.commands.sql import SqlOptions, run_sql

    if statement is not None and script is not None:
        raise typer.BadParameter("use a statement or --file, not both")
    run_sql(_open(file), SqlOptions(statement, script, as_of, limit, output, to, fresh), Output())


@app.command()
def explain(
    file: File,
    document: arguments.OptionalDocument = None,
    *,
    schema: arguments.JsonSchema = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Show the tables and join paths that a document is built from.

    For each table it shows the columns that the document reads, and how many documents the last run updated.
    """
    from deltasmelt.pipelines.commands.explain import show_document_schema, show_explanation, show_file_schema

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
    file: File, document: arguments.Document, key: arguments.Key, *, fresh: arguments.Fresh = False
) -> None:
    """Print one document as JSON, built now from silver.

    It builds the document from silver's newest cut and writes nothing. Use it to try a changed document
    file.
    """
    from deltasmelt.pipelines.commands.preview import run_preview

    run_preview(_open(file), document, key, Output(), fresh=fresh)


@app.command()
def verify(
    file: File,
    *,
    table: arguments.ComparedTables = None,
    document: arguments.OnlyDocument = None,
    sample: arguments.Sample = None,
    repair: arguments.Repair = False,
    max_connections: arguments.MaxConnections = None,
    rate: arguments.Rate = None,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Compare silver with PostgreSQL, and gold with a full rebuild.

    It compares silver's tables with the source row by row, by content, both at one LSN; a running pipeline
    continues. It compares documents with a full rebuild from silver at gold's newest cut. It prints the first
    differences, and changes nothing without --repair. Exit code 1 if anything differs.
    """
    from deltasmelt.pipelines.commands.verify import run_verify
    from deltasmelt.pipelines.proof.load import Load

    load = Load(connections=max_connections, rate=arguments.bytes_of(rate), sample=sample)
    run_verify(_open(file), Output(output), tables=table or (), document=document, load=load, repairs=repair)


@app.command()
def quality(file: File, *, report: arguments.ReportFile = None, output: OutputFormat = Format.TEXT) -> None:
    """Check data quality of bronze, silver and gold, all at one LSN.

    Expectations come from the source's constraints, from the guarantees of the lake, and from your suites.
    Exit code 1 if an expectation of severity error fails or no expectation exists, 3 if a stopped table is
    left out.
    """
    from deltasmelt.pipelines.commands.quality import run_quality_checks

    run_quality_checks(_open(file), Output(output), report=report)


@app.command()
def snapshot(
    file: File,
    tables: arguments.Tables = None,
    *,
    all_tables: arguments.AllTables = False,
    wait: arguments.Wait = True,
) -> None:
    """Copy whole tables again from the source; safe while running.

    A running reader takes the snapshots; without a running reader, this command does. Streaming continues.
    """
    from deltasmelt.pipelines.commands.snapshot import run_snapshot

    run_snapshot(
        _load(file), tables or [], Output(), all_tables=all_tables, wait=wait, command="smelt snapshot"
    )


@app.command()
def rebuild(file: File, layer: arguments.LayerToRebuild, name: arguments.RebuiltName = None) -> None:
    """Rebuild silver from bronze, or gold from silver.

    The server is not needed. The stages must be stopped; the reader may run.
    """
    from deltasmelt.pipelines.commands.rebuild import run_rebuild

    run_rebuild(_open(file), layer.value, name, Output())


@app.command()
def maintain(file: File, *, output: OutputFormat = Format.TEXT) -> None:
    """Compact, cluster and vacuum the tables of silver and gold.

    It keeps all versions that `lake.retention` needs. It may run in parallel with the pipeline.
    """
    from deltasmelt.pipelines.commands.maintain import run_maintain

    run_maintain(_open(file), Output(output))


@app.command()
def drop(file: File, *, yes: arguments.Yes = False) -> None:
    """Drop slot and publication at the source; keep the lake.

    On a terminal it requests confirmation; elsewhere it needs --yes. It keeps a publication that the pipeline
    did not create, and prints the SQL. It refuses a slot that does not belong to the pipeline.
    With manage: false it removes nothing, and prints all SQL.
    """
    from deltasmelt.pipelines.commands.drop import run_drop

    run_drop(_read(file), Output(), confirm=not yes)


@app.command()
def forget(
    file: File,
    table: arguments.ForgottenTable,
    key: arguments.SubjectKey = None,
    *,
    abandon: arguments.Abandon = False,
    dry_run: arguments.DryRun = False,
    output: OutputFormat = Format.TEXT,
) -> None:
    """Erase deleted rows of a table from every layer, and prove it.

    Delete the rows at the source and let all layers catch up first. All stages must be stopped. It rewrites
    the files that hold the rows, removes all former versions, and searches every file of the lake for the
    rows' values. A killed erasure is finished by the same command.
    """
    from deltasmelt.pipelines.commands.forget import run_abandon, run_forget

    if abandon == bool(key) or (abandon and dry_run):
        raise typer.BadParameter("give the keys of the rows, or --abandon alone", param_hint="--key")
    if key:
        run_forget(_open(file), table, key, Output(output), dry_run=dry_run)
    else:
        run_abandon(_open(file), table, Output(output))


@app.command("explain-error")
def explain_error(code: arguments.ErrorCode = None) -> None:
    """Show what an error means, its cause, and what to do."""
    from deltasmelt.pipelines.commands.explain import list_errors, show_error

    if code is None:
        list_errors(Output())
    elif (message := show_error(code, Output())) is not None:
        raise typer.BadParameter(message)


for _registered in app.registered_commands:
    _registered.cls = Command


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command: the console script, and the entry point of a job's task.

    Returns normally on success: a job runner that calls this function takes any SystemExit for a failure.
    """
    choose_arrow_allocator()
    command_line = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in command_line or bool(os.environ.get("SMELT_DEBUG"))
    logging.getLogger().addHandler(logging.NullHandler())  # until there is a log file, print nothing
    code = 0
    try:
        words = [word for word in command_line if word != "--debug"]
        if words[:1] == ["sql"]:  # a blank before a comment makes it no option
            words = [f" {word}" if _SQL_COMMENT.match(word) else word for word in words]
        result = app(words, prog_name="smelt", standalone_mode=False)
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


def _init_databricks(
    file: Path, out: Path | None, cloud: Cloud | None, catalog: str | None, *, others: dict[str, object]
) -> None:
    from deltasmelt.pipelines.init.bundle import CLOUDS
    from deltasmelt.pipelines.init.databricks import run_init_databricks

    for option, value in others.items():
        if value:
            raise typer.BadParameter("--databricks reads a pipeline file, not a database", param_hint=option)
    chosen = next((name for name in CLOUDS if name == cloud), None)
    run_init_databricks(Output(), file=file, out=out, cloud=chosen, catalog=catalog)


def _version() -> str:
    try:
        return metadata.version("deltasmelt")
    except metadata.PackageNotFoundError:  # run from a source tree that was never installed
        return "(not installed)"


def _run(file: Path, layers: Sequence[Layer], command: str, options: _RunOptions) -> None:
    from deltasmelt.pipelines.runtime.reader_supervision import loaded_reader
    from deltasmelt.pipelines.terminal import output

    if options.log_format is LogFormat.JSON:
        output.write_json()
    views = _views(options)
    with loaded_reader(needed="bronze" in layers) as reader:  # it loads while we do
        pipeline = _open(file)
        from deltasmelt.pipelines.commands.run import run_layers

        use_one_arena()
        run_layers(
            pipeline,
            Output(),
            layers=layers,
            until_caught_up=options.until_caught_up,
            command=f"smelt {command}",
            loaded_reader=reader,
            views=views,
        )


def _views(options: _RunOptions) -> ViewOptions | None:
    """Return the addresses of the status page and the metrics; None without either."""
    if options.http is None and options.http_token_file is not None:
        raise typer.BadParameter(
            "--http-token-file is for the page of --http: use both options", param_hint="--http"
        )
    if options.http is None and options.metrics_port is None:
        return None
    from deltasmelt.pipelines.monitor.access import ViewOptions, address_of

    try:
        http = None if options.http is None else address_of(options.http)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--http") from None
    return ViewOptions(http, options.metrics_port, options.http_token_file)


def _open(file: Path) -> Pipeline:
    """As `_load`; a lake of another format or pipeline is refused."""
    from deltasmelt.bronze.store.ownership import require_own_lake

    pipeline = _load(file)
    lake = pipeline.lake_address()
    # A folder answers at once, or the machine is ill.
    with nullcontext() if lake.folder is not None else Output().waiting(f"opening {lake.label}"):
        require_own_lake(lake, pipeline.pipeline)
    return pipeline


def _load(file: Path) -> Pipeline:
    """Read a pipeline file for a command that reads the lake; raise as `_read`."""
    from deltasmelt.pipelines.without_pandas import load_pyarrow

    load_pyarrow()
    return _read(file)


def _read(file: Path) -> Pipeline:
    from deltasmelt.pipelines.settings import load_pipeline

    pipeline = load_pipeline(file)

    def session() -> SparkSession:
        from deltasmelt.pipelines.spark.session_owner import table_session

        return table_session(pipeline)

    pipeline.lake_address().place.serve(session)
    _start(pipeline.pipeline)
    return pipeline


def _start(pipeline: str) -> None:
    global _log  # noqa: PLW0603 - where the one command of this process logs to
    from deltasmelt.pipelines.terminal.logs import start_logging

    _log = start_logging(pipeline)
