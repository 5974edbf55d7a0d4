"""No output, file or log of a command contains a password, whatever its source and whatever fails."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import psycopg
import pytest
from deltalake import DeltaTable

from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.pipelines.secret_variables import without_secret_variables
from deltasmelt.pipelines.settings import load_pipeline
from deltasmelt.pipelines.spark.launch import PopenArguments
from tests.fix_postgres import CopiedServer
from tests.object_store import Faults, lake_text
from tests.patience import wait_for
from tests.pipelines.in_process import smelt_here
from tests.pipelines.processes import Command, in_turn

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
    from tests.object_store import ObjectStore

PASSWORD: Final = "gEh31m-Wort"
STORE_KEY: Final = "Sch1ussel-des-Speichers"
KEY_ID: Final = "AKIA-dieses-Tests"
OTHER: Final = "4nderes-Wort"
HBA = "local all all trust\nhost all postgres 127.0.0.1/32 trust\nhost all smelt 127.0.0.1/32 scram-sha-256\n"
WAYS: Final = ("variable", "libpq", "password file")
IN_NO_ENVIRONMENT: Final = ("password file", "dsn")


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with CopiedServer() as server:
        with psycopg.connect(server.dsn(), autocommit=True) as connection:
            connection.execute("SET password_encryption = 'scram-sha-256'")
            connection.execute(f"CREATE ROLE smelt LOGIN REPLICATION PASSWORD '{PASSWORD}'".encode())
        (server.data / "pg_hba.conf").write_text(HBA)
        server.restart()
        yield server


@pytest.fixture
def shop(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    run(server, "CREATE DATABASE shop OWNER smelt", database="postgres")
    run(server, "CREATE TABLE items (id int PRIMARY KEY)", "ALTER TABLE items OWNER TO smelt")
    run(server, "INSERT INTO items VALUES (1)")
    yield server
    run(server, f"ALTER ROLE smelt PASSWORD '{PASSWORD}'")
    run(server, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots", database="postgres")
    run(server, "DROP DATABASE shop", database="postgres")


def run(server: EmbeddedServer, *statements: str, database: str = "shop") -> None:
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement.encode())


def prepared(way: str, server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a pipeline file that takes the password in this way."""
    keys: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": "smelt", "database": "shop"}
    if way == "variable":
        monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
        keys["password"] = "${SHOP_PASSWORD}"
    elif way == "libpq":
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
    elif way == "password file":
        file = folder / ".pgpass"
        file.write_text(f"*:*:*:smelt:{PASSWORD}\n")
        file.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(file))
    else:
        keys = {"dsn": f"postgresql://smelt:{quote(PASSWORD)}@127.0.0.1:{server.port}/shop"}
    pipeline = folder / "shop.yml"
    source = "".join(f"  {key}: '{value}'\n" for key, value in keys.items())
    pipeline.write_text(f"pipeline: shop\nsource:\n{source}  slot: secrets\n  publication: secrets\n"
                        "lake: {path: ./lake}\n")  # fmt: skip
    return pipeline


def ask(file: Path, *commands: list[str], code: int) -> list[str]:
    """Run commands on a pipeline in a process of their own, check each exit code, and return the outputs."""
    command_lines = [[name, str(file), *options] for name, *options in commands]
    results = in_turn(*command_lines, folder=file.parent)
    assert [ended for ended, _ in results] == [code] * len(results), results
    return [output for _, output in results]


