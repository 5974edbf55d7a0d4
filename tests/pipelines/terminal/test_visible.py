"""Foreign text: no control sequence that a terminal obeys reaches a person's screen."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_type_hints

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control import OpenError
from deltasmelt.pipelines.monitor.alerts import Alerts
from deltasmelt.pipelines.monitor.metrics import exposition
from deltasmelt.pipelines.monitor.page import render
from deltasmelt.pipelines.monitor.samples import Samples
from deltasmelt.pipelines.monitor.watch import Watched, why_not_ready
from deltasmelt.pipelines.settings import ALERT_KINDS, load_pipeline
from deltasmelt.pipelines.sql_shell.results import one_value_a_line
from deltasmelt.pipelines.terminal import failures, logs, output
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.pipelines.terminal.visible import in_a_line, plain, visible
from tests.docs.blocks import ROOT
from tests.pipelines.monitor.statuses import ILL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OBEYED = "".join(map(chr, [*range(9), *range(11, 32), *range(127, 160), 0x202E, 0x2066, 0x2028, 0xDC80]))
HOSTILE = f"a\x1b]0;title\x07\x1b[2J\x1b[31mred\x1b[0m{OBEYED}\n2026-01-01 00:00:00 INFO forged\ttab"


def require_harmless(text: str, *, of: str = "") -> None:
    assert not set(text) & set(OBEYED), (of, text)
    text.encode()


def test_terminal_controls_are_shown_and_json_keeps_value() -> None:
    require_harmless(visible(HOSTILE))
    assert visible("a\tb\nc é 🙂 \x1b[31m") == "a\tb\nc é 🙂 \\u001b[31m"
    for text in (HOSTILE, OBEYED):
        assert json.loads(visible(json.dumps(text, ensure_ascii=False))) == text
    assert plain("\x1b[31mno\x1b[0m such \x1b[1;4mtable") == "no such table"
    assert in_a_line("\x1b[31mno\x1b[0m\n  such\n") == "no such"


ARGUMENTS: dict[str, Any] = {
    "columns": (HOSTILE, "n"), "rows": [(HOSTILE, {"a": [HOSTILE]})], "right": (HOSTILE,), "title": HOSTILE,
    "spare": (HOSTILE, "n"), "plain": {HOSTILE: [HOSTILE]}, "style": None,
}  # fmt: skip
SHOWING = [name for name, _ in inspect.getmembers(Output, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", SHOWING)
def test_every_method_that_shows_something_shows_it_harmlessly(
    name: str, *, terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test walks over all methods: an unknown argument fails the test."""
    if terminal:
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.setenv("NO_COLOR", "1")  # colours of our own are sequences too
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    parameters = inspect.signature(getattr(Output, name)).parameters
    arguments = {
        parameter: json.dumps(HOSTILE, ensure_ascii=False)
        if name == "document"
        else ARGUMENTS.get(parameter, HOSTILE)
        for parameter in parameters
        if parameter != "self"
    }
    hints = get_type_hints(getattr(Output, name), localns={"Any": Any, **typing_names()})
    assert all(parameter in ARGUMENTS or hints[parameter] in {str, str | None} for parameter in arguments), (
        arguments
    )
    result = getattr(Output(), name)(**arguments)
    if hasattr(result, "__enter__"):
        with result:
            pass
    captured = capsys.readouterr()
    require_harmless(plain(captured.out) + captured.err, of=name)  # but styles of our own
    if name == "value":
        assert json.loads(captured.out) == {HOSTILE: [HOSTILE]}


def typing_names() -> dict[str, Any]:
    """Return the names that `Output` imports for type checkers alone."""
    from collections.abc import Iterable, Sequence  # noqa: PLC0415
    from contextlib import AbstractContextManager  # noqa: PLC0415

    return {"Iterable": Iterable, "Sequence": Sequence, "AbstractContextManager": AbstractContextManager}


