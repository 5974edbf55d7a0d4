"""Printing of `smelt status`: tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import time
from contextlib import nullcontext
from typing import TYPE_CHECKING

from deltasmelt.bronze.figures import bytes_text, counted, moment_text, seconds_text
from deltasmelt.pipelines.health.status import StatusReader, hidden_reader, slot_text, slot_warnings
from deltasmelt.pipelines.health.status_json import plain_status, status_schema
from deltasmelt.pipelines.runtime.progress_text import snapshot_text
from deltasmelt.pipelines.runtime.retention import boundary_lines
from deltasmelt.pipelines.terminal.output import ERROR, TITLE, WARNING

if TYPE_CHECKING:
    from deltasmelt.pipelines.health.lake_half import TableStatus
    from deltasmelt.pipelines.health.status import Rung, Status
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output


def show_status_schema(output: Output) -> None:
    """Print the JSON Schema of the output of `--output json`."""
    output.document(json.dumps(status_schema()))


def show_status(pipeline: Pipeline, output: Output, *, watch: bool = False, interval: float = 2.0) -> None:
    """Print the status once, or repeatedly until an interruption.

    Raises:
        Exception: the lake could not be read; the server's half is printed before.
    """
    reader = StatusReader(pipeline)
    while True:
        with nullcontext() if watch else output.waiting("reading server and lake"):
            status = reader.read()
        if watch and output.rich:
            output.console.clear()
        if output.json:
            output.value(plain_status(status))
        else:
            _print(status, output)
        if not watch:
            if reader.lake_failure is not None:
                raise reader.lake_failure
            return
        time.sleep(interval)


def ladder_rows(ladder: tuple[Rung, ...]) -> list[list[str]]:
    """Return the ladder as cells: step, LSN, and lag."""
    return [
        [
            rung.name,
            "?" if rung.lsn is None else str(rung.lsn),
            bytes_text(rung.bytes),
            ("at most " if rung.at_most else "") + seconds_text(rung.seconds),
            "?" if rung.commits is None else f"{rung.commits:,}",
        ]
        for rung in ladder
    ]


LADDER_COLUMNS = ("step", "LSN", "bytes behind", "time behind", "commits behind")


def _print(status: Status, output: Output) -> None:
    output.line(f"pipeline {status.pipeline}", style=TITLE)
    output.line(f"source   {status.source}")
    _print_why(status.source_error, output)
    empty = f" ({status.lake_error})" if status.lake_read and status.lake_error else ""
    output.line(f"lake     {status.lake}{empty}")
    _print_why(None if status.lake_read else status.lake_error, output)
    _print_slot(status, output)
    if status.snapshot is not None:
        output.line(f"reader   {snapshot_text(status.snapshot)}")
    if status.retention is not None:
        first, *rest = boundary_lines(status.retention)
        output.line(f"bronze   {first}")
        for line in rest:
            output.line(f"         {line}")
    output.line()
    output.table(LADDER_COLUMNS, ladder_rows(status.ladder), right=LADDER_COLUMNS[1:])
    for title, states in (("tables", status.tables), ("documents", status.documents)):
        if states:
            output.line()
            _print_tables(title, states, output)
    _print_hints(status, output)
    if status.errors:
        output.line()
        output.line("open errors", style=ERROR)
        for error in status.errors:
            since = f" since {moment_text(error.opened_at)}" if error.opened_at else ""
            output.line(f"{error.scope} {error.name}{since}: {error.message} [{error.code}]")
            if error.remedy:
                output.line(f"  remedy: {error.remedy}")


def _print_why(error: str | None, output: Output) -> None:
    for line in (error or "").splitlines():
        output.line(f"         {line}", style=WARNING)


def _print_hints(status: Status, output: Output) -> None:
    for table in status.tables:
        if table.unrepresentable:
            output.line()
            output.line(
                f"{table.name}: at most {counted(table.unrepresentable, 'row')} with values that do not fit "
                "silver's decimals"
            )
            output.line("  NULL, with their text in _unrepresentable; `smelt check` reports the columns")
    for hint in status.clustering:
        output.line()
        output.line(
            f"silver.{hint.table}: queries read the table by {hint.column}, but one value may be in "
            f"{hint.files_read:,.0f} of {counted(hint.files, 'file')}"
        )
        output.line(
            f"  `smelt maintain` clusters the table by {hint.column}, and writes {bytes_text(hint.bytes)} "
            "once"
        )


def _print_slot(status: Status, output: Output) -> None:
    output.line(f"slot     {slot_text(status)}")
    if status.wal is not None:
        output.line(f"         {status.wal.message}")
    if (hint := hidden_reader(status)) is not None:
        output.line(f"         {hint}")
    for warning in slot_warnings(status):
        output.line(f"         {warning}", style=ERROR)


def _print_tables(title: str, tables: tuple[TableStatus, ...], output: Output) -> None:
    columns = (title, "state", "as of LSN", "version", "last changes", "last run")
    rows = [
        [
            table.name,
            table.state,
            "-" if table.commit_lsn is None else str(table.commit_lsn),
            "-" if table.delta_version is None else table.delta_version,
            "-" if table.changes is None else f"{table.changes:,}",
            "-" if table.seconds is None else seconds_text(table.seconds),
        ]
        for table in tables
    ]
    output.table(columns, rows, right=columns[2:], spare=columns[3:])
