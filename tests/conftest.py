"""Fixtures of all tests: real servers, one real Spark session in each process."""

from tests.fix_postgres import database, database18, lake_path, own_server, server18, server_dsn
from tests.fix_spark import spark

__all__ = ["database", "database18", "lake_path", "own_server", "server18", "server_dsn", "spark"]
