"""Spark executors without a started Spark: a task's error, engines without executors, a missing answer."""

from __future__ import annotations

import threading
from io import StringIO
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import ConfigurationError, TransientError
from deltasmelt.pipelines.runtime.reader_process import _read
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.executors import answer_of, executors_of, python_error

if TYPE_CHECKING:
    from pathlib import Path

PIPELINE = "pipeline: shop\nsource: {slot: s, publication: p}\nlake: {path: ./lake}\n"

TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "a.py", line 1, in work
ValueError: the first one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
deltasmelt.bronze.errors.TransientError: db:5432/shop as me: the connection was lost
remedy: nothing to do
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TRACE, "db:5432/shop as me: the connection was lost"),
        ("Job aborted: ExecutorLostFailure\nmore", "Job aborted: ExecutorLostFailure"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("", "no message"),
    ],
)
def test_last_python_error_is_message(text: str, message: str) -> None:
    assert python_error(text) == message


def test_executors_require_spark_engine_and_server_on_databricks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    file = tmp_path / "shop.yml"
    file.write_text(PIPELINE)
    assert executors_of(load_pipeline(file)) is None
    file.write_text(PIPELINE + "snapshot: {engine: spark}\n")
    assert executors_of(load_pipeline(file)) is not None
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.1")
    with pytest.raises(ConfigurationError, match="on Databricks") as caught:
        executors_of(load_pipeline(file))
    assert caught.value.code == "executors-unfit"
    monkeypatch.setenv("SPARK_REMOTE", "sc://h:15002")
    assert executors_of(load_pipeline(file)) is not None
    monkeypatch.setenv("SPARK_REMOTE", "h:15002")
    with pytest.raises(ConfigurationError, match="sc://"):
        executors_of(load_pipeline(file))


def test_databricks_reader_of_catalog_lake_requires_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SPARK_REMOTE", raising=False)
    monkeypatch.setenv("DATABRICKS_RUNTIME_VERSION", "18.1")
    file = tmp_path / "shop.yml"
    file.write_text(PIPELINE.replace("path: ./lake", "catalog: main"))
    with pytest.raises(ConfigurationError, match="on Databricks") as caught:
        _read(str(file), file.read_text(), None, threading.Event(), StringIO())
    assert caught.value.code == "catalog-session"
    assert "SPARK_REMOTE" in str(caught.value)


def test_missing_answer_is_abandoned_and_others_awaited() -> None:
    released, arrived = threading.Event(), threading.Event()

    def hangs() -> str:
        arrived.set()
        released.wait()
        return "late"

    with pytest.raises(TransientError, match="did not answer") as caught:
        answer_of(hangs, arrived.is_set)
    assert caught.value.code == "snapshot-task-failed"
    released.set()
    assert answer_of(lambda: "here", lambda: False) == "here"
    with pytest.raises(KeyError):
        answer_of(lambda: {"a": "b"}["c"], lambda: True)
