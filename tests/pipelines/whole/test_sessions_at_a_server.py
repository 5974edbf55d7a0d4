"""Sessions at a Spark Connect server: alive while owned, closed afterwards, reported if the server ends them.

The server ends sessions after some idle seconds. A pipeline rests meanwhile, and continues afterwards.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from tests.bronze.replaying import execute, source_of
from tests.connect_server import ConnectServer
from tests.patience import wait_for
from tests.pipelines.processes import Command
from tests.pipelines.sql_shell.small_lake import ROWS
from tests.pipelines.whole.sessions_at_a_server import SETTINGS

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

pytestmark = [
    pytest.mark.spark,
    pytest.mark.postgres,
    pytest.mark.process,
    pytest.mark.torture,
    pytest.mark.timeout(900),
]

_CLOSED = "INVALID_HANDLE.SESSION_CLOSED"


def test_sessions_outlive_idle_time_and_end_with_work(database: str, tmp_path: Path) -> None:
    """An error names a session that the server ended."""
    source = source_of(database)
    execute(
        source,
        "CREATE TABLE orders (id int PRIMARY KEY, total int)",
        "INSERT INTO orders SELECT i, i FROM generate_series(1, 9) i",
    )
    file, control = tmp_path / "shop.yml", ControlTables(Lake(path=str(tmp_path / "lake")))
    (tmp_path / "order.yml").write_text("document: order\nroot: public.orders\nfields: [id, total]\n")
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {source.slot}, publication: smelt}}\n"
        "lake: {path: lake}\ngold: {documents: [order.yml]}\n"
    )

    def is_newer(before: int) -> bool:
        cut = control.latest_cut("gold")
        return cut is not None and cut.commit_lsn > before

    with (
        ConnectServer(tmp_path, settings=SETTINGS) as server,
        Command("run", file, folder=tmp_path, variables={"SPARK_REMOTE": server.remote}) as run,
    ):
        wait_for(lambda: is_newer(0), seconds=200)
        observed = observations(tmp_path / "beside", server)  # longer than a session may rest
        last = control.latest_cut("gold")
        assert last is not None
        execute(source, "UPDATE orders SET total = 0 WHERE id = 1")
        wait_for(lambda: is_newer(last.commit_lsn), seconds=200)
        assert run.process.poll() is None, run.text()

    assert observed["ours"] == {
        "idle": ["1", "1"],
        "lost": ["spark-died", "spark-died"],
        "tables": ["spark-died", "spark-died"],
        "half": _CLOSED,
    }

    borrowed = observed["given"]
    assert (borrowed["beside"], borrowed["after"]) == ("1", _CLOSED), "what was made beside a lent session"
    assert borrowed["interrupted"] == [["OPERATION_CANCELED"], True]
    assert borrowed["rows"] == [2 * ROWS, 2 * ROWS, ROWS]
    assert (borrowed["views"], borrowed["views after"]) == (2, 0), (
        "one for each version, while the lake is open"
    )
    assert (borrowed["catalog"], borrowed["catalog after"]) == (["layer-empty", 1], 0), (
        "one beside it, while it is open"
    )
    assert borrowed["ended"] == ["spark-died", "spark-died"]

    assert observed["held"] == {"idle": str(2 * ROWS), "ended": ["spark-died", str(2 * ROWS)]}


def observations(folder: Path, server: ConnectServer) -> dict[str, Any]:
    """Return a separate process's observations of its sessions."""
    folder.mkdir()
    module = ("-m", "tests.pipelines.whole.sessions_at_a_server")
    with Command(folder, server.remote, folder=folder, python=module) as command:
        assert command.wait(400) == 0, command.text()
    text: dict[str, Any] = json.loads((folder / "seen.json").read_text())
    return text
