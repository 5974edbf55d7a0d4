"""Copy ranges of one table on an executor: values in, files in the lake and a text of results out.

**A repeated task changes nothing.** The exported snapshot is constant while its exporter lives, and the task
fixes the ranges. So a second attempt reads the same rows and gives each row the same LSN and `seq`. Each
attempt writes separate files, because file names end in a random number. No version names a file before the
reader commits, and the reader commits the files of exactly one attempt: the attempt that returned results.
Files of other attempts are removed after the tables (`bronze.snapshot.remote_copy`), or by the next reader
(`bronze.store.changes_table`).

**End of an attempt.** An error of the table (a privilege, a rewritten partition) is a result, because a retry
would meet the same error. So are a lost snapshot and a missing requirement of this executor. Errors that may
heal, such as a lost connection or a full disk, are raised, and the engine retries the task.

**Secrets.** The task holds the source's password and the store's keys. The task travels inside the function
that the engine sends to its executors. No text form of the task, its errors or its results contains a secret.

PostgreSQL docs: https://www.postgresql.org/docs/current/sql-set-transaction.html (SET TRANSACTION SNAPSHOT).
"""

from __future__ import annotations

import json
import socket
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import psycopg
import pyarrow as pa

from deltasmelt.bronze.errors import DefiniteError, SmeltError, TableError, TransientError
from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.bronze.lake.client import AddAction
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.parquet import delete_files, file_system
from deltasmelt.bronze.postgres.connection import connect, translated, within
from deltasmelt.bronze.snapshot.copy_out import EXPORTER_ENDED, enlarge_buffer
from deltasmelt.bronze.snapshot.executor_errors import CODE, require_same, unfit, versions
from deltasmelt.bronze.snapshot.locks import Leaf, LeafLostError, Worker
from deltasmelt.bronze.snapshot.ranges import (
    RENAMED,
    UnreadableRowsError,
    error_of_table,
    lost,
    rows_of_range,
    unreadable,
)
from deltasmelt.bronze.snapshot.rows import SnapshotRows
from deltasmelt.bronze.store.sink import snapshot_writer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.lake.place import Location
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.snapshot.chunks import Chunk

Status: TypeAlias = Literal["copied", "locked", "failed", "renamed", "gone", "unfit"]

TASK_NAME: Final = "deltasmelt snapshot task"
"""Prefix of the application name of task sessions in pg_stat_activity; the round's name follows."""
_PROBE: Final = b"An executor of deltasmelt tried whether it can write here.\n"
_FILES: Final = ("sslrootcert", "sslcert", "sslkey", "sslcrl")


def prefix_of(relation_id: int, round_: str) -> str:
    """Return the name prefix of all files of a table in a round."""
    return f"snapshot-{relation_id}-{round_}-"


@dataclass(frozen=True, slots=True)
class RangeTask:
    """Ranges of one table, with all inputs of the copy."""

    # settings of exactly the server with the snapshot; the task needs no files except TLS files
    source: SourceSettings
    # name of the exported snapshot
    snapshot: str
    # OIDs of all relations that the reader has locked
    shared: frozenset[int]
    # shape of the table; `from_lsn` is the snapshot's LSN
    relation: Relation
    # the server's clock when the snapshot was taken
    taken_at: datetime
    # SQL condition on the rows to copy; empty: all rows
    condition: str
    # the ranges to copy, each with its table or partition
    ranges: tuple[tuple[Leaf, Chunk], ...]
    # location of `bronze.changes`, with the options of its store
    destination: Location
    # name of the round; part of the file names, after the table's OID
    round: str
    # the reader's versions, from `bronze.snapshot.executor_errors.versions`
    versions: Mapping[str, str | None]

    @property
    def prefix(self) -> str:
        """Name prefix of the task's files."""
        return prefix_of(self.relation.relation_id, self.round)


@dataclass(frozen=True, slots=True)
class RangeResult:
    """Result of a range."""

    # number of the chunk; -1: the result concerns the whole task
    number: int
    # `copied`; `locked`: left to the session that holds the table; `failed`: the table has an error;
    # `renamed`: a table or schema was renamed; `gone`: the snapshot is lost; `unfit`: this executor cannot
    # copy
    status: Status
    rows: int = 0
    # bytes of text that COPY sent
    size: int = 0
    # files, as fields of `AddAction`
    parts: list[dict[str, Any]] = field(default_factory=list)
    # message of the server or of the task; for `failed` and `unfit` the fields of an error
    error: dict[str, str | None] = field(default_factory=dict)

    def actions(self) -> list[AddAction]:
        """Return the files in the form of a commit."""
        return [AddAction(**part) for part in self.parts]


def results_of(text: str) -> list[RangeResult]:
    """Parse the text returned by `copy_ranges`."""
    return [RangeResult(**fields) for fields in json.loads(text)]


def copy_ranges(task: RangeTask) -> str:
    """Copy the task's ranges over a separate session; return a text for `results_of`.

    Raises:
        TransientError, OSError: the attempt failed, and a retry may succeed; the attempt's files are removed.
    """
    results: list[RangeResult] = []
    try:
        _copy_all(task, results)
    except DefiniteError as error:
        _remove(task, results)
        results = [_unfit(error)]
    except BaseException:
        _remove(task, results)
        raise
    return json.dumps([asdict(result) for result in results])


