"""`smelt init`: write a pipeline file and drafts of documents from the source's catalog.

The command reads the source and writes files alone: no slot, no publication. `smelt check` accepts the
written files: tables unfit for a pipeline are excluded with their reason, and the documents name silver's
future columns.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, Final

from pydantic import SecretStr

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.figures import counted, listed
from deltasmelt.bronze.postgres.connection import connect, translated
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.gold.drafting.files import draft_text
from deltasmelt.gold.drafting.propose import propose
from deltasmelt.gold.language.json_schema import file_schema
from deltasmelt.pipelines.init.catalog import read_catalog
from deltasmelt.pipelines.init.file import (
    by_reason,
    left_out_text,
    pipeline_text,
    slot_name,
    without_password,
)
from deltasmelt.pipelines.init.new_files import refuse_existing, write_new

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import psycopg

    from deltasmelt.gold.drafting.draft import Draft, Proposal
    from deltasmelt.pipelines.init.catalog import SourceCatalog
    from deltasmelt.pipelines.terminal.output import Output

_DOCUMENTS: Final = "documents"
SCHEMA_FILE: Final = "document.schema.json"
"""Schema file next to the document files; with the schema, editors complete and check the documents."""
_LISTED: Final = 20
_JOINS: Final = 5


def run_init(output: Output, *, dsn: str | None, out: Path, schemas: Sequence[str] = ()) -> None:
    """Write the files and print their contents in short.

    Args:
        dsn: DSN of the source; None for libpq's environment.
        schemas: schemas to read; empty for all.

    Raises:
        SmeltError: the source cannot be read, has no tables, or a file exists already.
    """
    refuse_existing({out: ""})
    source = SourceSettings(dsn=None if dsn is None else SecretStr(dsn), slot="smelt", publication="smelt")
    with (
        output.waiting("reading the database's catalog"),
        connect(source, application_name="deltasmelt init", patience=source.timing.poll_answer) as connection,
        translated(source),
    ):
        catalog = read_catalog(connection, source, schemas)
        place, secrets = _connection(connection, dsn)
    proposal = propose(catalog.described)
    slot = slot_name(catalog.database, catalog.names_taken)
    documents = {out.parent / _DOCUMENTS / f"{draft.name}.yml": draft for draft in proposal.drafts}
    pipeline = pipeline_text(
        catalog,
        proposal,
        connection=place,
        secrets=list(secrets.items()),
        slot=slot,
        documents=_patterns(out.parent, documents),
    )
    files = {path: draft_text(draft, SCHEMA_FILE) for path, draft in documents.items()}
    schema = out.parent / _DOCUMENTS / SCHEMA_FILE
    if files and not schema.exists():  # another pipeline of this folder may have written the schema
        files[schema] = json.dumps(file_schema(), indent=1) + "\n"
    write_new({**files, out: pipeline})
    _print_written(output, out, catalog, address_of(source), slot)
    _print_documents(output, proposal, documents)
    _print_next_steps(output, out, proposal, secrets)


def _connection(
    connection: psycopg.Connection[Any], dsn: str | None
) -> tuple[list[tuple[str, str]], Mapping[str, str]]:
    """Return keys of `source` for this server, and the keys of its secrets with their variables."""
    if dsn is not None:
        stripped = without_password(dsn)
        return [("dsn", stripped.text)], stripped.secrets
    info = connection.info
    keys = {"host": info.host, "port": str(info.port), "database": info.dbname, "user": info.user}
    return [(key, value) for key, value in keys.items() if value], {}


def _patterns(folder: Path, documents: Mapping[Path, Draft]) -> list[str]:
    """Return patterns for the documents: the whole folder, or each name in a folder with foreign files."""
    existing = [path for path in (folder / _DOCUMENTS).glob("*.yml") if path not in documents]
    # Without a document the result is empty, because a pattern without a match ends `smelt run`.
    if existing or not documents:
        return [f"{_DOCUMENTS}/{path.name}" for path in documents]
    return [f"{_DOCUMENTS}/*.yml"]


def _print_written(output: Output, out: Path, catalog: SourceCatalog, where: str, slot: str) -> None:
    tables = f"{counted(len(catalog.tables), 'table')} of {', '.join(catalog.schemas)}"
    output.line(f"wrote {out}: {tables} at {where}; slot and publication {slot}")
    for reason, exclusions in by_reason(catalog.excluded).items():
        names = ", ".join(str(exclusion.table) for exclusion in exclusions[:_LISTED]) + (
            " …" if exclusions[_LISTED:] else ""
        )
        output.line(f"excluded {names}: {reason}", style="yellow")
        output.line(f"  remedy: {exclusions[0].remedy}")


def _print_documents(output: Output, proposal: Proposal, documents: Mapping[Path, Draft]) -> None:
    for path, draft in documents.items():
        output.line(
            f"wrote {path}: one document per row of {draft.root}, {counted(len(draft.fields), 'field')}, "
            f"joins {counted(draft.depth, 'level')} deep: "
            f"{listed([join.name for join in draft.joins], _JOINS)}"
        )
    if not documents:
        output.line(
            "no documents: no foreign key joins two of the tables; "
            "`smelt explain FILE --schema` prints the JSON Schema of document files"
        )
        return
    if proposal.left_out:
        output.line("without a document:")
    for table in proposal.left_out[:_LISTED]:
        output.line(f"  {left_out_text(table)}", style="dim")
    if len(proposal.left_out) > _LISTED:
        output.line(f"  … and {len(proposal.left_out) - _LISTED} more", style="dim")


def _print_next_steps(output: Output, out: Path, proposal: Proposal, secrets: Mapping[str, str]) -> None:
    file = shlex.quote(str(out))
    output.line("next:")
    for key, variable in secrets.items():
        output.line(f"  export {variable}=…    # the {key} is in no file; the pipeline reads this variable")
    parts = "the documents, and " if proposal.drafts else ""
    output.line(f"  smelt check {file}    # {parts}what the server still needs")
    output.line(f"  smelt run {file}")