@pytest.mark.postgres
@pytest.mark.process
@pytest.mark.parametrize("way", ["dsn", *(pytest.param(way, marks=pytest.mark.torture) for way in WAYS)])
def test_a_password_is_nowhere(
    way: str, shop: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = prepared(way, shop, tmp_path, monkeypatch)
    lake = tmp_path / "lake"
    with Command("bronze", file, "--debug", folder=tmp_path) as running:
        wait_for(lambda: open_table(str(lake / "bronze" / "changes")) is not None, 60)
        family = [running.process.pid, *running.family()]
        assert len(family) > 1, "the reader is a process of its own"
        for pid in family:
            assert PASSWORD.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
            if way in IN_NO_ENVIRONMENT:
                assert PASSWORD.encode() not in Path(f"/proc/{pid}/environ").read_bytes()
        ask(file, ["check", "--output", "json"], ["status", "--output", "json"], code=0)
        running.process.send_signal(signal.SIGTERM)
        running.wait(60)
    assert (lake.stat().st_mode & 0o777) == 0o700
    run(shop, f"ALTER ROLE smelt PASSWORD '{OTHER}'")
    for output in ask(file, ["check", "--debug"], ["bronze", "--until-caught-up", "--debug"], code=1):
        assert "password-rejected" in output
    files = [
        path for path in tmp_path.rglob("*") if path.is_file() and path.name not in {".pgpass", "shop.yml"}
    ]
    assert {"smelt.log", "shop.yml"} <= {path.name for path in tmp_path.rglob("*")}
    for path in files:
        content = path.read_bytes()
        assert PASSWORD.encode() not in content, path
        assert quote(PASSWORD).encode() not in content, path
    tables = [DeltaTable(str(log.parent)) for log in lake.glob("*/*/_delta_log")]
    assert "changes" in {Path(table.table_uri).name for table in tables}
    for table in tables:  # files are compressed
        assert PASSWORD not in str(table.to_pyarrow_table().to_pydict())


@pytest.mark.postgres
@pytest.mark.process
def test_a_key_of_the_store_is_nowhere(
    shop: EmbeddedServer, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keyed(name: str, lake: str = "s3://lake/secrets", **settings: str) -> Path:
        """Write a pipeline file with keys of its own: the process masks each key that it has met."""
        monkeypatch.setenv(f"KEY_OF_{name}", f"{STORE_KEY}-{name}")
        keys = {"aws_access_key_id": f"{KEY_ID}-{name}", "aws_secret_access_key": f"${{KEY_OF_{name}}}"}
        return in_store(tmp_path / f"{name}.yml", shop, lake, {**store.options(), **keys, **settings})

    sound = keyed("sound")
    outputs: list[str] = []
    with Command("bronze", sound, "--debug", folder=tmp_path) as running:
        wait_for(lambda: store.requests("PUT", "/lake/secrets/bronze/changes/_delta_log/") != [], 60)
        for pid in [running.process.pid, *running.family()]:
            line = Path(f"/proc/{pid}/cmdline").read_bytes()
            assert STORE_KEY.encode() not in line
            assert KEY_ID.encode() not in line
        outputs += outputs_of(
            sound, ["check", "--output", "json"], ["status", "--output", "json"], ["status"], code=0
        )
        running.process.send_signal(signal.SIGTERM)
        running.wait(60)
    for file, faults in (
        (keyed("bucket", "s3://nobodys/lake"), Faults()),
        (keyed("denied"), Faults(denied="GET|PUT|DELETE|POST")),
        (keyed("away", "s3://lake/away", aws_endpoint_url="http://127.0.0.1:9"), Faults()),
        (keyed("option", aws_secret_acces_key=f"{STORE_KEY}-misspelt"), Faults()),
        (keyed("local", "./lake"), Faults()),
    ):
        store.set_faults(faults)
        outputs += outputs_of(
            file, ["check", "--debug"], ["bronze", "--until-caught-up", "--debug"], ["status"], code=1
        )
    text = "".join(outputs)
    codes = ("lake-bucket", "lake-credentials", "lake-unreachable", "lake-store")
    assert [code for code in codes if code not in text] == []
    assert STORE_KEY not in text
    assert KEY_ID not in text
    files = [path for path in tmp_path.rglob("*") if path.is_file() and path.suffix != ".yml"]
    assert "smelt.log" in {path.name for path in files}
    for path in files:
        content = path.read_bytes()
        assert STORE_KEY.encode() not in content, path
        assert KEY_ID.encode() not in content, path


def outputs_of(file: Path, *commands: list[str], code: int) -> list[str]:
    """Run commands within this process, check each exit code, and return the outputs of both streams."""
    results = [smelt_here(name, file, *options, folder=file.parent) for name, *options in commands]
    assert [result.returncode for result in results] == [code] * len(results), results
    return [result.stdout + result.stderr for result in results]


def in_store(file: Path, server: EmbeddedServer, lake: str, options: dict[str, str]) -> Path:
    """Write a pipeline file with a lake in an object store."""
    file.write_text(
        f"pipeline: shop\nsource: {{dsn: '{server.dsn('shop')}', slot: secrets, publication: secrets}}\n"
        f"{lake_text(lake, options)}"
    )
    return file


def test_the_jvm_gets_no_secret_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_A", PASSWORD)
    monkeypatch.setenv("SHOP_B", PASSWORD)
    monkeypatch.setenv("SHOP_HOST", "db")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    monkeypatch.setenv("SMELT_HTTP_TOKEN", PASSWORD)
    monkeypatch.setenv("SHOP_HOOK", PASSWORD)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of the lake, which the JVM writes")
    file = tmp_path / "shop.yml"
    file.write_text(
        "pipeline: shop\nsource: {host: '${SHOP_HOST}', password: 'x${SHOP_A}', sslpassword: '${SHOP_B:-}', "
        "slot: s, publication: p}\nlake: {path: ./lake}\nalerts: {webhook: 'https://chat/${SHOP_HOOK}'}\n"
    )
    load_pipeline(file)
    arguments = PopenArguments(stdout=None)
    arguments["env"] = dict(os.environ)
    environment = dict(**arguments)["env"]
    assert environment == without_secret_variables(os.environ)
    assert PASSWORD not in "".join(environment.values())
    assert environment["SHOP_HOST"] == "db"
    assert environment["AWS_SECRET_ACCESS_KEY"]
    assert os.environ["PGPASSWORD"] == PASSWORD, "the reader still gets it"


def test_variables_that_a_jvm_needs_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "smelt")
    monkeypatch.setenv("SHOP_WORD", PASSWORD)
    file = tmp_path / "shop.yml"
    file.write_text(
        "pipeline: shop\nsource: {dsn: 'postgresql://${USER}:${SHOP_WORD}@db/shop?sslkey=${HOME}/key', "
        "slot: s, publication: p}\nlake: {path: ./lake}\n"
    )
    load_pipeline(file)
    environment = without_secret_variables(os.environ)
    assert environment["USER"] == "smelt"
    assert environment["HOME"] == os.environ["HOME"]
    assert "SHOP_WORD" not in environment
