"""The transactions that delay a wait, with names and without names."""

from __future__ import annotations

import psycopg
import pytest

from deltasmelt.bronze.postgres.blockers import running_transactions, without_names
from deltasmelt.bronze.postgres.connection import connect
from tests.bronze.replaying import source_of


@pytest.mark.postgres
def test_what_the_server_says_is_shown_without_its_names(database: str) -> None:
    with (
        connect(source_of(database)) as looking,
        psycopg.connect(database, application_name="pay, (roll) 5 s") as one,
    ):
        one.execute("SELECT pg_current_xact_id()")
        said = running_transactions(looking)
        pid, role = one.info.backend_pid, one.info.user
        one.rollback()
    assert f"pid {pid} ({role} on " in said
    assert "pay, (roll) 5 s, idle in transaction" in said
    shown = without_names(f"40 MB of it: {said}; raise the limit")
    assert "roll" not in shown
    assert f"pid {pid} (" in shown
    assert shown.endswith(" s); raise the limit")


def test_processes_and_ages_stay() -> None:
    said = (
        "waits: pid 12 (boss on shop, psql, active, 300 s); pid 13 (? , 4 s); "
        "prepared transaction a of b of boss (7 s); prepared transaction c of boss (8 s)\n"
        "remedy: let them end, or end them: SELECT pg_terminate_backend(<pid>);"
    )
    assert without_names(said) == (
        "waits: pid 12 (300 s); pid 13 (4 s); prepared transaction a (7 s); prepared transaction c (8 s)\n"
        "remedy: let them end, or end them: SELECT pg_terminate_backend(<pid>);"
    )
    assert without_names("the slot is read by pid 12") == "the slot is read by pid 12"
