"""Commands whose server never answers: each shows that it waits, and ends at Ctrl-C with one line."""

from __future__ import annotations

import os
import pty
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PATIENT = """
from deltasmelt.bronze.checks import ownership
from deltasmelt.pipelines.health import server_half
ownership._CONNECT_SECONDS = server_half._CONNECT_SECONDS = "600"
from deltasmelt.__main__ import main
main()
"""
"""A command that does not give up before the test interrupts it, however busy the machine is."""


@pytest.mark.process
def test_silent_server_shows_wait_until_ctrl_c(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # the kernel accepts, and nobody answers
        dsn = f"host=127.0.0.1 port={silent.getsockname()[1]} dbname=x user=x connect_timeout=600"
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
        for name, arguments in commands.items():
            process, terminal = _begin(arguments, tmp_path)
            try:
                shown = _until(terminal, " …")
                assert " …" in shown, f"{name}: {shown}"
                process.send_signal(signal.SIGINT)
                rest = _until(terminal, None)
                assert process.wait(60) == 130, f"{name}: {shown}{rest}"
                assert rest.splitlines()[-1].endswith("interrupted"), f"{name}: {rest}"
            finally:
                process.kill()
                os.close(terminal)


def _begin(arguments: list[str], folder: Path) -> tuple[subprocess.Popen[bytes], int]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", PATIENT, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "PYTHONPATH": str(ROOT), "TERM": "xterm-256color", "SMELT_LOGS": str(folder)},
    )
    os.close(theirs)
    return process, ours


def _until(terminal: int, text: str | None) -> str:
    """Return a terminal's output up to a text, or to its end."""
    output, until = b"", time.monotonic() + 120
    while text is None or text.encode() not in output:
        ready, _, _ = select.select([terminal], [], [], max(0, until - time.monotonic()))
        assert ready, f"nothing more is shown: {output.decode()}"
        try:
            piece = os.read(terminal, 65536)
        except OSError:  # the process has ended
            break
        output += piece
    return output.decode()
