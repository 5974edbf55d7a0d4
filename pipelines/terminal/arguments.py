"""Arguments and options of the commands, each with its help text and its completions for the shell."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from deltasmelt.pipelines.bounds import CONNECTIONS, RATE, SAMPLE
from deltasmelt.pipelines.terminal import completion
from deltasmelt.pipelines.terminal.output import Format, LogFormat


class RowFormat(StrEnum):
    """Formats of `smelt sql --output`."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    PARQUET = "parquet"


class Cloud(StrEnum):
    """Clouds with Databricks workspaces."""

    aws = "aws"
    azure = "azure"
    gcp = "gcp"


class RebuiltLayer(StrEnum):
    """Layers of `smelt rebuild`."""

    silver = "silver"
    gold = "gold"


File = Annotated[
    Path,
    typer.Argument(metavar="FILE", help="The pipeline file.", autocompletion=completion.pipeline_files),
]
OutputFormat = Annotated[
    Format,
    typer.Option("--output", metavar="text|json", help="Text for people, or JSON for programs."),
]
Document = Annotated[
    str,
    typer.Argument(metavar="DOCUMENT", help="Name of the document.", autocompletion=completion.documents),
]
OptionalDocument = Annotated[
    str | None,
    typer.Argument(metavar="DOCUMENT", help="Name of the document.", autocompletion=completion.documents),
]
Fresh = Annotated[
    bool,
    typer.Option("--fresh", help="Read silver at the log's head, ahead of its next cycle."),
]
UntilServersEnd = Annotated[
    bool,
    typer.Option("--until-caught-up", help="Exit after reaching the server's WAL position at start."),
]
ShopSeconds = Annotated[
    float, typer.Option(min=1, metavar="N", help="Shortest time in seconds for which the shop is open.")
]
DemoFolder = Annotated[
    Path, typer.Option(metavar="FOLDER", help="Folder for the lake, the report and the files.")
]
DemoDsn = Annotated[
    str | None,
    typer.Option(metavar="DSN", help="Your own server; its role must be able to create databases."),
]
ShopRate = Annotated[float, typer.Option(min=0.1, metavar="N", help="The shop's transactions per second.")]
SourceDsn = Annotated[
    str | None,
    typer.Option(metavar="DSN", help="Connection string; default: PGHOST, PGDATABASE, PGSERVICE …"),
]
NewFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Pipeline file to write, with a folder documents/ next to it. Default: pipeline.yml. With "
        "--databricks the bundle's folder; default: databricks/ next to FILE.",
    ),
]
Databricks = Annotated[
    Path | None,
    typer.Option(
        "--databricks",
        metavar="FILE",
        help="Write a Databricks bundle that runs this pipeline file.",
        autocompletion=completion.pipeline_files,
    ),
]
CloudName = Annotated[
    Cloud | None,
    typer.Option(
        "--cloud", metavar="aws|azure|gcp", help="Cloud of the workspace; default: that of lake.path."
    ),
]
CatalogName = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Catalog of Unity Catalog; default: lake.catalog, else main."),
]
Schemas = Annotated[
    list[str] | None, typer.Option(metavar="SCHEMA", help="Only tables of this schema; may be repeated.")
]
Offline = Annotated[
    bool, typer.Option("--offline", help=("Check files and lake without a connection to the source."))
]
UntilBronze = Annotated[
    bool, typer.Option("--until-caught-up", help="Exit after processing what bronze contained at start.")
]
UntilSilver = Annotated[
    bool, typer.Option("--until-caught-up", help="Exit after processing what silver contained at start.")
]
Http = Annotated[
    str | None,
    typer.Option(
        "--http",
        metavar="HOST:PORT",
        help="Serve a status page, metrics and probes at this address; needs a token if other machines can "
        "reach it.",
    ),
]
HttpTokenFile = Annotated[
    Path | None,
    typer.Option(
        "--http-token-file", metavar="FILE", help="The token for --http; default: SMELT_HTTP_TOKEN."
    ),
]
MetricsPort = Annotated[
    int | None,
    typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        metavar="PORT",
        help="Serve only Prometheus metrics, on this machine (127.0.0.1).",
    ),
]
LogLines = Annotated[
    LogFormat,
    typer.Option(
        "--log-format", metavar="text|json", help="Messages and smelt.log as text, or as JSON lines."
    ),
]
StatusSchema = Annotated[bool, typer.Option("--schema", help="Print the JSON Schema of --output json.")]
Watch = Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until Ctrl-C.")]
JsonSchema = Annotated[
    bool,
    typer.Option(
        "--schema",
        help=("Print the document's JSON Schema; without a document, the JSON Schema of document files."),
    ),
]
Key = Annotated[
    list[str],
    typer.Option(
        "--key", metavar="VALUE", help=("Key of the document; repeat the option for a composite key.")
    ),
]
SubjectKey = Annotated[
    list[str] | None,
    typer.Option(
        "--key",
        metavar="VALUE",
        help="Key of a row. Repeat the option for further columns of a composite key, in its order, and for "
        "further rows. `-` reads the values from standard input, one per line.",
    ),
]
Abandon = Annotated[
    bool,
    typer.Option(
        "--abandon",
        help="End the unfinished erasures of the table without their proof, for example if the keys of the "
        "call are lost. Give no --key.",
    ),
]
ForgottenTable = Annotated[
    str,
    typer.Argument(metavar="TABLE", help="The row's table.", autocompletion=completion.source_tables),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the files and rows to erase; change nothing.")]
OnlyDocument = Annotated[
    str | None,
    typer.Option(
        metavar="DOCUMENT",
        help="Compare this document, or the documents of a pattern ('*'). Tables are compared only with "
        "--table.",
        autocompletion=completion.documents,
    ),
]
ComparedTables = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TABLE",
        help="Compare this table, or the tables of a pattern; may be repeated. Documents are compared only "
        "with --document.",
        autocompletion=completion.source_tables,
    ),
]
Sample = Annotated[
    float | None,
    typer.Option(
        min=SAMPLE.least,
        max=SAMPLE.most,
        metavar="FRACTION",
        help="Compare this fraction of the keys, always the same keys.",
    ),
]
Repair = Annotated[
    bool,
    typer.Option(
        "--repair",
        help=("Resnapshot tables that differ from the source, update silver and gold, and compare again."),
    ),
]
MaxConnections = Annotated[
    int | None,
    typer.Option(
        min=CONNECTIONS.least,
        max=CONNECTIONS.most,
        metavar="N",
        help="Largest number of connections that read from the source; default: snapshot.workers.",
    ),
]
Rate = Annotated[
    str | None,
    typer.Option(metavar="SIZE", help="Limit of bytes per second read from the server, e.g. 20MB."),
]
ReportFile = Annotated[Path | None, typer.Option(metavar="FILE", help="Write the HTML report to this file.")]
Tables = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TABLE",
        help="Tables or patterns, e.g. public.order_*",
        autocompletion=completion.source_tables,
    ),
]
AllTables = Annotated[bool, typer.Option("--all", help="All tables of the pipeline.")]
Wait = Annotated[
    bool, typer.Option(help=("Wait until the snapshots are complete, or request them and return."))
]
Operations = Annotated[
    str | None,
    typer.Option(
        "--op",
        metavar="OP,OP…",
        help=f"Only these operations: {', '.join(completion.OPERATIONS)}; snapshot shows each row of a copy.",
        autocompletion=completion.operations,
    ),
]
Start = Annotated[
    str | None,
    typer.Option("--from", metavar="LSN|TIME", help="Begin with changes from here on; default: now."),
]
LayerToRebuild = Annotated[RebuiltLayer, typer.Argument(metavar="silver|gold", help="The layer to rebuild.")]
RebuiltName = Annotated[
    str | None,
    typer.Argument(
        metavar="NAME",
        help="One table of silver, or one document; default: all.",
        autocompletion=completion.rebuilt_names,
    ),
]
ErrorCode = Annotated[
    str | None,
    typer.Argument(
        metavar="CODE",
        help="The code in brackets after an error's message; default: list all codes.",
        autocompletion=completion.error_codes,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", help="Skip the confirmation.")]


def operations_of(text: str | None) -> frozenset[str] | None:
    """Parse a list of operations from the command line.

    Raises:
        BadParameter: a name is no operation.
    """
    if text is None:
        return None
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in completion.OPERATIONS:
            known = ", ".join(completion.OPERATIONS)
            raise typer.BadParameter(f"{name!r} is not one of {known}", param_hint="--op")
    return frozenset(names)


def bytes_of(size: str | None) -> int | None:
    """Parse a size from the command line.

    Raises:
        BadParameter: the text is no size.
    """
    if size is None:
        return None
    from deltasmelt.bronze.config.sections import parse_size  # noqa: PLC0415 - one command's alone

    try:
        rate = int(str(parse_size(size)))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--rate") from None
    if rate < RATE.least:
        raise typer.BadParameter("the value must be greater than zero", param_hint="--rate")
    return rate
