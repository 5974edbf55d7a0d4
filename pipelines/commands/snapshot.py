"""`smelt snapshot`: resnapshot whole tables, with or without a running reader.

The order makes the command safe. First the command compares the server, the slot and the lake
(`bronze.checks.ownership`): a mark with the LSN of another server would request a snapshot for ever. Then the
command writes the tables' resnapshot marks to bronze (`bronze.store.gaps`), at the server's present WAL
position. From then on any reader takes the snapshots, whatever happens to this command. The process with the
lock of the lake's bronze stage does the work. A running reader notices the marks within seconds, and the
command waits. Without a running reader, or after its end, the command is the reader until bronze is caught
up.

Silver leaves a table out of its cuts from the mark on, so silver cannot pass the snapshot before its arrival.
Then silver replaces the table's rows by the snapshot's rows, and removes rows without a counterpart.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.catalog.select import select_tables, skipped_relations
from deltasmelt.bronze.checks.ownership import require_own
from deltasmelt.bronze.checks.recorded_rules import select_recorded
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.figures import clock_text
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.control_tables import ControlTables
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

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control import OpenError
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.pipelines.terminal.output import Output

_POLL_SECONDS: Final = 0.5
_REPORT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """The requested snapshots.

    `stopped` are requested tables with an error that stops them; snapshots after the position `lsn` count.
    """

    tables: tuple[TableName, ...]
    stopped: tuple[TableName, ...]
    lsn: Lsn


def run_snapshot(
    pipeline: Pipeline, names: Sequence[str], output: Output, *, all_tables: bool, wait: bool, command: str
) -> None:
    """Resnapshot tables.

    Args:
        pipeline: the pipeline.
        names: tables or patterns (``public.order_*``).
        output: takes progress reports.
        all_tables: all tables of the pipeline instead of `names`.
        wait: return after the snapshots are complete; otherwise after the request.
        command: name of the command for the lake's lock.

    Raises:
        SmeltError: a name is unknown; the server or the lake cannot be reached.
        Failure: some tables cannot be snapshotted.
    """
    with output.waiting("reading the source's tables"):
        request = _request(pipeline, names, all_tables=all_tables)
    # Repairs a lost or moved slot: one commit gives up the undeliverable part of the stream and requests
    # every table.
    if all_tables and _start_over(pipeline, output):
        request = _request(pipeline, names, all_tables=all_tables)
    marked = _set_request(pipeline, request)
    listed = ", ".join(map(str, request.tables)) or "no table"
    output.report(f"requested snapshots of {listed}, as of a point after {request.lsn}")
    if wait:
        with terminable():
            _await(pipeline, request, output, command)
        output.report(f"snapshots complete: {listed}")
    elif not marked:
        output.report("bronze is still empty: the first start snapshots every table in any case")
    else:
        output.report("a running reader starts the snapshots within seconds; otherwise the next start does")
    if request.stopped:
        raise tables_stopped([str(table) for table in request.stopped])


def _request(pipeline: Pipeline, names: Sequence[str], *, all_tables: bool) -> Request:
    source = pipeline.source
    if bool(names) == all_tables:
        raise ConfigurationError(
            "no table is named" if not names else "--all cannot be combined with table names",
            code="table-unknown",
            remedy="name tables, patterns or --all",
        )
    with connect(source) as connection, translated(source):
        require_own(connection, source, pipeline.lake_address(), pipeline.pipeline)
        # As the reader selects: a table that left its rule is stopped, and no wait for it would end.
        tables = select_recorded(connection, source, pipeline.lake_address(), sizes=False)
        skipped = skipped_relations(connection, source)
        end = primary_log_end(connection)
    if end is None:
        raise standby_without_slot(address_of(source))
    chosen = list(tables) if all_tables else named_tables(names, tables, skipped)
    if not chosen:
        raise ConfigurationError(
            f"no table to snapshot: source.tables is {', '.join(source.tables)}",
            code="pattern-matches-nothing",
            where=address_of(source),
            remedy="`smelt check` reports the reason",
        )
    return Request(
        tables=tuple(table.table for table in chosen if table.problem is None),
        stopped=tuple(table.table for table in chosen if table.problem is not None),
        lsn=end,
    )


def _start_over(pipeline: Pipeline, output: Output) -> bool:
    """Give up the lost part of a stream that cannot continue at bronze's end (`bronze.reader.recovery`)."""
    lake = pipeline.lake_address()
    if delta.open_table(lake.uri("bronze", CHANGES)) is None:
        return False
    lost = start_over(pipeline.source, lake, pipeline.pipeline, progress=output.report)
    if lost is None:
        return False
    output.report(
        f"the stream lacks the changes between {lost.before} and {lost.lsn}; every table is resnapshotted"
    )
    return True


