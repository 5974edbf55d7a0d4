"""Commands as processes that a test watches, stops and kills."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

ROOT = Path(__file__).parents[2]
_MARK = "SMELT_TEST_PROCESS"
_IN_TURN = """
import json, sys
from deltasmelt.pipelines.cli import main
for arguments in json.loads(sys.argv[1]):
    try:
        main(arguments)
        code = 0
    except SystemExit as end:
        code = end.code
    print(f"{arguments[0]} ended with {code}", file=sys.stderr, flush=True)
"""
_TURNS = """
import json, sys
from deltasmelt.pipelines.cli import main
for line in sys.stdin:
    word, *others = json.loads(line)
    try:
        works[word](*others) if word in works else main([word, *others])
        code = 0
    except SystemExit as end:
        code = end.code
    print(f"\\n{code} is how it ended", flush=True)
"""


class Command:
    """A process of `smelt …`; all its descendants carry a mark and end with the test."""

    def __init__(
        self,
        *arguments: str | Path,
        folder: Path,
        python: tuple[str, ...] = ("-m", "deltasmelt"),
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.mark = uuid.uuid4().hex
        self.said = folder / f"said-{self.mark}.txt"
        with self.said.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, *python, *map(str, arguments)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=folder,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "SMELT_LOGS": str(folder / "logs"),
                    _MARK: self.mark,
                    **(variables or {}),
                },
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pid in [self.process.pid, *self.family()]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()

    def text(self) -> str:
        """Return the output of both streams so far."""
        return self.said.read_text()

    def wait(self, seconds: float = 500) -> int:
        """Wait for the end of the process; return its exit code."""
        return self.process.wait(seconds)

    def family(self, word: str = "") -> list[int]:
        """Return the ids of the command's running descendants whose command line contains `word`."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != self.process.pid:
                try:
                    mine = f"{_MARK}={self.mark}".encode() in (entry / "environ").read_bytes()
                    zombie = (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
                    line = (entry / "cmdline").read_bytes().decode()
                except OSError:  # it ended while we looked
                    continue
                if mine and not zombie and word in line:
                    pids.append(int(entry.name))
        return pids


class Turns:
    """A process that runs commands in turn, like the tasks of a job; the test acts between two commands.

    Args:
        folder: working folder, with the logs.
        program: Python code that defines ``works``: words, each with the function that the word calls.
        arguments: arguments of the program.
        variables: further environment variables.
    """

    def __init__(
        self,
        folder: Path,
        program: str = "works = {}",
        *arguments: str,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "SMELT_LOGS": str(folder / "logs")}
        pipe, output = subprocess.PIPE, subprocess.STDOUT
        self.process = subprocess.Popen(
            [sys.executable, "-c", program + _TURNS, *arguments],
            stdin=pipe, stdout=pipe, stderr=output, cwd=folder, text=True,
            env={**environment, **(variables or {})},
        )  # fmt: skip

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self.process:  # closes the pipes
            self.process.kill()

    def begin(self, *arguments: str | Path) -> None:
        """Send a command."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps([str(argument) for argument in arguments]) + "\n")
        self.process.stdin.flush()

    def answer(self, code: int = 0) -> str:
        """Wait for the end of a command with this exit code; return the command's output."""
        assert self.process.stdout is not None
        text = ""
        for line in self.process.stdout:
            if line.endswith(" is how it ended\n"):
                assert line.startswith(f"{code} "), text
                return text
            text += line
        raise AssertionError(text)

    def run(self, *arguments: str | Path, code: int = 0) -> str:
        """Return the output of a command that must end with this exit code."""
        self.begin(*arguments)
        return self.answer(code)


def in_turn(
    *commands: list[str], folder: Path, variables: Mapping[str, str] | None = None, seconds: float = 500
) -> list[tuple[int, str]]:
    """Run commands in turn in one process; return exit code and output of each.

    For commands whose process is not under test: a start takes as long as most commands.
    """
    python = ("-c", _IN_TURN)
    with Command(json.dumps(commands), folder=folder, python=python, variables=variables) as process:
        assert process.wait(seconds) == 0, process.text()
        output, results = process.text(), []
    for name, *_ in commands:
        text, end, output = output.partition(f"{name} ended with ")
        assert end, text
        code, _, output = output.partition("\n")
        results.append((int(code), text))
    return results


def task_seconds(pid: int) -> float:
    """Return the user seconds of the tasks that a JVM's Spark ran."""
    spent = thread_seconds(pid)
    return max((seconds for name, seconds in spent.items() if name.startswith("Executor")), default=0)


def thread_seconds(pid: int) -> dict[str, float]:
    """Return the user seconds of a process's threads, summed by the (shortened) names of the threads."""
    seconds: dict[str, float] = {}
    for task in Path(f"/proc/{pid}/task").glob("*/stat"):
        try:
            name, _, fields = task.read_text().partition("(")[2].rpartition(")")
        except OSError:  # it ended while we looked
            continue
        seconds[name] = seconds.get(name, 0.0) + int(fields.split()[11]) / os.sysconf("SC_CLK_TCK")
    return seconds
