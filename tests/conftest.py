"""Fixtures of all tests: real servers, one real Spark session."""

import pytest

from tests.fix_postgres import database, database18, lake_path, own_server, server18, server_dsn
from tests.fix_spark import spark

__all__ = ["database", "database18", "lake_path", "own_server", "server18", "server_dsn", "spark"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of the Spark session stay in one process; the other process runs all others, module by module."""
    for item in items:
        fixtures: list[str] = getattr(item, "fixturenames", [])
        group = "spark" if "spark" in fixtures else item.path.name
        item.add_marker(pytest.mark.xdist_group(group))
