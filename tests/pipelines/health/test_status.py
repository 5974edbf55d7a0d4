"""The status of tables, from a real server and a real lake, without Spark."""

from __future__ import annotations

import dataclasses
import json
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import jsonschema
import pytest
from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.checks.ownership import ServerClaims
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.postgres.connection import ServerIdentity
from deltasmelt.bronze.store.position import Position
from deltasmelt.bronze.stream.replication import ReplicationStream
from deltasmelt.pipelines.commands.status import ladder_rows, show_status
from deltasmelt.pipelines.health.lake_half import LakeHalf
from deltasmelt.pipelines.health.server_half import ServerHalf
from deltasmelt.pipelines.health.status import _status, read_status
from deltasmelt.pipelines.health.status_json import plain_status, status_schema
from deltasmelt.pipelines.monitor.alerts import Alerts
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from tests.bronze.replaying import execute, fetch, read_all, source_of
from tests.patience import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.pipelines.settings import Pipeline


def pipeline_of(folder: Path, database: str, slot: str) -> Pipeline:
    file = folder / "pipeline.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{database}', slot: {slot}, publication: smelt, "
        "tables: [public.*]}\nlake: {path: ./lake}\n"
    )
    return load_pipeline(file)


@pytest.mark.postgres
def test_table_dropped_at_source_is_reported_as_dropped(database: str, tmp_path: Path) -> None:
    source = source_of(database)
    execute(source, "CREATE TABLE kept (id int PRIMARY KEY)", "CREATE TABLE gone (id int PRIMARY KEY)")
    read_all(source, str(tmp_path / "lake"))
    pipeline = pipeline_of(tmp_path, database, source.slot)
    status = read_status(pipeline)
    jsonschema.validate(json.loads(json.dumps(plain_status(status))), status_schema())
    states = {table.name: table.state for table in status.tables}
    assert states == {"public.kept": "waiting", "public.gone": "waiting"}
    execute(source, "DROP TABLE gone")
    states = {table.name: table.state for table in read_status(pipeline).tables}
    assert states == {"public.kept": "waiting", "public.gone": "dropped"}


@pytest.mark.postgres
def test_lag_of_connected_reader_is_age_of_bronze(database: str, tmp_path: Path) -> None:
    source = source_of(database)
    execute(source, "CREATE TABLE t (id int PRIMARY KEY, note text)", "INSERT INTO t VALUES (1, 'x')")
    read_all(source, str(tmp_path / "lake"))
    pipeline = pipeline_of(tmp_path, database, source.slot)
    start = time.monotonic()
    execute(source, "INSERT INTO t SELECT i, repeat(md5(i::text), 30) FROM generate_series(2, 60000) i")
    stream = ReplicationStream(source, application_name="stands still")
    try:
        stream.start(ZERO)
        time.sleep(3)
        least = time.monotonic() - start
        status = read_status(pipeline)
    finally:
        stream.close()
    rungs = {rung.name: rung for rung in status.ladder}
    assert status.slot is not None
    assert status.slot.active_pid is not None
    assert (rungs["bronze"].bytes or 0) > 30_000_000
    for name in ("bronze", "slot confirmed", "received"):
        assert (rungs[name].seconds or 0) > least - 1.5, name


@pytest.mark.postgres
def test_reader_hidden_from_the_role_names_the_grant(
    database: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = source_of(database)
    name = f"r_{source.slot}"
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    read_all(source, str(tmp_path / "lake"))
    execute(source, f"CREATE ROLE {name} LOGIN REPLICATION; GRANT SELECT ON t TO {name}")
    pipeline = pipeline_of(tmp_path, make_conninfo(database, user=name), source.slot)
    # The walsender of `read_all` may live on for a moment, and is a reader that the role may not see.
    active = "SELECT active FROM pg_replication_slots WHERE slot_name = %s"
    wait_for(lambda: not fetch(source, active, source.slot), 30)
    try:
        show_status(pipeline, Output())
        assert "received" not in capsys.readouterr().out, "without a reader"
        stream = ReplicationStream(source, application_name="reads")
        try:
            stream.start(ZERO)
            show_status(pipeline, Output())
            shown = capsys.readouterr().out
            assert "GRANT pg_read_all_stats TO" in shown
            assert "\nreceived" not in shown
            execute(source, f"GRANT pg_read_all_stats TO {name}")
            show_status(pipeline, Output())
            shown = capsys.readouterr().out
            assert "GRANT pg_read_all_stats" not in shown
            assert "\nreceived" in shown
        finally:
            stream.close()
    finally:
        execute(source, f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_absent_server_leaves_lag_unknown_and_alerts_open(tmp_path: Path) -> None:
    at = datetime.now(UTC) - timedelta(minutes=10)
    cut = Cut("silver", Lsn(1000), at, {})
    lake = LakeHalf(
        changes=None,
        position=Position(Lsn(1000), Lsn(1001), 3, at),
        cuts={"silver": cut, "gold": None},
        pending={"silver": (0, None), "gold": (None, None)},
        snapshot=None,
        tables=(),
        documents=(),
        errors=(),
        clustering=(),
    )
    identity = ServerIdentity(1, 1, 170000, "shop")
    claims = ServerClaims(identity, None)
    server = ServerHalf(claims, Lsn(90_000_000), None, None, False, 0.0, None, set())
    pipeline = pipeline_of(tmp_path, "", "s")
    no_answer = TransientError("no answer", code="server-unreachable")
    complete = _status(pipeline, server, None, lake, None)
    away = _status(pipeline, None, no_answer, lake, None)
    alerts = Alerts("shop", kinds=["lag"], layers=["bronze", "silver"], limit=300.0)
    assert [alert.state for alert in alerts.after(complete, 0)] == ["firing", "firing"]
    assert [cells[3] for cells in ladder_rows(complete.ladder)][2:] == ["at most 10 min 0 s"] * 2, "no reader"
    at_end = dataclasses.replace(server, head=Lsn(1001))
    assert [rung.seconds for rung in _status(pipeline, at_end, None, lake, None).ladder[2:]] == [0, 0]
    assert alerts.after(away, 5) == []
    assert [(rung.name, rung.bytes, rung.seconds, rung.commits) for rung in away.ladder] == [
        ("bronze", None, None, None), ("silver", None, None, 0),
    ]  # fmt: skip
    jsonschema.validate(json.loads(json.dumps(plain_status(away))), status_schema())
    lagging = dataclasses.replace(lake, pending={"silver": (3, at), "gold": (None, None)})
    silver = _status(pipeline, None, no_answer, lagging, None).ladder[-1]
    assert (silver.commits, (silver.seconds or 0) >= 600) == (3, True), "of what bronze holds"
