"""Lines of JSON: messages, log records, and the error that ends a command."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.pipelines.terminal import output
from deltasmelt.pipelines.terminal.failures import report
from deltasmelt.pipelines.terminal.logs import start_logging
from deltasmelt.pipelines.terminal.output import Output
from tests.pipelines.in_process import _own_logging

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "hunter2hunter2"


@pytest.fixture(autouse=True)
def json_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "_chosen", [True])


def records(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_messages_and_final_error_are_json_objects(capsys: pytest.CaptureFixture[str]) -> None:
    Output().report('two\nlines and a "quote"')
    message = f"no answer from postgresql://smelt:{SECRET}@db/shop"
    assert report(DefiniteError(message, code="slot-lost", where="db", remedy="do this")) == 1
    assert report(ValueError("odd")) == 1
    first, error, odd, hint = records(capsys)
    assert (first["level"], first["message"]) == ("info", 'two\nlines and a "quote"')
    assert {**error, "time": "", "process": 0} == {
        "time": "", "level": "error", "logger": "smelt", "process": 0,
        "message": "no answer from postgresql://smelt:***@db/shop",
        "code": "slot-lost", "where": "db", "remedy": "do this",
    }  # fmt: skip
    assert odd["message"] == "error: ValueError: odd"
    assert "--debug" in hint["message"]


def test_the_log_has_tracebacks_without_passwords(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    with _own_logging():
        path = start_logging("shop")
        try:
            int(f"postgresql://smelt:{SECRET}@db/shop")
        except ValueError:
            logging.getLogger("deltasmelt.x").exception("it failed with password=%s", SECRET)
    (line,) = path.read_text().splitlines()
    parsed = json.loads(line)
    assert (parsed["level"], parsed["logger"], parsed["message"]) == (
        "error", "deltasmelt.x", "it failed with password=***",
    )  # fmt: skip
    assert "postgresql://smelt:***@db/shop" in parsed["traceback"]
