"""Translation of Spark's errors, from their conditions and the classes of their causes."""

from __future__ import annotations

from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]
from pyspark.errors import AnalysisException, PySparkException
from pyspark.errors.exceptions.connect import SparkConnectGrpcException
from pyspark.sql.connect.session import SparkSession as ConnectSession

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.catalog.sql import (
    TableBeingMadeError,
    TableChangedError,
    failures,
    meaning,
    names_of,
)
from deltasmelt.bronze.lake.client import CommitFailedError, TableNotFoundError
from deltasmelt.silver.spark.connect import Connect

URI = "catalog://main/bronze/changes"


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["TABLE_OR_VIEW_NOT_FOUND.X"], TableNotFoundError),
        (["io.delta.exceptions.ConcurrentAppendException"], CommitFailedError),
        (["io.delta.exceptions.ConcurrentTransactionException"], CommitFailedError),
        (
            ["org.apache.spark.SparkException", "io.delta.exceptions.ConcurrentWriteException"],
            CommitFailedError,
        ),
        (["DELTA_CONCURRENT_APPEND.ROW_LEVEL_CHANGES"], CommitFailedError),
        (["DELTA_METADATA_CHANGED"], TableChangedError),
        (["io.delta.exceptions.ProtocolChangedException"], TableChangedError),
        (["DELTA_CANNOT_DESCRIBE_VIEW_HISTORY"], DefiniteError),
        (["DELTA_ONLY_OPERATION"], DefiniteError),
        (["DELTA_TABLE_ONLY_OPERATION"], DefiniteError),
        (["EXPECT_TABLE_NOT_VIEW.NO_ALTERNATIVE"], DefiniteError),
        (["DELTA_CREATE_TABLE_WITH_NON_EMPTY_LOCATION"], TableBeingMadeError),
        (["INVALID_HANDLE.SESSION_CLOSED"], DefiniteError),
        (["INVALID_HANDLE.SESSION_NOT_FOUND"], DefiniteError),
        (["INVALID_HANDLE.OPERATION_NOT_FOUND"], OSError),
        (["NO_ACTIVE_SESSION"], DefiniteError),
        (["org.apache.spark.SparkException", "java.io.IOException"], OSError),
        ([], OSError),
    ],
)
def test_names_tell_what_an_error_means(names: list[str], kind: type[Exception]) -> None:
    assert type(meaning(PySparkException("x"), URI, names)) is kind


@pytest.mark.parametrize(
    "error", [Py4JError("no answer"), Py4JNetworkError("gone"), ConnectionRefusedError()]
)
def test_ended_jvm_is_not_called_again(error: Exception) -> None:
    with pytest.raises(DefiniteError) as caught, failures(URI):
        raise error
    assert caught.value.code == "spark-died"


def test_session_ended_by_server_is_not_used_again() -> None:
    closed: Any = ConnectSession.builder.remote("sc://127.0.0.1:1").create()
    Connect(closed).close()
    with pytest.raises(DefiniteError, match="NO_ACTIVE_SESSION") as caught, failures(URI):
        closed.conf.get("spark.master")
    assert caught.value.code == "spark-died"
    session_closed = SparkConnectGrpcException(
        "[INVALID_HANDLE.SESSION_CLOSED] The handle is invalid. Session was closed. SQLSTATE: HY000",
        errorClass="INVALID_HANDLE.SESSION_CLOSED",
    )
    with pytest.raises(DefiniteError, match="SESSION_CLOSED") as caught, failures(URI):
        raise session_closed
    assert caught.value.code == "spark-died"
    assert caught.value.__cause__ is session_closed


def test_value_containing_conflict_name_is_no_conflict() -> None:
    error = PySparkException("cannot cast 'DELTA_CONCURRENT_APPEND ConcurrentAppendException' to INT")
    assert names_of(error) == []
    assert type(meaning(error, URI, names_of(error))) is OSError


def test_spark_elsewhere_names_the_class_in_its_message() -> None:
    error = PySparkException("(io.delta.exceptions.ConcurrentAppendException) [DELTA_CONCURRENT_APPEND] x")
    assert isinstance(meaning(error, URI, names_of(error)), CommitFailedError)


def test_what_is_not_sparks_stays_what_it_is() -> None:
    with pytest.raises(ValueError, match="ours"), failures(URI):
        raise ValueError("ours")
    with pytest.raises(OSError, match="main"), failures(URI):
        raise AnalysisException("[SOME_CONDITION] x")
