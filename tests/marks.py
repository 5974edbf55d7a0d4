"""What a test needs, as marks: given by its fixtures at collection, and held while it runs.

`make check` runs what is marked neither ``spark`` nor ``postgres`` nor ``process``. That selection is exact
because of two rules. A test that uses a fixture of a server or of Spark, also by way of others, gets the mark
without being told. And a test without any of the marks that starts a process is refused by name, so none can
bring a server, a JVM or a child of its own into the quick run.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

BY_FIXTURE: Final = {
    "spark": ("spark",),
    "postgres": ("database", "database18", "own_server", "server18", "server_dsn"),
}
"""Marks, and the fixtures that bring them."""

_STARTS: Final = frozenset({"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec"})
_running: list[pytest.Item] = []


def mark_by_fixtures(item: pytest.Item) -> None:
    """Add the marks that a test's fixtures bring."""
    fixtures = set(getattr(item, "fixturenames", ()))
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
