"""Test the error for each failure that ends a table's part of a cycle."""

from __future__ import annotations

import errno
import socket
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from deltalake.exceptions import DeltaError
from py4j.java_gateway import GatewayClient, GatewayProperty, JavaObject  # type: ignore[import-untyped]
from py4j.protocol import Py4JJavaError, Py4JNetworkError  # type: ignore[import-untyped]

from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, TableError, TransientError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.leases import commit_lost, put_back
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.silver.errors import CODES, definite, failure, marker
from deltasmelt.silver.plan.activity import Activity
from deltasmelt.silver.run.failed_tables import FailedTables
from deltasmelt.silver.run.stored import Stored
from deltasmelt.silver.run.worklist import check_relation
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.spark.failure_scope import outage
from tests.silver.histories import INT, BronzeWriter, relation

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

TABLE = TableName("public", "t")
DEEP = """An error occurred while calling o1.sql.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows. SQLSTATE: 58030
\tat org.apache.spark.executor.Executor.run(Executor.scala:1)
Caused by: org.apache.spark.sql.delta.schema.InvariantViolationException: [DELTA_VIOLATE_CONSTRAINT] CHECK
constraint small (id < 100) violated. SQLSTATE: 23001
"""


def test_error_of_ended_jvm_has_a_text() -> None:
    with socket.socket() as unused:  # bound, but nothing listens
        unused.bind(("127.0.0.1", 0))
        properties = GatewayProperty(auto_field=False, pool=None)
        client = GatewayClient(port=unused.getsockname()[1], gateway_property=properties)
        error = Py4JJavaError("An error occurred while calling o1.sql.\n", JavaObject("o2", client))
        with pytest.raises(Py4JNetworkError):
            str(error)
        assert cause_of(error) == "Py4JJavaError: An error occurred while calling o1.sql."
        assert outage(error) is None


def test_the_innermost_cause_is_told() -> None:
    message = "[DELTA_VIOLATE_CONSTRAINT] CHECK constraint small (id < 100) violated."
    assert cause_of(RuntimeError(DEEP)) == message
    assert cause_of(OSError("disk full\nat x")) == "OSError: disk full"
    assert len(cause_of(ValueError("x" * 1000))) < 400
    denied = "java.nio.file.AccessDeniedException: s3a://lake/t: 403"
    thrown = f": java.io.IOException: x\n\tat A\nCaused by: {denied}\n\tat B"
    assert cause_of(RuntimeError(f"An error occurred while calling o1.sql.\n{thrown}")) == denied
    thrown += "\nCaused by: the key abc of 403, as a message of theirs goes on\n: and on"
    assert cause_of(RuntimeError(f"An error occurred while calling o1.sql.\n{thrown}")) == denied
    error = failure(TABLE, RuntimeError(DEEP))
    assert (error.table, error.code) == (TABLE, "table-failed")
    assert message in error.message


def test_a_marker_counts_only_where_spark_raised_it() -> None:
    """The message of an unrelated failure may quote the statement, and so contain every marker."""
    quoted = marker("row-missing", "'7'")
    marker_text = "concat('deltasmelt:row-missing:', '7', ':deltasmelt')"
    assert marker_text.partition("'7'")[0] in quoted
    flat = "deltasmelt:row-missing:7:deltasmelt"
    for message in (f"[CAST_INVALID_INPUT] x SQLSTATE: 22018\n== SQL ==\n{quoted}", f"[INTERNAL] … {flat}"):
        assert definite(TABLE, RuntimeError(message)) is None
    raised = definite(TABLE, RuntimeError(f"[USER_RAISED_EXCEPTION] {flat} SQLSTATE: P0001"))
    assert raised is not None
    assert raised.code == "row-missing"


def test_known_error_keeps_code_and_remedy() -> None:
    error = failure(TABLE, ConfigurationError("no type", code="type-override", remedy="mend it"))
    assert (error.table, error.message, error.code, error.remedy) == (
        TABLE, "no type", "type-override", "mend it"
    )  # fmt: skip
    table_error_made = TableError(TABLE, "x", code="key-missing")
    assert failure(TABLE, table_error_made) is table_error_made
    assert {"table-failed", "type-override"} <= CODES


