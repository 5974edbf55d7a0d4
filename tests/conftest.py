"""Fixtures of all tests: real servers, one real Spark session in each process."""

import signal

from tests.fix_postgres import database, database18, lake_path, own_server, server18, server_dsn
from tests.fix_spark import spark

__all__ = ["database", "database18", "lake_path", "own_server", "server18", "server_dsn", "spark"]

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A run in the background of a script ignores Ctrl-C, and so would the commands that the tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
