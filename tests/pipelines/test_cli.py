"""The command as a user calls it: exit codes, and one clear message for each kind of bad input.

The first tests run the command as a process, as do tests of code with child processes. The remaining tests
run the command within pytest's process.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.setup.publication import ensure_publication
from deltasmelt.pipelines.settings import load_pipeline
from tests.pipelines.in_process import smelt_here
from tests.silver.histories import INT, BronzeWriter, relation

if TYPE_CHECKING:
    from subprocess import CompletedProcess

ROOT = Path(__file__).parents[2]


def smelt(
    *arguments: str | Path, folder: Path, seconds: float = 120, **environment: str
) -> CompletedProcess[str]:
    """Run the command as a process, with its logs in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "deltasmelt", *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=seconds,
        env={**os.environ, "PYTHONPATH": str(ROOT), "SMELT_LOGS": str(folder / "logs"), **environment},
    )


def pipeline_file(folder: Path, dsn: str, more: str = "") -> Path:
    path = folder / "pipeline.yml"
    path.write_text(
        f"pipeline: shop\nsource: {{dsn: '{dsn}', slot: cli_test, publication: cli_test}}\n"
        f"lake: {{path: ./lake}}\n{more}"
    )
    return path


def make_lake(folder: Path) -> None:
    """Create a lake with a silver cut, sufficient for the checks of commands before Spark starts."""
    lake = Lake(path=str(folder / "lake"))
    BronzeWriter(lake).relations([relation("orders", [("id", INT)], ["id"], relation_id=1)])
    ControlTables(lake).record_cut(Cut("silver", Lsn(1), None, {"orders": 0}))


def one_message(done: CompletedProcess[str], code: int = 1) -> str:
    """Check for exactly one error message and no traceback; return standard error."""
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr + done.stdout
    assert done.stderr.count("error:") == 1
    return done.stderr


def test_help_and_version_load_no_spark_or_driver(tmp_path: Path) -> None:
    """Great Expectations stays unloaded, too."""
    process = smelt("--help", folder=tmp_path)
    commands = [
        "demo",
        "init",
        "check",
        "run",
        "bronze",
        "silver",
        "gold",
        "status",
        "tail",
        "sql",
        "explain",
        "preview",
        "verify",
        "quality",
        "snapshot",
        "drop",
    ]
    assert process.returncode == 0
    assert [word for word in commands if f"\n  {word} " not in process.stdout] == []
    assert smelt("--version", folder=tmp_path).stdout.startswith("deltasmelt ")
    probe = (
        "import sys, deltasmelt.pipelines.cli; "
        "heavy = ('pyspark', 'great_expectations', 'psycopg', 'deltalake'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", probe], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.strip() == "[]"


