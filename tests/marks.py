"""Marks for the needs of a test: derived from its fixtures at collection, enforced during the test.

`make check` runs the tests with none of the marks ``spark``, ``postgres`` and ``process``. Two rules make
the selection exact. First, a test gets the mark automatically: from a fixture of a server or of Spark, also
an indirect fixture, or from a file whose text mentions processes. Second, a test without marks fails by name
as soon as the test starts a process. So no server, no JVM and no child process enters the quick run.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

BY_FIXTURE: Final = {
    "spark": ("spark",),
    "postgres": ("database", "database18", "own_server", "primary", "server18", "server_dsn"),
}
"""Marks, each with the fixtures that cause the mark."""

_PROCESSES: Final = re.compile(
    r"\b(subprocess|Popen|multiprocessing|EmbeddedServer|CopiedServer"
    r"|tests\.pipelines\.(processes|test_cli)|tests\.bronze\.tls_server)\b"
)
"""Words in the files of tests that start processes."""

_STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"})
_running: list[pytest.Item] = []


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def starts_processes(file: Path) -> bool:
    """Check whether the text of a test file mentions processes."""
    return _PROCESSES.search(_text(file)) is not None


def mark_by_needs(item: pytest.Item) -> None:
    """Add the marks that follow from a test's fixtures or from its file."""
    if starts_processes(item.path):
        item.add_marker("process")
    fixtures = set(getattr(item, "fixturenames", ()))
    if "request" in fixtures and "getfixturevalue" in _text(
        item.path
    ):  # a database of one version or another
        fixtures.add("database")
    for mark, names in BY_FIXTURE.items():
        if fixtures.intersection(names) and item.get_closest_marker(mark) is None:
            item.add_marker(mark)


def selected(request: pytest.FixtureRequest, name: str) -> set[str]:
    """Return the values of a parameter in those tests of a file that this run selects."""
    specs = (getattr(item, "callspec", None) for item in request.session.items if item.path == request.path)
    return {spec.params[name] for spec in specs if spec is not None and name in spec.params}


def needs_nothing(item: pytest.Item) -> bool:
    """Check whether a test, by its marks, runs within pytest's own process."""
    return not any(item.get_closest_marker(mark) for mark in (*BY_FIXTURE, "process", "torture"))


def hold(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test without needs as soon as it starts a process."""
    if needs_nothing(item):
        _running.append(item)
    try:
        return (yield)
    finally:
        _running.clear()


def _refuse(event: str, _: tuple[object, ...]) -> None:
    if event in _STARTS and _running:
        raise pytest.fail.Exception(f"{_running[-1].nodeid} starts a process: give it the mark `process`")


sys.addaudithook(_refuse)
