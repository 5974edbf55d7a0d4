"""Fixtures of all tests: real servers, one real Spark session in each process."""

import signal
from pathlib import Path
from typing import Final

import pytest

from tests.fix_postgres import database, database18, lake_path, own_server, server18, server_dsn
from tests.fix_spark import spark

__all__ = ["database", "database18", "lake_path", "own_server", "server18", "server_dsn", "spark"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background of a script ignores Ctrl-C, and so would the commands that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

LONGEST_FIRST: Final = (
    "pipelines/test_end_to_end.py",
    "silver/test_random_histories.py",
    "silver/test_versions.py",
    "pipelines/test_maintenance.py",
    "pipelines/test_run.py",
    "gold/test_cycle.py",
    "gold/test_language.py",
    "gold/test_random_schemas.py",
    "gold/test_large.py",
    "gold/test_kill.py",
    "silver/test_scenarios.py",
    "pipelines/test_jobs_spark_submit.py",
    "silver/test_tables_stop_and_change.py",
    "silver/test_killed.py",
    "silver/test_versions_killed.py",
)
"""Files that take minutes. Two processes end together if these are begun first (`--no-loadscope-reorder`)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files; the order within a file stays."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
