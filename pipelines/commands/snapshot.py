"""`smelt snapshot`: resnapshot whole tables as of now, with or without a running reader.

The order makes it safe. First the server, the slot and the lake are compared (`bronze.checks.ownership`):
a mark by the LSN of another server would ask for a snapshot that never comes. Then the tables' resnapshot
marks are made durable in bronze (`bronze.store.gaps`), at the server's present WAL position. From then
on any reader takes the snapshots, whatever happens to this command. The process that holds the lake's bronze
stage does the work. A running reader notices the marks within seconds, and we wait for it. Where none runs,
we are the reader until bronze is caught up. If a reader ends while we wait, we take over its work likewise.

With `--all` it is also the remedy for a slot that is lost or moved. What the stream can no longer deliver is
given up first, in one commit that requests every table (`bronze.reader.recovery`).

Only snapshots after that position count as done, so one that was under way when the command was given does
not end it too early. Silver leaves a table out of its cuts from the mark on, so it cannot be past the
snapshot when that comes. Then it replaces the table's rows by the snapshot's, and removes rows that no longer
exist.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.select import select_tables, skipped_relations
from deltasmelt.bronze.checks.ownership import require_own
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.kept import KeptTable
from deltasmelt.bronze.postgres.connection import connect, primary_log_end, standby_without_slot, translated
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.reader.recovery import start_over
from deltasmelt.bronze.reader.table_errors import SOURCE_CODES
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import request_snapshots
from deltasmelt.bronze.store.marks import snapshot_of
from deltasmelt.pipelines.runtime.named_tables import named_tables
from deltasmelt.pipelines.runtime.progress_text import snapshot_text
from deltasmelt.pipelines.runtime.reader_progress import read_progress
from deltasmelt.pipelines.runtime.wait_for_bronze import read_until, reader_runs
from deltasmelt.pipelines.terminal.failures import Failure, tables_stopped
from deltasmelt.pipelines.terminal.interrupts import terminable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltalake import DeltaTable

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import OpenError
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output

_LOOK_SECONDS: Final = 0.5
_SAY_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for.

    Attributes:
        tables: to be snapshotted.
        stopped: requested too, but stopped by an error.
        lsn: snapshots after it count.
    """

    tables: tuple[TableName, ...]
    stopped: tuple[TableName, ...]
    lsn: Lsn


def run_snapshot(
    pipeline: Pipeline, names: Sequence[str], output: Output, *, every: bool, wait: bool, command: str
) -> None:
    """Have tables resnapshotted.

    Args:
        pipeline: the pipeline.
        names: tables or patterns (``public.order_*``).
        output: reports what happens.
        every: all tables of the pipeline instead.
        wait: return when the snapshots are complete; else when they are requested.
        command: who we are, for the lake's lock.

    Raises:
        SmeltError: a name is unknown; the server or the lake cannot be reached.
        Failure: some tables cannot be snapshotted.
    """
    request = _request(pipeline, names, every=every)
    if every and _start_over(pipeline, output):
        request = _request(pipeline, names, every=every)
    asked = _ask(pipeline, request)
    listed = ", ".join(map(str, request.tables)) or "no table"
    output.say(f"requested snapshots of {listed}, as of a point after {request.lsn}")
    if wait:
        with terminable():
            _await(pipeline, request, output, command)
        output.say(f"snapshots complete: {listed}")
    elif not asked:
        output.say("bronze is still empty: the first start snapshots every table anyway")
    else:
        output.say("a running reader starts them within seconds; otherwise the next start does")
    if request.stopped:
        raise tables_stopped([str(table) for table in request.stopped])


def _request(pipeline: Pipeline, names: Sequence[str], *, every: bool) -> Request:
    source = pipeline.source
    if bool(names) == every:
        raise ConfigurationError(
            "no table is named" if not names else "--all cannot be combined with table names",
            code="table-unknown",
            remedy="give tables, patterns or --all",
        )
    with connect(source) as connection, translated(source):
        require_own(connection, source, pipeline.lake_address(), pipeline.pipeline)
        tables = select_tables(connection, source, sizes=False)
        skipped = skipped_relations(connection, source)
        end = primary_log_end(connection)
    if end is None:
        raise standby_without_slot(address_of(source))
    chosen = list(tables) if every else named_tables(names, tables, skipped)
    if not chosen:
        raise ConfigurationError(
            f"there are no tables to snapshot: source.tables is {', '.join(source.tables)}",
            code="pattern-matches-nothing",
            where=address_of(source),
            remedy="`smelt check` says why",
        )
    return Request(
        tables=tuple(table.table for table in chosen if table.problem is None),
        stopped=tuple(table.table for table in chosen if table.problem is not None),
        lsn=end,
    )