def test_every_command_can_be_asked_for_without_pyspark() -> None:
    """A command without pyspark then reports how to install pyspark (`spark-missing`)."""
    commands = [
        "drop",
        "explain",
        "maintain",
        "preview",
        "quality",
        "rebuild",
        "run",
        "sql",
        "tail",
        "verify",
    ]
    probe = (
        "import importlib, sys; "
        "sys.modules.update(dict.fromkeys(('pyspark', 'py4j', 'delta'))); "
        "[importlib.import_module(f'deltasmelt.pipelines.commands.{name}') for name in sys.argv[1:]]"
    )
    process = subprocess.run(
        [sys.executable, "-c", probe, *commands], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr


def test_status_loads_neither_spark_nor_pandas(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1 dbname=x")
    probe = (
        "import sys; from deltasmelt.pipelines.cli import main; main(sys.argv[1:]); "
        "print([name for name in ('pyspark', 'great_expectations', 'pandas') if name in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", probe, "status", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "SMELT_LOGS": str(tmp_path)},
    )
    assert process.stdout.splitlines()[-1] == "[]"


def test_an_unknown_command_is_a_usage_error(tmp_path: Path) -> None:
    process = smelt("statu", "x.yml", folder=tmp_path)
    assert process.returncode == 2
    assert "status" in process.stderr


@pytest.mark.parametrize(
    "command", ["check", "run", "bronze", "silver", "gold", "status", "quality", "snapshot", "drop"]
)
def test_a_missing_pipeline_file_is_named(tmp_path: Path, command: str) -> None:
    assert "nowhere.yml: the pipeline file does not exist" in one_message(
        smelt_here(command, "nowhere.yml", folder=tmp_path)
    )


def test_misspelt_key_is_named_with_line_before_start(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1", more="sliver: {deletes: soft}\n")
    message = one_message(smelt_here("run", file, folder=tmp_path))
    assert f"{file}:4" in message
    assert "'silver'" in message


def test_document_mistake_is_named_with_file_before_start(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1", more="gold: {documents: [d.yml]}\n")
    (tmp_path / "d.yml").write_text("document: d\nroot: public.t\nfeilds: [id]\n")
    message = one_message(smelt_here("gold", file, folder=tmp_path))
    assert f"{tmp_path / 'd.yml'}:3" in message
    assert "'fields'" in message
    # The tables do not wait for it, nor do other documents.
    process = smelt_here("run", file, "--until-caught-up", folder=tmp_path)
    document, _, server = process.stderr.partition("127.0.0.1:1")
    assert f"document d is not built: {tmp_path / 'd.yml'}:1: 'fields' is missing" in document
    assert server
    assert process.returncode == 1


def test_a_statement_may_begin_with_a_comment(tmp_path: Path) -> None:
    make_lake(tmp_path)
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1")
    for comment in ("-- all orders", "--\n", "--all: orders\n-- of = today"):
        assert smelt_here("sql", file, comment, folder=tmp_path).stderr.strip() == "SQL: no statement"
    for option in ("--orders", "--ordered=2"):
        output = smelt_here("sql", file, option, folder=tmp_path).stderr
        assert f"No such option: {option.partition('=')[0]}" in output


def test_absent_server_is_reported_with_address_without_password(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "postgresql://me:geheim@127.0.0.1:1/shop")
    for command in ("run --until-caught-up", "bronze --until-caught-up", "drop"):
        message = one_message(smelt_here(*command.split(), file, folder=tmp_path))
        assert "127.0.0.1:1/shop" in message
        assert "remedy" in message
        assert "geheim" not in message
    assert "geheim" not in "".join(path.read_text() for path in (tmp_path / "logs").glob("*.log"))


def test_debug_shows_the_traceback_wherever_it_stands(tmp_path: Path) -> None:
    for arguments in (["--debug", "status", "nowhere.yml"], ["status", "nowhere.yml", "--debug"]):
        process = smelt_here(*arguments, folder=tmp_path)
        assert process.returncode == 1
        assert "Traceback" in process.stderr


@pytest.mark.postgres
def test_wrong_database_and_wrong_role_are_distinguished(tmp_path: Path, database: str) -> None:
    wrong_database = pipeline_file(tmp_path, make_conninfo(database, dbname="nowhere"))
    assert "nowhere" in one_message(smelt_here("run", wrong_database, "--until-caught-up", folder=tmp_path))
    wrong_role = pipeline_file(tmp_path, make_conninfo(database, user="nobody_of_that_name"))
    assert "nobody_of_that_name" in one_message(
        smelt_here("run", wrong_role, "--until-caught-up", folder=tmp_path)
    )


def test_stages_without_input_name_preceding_command(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1")
    message = one_message(smelt_here("silver", file, "--until-caught-up", folder=tmp_path))
    assert "smelt bronze pipeline.yml --until-caught-up" in message
    for process in (
        smelt_here("sql", file, "SELECT 1", folder=tmp_path),
        smelt_here("quality", file, folder=tmp_path),
    ):
        assert "smelt run pipeline.yml --until-caught-up" in one_message(process)


def test_invalid_time_is_rejected_before_spark(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1")
    message = one_message(smelt_here("sql", file, "SELECT 1", "--as-of", "yesterday", folder=tmp_path))
    assert "'yesterday' is neither an LSN nor a time" in message


def test_unknown_document_is_rejected_with_nearest_name(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1", more="gold: {documents: ['d*.yml']}\n")
    (tmp_path / "d.yml").write_text("document: customer\nroot: public.t\nfields: [id]\n")
    commands = (
        ["preview", "custmer", "--key", "1"],
        ["verify", "--document", "custmer"],
        ["explain", "custmer"],
    )
    for command, *arguments in commands:
        assert "did you mean 'customer'" in one_message(
            smelt_here(command, file, *arguments, folder=tmp_path)
        )
    (tmp_path / "d2.yml").write_text("document: custmer\nroot: public.t\nfields: {id: id}\n")
    for command, *arguments in commands:
        assert "d2.yml:3: fields" in one_message(smelt_here(command, file, *arguments, folder=tmp_path))
    assert "d2.yml" not in one_message(smelt_here("explain", file, "customer", folder=tmp_path))


def test_the_schema_of_document_files_needs_no_lake(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1")
    process = smelt_here("explain", file, "--schema", folder=tmp_path)
    assert json.loads(process.stdout)["required"] == ["document", "root", "fields"]
    assert smelt_here("explain", file, folder=tmp_path).returncode == 2


def test_impossible_rebuild_or_maintenance_is_reported_before_spark(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1")
    for command, arguments in (("rebuild", ["silver"]), ("rebuild", ["gold"]), ("maintain", [])):
        message = one_message(smelt_here(command, file, *arguments, folder=tmp_path))
        assert "smelt run pipeline.yml --until-caught-up" in message
    process = smelt_here("rebuild", file, "bronze", folder=tmp_path)
    assert process.returncode == 2
    assert "silver" in process.stderr
    make_lake(tmp_path)
    message = one_message(smelt_here("rebuild", file, "silver", "public.orderz", folder=tmp_path))
    assert "silver has no table 'public.orderz'; did you mean 'public.orders'" in message
    assert "no document matches 'x'" in one_message(smelt_here("rebuild", file, "gold", "x", folder=tmp_path))


def test_missing_java_is_reported_before_spark(tmp_path: Path) -> None:
    file = pipeline_file(tmp_path, "host=127.0.0.1 port=1")
    process = smelt("silver", file, folder=tmp_path, JAVA_HOME=str(tmp_path / "no-java"))
    assert "Java is missing" in one_message(process)


@pytest.mark.postgres
def test_status_shows_server_or_lake_alone(tmp_path: Path, database: str) -> None:
    fresh = smelt_here("status", pipeline_file(tmp_path, database), "--output", "json", folder=tmp_path)
    parsed = json.loads(fresh.stdout)
    assert fresh.returncode == 0
    assert parsed["lake_error"] == "the lake is still empty"
    assert parsed["source_error"] is None
    assert parsed["ladder"][0]["name"] == "head"
    assert parsed["ladder"][0]["bytes"] == 0
    down = smelt_here("status", pipeline_file(tmp_path, "host=127.0.0.1 port=1"), folder=tmp_path)
    assert down.returncode == 0
    assert "cannot be reached" in down.stdout
    assert "Traceback" not in down.stdout + down.stderr


@pytest.mark.postgres
def test_drop_removes_own_slot_and_publication_with_sql(tmp_path: Path, database: str) -> None:
    file = pipeline_file(tmp_path, database)
    with psycopg.connect(database, autocommit=True) as connection:
        ensure_publication(connection, load_pipeline(file).source, [])
        connection.execute("SELECT pg_create_logical_replication_slot('cli_test', 'pgoutput')")
        process = smelt_here("drop", file, "--yes", folder=tmp_path)
        assert process.returncode == 0, process.stderr
        assert process.stdout.splitlines() == [
            "SELECT pg_drop_replication_slot('cli_test');",
            'DROP PUBLICATION "cli_test";',
        ]
        row = connection.execute(
            "SELECT (SELECT count(*) FROM pg_publication), "
            "(SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'cli_test')"
        ).fetchone()
        assert row == (0, 0)
        assert "nothing to do" in smelt_here("drop", file, "--yes", folder=tmp_path).stderr

        connection.execute("CREATE PUBLICATION cli_test")
        ensure_publication(connection, load_pipeline(file).source, [])  # taken as it is, and extended
        second_drop = smelt_here("drop", file, "--yes", folder=tmp_path)
        assert second_drop.returncode == 0, second_drop.stderr
        assert second_drop.stdout.splitlines() == ['DROP PUBLICATION "cli_test";']
        assert "not changed" in second_drop.stderr
        assert connection.execute("SELECT pubname FROM pg_publication").fetchall() == [("cli_test",)]


def test_start_forbidden_by_connection_is_single_message(tmp_path: Path, database18: str) -> None:
    """The message carries a remedy."""
    file = pipeline_file(tmp_path, make_conninfo(database18, password="s3cr3t", sslmode="require"))
    message = one_message(smelt("bronze", file, folder=tmp_path))
    checked = smelt("check", file, folder=tmp_path)
    assert checked.returncode == 1
    assert checked.stdout.count("error:") == 1
    for text in (message, checked.stdout):
        assert "s3cr3t" not in text
        assert "offers no encryption" in text
        assert "ALTER SYSTEM SET ssl = on" in text