SHAPES = [
    relation("t", [("id", INT)], ["id"], relation_id=1),
    relation("t", [("id", INT)], ["id"], relation_id=2, from_lsn=50),
]
NEWEST = silver_table(SHAPES[1], SilverSettings())


@pytest.mark.parametrize(
    ("holds", "start", "snapshot", "stops"),
    [
        ("2", 60, None, False),
        ("1", 60, None, True),  # carried before, under another name
        ("1", 40, None, True),
        ("1", 40, 55, False),  # the copy replaces the rows
        (None, 60, None, False),  # a table from before it said whose rows it holds
        (None, 40, None, True),
    ],
)
def test_changes_of_another_relation_wait_for_its_copy(
    holds: str | None,
    start: int,
    snapshot: int | None,
    stops: bool,  # noqa: FBT001
) -> None:
    stored = Stored(3, Lsn(start), (), 1, holds)
    activity = replace(Activity.none(), snapshot=None if snapshot is None else Lsn(snapshot))
    if not stops:
        check_relation(NEWEST, stored, SHAPES, Lsn(start), activity)
        return
    with pytest.raises(TableError) as caught:
        check_relation(NEWEST, stored, SHAPES, Lsn(start), activity)
    assert caught.value.code == "table-recreated"


class Answering:
    """A Spark that answers, or does not."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def sql(self, _: str) -> Answering:
        if self.error is not None:
            raise self.error
        return self

    def collect(self) -> list[tuple[int]]:
        return [(1,)]


def failures(path: str, spark: Answering) -> tuple[FailedTables, ControlTables]:
    lake = Lake(path)
    BronzeWriter(lake)
    control = ControlTables(lake)
    failed_tables = FailedTables(cast("SparkSession", spark), lake, control)
    failed_tables.begin(open_existing(lake.uri("bronze", CHANGES)), Lsn(1))
    return failed_tables, control


def test_silent_spark_is_no_table_error(lake_path: str) -> None:
    failed_tables, control = failures(lake_path, Answering(ConnectionRefusedError()))
    with pytest.raises(OSError, match="first"):
        failed_tables.pause({TABLE: OSError("first")})
    assert control.open_errors() == []
    assert failed_tables.tables == frozenset()


def test_silent_lake_is_no_table_error_and_heals(lake_path: str) -> None:
    failed_tables, control = failures(lake_path, Answering())

    def out_of_reach(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
        if door is Effect.OPEN_TABLE and where.endswith("bronze/changes"):
            raise OSError("Generic S3 error: error sending request")
        return effect()

    with guarded(out_of_reach), pytest.raises(TransientError, match="error sending request") as caught:
        failed_tables.pause({TABLE: ValueError("first")})
    assert caught.value.code == "lake-unreachable"
    assert control.open_errors() == []
    failed_tables.pause({TABLE: ValueError("first")})
    assert [error.code for error in control.open_errors()] == ["table-failed"]


@pytest.mark.parametrize("code", ["log-entry-torn", "marks-gone"])
def test_unreadable_log_stops_table_until_readable(lake_path: str, code: str) -> None:
    failed_tables, control = failures(lake_path, Answering())
    with failed_tables.isolated(TABLE, {}):
        raise DefiniteError("entry 1 is torn", code=code)
    assert [error.code for error in control.open_errors()] == [code]
    failed_tables.close_healed([TABLE], [])
    assert control.open_errors() == []


def test_log_missing_commit_is_error_of_single_table(lake_path: str) -> None:
    """The cycle continues for the remaining tables."""
    failed_tables, control = failures(lake_path, Answering())
    for error in (put_back("silver.t", "lake", 3), commit_lost("silver.t", "lake", "the window is folded")):
        undecided: dict[TableName, Exception] = {}
        with failed_tables.isolated(TABLE, undecided):
            raise error
        assert (undecided, control.open_errors()) == ({TABLE: error}, []), "it is tried once more first"
        failed_tables.pause(undecided)
        assert [(open_error.name, open_error.code) for open_error in control.open_errors()] == [
            (str(TABLE), error.code)
        ]
        failed_tables.close_healed([TABLE], [])
        assert control.open_errors() == []


def test_persistent_table_failure_ends_cycles_only_temporarily(lake_path: str) -> None:
    failed_tables, control = failures(lake_path, Answering())
    second_table = TableName("public", "other")
    reset = OSError("Generic S3 error: connection reset by peer")
    for _ in range(5):
        with pytest.raises(TransientError, match="connection reset"):
            failed_tables.pause({TABLE: reset})
        assert control.open_errors() == []
    with pytest.raises(TransientError):
        failed_tables.pause({TABLE: reset, second_table: reset})
    assert [error.name for error in control.open_errors()] == [str(TABLE)]
    failed_tables.pause({TABLE: reset})
    assert failed_tables.skips(TABLE)
    failed_tables.close_healed([TABLE], [])
    assert (control.open_errors(), failed_tables.skips(TABLE)) == ([], False)
    with pytest.raises(TransientError):
        failed_tables.pause({TABLE: reset})


S3A = """An error occurred while calling o77.sql.
: org.apache.spark.SparkException: [FAILED_READ_FILE.NO_HINT] Encountered error while reading file s3a://b/x.
\tat org.apache.spark.sql.errors.QueryExecutionErrors$.cannotReadFilesError(QueryExecutionErrors.scala:1)
Caused by: {cause}
\tat org.apache.hadoop.fs.s3a.S3AUtils.translateException(S3AUtils.java:1)
"""


@pytest.mark.parametrize(
    ("error", "waits"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), True),
        (OSError(errno.EIO, "Input/output error"), True),
        (TimeoutError(errno.ETIMEDOUT, "timed out"), True),
        (OSError("Generic S3 error: Error after 10 retries, HTTP error: connection reset by peer"), True),
        (OSError("Generic S3 error: Server returned error status: 503 Service Unavailable"), True),
        (DeltaError("Kernel error: Generic S3 error: error sending request for url"), True),
        (OSError("When reading information for key: AWS Error SLOW_DOWN during GetObject: Please slow down"),
         True),
        (OSError("Generic S3 error: 404 Not Found: <Error><Code>NoSuchBucket</Code></Error>"), True),
        (FileNotFoundError("Object at location a not found: <Error><Code>NoSuchBucket</Code></Error>"), True),
        (FileNotFoundError("Object at location a not found: <Error><Code>NoSuchKey</Code></Error>"), False),
        (FileNotFoundError(errno.ENOENT, "part-1.parquet"), False),
        (PermissionError(errno.EACCES, "denied"), False),
        (DeltaError("Generic DeltaTable error: a file is no parquet"), False),
        (ValueError("connection reset"), False),
        (RuntimeError(S3A.format(cause="java.net.SocketTimeoutException: Read timed out")), True),
        (RuntimeError(S3A.format(cause="java.net.SocketException: Connection reset")), True),
        (RuntimeError(S3A.format(cause="java.net.UnknownHostException: s3.example")), True),
        (RuntimeError(S3A.format(cause="org.apache.hadoop.fs.s3a.AWSServiceThrottledException: x: Slow")),
         True),
        (RuntimeError(S3A.format(cause="org.apache.hadoop.fs.s3a.UnknownStoreException: `s3a://b/': gone")),
         True),
        (RuntimeError(S3A.format(cause="java.io.IOException: No space left on device")), True),
        (RuntimeError(S3A.format(cause="org.apache.hadoop.fs.azurebfs.contracts.exceptions."
                                 'AbfsRestOperationException: Operation failed: "busy", 503, PUT')), True),
        (RuntimeError(S3A.format(cause="java.io.IOException: Could not read footer")), False),
        (RuntimeError(S3A.format(cause="java.io.FileNotFoundException: File s3a://b/x does not exist")),
         False),
        (RuntimeError(S3A.format(cause="java.lang.IllegalStateException: 503 rows; connection reset")),
         False),
        (RuntimeError(DEEP), False),
    ],
    ids=repr,
)  # fmt: skip
def test_storage_failures_are_distinguished_from_statement_failures(
    error: Exception,
    waits: bool,  # noqa: FBT001
) -> None:
    assert (outage(error) is not None) == waits
    above = KeyError("x")
    above.__cause__ = error
    assert (outage(above) is not None) == waits
