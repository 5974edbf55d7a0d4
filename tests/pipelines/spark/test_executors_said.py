"""What a failed task said, out of what Spark makes of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pipelines.settings import load_pipeline
from pipelines.spark.executors import executors_of, said_of

if TYPE_CHECKING:
    from pathlib import Path

TRACE = """
  An exception was thrown from the Python worker. Please see the stack trace below.
Traceback (most recent call last):
  File "a.py", line 1, in work
ValueError: the first one

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
bronze.errors.TransientError: db:5432/shop as me: the connection was lost
remedy: nothing to do
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (TRACE, "db:5432/shop as me: the connection was lost"),
        ("Job aborted: ExecutorLostFailure\nmore", "Job aborted: ExecutorLostFailure"),
        ("KeyboardInterrupt", "KeyboardInterrupt"),
        ("", "no message"),
    ],
)
def test_the_last_error_of_python_is_what_is_said(text: str, said: str) -> None:
    assert said_of(text) == said


def test_the_local_engine_has_no_executors(tmp_path: Path) -> None:
    file = tmp_path / "shop.yml"
    file.write_text("pipeline: shop\nsource: {slot: s, publication: p}\nlake: {path: ./lake}\n")
    assert executors_of(load_pipeline(file)) is None
    file.write_text(file.read_text() + "snapshot: {engine: spark}\n")
    assert executors_of(load_pipeline(file)) is not None
