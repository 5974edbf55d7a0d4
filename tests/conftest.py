"""Fixtures of all tests: real servers, and one real Spark session per process."""

import faulthandler
import signal
from collections.abc import Generator
from typing import Any, Final

import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

from tests import random_examples  # noqa: F401 - sets Hypothesis up
from tests.fix_postgres import (
    database,
    database18,
    dsn,
    lake_path,
    own_server,
    primary,
    role,
    server18,
    server_dsn,
    source,
)  # fmt: skip
from tests.fix_spark import active, interpreted, spark
from tests.fix_store import place, store, store_of_all
from tests.marks import hold, mark_by_needs
from tests.progress import FileByFile
from tests.scheduling import LONGEST_FIRST, FromBothEnds, in_order, needs_spark

__all__ = [
    "active", "database", "database18", "dsn", "interpreted", "lake_path", "own_server", "place", "primary",
    "role", "server18", "server_dsn", "source", "spark", "store", "store_of_all",
]  # fmt: skip

# Their assertions say what they compared, as those of test files do.
pytest.register_assert_rewrite("tests.bronze.first_start", "tests.bronze.standard_history")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background of a script ignores Ctrl-C, and so would the commands that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # likewise under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

_DUMP_SECONDS: Final = 5
"""How much earlier than pytest-timeout the process ends."""
_SECONDS: Final = pytest.StashKey[float]()

LONG_FIXTURE_SECONDS: Final = 1200
"""Timeout of a long test, valid on a busy machine: its fixture plays many histories and counts towards it."""


@pytest.hookimpl(trylast=True)  # once there is a terminal
def pytest_configure(config: pytest.Config) -> None:
    """Print the progress of a long run file by file."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(FileByFile(terminal), "file-by-file")


@pytest.hookimpl(tryfirst=True)  # before the selection by `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the files for several processes, set the longest timeout, and mark the needs of each test."""
    items[:] = in_order(items, from_both_ends=config.getoption("dist", "no") == "loadfile")
    for item in items:
        mark_by_needs(item)
        if item.get_closest_marker("spark") is not None and not needs_spark(item.path):
            # By its text it would go to the process without Spark, and start one more JVM there.
            raise pytest.UsageError(f"{item.path} needs Spark: mark it, or say `spark: SparkSession`")
        long = item.path.as_posix().endswith(LONGEST_FIRST) or item.get_closest_marker("torture") is not None
        if long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(LONG_FIXTURE_SECONDS))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Prevent a test without marks from starting a process."""
    return (yield from hold(item))


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> None:
    """End the process at the timeout, with the stacks of all threads.

    Of several processes only one has a terminal, so pytest-timeout's stacks are lost. Its thread also needs
    the interpreter's lock, which the hanging call may hold; this timer does not.
    """
    item.stash[_SECONDS] = max(settings.timeout - _DUMP_SECONDS, _DUMP_SECONDS)
    _set_timer(item)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> None:
    """Set the timer again: pytest cancels all timers after a failure."""
    if _SECONDS in item.stash and not item.config.getoption("usepdb"):
        _set_timer(item)


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_cancel_timer() -> None:
    """Cancel the timer of `pytest_timeout_set_timer`."""
    faulthandler.cancel_dump_traceback_later()


def _set_timer(item: pytest.Item) -> None:
    stderr = item.config.stash[fault_handler_stderr_fd_key]
    faulthandler.dump_traceback_later(item.stash[_SECONDS], exit=True, file=stderr)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FromBothEnds | None:
    """Assign two processes to Spark and the rest to the files without Spark (`--dist loadfile`)."""
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escape half surrogates in captured output and logs: xdist cannot send them to another process."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
