"""Progress of a long test run: a line for each finished file.

The dots of several processes inform no reader. A line names the file, the number of tests, the total seconds
of all processes for the file, and the finished share of the whole run. While no test ends, lines name the
running tests.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.terminal import TerminalReporter

FEW_FILES: Final = 3
"""Largest number of files for which a run still prints pytest's dots."""
SILENT_SECONDS: Final = 240.0
"""Seconds without a finished test after which a line names the running tests."""


class FileByFile:
    """A pytest plugin that prints a line for each finished file; runs in the process with the terminal."""

    def __init__(self, terminal: TerminalReporter, *, silence: float = SILENT_SECONDS) -> None:
        self._terminal = terminal
        self._silence = silence
        self._running: dict[str, float] = {}
        self._finished, self._ended = threading.Event(), threading.Event()
        self._tests: dict[str, set[str]] = {}
        self._left: dict[str, set[str]] = {}
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._failed: Counter[str] = Counter()
        self._done = 0
        self._started = time.monotonic()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Record the tests of the run; each process of several collects all of them."""
        self._expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Record the tests of a run with a single process."""
        self._expect(item.nodeid for item in session.items)

    def _expect(self, ids: Iterable[str]) -> None:
        if self._tests:
            return
        tests_of_files: defaultdict[str, set[str]] = defaultdict(set)
        for test_id in ids:
            tests_of_files[_file(test_id)].add(test_id)
        self._tests = dict(tests_of_files)
        self._left = {file: set(tests) for file, tests in tests_of_files.items()}

    def pytest_runtestloop(self) -> None:
        """Start to watch for silence."""
        threading.Thread(target=self._watch, name="silence", daemon=True).start()

    def pytest_sessionfinish(self) -> None:
        """End the watch."""
        self._ended.set()
        self._finished.set()

    def _watch(self) -> None:
        while not self._ended.is_set():
            if not self._finished.wait(self._silence) and self._speaks:
                now = time.monotonic()
                self._terminal.ensure_newline()
                for test, started in sorted(self._running.items()):
                    self._terminal.write_line(f"running: {test}, for {now - started:.0f} s")
            self._finished.clear()

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Record the start of a test."""
        self._running[nodeid] = time.monotonic()

    @property
    def _speaks(self) -> bool:
        return len(self._tests) > FEW_FILES

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """Print no dot for a passed test: the line of its file counts the test."""
        return ("passed", "", "") if self._speaks and report.when == "call" and report.passed else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count the test; print the file's line after its last test."""
        file = _file(report.nodeid)
        self._seconds[file] += report.duration
        self._failed[file] += report.failed
        if report.when in {"setup", "call"}:
            return
        self._running.pop(report.nodeid, None)
        self._finished.set()
        self._done += 1
        remaining = self._left.get(file, set())
        remaining.discard(report.nodeid.split("@")[0])
        if not remaining and self._speaks:
            self._write(file)

    def _write(self, file: str) -> None:
        tests, failed = len(self._tests.get(file, ())), self._failed[file]
        every = sum(map(len, self._tests.values()))
        minutes, seconds = divmod(int(time.monotonic() - self._started), 60)
        self._terminal.ensure_newline()
        self._terminal.write_line(
            f"{100 * self._done // every:3d} %  {minutes:2d}:{seconds:02d}  {file}  {tests} tests, "
            f"{self._seconds[file]:.0f} s" + (f", {failed} FAILED" if failed else ""),
            red=bool(failed),
        )


def _file(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]
