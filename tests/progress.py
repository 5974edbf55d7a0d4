"""What a long run of tests shows while it goes: a line for each file that is done.

Dots of several processes tell a person nothing. A line says which file, how many tests of it, how long they
took (their seconds, whichever process), and how much of the whole run is done by now.
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
"""Runs of no more files than this keep pytest's dots."""


class FileByFile:
    """Prints a line for each file of tests that is done; in the process that has the terminal."""

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
        """A process of several knows its tests, which are those of each."""
        self._expect(ids)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """The only process knows its tests."""
        self._expect(item.nodeid for item in session.items)

    def _expect(self, ids: Iterable[str]) -> None:
        if self._tests:
            return
        found: defaultdict[str, set[str]] = defaultdict(set)
        for each in ids:
            found[_file(each)].add(each)
        self._tests = dict(found)
        self._left = {file: set(tests) for file, tests in found.items()}

    @property
    def _speaks(self) -> bool:
        return len(self._tests) > FEW_FILES

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """No dot for a test that passed: its file's line counts it."""
        return ("passed", "", "") if self._speaks and report.when == "call" and report.passed else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count; at the end of a file say so."""
        file = _file(report.nodeid)
        self._seconds[file] += report.duration
        self._failed[file] += report.failed
        if report.when != "teardown":
            return
        self._done += 1
        left = self._left.get(file, set())
        left.discard(report.nodeid.split("@")[0])
        if not left and self._speaks:
            self._say(file)

    def _say(self, file: str) -> None:
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
