"""Fixtures of all tests: real servers, one real Spark session in each process."""

import signal
from collections.abc import Generator
from typing import Any, Final

import pytest
from hypothesis import settings

from tests.fix_postgres import database, database18, lake_path, own_server, server18, server_dsn
from tests.fix_spark import active, spark
from tests.fix_store import place, store, store_of_all
from tests.marks import hold, mark_by_needs
from tests.progress import FileByFile
from tests.scheduling import LONGEST_FIRST, FromBothEnds, in_order, needs_spark

__all__ = [
    "active", "database", "database18", "lake_path", "own_server", "place", "server18", "server_dsn", "spark",
    "store", "store_of_all",
]  # fmt: skip

# Their assertions say what they compared, as those of test files do.
pytest.register_assert_rewrite("tests.bronze.first_start", "tests.bronze.standard_history")

# A busy machine takes longer for one example than for another.
settings.register_profile("shared machine", deadline=None)
settings.load_profile("shared machine")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background of a script ignores Ctrl-C, and so would the commands that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # likewise under nohup
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

LONG_FIXTURE_SECONDS: Final = 1500
"""Their fixtures play many histories at once and count towards a test; a busy machine must not end them."""


@pytest.hookimpl(trylast=True)  # once there is a terminal
def pytest_configure(config: pytest.Config) -> None:
    """A long run shows file by file how far it is."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is not None:
        config.pluginmanager.register(FileByFile(terminal), "file-by-file")


@pytest.hookimpl(tryfirst=True)  # before the selection by `-m`
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the files in order for several processes, give the longest time, and mark what each test needs."""
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
    """A test that is marked to need nothing starts no process."""
    return (yield from hold(item))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FromBothEnds | None:
    """Of several processes, two for Spark and the others for the rest (`--dist loadfile`)."""
    return FromBothEnds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Have a report hold text that another process can be sent: tests write and log half surrogates."""
    report = yield
    report.sections = [
        (name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections
    ]
    return report