def writes() -> Iterator[tuple[str, int, ast.expr]]:
    """Return each call in the product that writes to the terminal: file, line, and written expression."""
    for file in sorted((ROOT / "pipelines").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if isinstance(node, ast.Call) and called in {"sys.stdout.write", "sys.stderr.write"}:
                yield str(file.relative_to(ROOT)), node.lineno, node.args[0]
            assert not called.endswith("console.print") or file.parent.name == "terminal", file


def test_every_write_to_the_terminal_passes_the_gate() -> None:
    """A variable passes the gate a few lines earlier; `Paged` gets text that `SqlSession` made visible."""
    listed = list(writes())
    assert len(listed) > 10
    for file, line, call in listed:
        names = {node.id for node in ast.walk(call) if isinstance(node, ast.Name)}
        if "visible" in names or all(map(str.isupper, names)):
            continue
        source = (ROOT / file).read_text(encoding="utf-8").splitlines()
        before = "\n".join(source[max(0, line - 8) : line])
        assert "visible(text)" in before or file.endswith("paging.py"), (file, line, ast.unparse(call))


def test_errors_and_lines_of_json_are_harmless(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = DefiniteError(HOSTILE, code="x", where=HOSTILE, remedy=HOSTILE)
    for error in (ours, OSError(2, "gone", HOSTILE), RuntimeError(HOSTILE), failures.Failure(HOSTILE)):
        for debug in (False, True):
            failures.report(error, debug=debug)
            require_harmless(capsys.readouterr().err)
    monkeypatch.setattr(output, "_chosen", [True])
    failures.report(ours)
    printed = capsys.readouterr().err
    require_harmless(printed)
    assert json.loads(printed)["where"] == HOSTILE


def test_log_line_is_harmless_and_imitates_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path))
    for formatter in (logs._WithoutSecrets(logs._FORMAT), logs._JsonLines()):
        error = RuntimeError(HOSTILE)
        record = logging.LogRecord(
            "x", logging.INFO, "f", 1, "%s", (HOSTILE,), (RuntimeError, error, error.__traceback__)
        )
        text = formatter.format(record)
        require_harmless(text)
        assert not [line for line in text.splitlines()[1:] if line.startswith("2026")]


def test_page_probe_metrics_and_alerts_are_harmless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path / "logs"))
    hostile = replace(
        ILL,
        source_error=HOSTILE, lake=HOSTILE, source=HOSTILE,
        slot=None if ILL.slot is None else replace(ILL.slot, name=HOSTILE),
        tables=tuple(replace(table, name=HOSTILE, error=HOSTILE) for table in ILL.tables),
        errors=(OpenError("pipeline", HOSTILE, "x", HOSTILE, HOSTILE),),
        clustering=tuple(replace(hint, table=HOSTILE, column=HOSTILE) for hint in ILL.clustering),
        retention=ILL.retention
        and replace(
            ILL.retention,
            holders=tuple(replace(holder, name=HOSTILE) for holder in ILL.retention.holders),
        ),
    )  # fmt: skip
    samples = Samples()
    samples.add(hostile)
    samples.fail(HOSTILE)
    view = samples.view({"bronze": True})
    reasons = why_not_ready(view, ("bronze",), 300.0)
    require_harmless(render(view, "shop", reasons, report=False).replace("\u2013", ""), of="page")
    require_harmless(exposition(view, "shop", ready=False, counters={}).decode(), of="metrics")
    watching = Alerts("shop", kinds=ALERT_KINDS, layers=("bronze", "silver"), limit=300.0)
    away = replace(hostile, lake_read=False, lake_error=HOSTILE)
    alerts = [*watching.after(hostile, 0), *watching.after(away, 1), *watching.after(away, 400)]
    for alert in [*alerts, *watching.ended(RuntimeError(HOSTILE)), *watching.failed(HOSTILE, 900)]:
        for value in alert.body().values():
            require_harmless(value or "", of=f"alert {alert.kind}")
    file = tmp_path / "p.yml"
    file.write_text(
        "pipeline: shop\nsource: {host: db, user: u, slot: s, publication: p}\nlake: {path: lake}\n"
    )
    command = Watched(load_pipeline(file), ("bronze",))
    command._samples.add(hostile)
    for path, page in command.pages().items():
        require_harmless(page().body.decode().replace("\u2013", ""), of=path)
    ready = command.pages()["/readyz"]().body.decode()
    assert not [line for line in ready.splitlines() if line.startswith("2026")], "a reason is one line"


def test_rows_of_one_value_a_line_are_harmless() -> None:
    require_harmless("\n".join(one_value_a_line((HOSTILE,), [(HOSTILE,)])))
