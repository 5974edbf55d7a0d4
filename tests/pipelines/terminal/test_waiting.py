"""The progress line and colours, on a real pseudo-terminal and without a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
WAITS = (
    "import time; from deltasmelt.pipelines.terminal.output import Output\n"
    "from deltasmelt.pipelines.terminal.output import waiting\n"
    "output = Output()\n"
    "with waiting('starting Spark', output.report):\n"
    "    time.sleep(0.4); output.report('a message meanwhile'); output.line('a row'); time.sleep(0.4)\n"
    "output.report('done')\n"
)
FAILS = (
    "import logging; logging.getLogger().addHandler(logging.NullHandler())\n"
    "from deltasmelt.bronze.errors import DefiniteError\n"
    "from deltasmelt.pipelines.terminal.failures import report\n"
    "report(DefiniteError('the slot is gone', code='slot-lost', remedy='make it'))\n"
)


def on_a_terminal(program: str, **environment: str) -> tuple[str, str]:
    """Return a program's output to a terminal (standard error) and to a pipe (standard output)."""
    ours, theirs = pty.openpty()
    inherited = {k: v for k, v in os.environ.items() if k not in {"NO_COLOR", "FORCE_COLOR", "COLORTERM"}}
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**inherited, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            piece = os.read(ours, 65536)
        except OSError:  # the other side is closed
            break
        if not piece:
            break
        output += piece
    os.close(ours)
    assert process.stdout is not None
    with process.stdout as pipe:
        piped = pipe.read()
    assert process.wait() == 0
    return output.decode(), piped


def test_progress_line_moves_and_leaves_only_messages() -> None:
    output, piped = on_a_terminal(WAITS)
    assert "starting Spark …" in output
    assert "0:00:00" in output
    assert output.index("a message meanwhile") < output.rindex("starting Spark …")
    assert output.endswith("done\r\n")
    assert output.count("\x1b[?25l") == output.count("\x1b[?25h"), "the cursor is shown again"
    assert piped == "a row\n"


def test_a_dumb_terminal_gets_plain_lines() -> None:
    output, _ = on_a_terminal(WAITS, TERM="dumb")
    assert output == "starting Spark …\r\na message meanwhile\r\ndone\r\n"


@pytest.mark.parametrize(("environment", "red"), [({}, 1), ({"NO_COLOR": "1"}, 0), ({"TERM": "dumb"}, 0)])
def test_error_colours_follow_terminal_and_user(environment: dict[str, str], red: int) -> None:
    output, _ = on_a_terminal(FAILS, **environment)
    assert output.count("\x1b[1;31merror:") == output.count("31m") == red
    assert "[slot-lost]" in output


@pytest.mark.parametrize(("term", "between"), [("xterm-256color", "\r\x1b[K"), ("dumb", "\r\n")])
def test_interruption_replaces_begun_line_of_terminal(term: str, between: str) -> None:
    program = (
        "import sys; from deltasmelt.pipelines.terminal.failures import report\n"
        "sys.stderr.write('drop the slot? [y/n] (n): ^C'); report(KeyboardInterrupt())"
    )
    output, _ = on_a_terminal(program, TERM=term)
    assert output == f"drop the slot? [y/n] (n): ^C{between}interrupted\r\n"


def test_output_outside_terminal_neither_moves_nor_has_colour() -> None:
    for program, lines in (
        (WAITS, ["starting Spark …", "a message meanwhile", "done"]),
        (
            FAILS,
            [
                "error: the slot is gone [slot-lost]",
                "remedy: make it",
                "more: smelt explain-error slot-lost",
            ],
        ),
    ):
        process = subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color"},
        )
        assert process.stderr.splitlines() == lines


def test_confirmation_is_requested_only_at_terminal() -> None:
    asks = "from deltasmelt.pipelines.terminal.output import Output; print(Output().agreed('at db: DROP x;'))"
    output, piped = on_a_terminal(asks)  # its standard input is no terminal
    assert (output, piped) == ("", "False\n")
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    process = subprocess.run(
        [sys.executable, "-c", asks],
        check=True,
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"},
    )
    os.close(theirs)
    screen = os.read(ours, 65536).decode()
    os.close(ours)
    assert process.stdout == "False\n"
    assert "at db: DROP x;" in screen
    assert "Continue? [y/n]" in screen
