"""`smelt init` on real servers: `smelt check` accepts its files, and no file is overwritten."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from pydantic import SecretStr

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.yaml_file import parse_yaml, read_yaml
from deltasmelt.bronze.errors import ConfigurationError, SmeltError
from deltasmelt.bronze.identifiers import TableName, pattern_of
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.gold.language.document import load_documents
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.init.command import run_init
from deltasmelt.pipelines.init.file import item_text, pipeline_name, slot_name, value_text, without_password
from deltasmelt.pipelines.init.new_files import write_new
from deltasmelt.pipelines.private import conf_folder
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from deltasmelt.pipelines.terminal.output import Output
from tests.bronze.replaying import execute
from tests.pipelines.in_process import smelt_here
from tests.pipelines.test_cli import one_message

if TYPE_CHECKING:
    from deltasmelt.bronze.checks.finding import Finding

ODD = """
    CREATE SCHEMA "Back Office";
    CREATE SCHEMA empty;
    CREATE SCHEMA zz;
    CREATE TABLE zz.log (x int);
    CREATE TABLE "Back Office"."Staff.Members" (
        "on" int, "no" int, "first name" text, "a`b" text, "${HOME}" text, "x: y" text, "_key" text,
        photo bytea, "${amount}" numeric, "select" text, boss_on int, boss_no int,
        PRIMARY KEY ("on", "no"),
        FOREIGN KEY (boss_on, boss_no) REFERENCES "Back Office"."Staff.Members"
    );
    CREATE TABLE "order" (
        id bigint PRIMARY KEY, "on" int, "no" int, placed_at timestamptz NOT NULL DEFAULT now(),
        total numeric,
        FOREIGN KEY ("on", "no") REFERENCES "Back Office"."Staff.Members" ON DELETE CASCADE
    );
    CREATE TABLE lines (
        order_id bigint REFERENCES "order", year int, line int, PRIMARY KEY (order_id, year, line)
    ) PARTITION BY LIST (year);
    CREATE TABLE lines_2025 PARTITION OF lines FOR VALUES IN (2025);
    CREATE TABLE lines_2026 PARTITION OF lines FOR VALUES IN (2026);
    CREATE TABLE label (id int PRIMARY KEY, "null" text);
    CREATE TABLE order_label (
        order_id bigint REFERENCES "order", label_id int REFERENCES label, PRIMARY KEY (order_id, label_id)
    );
    CREATE TABLE bare (a int, order_id bigint REFERENCES "order");
    CREATE TABLE silent (id int PRIMARY KEY);
    ALTER TABLE silent REPLICA IDENTITY NOTHING;
    CREATE TABLE "Silent" (id int PRIMARY KEY, "A" int, a int);
    CREATE TABLE "odd*[name]?" (x int);
    CREATE TABLE "odd*[name]!" (x int PRIMARY KEY);
    CREATE UNLOGGED TABLE scratch (id int PRIMARY KEY);
    CREATE VIEW seen AS SELECT 1 AS id;
