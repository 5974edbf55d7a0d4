from __future__ import annotations

import re
import signal
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.demo import live
from deltasmelt.pipelines.demo.demo import empty_folder, shop_database
from deltasmelt.pipelines.demo.live import HeadHistory
from deltasmelt.pipelines.runtime.locks import lake_lock
from deltasmelt.pipelines.terminal.output import Output
from tests.patience import wait_for
from tests.pipelines.processes import Command

if TYPE_CHECKING:
    from pathlib import Path


def test_folder_without_demo_is_rejected_and_unchanged(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ConfigurationError, match="no demo created it"):
        empty_folder(tmp_path, Output())
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_second_demo_in_folder_starts_over_with_notice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "demo-lake"
    empty_folder(folder, Output())
    (folder / "quality.html").write_text("old")
    empty_folder(folder, Output())
    assert [path.name for path in folder.iterdir()] == [".smelt-demo"]
    assert "removing the files of an earlier demo" in capsys.readouterr().err


def test_running_demo_in_folder_is_not_removed(tmp_path: Path) -> None:
    empty_folder(tmp_path, Output())
    with (
        lake_lock(Lake(path=str(tmp_path / "lake")), ("bronze", "silver", "gold"), command="smelt demo"),
        pytest.raises(DefiniteError, match="is already running"),
    ):
        empty_folder(tmp_path, Output())


@pytest.mark.postgres
def test_demo_on_given_server_drops_database_and_slot(
    server_dsn: str,
) -> None:
    """The demo makes a database of its own on the given server."""
    databases = "SELECT array_agg(datname ORDER BY datname) FROM pg_database"
    with psycopg.connect(server_dsn, autocommit=True) as connection:
        before = connection.execute(databases).fetchone()
        with shop_database(Output(), server_dsn) as shop, psycopg.connect(shop, autocommit=True) as inside:
            assert inside.execute("SELECT count(*) FROM customers").fetchone() == (2000,)
            inside.execute("SELECT pg_create_logical_replication_slot(current_database(), 'pgoutput')")
            name = inside.info.dbname
        assert connection.execute(databases).fetchone() == before
        row = connection.execute("SELECT 1 FROM pg_replication_slots WHERE slot_name = %s", [name]).fetchone()
    assert row is None


def test_unusable_server_is_reported_without_password() -> None:
    with (
        pytest.raises(ConfigurationError) as raised,
        shop_database(Output(), "postgresql://me:geheim@127.0.0.1:1/postgres"),
    ):
        pass
    assert raised.value.where == "--dsn"
    assert "geheim" not in str(raised.value)


def test_ctrl_c_during_demo_leaves_nothing_running(tmp_path: Path) -> None:
    with Command("demo", "--folder", tmp_path / "lake", folder=tmp_path) as demo:
        wait_for(lambda: "bronze" in demo.text() or demo.process.poll() is not None)
        assert demo.process.poll() is None, demo.text()
        assert demo.family("postgres")
        assert demo.family("deltasmelt.pipelines.runtime.reader_process")
        demo.process.send_signal(signal.SIGINT)
        assert demo.wait(90) == 130
        wait_for(lambda: not demo.family(), 20)
    assert "Traceback" not in demo.text()


def test_lag_is_age_of_first_missing_log_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    # The module's own clock alone: other threads of this process measure time too.
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now))
    heads = HeadHistory()
    for moment, head in ((100.0, 1000), (101.0, 2000), (102.0, 3000)):
        now = moment
        heads.note(Lsn(head))
    now = 105.0
    assert heads.behind(None) == (None, None)
    assert heads.behind(Lsn(3000)) == (0, 0.0)
    assert heads.behind(Lsn(2999)) == (0, 0.0)
    assert heads.behind(Lsn(1999)) == (1000, 3.0)
    assert heads.behind(Lsn(500)) == (2499, 5.0)


@pytest.mark.torture
def test_short_demo_ends_with_equal_tables(
    tmp_path: Path,
) -> None:
    """The demo also ends with a document, a report and working commands."""
    folder = tmp_path / "lake"
    with Command("demo", "--folder", folder, "--seconds", "3", folder=tmp_path) as demo:
        assert demo.wait(400) == 0, demo.text()
    output = demo.text()
    for table in ("customers", "orders", "order_items", "tags"):
        assert re.search(rf"public\.{table}\s.*equal", output), output
    assert "lifetime_value" in output
    assert (folder / "quality.html").is_file()
    sql = re.search(r' sql (\S+) "(.+?)"$', output, re.MULTILINE)
    assert sql is not None, output
    with Command("sql", sql[1], sql[2], folder=tmp_path) as query:
        assert query.wait(120) == 0, query.text()