def _copy_all(task: RangeTask, results: list[RangeResult]) -> None:
    """Copy range after range; append each result at once."""
    require_same(socket.gethostname(), versions(), task.versions)
    require_files(task.source)
    name = f"{TASK_NAME} {task.round}"
    with translated(task.source), closing(connect(task.source, application_name=name)) as connection:
        failure = _enter_snapshot(connection, task)
        if failure is not None:
            results.append(failure)
            return
        enlarge_buffer(connection)
        worker = Worker(connection, task.source.timing, shared=task.shared)
        for leaf, chunk in task.ranges:
            results.append(_copy(worker, task, leaf, chunk))
            if results[-1].status in {"failed", "renamed"}:
                return  # the table's copy has failed, and COPY may still run


def _remove(task: RangeTask, results: Sequence[RangeResult]) -> None:
    names = [part["path"] for result in results for part in result.parts]
    if names:
        with suppress(OSError, pa.ArrowException):  # the reader removes leftovers
            delete_files(task.destination, names)


def _unfit(error: DefiniteError) -> RangeResult:
    """Return the result of an executor that fails every attempt."""
    named = error.code == CODE  # the message names the host
    message = error.message if named else f"the executor {socket.gethostname()}: {error.message}"
    return RangeResult(-1, "unfit", error={"message": message, "remedy": error.remedy})


def reach(source: SourceSettings, destination: Location, name: str) -> str:
    """Try the requirements of copying: connect to the server, and write a small file into the lake.

    Args:
        source: settings of exactly the holder's server.
        name: name of the file; the caller removes the file.

    Returns:
        JSON: the host, and either the file's size or the error.
    """
    report: dict[str, Any] = {"host": socket.gethostname()}
    try:
        require_files(source)
        with closing(connect(source, application_name=TASK_NAME)) as connection, translated(source):
            connection.execute("SELECT")
        with lake_failures(destination), file_system(destination).open_output_stream(name) as stream:
            report["size"] = stream.write(_PROBE)
    except SmeltError as error:
        report["error"] = {
            "message": error.message,
            "code": error.code,
            "where": error.where,
            "remedy": error.remedy,
            "transient": isinstance(error, TransientError),
        }
    return json.dumps(report)


def require_files(source: SourceSettings) -> None:
    """Check that the TLS files of the source exist on this machine.

    Raises:
        DefiniteError: ``executors-unfit``, with file and host in the message.
    """
    conninfo = {} if source.dsn is None else psycopg.conninfo.conninfo_to_dict(source.dsn.get_secret_value())
    for key in _FILES:
        name = str(conninfo.get(key) or "")
        if name and name != "system" and not Path(name).is_file():
            raise unfit(
                f"{name} (source.{key}) is not on the executor {socket.gethostname()}",
                "put the file at the same path of each executor's machine, or leave snapshot.engine at local",
            )


def _enter_snapshot(connection: psycopg.Connection[Any], task: RangeTask) -> RangeResult | None:
    """Begin a transaction with the exported snapshot; return a result if the snapshot is lost."""
    with within(task.source.timing.copy_plan, connection):
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        try:
            connection.execute(f"SET TRANSACTION SNAPSHOT {quote_literal(task.snapshot)}".encode())
        except EXPORTER_ENDED as error:
            return RangeResult(-1, "gone", error={"message": error.diag.message_primary})
    return None


def _copy(worker: Worker, task: RangeTask, leaf: Leaf, chunk: Chunk) -> RangeResult:
    table, number = task.relation.table, chunk.number
    try:
        if not worker.open(leaf):
            return RangeResult(number, "locked")
        return _written(worker, task, chunk)
    except LeafLostError as error:
        return _failed(number, lost(table, error))
    except UnreadableRowsError as error:
        return _failed(number, unreadable(table, error))
    except psycopg.Error as error:
        try:
            return _failed(number, error_of_table(table, error, task.source))
        except RENAMED as renamed:
            return RangeResult(number, "renamed", error={"message": renamed.diag.message_primary})


def _written(worker: Worker, task: RangeTask, chunk: Chunk) -> RangeResult:
    relation = task.relation
    rows = SnapshotRows(relation, relation.from_lsn, task.taken_at)
    writer = snapshot_writer(task.destination, f"{task.prefix}{chunk.number}")
    count = size = 0
    try:
        for table, read_bytes in rows_of_range(
            worker.connection, task.source, relation, chunk, rows, condition=task.condition
        ):
            writer.write(table)
            count += table.num_rows
            size += read_bytes
        parts = writer.finish()
    except BaseException:
        writer.discard()
        raise
    return RangeResult(chunk.number, "copied", count, size, [_fields(part) for part in parts])


def _fields(part: AddAction) -> dict[str, Any]:
    return {
        "path": part.path,
        "size": part.size,
        "partition_values": dict(part.partition_values),
        "modification_time": part.modification_time,
        "data_change": part.data_change,
        "stats": part.stats,
    }


def _failed(number: int, error: TableError) -> RangeResult:
    fields = {"message": error.message, "code": error.code, "remedy": error.remedy}
    return RangeResult(number, "failed", error=fields)
