"""Commands whose server never answers: each shows that it waits, and ends at Ctrl-C with one line."""

from __future__ import annotations

import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.process
def test_silent_server_shows_wait_until_ctrl_c(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody answers
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x user=x"
        file = tmp_path / "pipeline.yml"
        file.write_text(
            f"pipeline: silent\nsource: {{dsn: {dsn}, slot: s, publication: p}}\nlake: {{path: ./lake}}\n"
        )
        commands = {
            "check": ["check", str(file)],
            "init": ["init", "--dsn", dsn, "--out", str(tmp_path / "new.yml")],
            "status": ["status", str(file)],
            "run": ["run", str(file), "--until-caught-up"],
            "snapshot": ["snapshot", str(file), "--all"],
            "drop": ["drop", str(file)],
        }
        begun = {name: _begin(arguments, tmp_path) for name, arguments in commands.items()}
        for name, (process, terminal) in begun.items():
            shown = _until(terminal, " …")
            assert " …" in shown, f"{name}: {shown}"
            process.send_signal(signal.SIGINT)
            began = time.monotonic()
            rest = _until(terminal, None)
            assert process.wait(20) == 130, f"{name}: {shown}{rest}"
            assert time.monotonic() - began < 10, f"{name}: two seconds on a quiet machine"
            assert rest.endswith("\rinterrupted\r\n"), f"{name}: {rest}"
            os.close(terminal)


def _begin(arguments: list[str], folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "deltasmelt", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "SMELT_LOGS": str(folder)},
    )
    os.close(theirs)
    return process, ours


def _until(terminal: int, text: str | None) -> str:
    """Return a terminal's output up to a text, or to its end."""
    output = b""
    while text is None or text.encode() not in output:
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the process has ended
            break
        output += piece
    return output.decode()
