"""Run the same histories on each supported PostgreSQL except 16, the version of all other tests.

Differences by version: queries of a publication's columns and filters (15), the report of a lost slot (17),
failover slots (17), generated columns (18). A release of 16 forgets tables that join.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import TYPE_CHECKING, cast

import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from tests.bronze.first_start import FirstStart
from tests.bronze.reader.test_shapes_within_transactions import assert_folds
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    execute,
    fetch,
    read_all,
    read_snapshot,
    session,
    source_of,
)
from tests.bronze.running import Running
from tests.bronze.shape_histories import AWAY, stories
from tests.bronze.shape_histories import History as ShapeHistory
from tests.bronze.standard_history import History, shorten
from tests.fix_postgres import drop_database, make_database
from tests.installations import installation
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.postgres


@pytest.fixture(
    scope="module",
    params=[14, pytest.param(15, marks=pytest.mark.torture), pytest.param(17, marks=pytest.mark.torture), 18],
)
def other_server(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the DSN of a server of each version in turn."""
    major = cast("int", request.param)
    with (
        nullcontext() if major == 18 else installation(major) as installed,
        EmbeddedServer(version=18, installation=installed) as server,
    ):
        assert major == _major(server.dsn())
        yield server.dsn()


@pytest.fixture
def other_database(other_server: str) -> Iterator[str]:
    """Yield the DSN of a fresh database on this server."""
    dsn = make_database(other_server)
    yield dsn
    drop_database(other_server, dsn)


def _major(dsn: str) -> int:
    return int(fetch(source_of(dsn), "SELECT current_setting('server_version_num')::int / 10000"))


def test_the_standard_history_and_a_first_start(
    other_database: str, other_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten(monkeypatch)
    History(other_database, tmp_path / "standard")  # compares when it has read all
    empty = make_database(other_server)
    FirstStart(empty, tmp_path / "first")
    drop_database(other_server, empty)


@pytest.mark.parametrize(
    "other_server",
    [14, *(pytest.param(major, marks=pytest.mark.torture) for major in (15, 17, 18))],
    indirect=True,
)
def test_shapes_that_change_within_transactions(other_database: str, lake_path: str) -> None:
    source = source_of(other_database, tables=["public.*"], exclude=[f"public.{AWAY}*"])
    execute(source, "CREATE SCHEMA elsewhere")
    chance, told_stories = random.Random(7), stories()
    histories = [ShapeHistory(f"t{number}", random.Random(chance.random())) for number in range(3)]
    for number in range(3):
        played = {name: windows[number] for name, windows in told_stories.items()}
        played |= {
            history.name: history.transactions() if number else history.begin() for history in histories
        }
        with Running(source, lake_path) as running:
            for transactions in played.values():
                execute(source, *transactions)
            assert running.error is None
        read_all(source, lake_path)
        assert_folds(source, lake_path, played)


@pytest.fixture(scope="module")
def forgetful_server() -> Iterator[str]:
    """Yield the DSN of a server that skips changes of a table after the table joined the publication."""
    with installation(16) as installed, EmbeddedServer(installation=installed) as server:
        yield server.dsn()


@pytest.mark.torture
@pytest.mark.parametrize("guarded", [False, True])
def test_a_forgetful_server_loses_no_joined_change(
    forgetful_server: str, lake_path: str, monkeypatch: pytest.MonkeyPatch, *, guarded: bool
) -> None:
    if not guarded:  # so that it is seen that this server does it
        monkeypatch.setattr("deltasmelt.bronze.reader.carried_tables.may_forget", lambda _: False)
    dsn = make_database(forgetful_server)
    source = source_of(dsn, timing=Timing(catalog_poll=0.3))
    execute(source, "CREATE TABLE a (id int PRIMARY KEY)")
    read_all(source, lake_path)
    execute(source, "CREATE TABLE b (id int PRIMARY KEY)")
    with session(source) as older:
        older.execute("BEGIN")
        older.execute("INSERT INTO b VALUES (1)")
        with Running(source, lake_path) as running:
            wait_for(lambda: fetch(source, "SELECT count(*) FROM pg_publication_tables") == 2)
            older.execute("INSERT INTO b VALUES (2)")
            older.execute("COMMIT")
            wait_for(lambda: read_snapshot(Lake(lake_path), TableName("public", "b")) is not None)
            execute(source, "INSERT INTO b VALUES (3)", "INSERT INTO a VALUES (3)")
            wait_for(
                lambda: any((row["table_name"], row["new"]) == ("a", ["3"]) for row in bronze_rows(lake_path))
            )
            assert running.error is None
    if guarded:
        assert_bronze_equals_source(source, lake_path, "public.a", "public.b")
    else:
        rows = [row["new"][0] for row in bronze_rows(lake_path) if row["table_name"] == "b" and row["new"]]
        assert "3" not in rows
        assert "1" in rows
    drop_database(forgetful_server, dsn)
