"""The transactions that delay a wait, with names and without names."""

from __future__ import annotations

import psycopg
import pytest

from deltasmelt.bronze.postgres.blockers import running_transactions, without_names
from deltasmelt.bronze.postgres.connection import connect
from tests.bronze.replaying import source_of


@pytest.mark.postgres
def test_running_transactions_are_shown_without_server_terms(database: str) -> None:
    with (
        connect(source_of(database)) as looking,
        psycopg.connect(database, application_name="pay, (roll) 5 s") as first,
    ):
        first.execute("SELECT pg_current_xact_id()")
        transactions = running_transactions(looking)
        pid, role = first.info.backend_pid, first.info.user
        first.rollback()
    assert f"pid {pid} ({role} on " in transactions
    assert "pay, (roll) 5 s, idle in transaction" in transactions
    redacted = without_names(f"40 MB of it: {transactions}; raise the limit")
    assert "roll" not in redacted
    assert f"pid {pid} (" in redacted
    assert redacted.endswith(" s); raise the limit")


def test_processes_and_ages_stay() -> None:
    message = (
        "waits: pid 12 (boss on shop, psql, active, 300 s); pid 13 (? , 4 s); "
        "prepared transaction a of b of boss (7 s); prepared transaction c of boss (8 s)\n"
        "remedy: wait until these transactions end, or end them: SELECT pg_terminate_backend(<pid>);"
    )
    assert without_names(message) == (
        "waits: pid 12 (300 s); pid 13 (4 s); prepared transaction a (7 s); prepared transaction c (8 s)\n"
        "remedy: wait until these transactions end, or end them: SELECT pg_terminate_backend(<pid>);"
    )
    assert without_names("the slot is read by pid 12") == "the slot is read by pid 12"
