"""What a test needs, as marks: given by its fixtures at collection, and held while it runs.

`make check` runs what is marked neither ``spark`` nor ``postgres`` nor ``process``. That selection is exact
because of two rules. A test that uses a fixture of a server or of Spark, also by way of others, or whose file
speaks of processes, gets the mark without being told. And a test without any of the marks that starts a
process is refused by name, so none can bring a server, a JVM or a child of its own into the quick run.
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
    "postgres": ("database", "database18", "own_server", "server18", "server_dsn"),
}
"""Marks, and the fixtures that bring them."""

_PROCESSES: Final = re.compile(
    r"\b(subprocess|Popen|multiprocessing|EmbeddedServer"
    r"|tests\.pipelines\.(processes|test_cli)|tests\.bronze\.tls_server)\b"
)
"""Words of a file whose tests start processes."""

_STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"})
_running: list[pytest.Item] = []


@cache
def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def starts_processes(file: Path) -> bool:
    """Whether the text of a test file speaks of processes."""
    return _PROCESSES.search(_text(file)) is not None


def mark_by_needs(item: pytest.Item) -> None:
    """Add the marks that a test's fixtures, or its file, bring."""
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


def needs_nothing(item: pytest.Item) -> bool:
    """Whether a test runs within its own process, as far as its marks say."""
    return not any(item.get_closest_marker(mark) for mark in (*BY_FIXTURE, "process", "torture"))


def hold(item: pytest.Item) -> Generator[None, object, object]:
    """While a test runs that needs nothing: refuse every process that it starts."""
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
