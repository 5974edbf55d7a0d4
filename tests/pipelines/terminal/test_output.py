from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from deltasmelt.pipelines.terminal.output import Format, Output, messages, text_value


def test_table_outside_terminal_has_plain_aligned_lines(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name", "rows"), [("a", 5), ("longer\nname", None)], right=("rows",))
    assert capsys.readouterr().out.splitlines() == [
        "name          rows",
        "------------  ----",
        "a                5",
        "longer\\nname  NULL",
    ]


def test_an_empty_table_still_shows_its_headings(capsys: pytest.CaptureFixture[str]) -> None:
    Output().table(("name",), [])
    assert capsys.readouterr().out.splitlines() == ["name", "----"]


def test_progress_messages_stay_out_of_data(capsys: pytest.CaptureFixture[str]) -> None:
    output = Output(Format.JSON)
    output.report("starting …")
    output.value({"price": Decimal("1.50"), "at": datetime(2026, 1, 1, tzinfo=UTC)})
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"price": "1.50", "at": "2026-01-01T00:00:00+00:00"}
    assert captured.err == "starting …\n"


def test_a_document_is_indented_and_keeps_every_digit(capsys: pytest.CaptureFixture[str]) -> None:
    Output().document('{"price" : 58.30, "exact" : [ 12345678901234567890.123456789 ], "s" : "é 1.50"}')
    assert capsys.readouterr().out == (
        '{\n  "price": 58.30,\n  "exact": [\n    12345678901234567890.123456789\n  ],\n  "s": "é 1.50"\n}\n'
    )


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "NULL"), (True, "true"), (b"\x00\xff", "0x00ff"), ([1, None], "[1, null]"),
     ({"a": "é"}, '{"a": "é"}'), ("[bold]", "[bold]")],
)  # fmt: skip
def test_cells_show_nulls_and_nested_values(value: object, text: str) -> None:
    assert text_value(value) == text


def test_terminal_shows_values_as_they_are(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    messages.cache_clear()
    output = Output()
    output.line("line a:key:b [bold]")
    output.table(("head:key:",), [("cell x:100:y [red]",)], title="title:key:")
    output.report("message a:key:b")
    captured = capsys.readouterr()
    messages.cache_clear()
    assert "line a:key:b [bold]" in captured.out
    for text in ("head:key:", "cell x:100:y [red]", "title:key:"):
        assert text in captured.out
    assert "message a:key:b" in captured.err


@pytest.mark.parametrize(
    ("width", "shown"),
    [(80, ["state", "rows", "seconds"]), (70, ["state", "rows"]), (60, ["state"]), (30, ["state"])],
)
def test_narrow_terminal_leaves_out_spare_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, shown: list[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    name = "public.a_table_whose_name_is_as_long_as_names_get"
    columns = ("tables", "state", "rows", "seconds", "last change of the table")
    Output().table(
        columns, [(name, "streaming", 5000, 1.5, "2026-01-01")], right=columns[2:], spare=columns[2:]
    )
    lines = capsys.readouterr().out.splitlines()
    assert [column for column in columns[1:] if column in lines[0]] == shown
    assert (name in lines[2]) == (width >= 60)
