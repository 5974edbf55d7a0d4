"""PostgreSQL for the tests: one server of each kind per run, one fresh database per test."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import uuid
from functools import cache
from typing import TYPE_CHECKING

import psycopg
import psycopg.conninfo
import pytest
from psycopg.conninfo import make_conninfo

from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_copy import ServerVersion


@cache
def _initialised(version: ServerVersion) -> EmbeddedServer:
    """Run initdb once per process and version; the server is never started."""
    server = EmbeddedServer(version=version)
    atexit.register(server.close)
    return server


class CopiedServer(EmbeddedServer):
    """A server whose files are copied instead of made by initdb, which costs a second of CPU time.

    All copies have one system identifier: a test that tells servers apart uses `EmbeddedServer`.
    """

    def _initialise(self) -> None:
        first = _initialised(self.version)
        owner = first.folder.stat()
        os.chown(self.folder, owner.st_uid, owner.st_gid)
        shutil.copymode(first.folder, self.folder)
        subprocess.run(["cp", "-a", str(first.data), str(self.data)], check=True)


@pytest.fixture(scope="session")
def server_dsn(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Return an administrator's DSN on the run's server: SMELT_TEST_DSN, else the embedded PostgreSQL 16."""
    dsn = os.environ.get("SMELT_TEST_DSN")
    if dsn:
        yield dsn
        return
    with EmbeddedServer() as server:
        yield server.dsn()


@pytest.fixture(scope="session")
def server18() -> Iterator[EmbeddedServer]:
    """Start an embedded PostgreSQL 18 for the run."""
    with EmbeddedServer(version=18) as server:
        yield server


@pytest.fixture
def primary() -> Iterator[EmbeddedServer]:
    """Start a PostgreSQL 18 for one test, with standbys."""
    with CopiedServer(version=18) as server:
        yield server


@pytest.fixture
def own_server() -> Iterator[EmbeddedServer]:
    """Start a PostgreSQL 16 for one test, which may stop, restart and break the server."""
    with CopiedServer() as server:
        yield server


def make_database(server_dsn: str, options: str = "") -> str:
    """Create an empty database and return its DSN."""
    name = f"t_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        # Neither through the log nor through buffers: a third of the time to create, and to drop.
        copied = "STRATEGY file_copy" if connection.info.server_version >= 150000 else ""
        connection.execute(f'CREATE DATABASE "{name}" {copied} {options}'.encode())
    return make_conninfo(server_dsn, dbname=name)


def drop_database(server_dsn: str, dsn: str) -> None:
    """End all sessions of the database, then drop its slots and the database."""
    name = psycopg.conninfo.conninfo_to_dict(dsn)["dbname"]
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE datname = %s AND pid <> pg_backend_pid()",
            [name],
        )
        for _ in range(100):
            busy = connection.execute(
                "SELECT count(*) FROM pg_replication_slots WHERE database = %s AND active", [name]
            ).fetchone()
            if busy is not None and busy[0] == 0:
                break
            connection.execute("SELECT pg_sleep(0.05)")
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s", [name]
        )
        connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


@pytest.fixture
def database(server_dsn: str) -> Iterator[str]:
    """Create a database and return its DSN; drop the database and its slots after the test."""
    dsn = make_database(server_dsn)
    yield dsn
    drop_database(server_dsn, dsn)


@pytest.fixture
def database18(server18: EmbeddedServer) -> Iterator[str]:
    """Create a database on PostgreSQL 18 and return its DSN; drop the database after the test."""
    dsn = make_database(server18.dsn())
    yield dsn
    drop_database(server18.dsn(), dsn)


def _execute(dsn: str, statement: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(statement.encode())


@pytest.fixture(params=[16, 18])
def dsn(request: pytest.FixtureRequest, server_dsn: str) -> str:
    """Return the DSN of a fresh database on each version."""
    value: str = request.getfixturevalue("database" if request.param == 16 else "database18")
    return value


@pytest.fixture
def role(dsn: str) -> Iterator[tuple[str, str]]:
    """Yield name and DSN of a login role without privileges."""
    name = f"r_{psycopg.conninfo.conninfo_to_dict(dsn)['dbname']}"
    _execute(dsn, f"CREATE ROLE {name} LOGIN")
    yield name, make_conninfo(dsn, user=name)
    _execute(dsn, f"DROP OWNED BY {name}; DROP ROLE {name}")


@pytest.fixture
def source(database: str) -> SourceSettings:
    """Return settings of the source in a fresh database."""
    from tests.bronze.replaying import source_of  # noqa: PLC0415 - many tests need no reader

    return source_of(database)


@pytest.fixture
def lake_path(tmp_path: Path) -> str:
    """Return a path at which a test may create a lake."""
    return str(tmp_path / "lake")
