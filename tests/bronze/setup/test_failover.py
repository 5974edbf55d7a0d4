"""Slots for standbys: created, marked, refused, and the findings about standbys."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.setup.create_slot import ensure_slot
from deltasmelt.bronze.setup.slot import read_slot
from tests.bronze.replaying import execute, make_reader

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.finding import Finding
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer


def source(dsn: str, **values: object) -> SourceSettings:
    settings = {"dsn": dsn, "slot": f"slot_{uuid.uuid4().hex[:8]}", "publication": "smelt", "failover": True}
    return SourceSettings.model_validate({**settings, **values})


def findings_of(settings: SourceSettings) -> dict[str, Finding]:
    """Return the findings about slot and standbys."""
    with connect(settings) as connection:
        subjects = (f"slot {settings.slot}", "source.failover", "synchronized_standby_slots")
        return {
            finding.code: finding for finding in inspect(connection, settings) if finding.subject in subjects
        }


def ensured(settings: SourceSettings) -> bool:
    with connect(settings) as connection:
        ensure_slot(connection, settings.with_timing(Timing(slot_release=0.2)))
        slot = read_slot(connection, settings.slot)
    assert slot is not None
    return slot.failover


def test_failover_slot_is_made_only_on_request(database18: str) -> None:
    assert ensured(source(database18))
    assert not ensured(source(database18, failover=False))


def test_existing_slot_is_marked_and_keeps_position(database18: str) -> None:
    settings = source(database18)
    execute(database18, f"SELECT pg_create_logical_replication_slot('{settings.slot}', 'pgoutput')")
    with connect(settings) as connection:
        before = read_slot(connection, settings.slot)
        to_do = findings_of(settings)["failover-to-do"]
        assert f"ALTER_REPLICATION_SLOT {settings.slot} (FAILOVER true);" in to_do.message
        after = ensure_slot(connection, settings)
        second_state = read_slot(connection, settings.slot)
    assert before is not None
    assert (before.failover, after.failover) == (False, True)
    assert after == second_state
    assert after.confirmed_flush == before.confirmed_flush
    assert "failover-to-do" not in findings_of(settings)


def test_unmanaged_slot_is_unchanged_and_printed_command_works(
    database18: str, server18: EmbeddedServer
) -> None:
    settings = source(database18, manage=False)
    making = findings_of(settings)["slot-missing"]
    assert making.level == "error"
    assert "failover => true" in str(making.remedy)
    execute(database18, f"SELECT pg_create_logical_replication_slot('{settings.slot}', 'pgoutput')")
    with connect(settings) as connection:
        with pytest.raises(DefiniteError) as caught:
            ensure_slot(connection, settings)
        slot = read_slot(connection, settings.slot)
    assert caught.value.code == "slot-failover-missing"
    assert slot is not None
    assert not slot.failover
    finding = findings_of(settings)["slot-failover-missing"]
    assert (finding.level, finding.remedy) == ("error", caught.value.remedy)
    command = str(finding.remedy).partition("uses the slot: ")[2].partition(" (or set")[0]
    values = conninfo_to_dict(database18)
    environment = {"PGHOST": str(values["host"]), "PGPORT": str(values["port"]), "PATH": str(server18.bin)}
    subprocess.run(command, shell=True, check=True, env={**os.environ, **environment})  # noqa: S602
    assert ensured(settings)


def test_failover_before_17_is_rejected_without_changes(database: str, lake_path: str) -> None:
    with psycopg.connect(database) as connection:
        if connection.info.server_version >= 170000:
            pytest.skip("the server of this run has failover slots")
    settings = source(database)
    assert findings_of(settings)["failover-unsupported"].level == "error"
    for step in (lambda: ensured(settings), lambda: make_reader(settings, lake_path).run()):
        with pytest.raises(DefiniteError) as caught:
            step()
        assert caught.value.code == "failover-unsupported"
    count_query = "SELECT (SELECT count(*) FROM pg_publication) + (SELECT count(*) FROM pg_replication_slots "
    count_query += "WHERE database = current_database())"
    with psycopg.connect(database) as connection:
        assert connection.execute(count_query.encode()).fetchone() == (0,)


def name_standbys(server: EmbeddedServer, names: str) -> None:
    execute(server.dsn(), f"ALTER SYSTEM SET synchronized_standby_slots = '{names}'")
    execute(server.dsn(), "SELECT pg_reload_conf()")
    with psycopg.connect(server.dsn(), autocommit=True) as connection:
        for _ in range(200):
            if connection.execute("SHOW synchronized_standby_slots").fetchone() == (names,):
                return
            time.sleep(0.02)
    raise AssertionError("the configuration was not read again")


def test_unnamed_and_missing_standbys_are_reported(primary: EmbeddedServer) -> None:
    settings = source(primary.dsn())
    unnamed = findings_of(settings)["failover-standbys-unnamed"]
    assert unnamed.level == "warning"
    assert "synchronized_standby_slots = " in str(unnamed.remedy)
    assert "sync_replication_slots = on" in str(unnamed.remedy)
    execute(primary.dsn(), "SELECT pg_create_physical_replication_slot('here')")
    assert "physical slots: here" in findings_of(settings)["failover-standbys-unnamed"].message
    name_standbys(primary, "here")
    away = findings_of(settings)
    assert "failover-standbys-unnamed" not in away
    assert (
        "slot here in synchronized_standby_slots exists, but no standby uses it"
        in away["failover-standby-away"].message
    )
    execute(primary.dsn(), "SELECT pg_drop_replication_slot('here')")
    assert (
        "slot here in synchronized_standby_slots does not exist"
        in findings_of(settings)["failover-standby-away"].message
    )
    careless = settings.model_copy(update={"failover": False})
    assert findings_of(careless)["failover-not-asked"].level == "info"
    name_standbys(primary, "")
    assert findings_of(careless).keys() == {"slot-missing"}