"""


@pytest.fixture
def shop(database: str) -> str:
    execute(database, (conf_folder() / "demo" / "shop.sql").read_text())
    return database


def init(folder: Path, dsn: str | None, *schemas: str, out: str = "pipeline.yml") -> Path:
    run_init(Output(), dsn=dsn, out=folder / out, schemas=schemas)
    return folder / out


def wrong(pipeline: Pipeline) -> list[Finding]:
    """Return the findings of check with and without the server, except mere information."""
    listed = [*run_check(pipeline), *run_check(pipeline, offline=True)]
    return [
        finding for finding in listed if finding.level == "error" or finding.code == "pattern-matches-nothing"
    ]


def selected(pipeline: Pipeline) -> set[str]:
    with connect(pipeline.source) as connection:
        return {str(table.table) for table in select_tables(connection, pipeline.source)}


def test_the_shop_gives_documents_that_check_accepts(
    tmp_path: Path, shop: str, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = load_pipeline(init(tmp_path, shop))
    output = capsys.readouterr().out
    assert wrong(pipeline) == []
    assert [document.name for document in load_documents(pipeline.document_files())] == ["customer", "order"]
    customer = (tmp_path / "documents" / "customer.yml").read_text()
    schema = json.loads((tmp_path / "documents" / "document.schema.json").read_text())
    assert customer.startswith("# yaml-language-server: $schema=document.schema.json\n")
    jsonschema.validate(read_yaml(tmp_path / "documents" / "customer.yml").data, schema)
    assert "  - tags:    # through customer_tags\n      many: public.tags\n" in customer
    assert "              - product:\n                  one: public.products\n" in customer
    assert (
        f"wrote {tmp_path / 'documents' / 'customer.yml'}: one document per row of public.customers" in output
    )
    assert "public.countries: a lookup table" in output
    assert f"smelt check {tmp_path / 'pipeline.yml'}" in output


def test_a_newer_server_gives_the_same_documents(tmp_path: Path, shop: str, database18: str) -> None:
    execute(database18, (conf_folder() / "demo" / "shop.sql").read_text())
    init(tmp_path / "16", shop)
    assert wrong(load_pipeline(init(tmp_path / "18", database18))) == []
    for name in ("customer.yml", "order.yml"):
        older, newer = (tmp_path / version / "documents" / name for version in ("16", "18"))
        assert older.read_text() == newer.read_text()


def test_odd_names_partitions_links_and_keyless_tables(
    tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    execute(database, ODD)
    pipeline = load_pipeline(init(tmp_path, database))
    output = capsys.readouterr().out
    assert wrong(pipeline) == []
    assert selected(pipeline) == {
        "Back Office.Staff.Members", "public.order", "public.lines", "public.label", "public.order_label",
        "public.odd*[name]!",
    }  # fmt: skip
    text = (tmp_path / "pipeline.yml").read_text()
    assert "REPLICA IDENTITY" in text
    assert "    - public.bare\n" in text
    assert "silver:" not in text  # without values no type is better than another
    assert "excluded public.bare, public.odd*[name]?, zz.log: the table has no primary key" in output
    assert "excluded public.silent: the table has REPLICA IDENTITY NOTHING" in output
    assert "excluded public.Silent: columns A, a differ only in case" in output
    assert "source.exclude" not in output + text
    documents = load_documents(pipeline.document_files())
    assert [document.name for document in documents] == ["Staff_Member", "order"]
    members = (tmp_path / "documents" / "Staff_Member.yml").read_text()
    for line in (
        '  - "on"\n', '  - first_name: {column: "first name"}\n', "  - source_key: {column: _key}\n",
        "  # - photo    # bytea, left out\n", 'on: {"on": "on", "no": "no"}\n',
        "  - boss:\n", '  - HOME: {column: "${HOME}"}\n',
        "labels:    # through order_label\n", "many: public.lines\n",
    ):  # fmt: skip
        assert line in members
    assert "lines_2025" not in members


def test_numerous_children_are_counted_and_secrets_omitted(tmp_path: Path, database: str) -> None:
    """Autovacuum has analysed the many rows, and never analyses the table of two rows."""
    execute(
        database,
        """
        CREATE TABLE city (id int PRIMARY KEY, name text);
        CREATE TABLE store (id int PRIMARY KEY, city_id int REFERENCES city, api_key text);
        CREATE TABLE rental (id int PRIMARY KEY, store_id int NOT NULL REFERENCES store, token_count int);
        INSERT INTO city VALUES (1, 'Linz');
        INSERT INTO store SELECT n, 1, md5(n::text) FROM generate_series(1, 2) AS n;
        INSERT INTO rental SELECT n, 1 + n % 2 FROM generate_series(1, 3000) AS n;
        ANALYZE rental;
        """,
    )
    pipeline = load_pipeline(init(tmp_path, database))
    assert wrong(pipeline) == []
    assert (tmp_path / "documents" / "store.yml").read_text().partition("fields:\n")[2] == (
        """\
  - id
  - city_id
  # - api_key    # a secret by its name, left out
  - city: {one: public.city, on: {id: city_id}, fields: [name]}
  # about 1,500 rows each, so the rows are counted; `limit` or `cap` would limit the length of an array:
  # - rentals:
  #     many: public.rental
  #     on: {store_id: id}
  #     fields: [id, token_count]
  - rental_count: {count: public.rental, on: {store_id: id}}
"""
    )


def test_schemas_that_are_named_are_the_only_ones(tmp_path: Path, database: str) -> None:
    execute(database, ODD)
    pipeline = load_pipeline(init(tmp_path, database, "Back Office"))
    assert pipeline.source.tables == ["Back Office.*"]
    assert pipeline.source.exclude == []
    assert wrong(pipeline) == []


def test_tables_without_foreign_keys_give_document_free_pipeline(
    tmp_path: Path, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The server cannot describe one table, because an enum's label was deleted manually."""
    execute(
        database,
        """
        CREATE TABLE t (id int PRIMARY KEY);
        CREATE TYPE mood AS ENUM ('odd');
        CREATE TABLE bad (id int PRIMARY KEY);
        INSERT INTO bad VALUES (1);
        ALTER TABLE bad ADD m mood DEFAULT 'odd';
        DELETE FROM pg_enum;
        """,
    )
    pipeline = load_pipeline(init(tmp_path, database))
    assert pipeline.source.exclude == ["public.bad"]
    assert wrong(pipeline) == []
    assert not (tmp_path / "documents").exists()
    output = capsys.readouterr().out
    assert "no foreign key joins two of the tables" in output
    assert "excluded public.bad: the server cannot print its catalog's description of the table" in output
    assert "source.exclude" not in output


