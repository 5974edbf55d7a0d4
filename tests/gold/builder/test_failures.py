"""Test which Spark failures belong to a document."""

from __future__ import annotations

import errno
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.gold.builder import images
from deltasmelt.gold.builder.failures import document_error

if TYPE_CHECKING:
    import pytest

DEEP = """An error occurred while calling o1.sql.
: org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed while writing rows. SQLSTATE: 58030
\tat org.apache.spark.executor.Executor.run(Executor.scala:1)
Caused by: org.apache.spark.SparkNumberFormatException: [CAST_INVALID_INPUT] The value 'x' of the type
"STRING" cannot be cast to "INT". SQLSTATE: 22018
"""


def test_uncomputable_value_is_extracted_from_failed_task() -> None:
    error = document_error("customer", RuntimeError(DEEP))
    assert error is not None
    assert (error.code, error.where) == ("document-failed", "customer")
    assert (
        error.message == '[CAST_INVALID_INPUT] The value \'x\' of the type "STRING" cannot be cast to "INT".'
    )


def test_malformed_query_is_error_of_document() -> None:
    message = "[DATATYPE_MISMATCH.FILTER_NOT_BOOLEAN] Filter expression is of type INT."
    error = document_error("customer", RuntimeError(f"{message} SQLSTATE: 42K09; line 3 pos 6"))
    assert error is not None
    assert error.message == message


def test_a_missing_file_is_not() -> None:
    """Spark finds out at once for a small table, which gold reads from its files."""
    message = "[PATH_NOT_FOUND] Path does not exist: file:/lake/silver/a/b.parquet. SQLSTATE: 42K03"
    assert document_error("customer", RuntimeError(message)) is None


def test_lost_session_hides_no_build_error(lake_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left = ["one", "two"]

    def unshare(view: str) -> None:
        left.remove(view)
        raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")

    monkeypatch.setattr(images, "access_of", lambda _: SimpleNamespace(unshare=unshare))
    shared = images.SharedImages(Lake(lake_path), [])
    shared._shared += [(cast("Any", None), view) for view in left]
    shared.close()
    assert left == []


def test_a_full_disk_is_not() -> None:
    assert document_error("customer", RuntimeError(DEEP.partition("Caused by")[0])) is None
    assert document_error("customer", RuntimeError("Connection refused")) is None
