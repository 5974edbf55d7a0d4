"""The grants of `docs/security.md`, exactly as printed, suffice, and none of them is superfluous.

The database grants nothing to PUBLIC, so the role has only the page's privileges.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect, log_end
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import request_snapshots
from deltasmelt.pipelines.health.check import run_check
from deltasmelt.pipelines.health.status import read_status
from deltasmelt.pipelines.proof.load import Load
from deltasmelt.pipelines.proof.source_copy import SourceCopy
from deltasmelt.pipelines.settings import Pipeline, load_pipeline
from tests.bronze.replaying import assert_bronze_equals_source, read_all, read_snapshot, source_of
from tests.docs.blocks import blocks
from tests.fix_postgres import CopiedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

PAGE = Path(__file__).parents[3] / "docs" / "security.md"
READS, MANAGES = [block.text for block in blocks(PAGE) if block.language == "sql"]
TABLES = [TableName("public", "customers"), TableName("public", "orders")]


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    with CopiedServer() as server:
        yield server


def run(server: EmbeddedServer, sql: str, *, database: str = "shop") -> None:
    with psycopg.connect(server.dsn(database), autocommit=True) as connection:
        for statement in filter(str.strip, sql.split(";")):
            connection.execute(statement.encode())


@pytest.fixture
def shop(server: EmbeddedServer) -> Iterator[EmbeddedServer]:
    """Start a server with a database `shop`, whose tables belong to `shop_owner`, without a role `smelt`."""
    run(server, "CREATE ROLE shop_owner; CREATE DATABASE shop", database="postgres")
    run(
        server,
        """
        REVOKE ALL ON DATABASE shop FROM PUBLIC;
        REVOKE ALL ON SCHEMA public FROM PUBLIC;
        GRANT ALL ON SCHEMA public TO shop_owner;
        CREATE TABLE customers (id int PRIMARY KEY, name text);
        CREATE TABLE orders (id int PRIMARY KEY, customer_id int);
        ALTER TABLE customers OWNER TO shop_owner;
        ALTER TABLE orders OWNER TO shop_owner;
        INSERT INTO customers SELECT n, 'c' || n FROM generate_series(1, 50) n;
        INSERT INTO orders VALUES (1, 1)
        """,
    )
    yield server
    run(server, "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots", database="postgres")
    run(server, "DROP DATABASE shop; DROP ROLE smelt; DROP ROLE shop_owner", database="postgres")


def pipeline_of(server: EmbeddedServer, folder: Path, *, manage: bool) -> Pipeline:
    file = folder / "shop.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{host: 127.0.0.1, port: {server.port}, user: smelt, database: shop, "
        f"slot: smelt_shop, publication: smelt_shop, manage: {str(manage).lower()}}}\n"
        "lake: {path: ./lake}\n"
    )
    return load_pipeline(file)


def everything(pipeline: Pipeline, server: EmbeddedServer) -> None:
    """Run a first snapshot, the stream, a resnapshot, check, status, and the snapshot of a comparison."""
    lake = str(pipeline.lake_address().path)
    read_all(pipeline.source, lake)
    run(
        server,
        "INSERT INTO orders VALUES (2, 2); UPDATE customers SET name = 'n' WHERE id = 1; TRUNCATE orders",
    )
    read_all(pipeline.source, lake)
    first = read_snapshot(Lake(lake), TABLES[0])
    with connect(pipeline.source) as connection:
        request_snapshots(Lake(lake).uri("bronze", CHANGES), TABLES[:1], log_end(connection))
        tables = select_tables(connection, pipeline.source)
    read_all(pipeline.source, lake)
    second_copy = read_snapshot(Lake(lake), TABLES[0])
    assert first is not None
    assert second_copy is not None
    assert second_copy > first
    for table in TABLES:
        assert_bronze_equals_source(source_of(server.dsn("shop")), lake, str(table))
    assert ControlTables(Lake(lake)).open_errors() == []

    assert [finding for finding in run_check(pipeline) if finding.level == "error"] == []
    status = read_status(pipeline)
    assert status.source_error is None
    assert status.wal is not None
    copy = SourceCopy(pipeline, tables, Lake(f"{lake}-proof"), Load())
    copy.start()
    assert copy.wait(60)
    assert copy.result().lsns.keys() == {table.table for table in tables}
    assert copy.result().failed == []


def may(server: EmbeddedServer, sql: str) -> bool:
    with psycopg.connect(server.dsn("shop", user="smelt")) as connection:
        try:
            connection.execute(sql.encode())
        except psycopg.errors.InsufficientPrivilege:
            return False
        connection.rollback()
        return True


@pytest.mark.postgres
def test_a_role_that_only_reads(shop: EmbeddedServer, tmp_path: Path) -> None:
    run(shop, READS)
    everything(pipeline_of(shop, tmp_path, manage=False), shop)
    assert not may(shop, "DELETE FROM orders")
    assert not may(shop, "CREATE TABLE t (id int)")
    assert not may(shop, "CREATE SCHEMA s")
    assert not may(shop, "SELECT * FROM pg_authid")


@pytest.mark.postgres
@pytest.mark.parametrize("kept", ["REPLICATION", "SELECT", "CONNECT"])
def test_none_of_these_grants_can_be_left_out(shop: EmbeddedServer, tmp_path: Path, kept: str) -> None:
    run(shop, READS)
    less = {
        "REPLICATION": ("ALTER ROLE smelt NOREPLICATION", "replication-privilege"),
        "SELECT": ("REVOKE SELECT ON public.orders FROM smelt", "table-privilege"),
        "CONNECT": ("REVOKE CONNECT ON DATABASE shop FROM smelt", "connect-denied"),
    }
    statement, code = less[kept]
    run(shop, statement)
    findings = run_check(pipeline_of(shop, tmp_path, manage=False))
    assert code in {finding.code for finding in findings if finding.level == "error"}


@pytest.mark.postgres
def test_a_role_that_manages_the_publication(shop: EmbeddedServer, tmp_path: Path) -> None:
    run(shop, MANAGES)
    pipeline = pipeline_of(shop, tmp_path, manage=True)
    everything(pipeline, shop)
    run(shop, "CREATE TABLE later (id int PRIMARY KEY); ALTER TABLE later OWNER TO shop_owner")
    read_all(pipeline.source, str(pipeline.lake_address().path))
    assert read_snapshot(pipeline.lake_address(), TableName("public", "later")) is not None
    assert not may(shop, "SELECT * FROM pg_authid")


def test_page_grants_role_used_in_tests() -> None:
    assert "CREATE ROLE smelt LOGIN REPLICATION" in READS
    assert "GRANT shop_owner TO smelt" in MANAGES
    assert SourceSettings.model_fields["manage"].default is True
