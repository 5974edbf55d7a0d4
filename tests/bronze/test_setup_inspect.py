"""What an inspection of real servers finds, and that its remedies are remedies."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from bronze.identifiers import TableName
from bronze.server import connect
from bronze.settings import SourceSettings
from bronze.setup import Finding, ensure_publication, ensure_slot, inspect
from pipelines.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator


def source(dsn: str, **values: object) -> SourceSettings:
    return SourceSettings.model_validate({"dsn": dsn, "slot": "smelt", "publication": "smelt_pub", **values})


def run(dsn: str, sql: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.encode())


def findings(settings: SourceSettings) -> list[Finding]:
    with connect(settings) as connection:
        return inspect(connection, settings)


def codes(found: list[Finding], level: str | None = None) -> list[str]:
    return [finding.code for finding in found if level in (None, finding.level)]


def one(found: list[Finding], code: str) -> Finding:
    [finding] = [each for each in found if each.code == code]
    return finding


@pytest.fixture(params=[16, 18])
def dsn(request: pytest.FixtureRequest) -> str:
    """A fresh database on each version."""
    value: str = request.getfixturevalue("database" if request.param == 16 else "database18")
    return value


@pytest.fixture
def role(dsn: str) -> Iterator[tuple[str, str]]:
    """A login role without privileges: its name and DSN."""
    name = f"r_{conninfo_to_dict(dsn)['dbname']}"
    run(dsn, f"CREATE ROLE {name} LOGIN")
    yield name, make_conninfo(dsn, user=name)
    run(dsn, f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_a_fit_source_has_no_error_before_and_after_the_first_start(dsn: str) -> None:
    run(dsn, "CREATE TABLE a (id int PRIMARY KEY, n numeric(12,2), tags text[])")
    settings = source(dsn)
    before = findings(settings)
    assert codes(before, "error") == []
    assert (
        'CREATE PUBLICATION "smelt_pub" FOR TABLE ONLY "public"."a"'
        in one(before, "publication-to-do").message
    )
    assert one(before, "slot-missing").level == "info"
    with connect(settings) as connection:
        ensure_publication(connection, settings, [TableName("public", "a")])
        ensure_slot(connection, settings)
    after = findings(settings)
    assert codes(after, "error") == []
    assert "publication-to-do" not in codes(after)
    assert "slot-missing" not in codes(after)
    assert codes(after, "warning") == ["wal-keep-unlimited"]


def test_an_inspection_changes_nothing(dsn: str) -> None:
    run(dsn, "CREATE TABLE a (id int PRIMARY KEY)")
    findings(source(dsn))
    with psycopg.connect(dsn) as connection:
        count = "SELECT (SELECT count(*) FROM pg_publication), "
        count += "(SELECT count(*) FROM pg_replication_slots WHERE database = current_database())"
        assert connection.execute(count.encode()).fetchone() == (0, 0)


def test_what_keeps_a_table_out_is_an_error_with_its_cure(dsn: str) -> None:
    run(dsn, "CREATE TABLE bare (a int); CREATE TABLE fine (id int PRIMARY KEY)")
    found = findings(source(dsn))
    bare = one(found, "table-without-key")
    assert (bare.level, bare.subject) == ("error", "public.bare")
    assert "ADD PRIMARY KEY" in str(bare.remedy)
    assert "bare" not in one(found, "publication-to-do").message


def test_a_published_table_without_identity_is_told_to_block_updates(dsn: str) -> None:
    run(dsn, "CREATE TABLE bare (a int); CREATE PUBLICATION smelt_pub FOR TABLE bare")
    finding = one(findings(source(dsn)), "publication-blocks-updates")
    assert finding.subject == "public.bare"
    run(dsn, str(finding.remedy).partition(" or: ")[0])
    assert "publication-blocks-updates" not in codes(findings(source(dsn)))


def test_a_weak_role_is_told_every_privilege_and_the_cures_cure(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    run(
        dsn,
        "CREATE SCHEMA shut; CREATE TABLE shut.t (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)",
    )
    settings = source(theirs, tables=["public.*", "shut.*"])
    found = findings(settings)
    assert codes(found, "error") == [
        "replication-privilege", "table-privilege", "schema-privilege", "table-privilege",
        "publication-privilege",
    ]  # fmt: skip
    lacks = one(found, "publication-privilege").message
    assert "CREATE on the database" in lacks
    assert "ownership of 2 of its tables (public.t, shut.t)" in lacks
    for finding in found:
        if finding.level == "error":
            run(dsn, str(finding.remedy).partition(": ")[2])
    healed = findings(settings)
    assert codes(healed, "error") == []
    assert f'"{name}"' in str(one(found, "replication-privilege").remedy)


def test_without_manage_what_is_missing_is_an_error_that_holds_the_sql(dsn: str) -> None:
    run(dsn, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    settings = source(dsn, manage=False)
    for _ in range(2):
        found = findings(settings)
        assert set(codes(found, "error")) <= {"publication-missing", "publication-incomplete", "slot-missing"}
        for finding in found:
            if finding.level == "error":
                sql = str(finding.remedy)
                run(dsn, sql.partition(": ")[2] if ": " in sql else sql)
        run(dsn, "ALTER PUBLICATION smelt_pub DROP TABLE b")
    assert codes(findings(settings), "error") == ["publication-incomplete"]


def test_patterns_and_keys_without_a_match_name_the_nearest_table(dsn: str) -> None:
    run(dsn, "CREATE TABLE orders (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS one")
    found = findings(
        source(dsn, tables=["public.o*", "public.oders", "public.v"], keys={"public.order": ["id"]})
    )
    assert "did you mean public.orders?" in str(one(found, "pattern-matches-nothing").remedy)
    assert one(found, "pattern-matches-nothing").level == "warning"
    assert "did you mean public.orders?" in str(one(found, "key-table-unknown").remedy)
    assert one(found, "relation-skipped").subject == "public.v"
    nothing = findings(source(dsn, tables=["shop.*"]))
    assert one(nothing, "pattern-matches-nothing").level == "error"
    assert (
        one(findings(source(dsn, keys={"orders": ["id"]}, tables=["x.y"])), "key-table-invalid").level
        == "error"
    )


def test_doubtful_keys_and_types_are_told(dsn: str) -> None:
    run(dsn, """
        CREATE TABLE doubtful (id int PRIMARY KEY, a int, b int NOT NULL);
        ALTER TABLE doubtful REPLICA IDENTITY FULL;
        CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL);
        CREATE UNIQUE INDEX by_code ON by_index (code);
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code;
        CREATE TABLE typed (id int PRIMARY KEY, m money, p point[], n numeric, w numeric(50,2)[],
                            ok numeric(38,2));
    """)  # fmt: skip
    found = findings(source(dsn, keys={"public.doubtful": ["a", "b"]}))
    assert "column a " in one(found, "key-nullable").message
    assert one(found, "key-not-unique").subject == "public.doubtful"
    assert one(found, "key-is-identity-index").subject == "public.by_index"
    assert "m (money), p (point[])" in one(found, "type-as-text").message
    assert one(found, "numeric-as-text").message.endswith(": n, w")
    assert codes(found, "error") == []


def test_the_slot_is_told_whatever_its_state(dsn: str) -> None:
    run(dsn, "SELECT pg_create_physical_replication_slot('smelt_other')")
    try:
        finding = one(findings(source(dsn, slot="smelt_other")), "slot-physical")
        assert (finding.level, finding.subject) == ("error", "slot smelt_other")
    finally:
        run(dsn, "SELECT pg_drop_replication_slot('smelt_other')")


def test_a_server_that_is_not_set_up_for_replication() -> None:
    limits = {
        "wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1",
        "wal_sender_timeout": "2s", "max_slot_wal_keep_size": "100MB",
    }  # fmt: skip
    with EmbeddedServer(settings=limits) as server:
        run(server.dsn(), "CREATE TABLE a (id int PRIMARY KEY)")
        found = findings(source(server.dsn()))
        assert codes(found, "error") == ["wal-level"]
        assert codes(found, "warning") == ["wal-sender-timeout-short", "slots-exhausted", "senders-exhausted"]
        assert "100 MB" in one(found, "wal-keep-limited").message
        run(server.dsn(), "SELECT pg_create_physical_replication_slot('taken')")
        assert one(findings(source(server.dsn())), "slots-exhausted").level == "error"


def test_a_slot_that_will_soon_be_lost_is_a_warning() -> None:
    with EmbeddedServer(settings={"max_slot_wal_keep_size": "64MB"}) as server:
        settings = source(server.dsn())
        with connect(settings) as connection:
            ensure_slot(connection, settings)
            for _ in range(5):
                connection.execute("SELECT pg_switch_wal() FROM pg_logical_emit_message(false, 'x', 'x')")
        finding = one(findings(settings), "slot-at-risk")
        assert finding.level == "warning"
        assert "max_slot_wal_keep_size" in str(finding.remedy)


def pooler(server: EmbeddedServer) -> socket.socket:
    """A listener that passes sessions on to the server, but hangs up on walsenders, as poolers do."""
    listener = socket.create_server(("127.0.0.1", 0))

    def copy(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                first = client.recv(65536)
                if b"replication\0" in first:
                    client.close()
                    continue
                behind = socket.create_connection(("127.0.0.1", server.port))
                behind.sendall(first)
                for pair in ((client, behind), (behind, client)):
                    threading.Thread(target=copy, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    return listener


def test_a_pooler_that_admits_no_walsender_is_found_by_trying() -> None:
    with EmbeddedServer() as server, pooler(server) as listener:
        port = listener.getsockname()[1]
        found = findings(source(f"host=127.0.0.1 port={port} user=postgres dbname=postgres sslmode=disable"))
    finding = one(found, "connection-lost")
    assert (finding.level, finding.subject) == ("error", "replication connection")
    assert "pooler" in str(finding.remedy)


def test_a_standby_is_refused() -> None:
    with EmbeddedServer() as server:
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        settings = source(server.dsn())
        found = findings(settings)
    assert one(found, "server-in-recovery").level == "error"
