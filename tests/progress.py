"""Progress of a long test run: a line for each finished file.

The dots of several processes inform no reader. A line names the file, the number of tests, the total seconds
of all processes for the file, and the finished share of the whole run.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from _pytest.terminal import TerminalReporter

FEW_FILES: Final = 3
"""Largest number of files for which a run still prints pytest's dots."""


class FileByFile:
    """A pytest plugin that prints a line for each finished file; runs in the process with the terminal."""

    def __init__(self, terminal: TerminalReporter) -> None:
        self._terminal = terminal
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
        if report.when != "teardown":
            return
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