def test_password_stays_in_environment_outside_files(
    tmp_path: Path, shop: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pipeline file reads the password from an environment variable."""
    values = conninfo_to_dict(shop)
    dsn = f"postgresql://{values['user']}:s3%40cr%2Ft@{values['host']}:{values['port']}/{values['dbname']}"
    file = init(tmp_path, dsn)
    output = capsys.readouterr().out
    for text in [output, *(path.read_text() for path in tmp_path.rglob("*.yml"))]:
        assert "s3" not in text
        assert "cr%2Ft" not in text
    assert "export PGPASSWORD=…" in output
    with pytest.raises(SmeltError, match="PGPASSWORD is not set"):
        load_pipeline(file)
    monkeypatch.setenv("PGPASSWORD", "s3@cr/t")
    pipeline = load_pipeline(file)
    assert pipeline.source.password == SecretStr("s3@cr/t")
    assert wrong(pipeline) == []


def test_libpq_environment_replaces_missing_dsn(
    tmp_path: Path, shop: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = conninfo_to_dict(shop)
    for variable, key in {
        "PGHOST": "host",
        "PGPORT": "port",
        "PGUSER": "user",
        "PGDATABASE": "dbname",
    }.items():
        monkeypatch.setenv(variable, str(values[key]))
    file = init(tmp_path, None)
    for variable in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE"):
        monkeypatch.delenv(variable)
    assert wrong(load_pipeline(file)) == []


def test_missing_server_is_usage_error(tmp_path: Path) -> None:
    process = smelt_here("init", folder=tmp_path)
    assert process.returncode == 2
    assert "--dsn" in process.stderr


@pytest.mark.parametrize("existing", ["pipeline.yml", "documents/order.yml"])
def test_nothing_is_written_where_a_file_exists(tmp_path: Path, shop: str, existing: str) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / existing).write_text("mine")
    message = one_message(smelt_here("init", "--dsn", shop, folder=tmp_path))
    assert f"{existing}: already exists; nothing was written" in message
    assert "remedy: choose another file or folder with --out" in message
    assert "more: smelt explain-error file-exists" in message
    files = {path for path in tmp_path.rglob("*") if path.is_file() and path.name != "smelt.log"}
    assert {str(path.relative_to(tmp_path)) for path in files} == {existing}
    assert (tmp_path / existing).read_text() == "mine"


def test_documents_of_other_pipeline_are_not_included(tmp_path: Path, shop: str) -> None:
    (tmp_path / "documents").mkdir()
    (tmp_path / "documents" / "theirs.yml").write_text(
        "document: theirs\nroot: public.nothing\nfields: [id]\n"
    )
    pipeline = load_pipeline(init(tmp_path, shop))
    assert pipeline.gold.documents == ["documents/customer.yml", "documents/order.yml"]


def test_slot_of_other_pipeline_is_left_alone(tmp_path: Path, shop: str) -> None:
    first = load_pipeline(init(tmp_path / "a", shop)).source.slot
    execute(shop, f"SELECT pg_create_logical_replication_slot('{first}', 'pgoutput')")
    second = load_pipeline(init(tmp_path / "b", shop)).source
    assert (second.slot, second.publication) == (f"{first}_2", f"{first}_2")


def test_a_database_without_tables_is_told(tmp_path: Path, database: str) -> None:
    message = one_message(smelt_here("init", "--dsn", database, folder=tmp_path))
    assert "the database has no tables" in message
    assert "others of this server: " in message
    assert not (tmp_path / "pipeline.yml").exists()


def test_empty_schema_is_reported_with_nearest_name(tmp_path: Path, shop: str) -> None:
    with pytest.raises(SmeltError, match="did you mean 'public'") as caught:
        init(tmp_path, shop, "publik")
    assert caught.value.code == "no-tables"


def test_source_with_only_unusable_tables_is_reported(tmp_path: Path, database: str) -> None:
    execute(database, "CREATE TABLE bare (a int)")
    with pytest.raises(SmeltError, match=r"none of the tables can be replicated\npublic\.bare: ") as caught:
        init(tmp_path, database)
    assert "ADD PRIMARY KEY" in str(caught.value.remedy)


def test_absent_server_message_matches_check(tmp_path: Path) -> None:
    dsn = "postgresql://nobody@127.0.0.1:1/nothing"
    (tmp_path / "there.yml").write_text(
        f"pipeline: p\nsource: {{dsn: '{dsn}', slot: s, publication: p}}\nlake: {{path: ./lake}}\n"
    )
    message = one_message(smelt_here("init", "--dsn", dsn, folder=tmp_path))
    (error,) = [
        finding for finding in run_check(load_pipeline(tmp_path / "there.yml")) if finding.level == "error"
    ]
    assert error.message in message
    assert "this error is usually temporary" in message


def test_unreadable_dsn_is_reported_without_quoting(tmp_path: Path) -> None:
    message = one_message(smelt_here("init", "--dsn", "postgresql://me:pass@word@host/db", folder=tmp_path))
    assert "pass" not in message.replace("password", "")


@pytest.mark.parametrize(
    ("folder", "why"),
    [("file", "the path is a file, not a folder"), ("file/a/b", "{file} is a file, not a folder")],
)
def test_unusable_output_folder_leaves_nothing(tmp_path: Path, folder: str, why: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SmeltError) as caught:
        write_new({tmp_path / "first.yml": "1", tmp_path / folder / "second.yml": "2"})
    assert caught.value.code == "file-unwritable"
    assert caught.value.where == str(tmp_path / folder)
    assert why.format(file=tmp_path / "file") in caught.value.message
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_single_concurrent_init_writes_all_files(tmp_path: Path) -> None:
    """The second concurrent `smelt init` writes nothing."""
    together = Barrier(2)

    def write(folder: Path, writer: str) -> bool:
        together.wait()
        try:
            write_new({folder / name: writer for name in "abc"})
        except ConfigurationError:
            return False
        return True

    with ThreadPoolExecutor(2) as threads:
        for number in range(50):
            folder = tmp_path / str(number)
            first, second = threads.map(write, [folder, folder], ["1", "2"])
            assert first != second
            assert {path.read_text() for path in folder.iterdir()} == {"1" if first else "2"}
            assert len(list(folder.iterdir())) == 3


@pytest.mark.parametrize(
    ("dsn", "written", "secrets"),
    [
        ("postgresql://me@host:5433/db?sslmode=require", None, {}),
        ("host=db dbname='my db'", None, {}),
        ("postgresql://me:secret@host/db", "postgresql://me@host/db", {"password": "PGPASSWORD"}),
        ("postgres://me:s%40@a,b:2/db?password=x&sslmode=verify-full&options=-c%20a%3D1",
         "postgresql://me@a,b:2/db?sslmode=verify-full&options=-c%20a%3D1", {"password": "PGPASSWORD"}),
        ("postgresql://:secret@[::1]:5/%2Fd", "postgresql://[::1]:5/%2Fd", {"password": "PGPASSWORD"}),
        ("host=db password='a b' user=me", "host=db user=me", {"password": "PGPASSWORD"}),
        ("host=db sslpassword=x", "host=db", {"sslpassword": "PGSSLPASSWORD"}),
    ],
)  # fmt: skip
def test_a_connection_string_without_its_secrets(
    dsn: str, written: str | None, secrets: dict[str, str]
) -> None:
    stripped = without_password(dsn)
    public = {key: value for key, value in conninfo_to_dict(dsn).items() if key not in secrets}
    assert conninfo_to_dict(stripped.text) == public
    assert stripped.secrets == secrets
    assert conninfo_to_dict(stripped.text) == conninfo_to_dict(written or dsn)
    assert stripped.text == dsn or written is not None


def test_names_from_the_database() -> None:
    assert [pipeline_name(name) for name in ("shop", "My Shop", "_x", "日本", "")] == [
        "shop", "My_Shop", "x", "pipeline", "pipeline",
    ]  # fmt: skip
    assert slot_name("My-Shop", set()) == "smelt_my_shop"
    assert slot_name("x" * 63, {("smelt_" + "x" * 63)[:63]}) == "smelt_" + "x" * 55 + "_2"


@given(*[st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1)] * 2)
def test_pattern_selects_table_and_round_trips(schema: str, name: str) -> None:
    table = TableName(schema, name)
    for pattern in (pattern_of(schema), pattern_of(schema, name)):
        assert table.matches(pattern)
        text = f"one: {value_text(pattern)}\nall: [{item_text(pattern)}, x]\n"
        data = parse_yaml(text, Path("p.yml"), expand_env=True).data
        assert data == {"one": pattern, "all": [pattern, "x"]}
    assert not TableName(schema, name + "x").matches(pattern_of(schema, name))


def test_a_database_with_an_odd_name(tmp_path: Path, server_dsn: str) -> None:
    name = "Odd ${name}: 'x'"
    execute(server_dsn, f'CREATE DATABASE "{name}"')
    try:
        dsn = make_conninfo(server_dsn, dbname=name)
        execute(dsn, "CREATE TABLE t (id int PRIMARY KEY)")
        pipeline = load_pipeline(init(tmp_path, dsn))
        assert wrong(pipeline) == []
        assert (pipeline.pipeline, pipeline.source.slot) == ("Odd___name____x_", "smelt_odd___name____x")
    finally:
        execute(server_dsn, f'DROP DATABASE "{name}"')
