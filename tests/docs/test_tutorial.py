"""The tutorial's first steps work as printed: after its SQL, `init` and `check` find no error."""

from __future__ import annotations

import re
import uuid
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deltasmelt.pipelines.private import conf_folder
from tests.bronze.replaying import execute
from tests.docs.blocks import ROOT, blocks
from tests.pipelines.in_process import smelt_here

if TYPE_CHECKING:
    from pathlib import Path

TUTORIAL = ROOT / "docs" / "tutorial.md"


@pytest.mark.postgres
def test_tutorial_sql_prepares_server_passing_its_check(
    database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    role, owner = (f"{name}_{uuid.uuid4().hex[:8]}" for name in ("smelt", "app"))
    name = str(conninfo_to_dict(database)["dbname"])
    text = "".join(block.text for block in blocks(TUTORIAL) if block.language == "sql")
    for word, replacement in (("smelt", role), ("app", owner), ("shop", f'"{name}"')):
        text = re.sub(rf"\b{word}\b", replacement, text)
    statements = [part.strip() for part in text.split(";") if part.strip()]
    assert len(statements) == 9
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(
            f"CREATE ROLE {owner}; GRANT ALL ON SCHEMA public TO {owner}; SET ROLE {owner}".encode()
        )
        connection.execute((conf_folder() / "demo" / "shop.sql").read_bytes())
        connection.execute("RESET ROLE")
        for statement in statements:
            if not statement.startswith("ALTER SYSTEM"):  # the servers of the tests are logical already
                connection.execute(statement.encode())
    monkeypatch.setenv("PGPASSWORD", "choose-one")
    try:
        processes = [
            smelt_here("init", "--dsn", make_conninfo(database, user=role), folder=tmp_path),
            smelt_here("check", "pipeline.yml", folder=tmp_path),
        ]
    finally:
        execute(database, f"DROP OWNED BY {role}, {owner}; DROP ROLE {role}, {owner}")
    assert [process.returncode for process in processes] == [0, 0]
    assert "error:" not in "".join(process.stdout + process.stderr for process in processes)
    assert (tmp_path / "documents" / "customer.yml").is_file()
