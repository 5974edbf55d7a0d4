from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.pipelines.terminal.failures import Failure, report, tables_stopped, without_secrets
from deltasmelt.pipelines.terminal.interrupts import Terminated

if TYPE_CHECKING:
    from pathlib import Path


def test_known_error_shows_place_and_remedy_without_traceback(
    capsys: pytest.CaptureFixture[str],
) -> None:
    code = report(DefiniteError("the slot is gone", code="no-page", where="slot s", remedy="make it"))
    output = capsys.readouterr().err
    assert code == 1
    assert output == "error: slot s: the slot is gone [no-page]\nremedy: make it\n"


def test_multiline_error_starts_with_code_and_names_explain(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report(DefiniteError("no such column\n== SQL ==", code="sql", where="SQL"))
    assert capsys.readouterr().err == (
        "error: SQL: no such column [sql]\n== SQL ==\nmore: smelt explain-error sql\n"
    )


def test_debug_shows_the_traceback_of_the_same_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(DefiniteError) as raised:
        _fail()
    report(raised.value, debug=True)
    assert "Traceback" in capsys.readouterr().err


def test_foreign_error_is_single_line_naming_log(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The line holds no password."""
    error = RuntimeError("cannot open postgresql://me:geheim@db/shop\nwith more lines")
    assert report(error, log=tmp_path / "smelt.log") == 1
    output = capsys.readouterr().err
    assert "geheim" not in output
    assert "more lines" not in output
    assert str(tmp_path / "smelt.log") in output


@pytest.mark.parametrize(
    ("error", "code"),
    [(KeyboardInterrupt(), 130), (Terminated(), 143), (tables_stopped(["public.a"]), 3), (Failure("no"), 1),
     (TransientError("away", code="no-page"), 1)],
)  # fmt: skip
def test_each_kind_of_end_has_its_exit_code(error: BaseException, code: int) -> None:
    assert report(error) == code


def test_failure_during_interruption_is_reported_as_interruption(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(RuntimeError) as raised:
        _fail_while_interrupted()
    assert report(raised.value) == 130
    assert capsys.readouterr().err == "interrupted\n"


@pytest.mark.parametrize(
    "text",
    ["postgresql://me:geheim@db:5432/shop", "host=db password=geheim user=me", "password = 'geheim' host=db",
     "PASSWORD=geheim", "sc://h/;use_ssl=true;token=geheim==", "Parameter 'token=geheim==' should be"],
)  # fmt: skip
def test_passwords_are_masked_in_any_connection_string(text: str) -> None:
    assert "geheim" not in without_secrets(text)
    assert without_secrets(text).count("***") == 1


def _fail_while_interrupted() -> None:
    try:
        _interrupted()
    except KeyboardInterrupt:
        raise RuntimeError("the connection is in the middle of a call")  # noqa: B904 - as pyspark does


def _interrupted() -> None:
    raise KeyboardInterrupt


def _fail() -> None:
    raise DefiniteError("the slot is gone", code="no-page")


@pytest.mark.parametrize("part", ["a", "a-", "x://", "x://:", "x://u:", "password", "password=", "x://u:p@ "])
def test_a_long_text_is_blanked_in_linear_time(part: str) -> None:
    start = time.monotonic()
    without_secrets(part * (400_000 // len(part)) + "@")
    assert time.monotonic() - start < 5, "a minute where each beginning is tried to the end"