def _set_request(pipeline: Pipeline, request: Request) -> bool:
    """Write the marks durably; return False before bronze's first start, which copies everything."""
    uri = pipeline.lake_address().uri("bronze", CHANGES)
    if delta.open_table(uri) is None:
        return False
    request_snapshots(uri, request.tables, request.lsn)
    return True


def _await(pipeline: Pipeline, request: Request, output: Output, command: str) -> None:
    """Wait until every requested snapshot is complete, in whatever process; raise a Failure if one failed."""
    lake, control = pipeline.lake_address(), ControlTables(pipeline.lake_address())
    before = {_key(error) for error in control.open_errors()}
    changes = CachedTable(lake.uri("bronze", CHANGES))
    last_count, reported_at, marked = -1, 0.0, False
    while True:
        marked = marked or _set_request(pipeline, request)
        waiting = _waiting(changes.newest(), request)
        if not waiting:
            return
        _raise_failed(control, waiting, request.lsn, before)
        completed = len(request.tables) - len(waiting)
        if not reader_runs(pipeline) and read_until(pipeline, request.lsn, output, command):
            _raise_dropped(pipeline, waiting)
        elif completed != last_count or time.monotonic() - reported_at > _REPORT_SECONDS:
            _raise_dropped(pipeline, waiting)
            last_count, reported_at = completed, time.monotonic()
            view = read_progress(lake)
            remaining = "" if view is None else f"; {snapshot_text(view)}"
            output.report(
                f"{clock_text()} the running reader has completed {completed} of "
                f"{len(request.tables)} snapshots{remaining}"
            )
        time.sleep(_POLL_SECONDS)


def _waiting(changes: Table | None, request: Request) -> list[TableName]:
    """Return the requested tables without a later snapshot."""
    if changes is None:
        return list(request.tables)
    # An older snapshot under way does not end the wait too early.
    return [table for table in request.tables if (snapshot_of(changes, table) or 0) <= request.lsn]


def _raise_failed(
    control: ControlTables, waiting: Sequence[TableName], requested: Lsn, before: set[tuple[Any, ...]]
) -> None:
    names = {str(table) for table in waiting}
    failed = [
        error
        for error in control.open_errors()
        if error.scope == "table"
        and error.name in names
        and error.code in SOURCE_CODES
        and (_key(error) not in before or error.commit_lsn == requested)
    ]
    if failed:
        lines = [f"{error.name} could not be copied: {error.message}" for error in failed]
        remedies = [f"remedy: {error.remedy}" for error in failed[:1] if error.remedy]
        raise Failure("\n".join([*lines, *remedies]))


def _raise_dropped(pipeline: Pipeline, waiting: Sequence[TableName]) -> None:
    source = pipeline.source
    with connect(source) as connection, translated(source):
        carried = {table.table for table in select_tables(connection, source, sizes=False)}
    dropped = [str(table) for table in waiting if table not in carried]
    if dropped:
        raise Failure(f"dropped or renamed at the source during the snapshot: {', '.join(dropped)}")


def _key(error: OpenError) -> tuple[Any, ...]:
    """Return the identity of one occurrence of an error."""
    return (error.scope, error.name, error.code, error.opened_at)