def _start_over(pipeline: Pipeline, output: Output) -> bool:
    """Where the stream cannot go on from bronze's end, give up what is lost (`bronze.reader.recovery`)."""
    lake = pipeline.lake_address()
    if delta.open_table(delta.location(lake, "bronze", CHANGES)) is None:
        return False
    lost = start_over(pipeline.source, lake, pipeline.pipeline, progress=output.say)
    if lost is None:
        return False
    output.say(
        f"changes between {lost.before} and {lost.lsn} are missing from the stream; "
        "every table is resnapshotted"
    )
    return True


def _ask(pipeline: Pipeline, request: Request) -> bool:
    """Make the marks durable; False where there is no bronze yet, whose first start copies everything."""
    uri = delta.location(pipeline.lake_address(), "bronze", CHANGES)
    if delta.open_table(uri) is None:
        return False
    request_snapshots(uri, request.tables, request.lsn)
    return True


def _await(pipeline: Pipeline, request: Request, output: Output, command: str) -> None:
    """Return when every requested snapshot is complete, whichever process took it.

    Raises:
        Failure: one of them failed.
    """
    lake, control = pipeline.lake_address(), ControlTables(pipeline.lake_address())
    before = {_key(error) for error in control.open_errors()}
    changes = KeptTable(lake, "bronze", CHANGES)
    said, said_at, asked = -1, 0.0, False
    while True:
        asked = asked or _ask(pipeline, request)
        waiting = _waiting(changes.newest(), request)
        if not waiting:
            return
        _raise_failed(control, waiting, request.lsn, before)
        taken = len(request.tables) - len(waiting)
        if not reader_runs(pipeline) and read_until(pipeline, request.lsn, output, command):
            _raise_gone(pipeline, waiting)
        elif taken != said or time.monotonic() - said_at > _SAY_SECONDS:
            _raise_gone(pipeline, waiting)
            said, said_at = taken, time.monotonic()
            view = read_progress(lake)
            more = "" if view is None else f"; {snapshot_text(view)}"
            output.say(
                f"{time.strftime('%H:%M:%S')} the running reader has completed {taken} of "
                f"{len(request.tables)} snapshots{more}"
            )
        time.sleep(_LOOK_SECONDS)


def _waiting(changes: DeltaTable | None, request: Request) -> list[TableName]:
    """Tables of the request without a snapshot after it."""
    if changes is None:
        return list(request.tables)
    return [table for table in request.tables if (snapshot_of(changes, table) or 0) <= request.lsn]


def _raise_failed(
    control: ControlTables, waiting: Sequence[TableName], asked: Lsn, before: set[tuple[Any, ...]]
) -> None:
    names = {str(table) for table in waiting}
    failed = [
        error
        for error in control.open_errors()
        if error.scope == "table"
        and error.name in names
        and error.code in SOURCE_CODES
        and (_key(error) not in before or error.commit_lsn == asked)
    ]
    if failed:
        lines = [f"{error.name} could not be snapshotted: {error.message}" for error in failed]
        remedies = [f"remedy: {error.remedy}" for error in failed[:1] if error.remedy]
        raise Failure("\n".join([*lines, *remedies]))


def _raise_gone(pipeline: Pipeline, waiting: Sequence[TableName]) -> None:
    source = pipeline.source
    with connect(source) as connection, translated(source):
        carried = {table.table for table in select_tables(connection, source, sizes=False)}
    gone = [str(table) for table in waiting if table not in carried]
    if gone:
        raise Failure(f"dropped or renamed at the source meanwhile: {', '.join(gone)}")


def _key(error: OpenError) -> tuple[Any, ...]:
    """What tells one occurrence of an error from another."""
    return (error.scope, error.name, error.code, error.opened_at)
