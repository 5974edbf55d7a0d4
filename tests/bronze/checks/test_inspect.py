"""Findings about real servers, and proof that each remedy works."""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from deltasmelt.bronze.catalog.publication import MADE
from deltasmelt.bronze.checks.inspect import inspect
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import ZERO
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.setup.create_slot import ensure_slot
from deltasmelt.bronze.setup.publication import ensure_publication
from deltasmelt.bronze.stream.replication import ReplicationStream
from tests.bronze.replaying import execute, make_reader, read_all, source_of
from tests.fix_postgres import CopiedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.checks.finding import Finding
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer


def source(dsn: str, **values: object) -> SourceSettings:
    return SourceSettings.model_validate({"dsn": dsn, "slot": "smelt", "publication": "smelt_pub", **values})


def findings(settings: SourceSettings) -> list[Finding]:
    with connect(settings) as connection:
        return inspect(connection, settings)


def codes(found: list[Finding], level: str | None = None) -> list[str]:
    return [finding.code for finding in found if level in (None, finding.level)]


def finding_of(found: list[Finding], code: str) -> Finding:
    [finding] = [finding_seen for finding_seen in found if finding_seen.code == code]
    return finding


def test_fit_source_has_no_errors_around_first_start(dsn: str) -> None:
    """A fit source has no error before and after the first start."""
    execute(dsn, "CREATE TABLE a (id int PRIMARY KEY, n numeric(12,2), tags text[])")
    settings = source(dsn)
    before = findings(settings)
    assert codes(before, "error") == []
    assert (
        'CREATE PUBLICATION "smelt_pub" FOR TABLE ONLY "public"."a"'
        in finding_of(before, "publication-to-do").message
    )
    assert finding_of(before, "slot-missing").level == "info"
    with connect(settings) as connection:
        ensure_publication(connection, settings, [TableName("public", "a")])
        ensure_slot(connection, settings)
    after = findings(settings)
    assert codes(after, "error") == []
    assert "publication-to-do" not in codes(after)
    assert "slot-missing" not in codes(after)
    assert codes(after, "warning") == ["wal-keep-unlimited"]


def test_an_inspection_changes_nothing(dsn: str) -> None:
    execute(dsn, "CREATE TABLE a (id int PRIMARY KEY)")
    findings(source(dsn))
    with psycopg.connect(dsn) as connection:
        count = "SELECT (SELECT count(*) FROM pg_publication), "
        count += "(SELECT count(*) FROM pg_replication_slots WHERE database = current_database())"
        assert connection.execute(count.encode()).fetchone() == (0, 0)


def test_statement_for_many_tables_names_few(dsn: str) -> None:
    """A table with a column list or a filter is always named."""
    execute(dsn, *(f"CREATE TABLE t{number} (id int PRIMARY KEY, note text)" for number in range(1, 10)))
    ruled = source(dsn, columns={"public.t7": {"note": "exclude"}})
    shown = finding_of(findings(ruled), "publication-to-do").message
    rest = 'ONLY "public"."t5", ONLY "public"."t7" ("id"), … 2 more tables …, ONLY "public"."t9"'
    assert rest in shown
    [missing] = [
        found for found in findings(source(dsn, manage=False)) if found.code == "publication-missing"
    ]
    assert '"public"."t9"' in str(missing.remedy)


def test_excluded_table_is_error_with_cure(dsn: str) -> None:
    execute(dsn, "CREATE TABLE bare (a int); CREATE TABLE fine (id int PRIMARY KEY)")
    reported = findings(source(dsn))
    bare = finding_of(reported, "table-without-key")
    assert (bare.level, bare.subject) == ("error", "public.bare")
    assert "ADD PRIMARY KEY" in str(bare.remedy)
    assert "bare" not in finding_of(reported, "publication-to-do").message


def test_published_table_without_identity_blocks_updates(dsn: str) -> None:
    execute(dsn, "CREATE TABLE bare (a int); CREATE PUBLICATION smelt_pub FOR TABLE bare")
    finding = finding_of(findings(source(dsn)), "publication-blocks-updates")
    assert finding.subject == "public.bare"
    execute(dsn, str(finding.remedy).partition("at once: ")[2].partition(" then: ")[0])
    assert "publication-blocks-updates" not in codes(findings(source(dsn)))
    execute(dsn, "ALTER PUBLICATION smelt_pub ADD TABLE bare")
    execute(dsn, f"COMMENT ON PUBLICATION smelt_pub IS '{MADE}'")
    finding = finding_of(findings(source(dsn)), "publication-blocks-updates")
    execute(dsn, str(finding.remedy).partition(" or: start the reader")[0])
    assert "publication-blocks-updates" not in codes(findings(source(dsn)))


def test_weak_role_gets_missing_privileges_and_working_cures(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    execute(
        dsn,
        "CREATE SCHEMA shut; CREATE TABLE shut.t (id int PRIMARY KEY); CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY LIST (id)",
        "CREATE TABLE shut.part PARTITION OF parts FOR VALUES IN (1)",
    )
    settings = source(theirs, tables=["public.*", "shut.*"])
    reported = findings(settings)
    assert codes(reported, "error") == [
        "replication-privilege", "table-privilege", "partition-privilege", "table-privilege",
        "schema-privilege", "table-privilege", "publication-privilege",
    ]  # fmt: skip
    lacks = finding_of(reported, "publication-privilege").message
    assert "CREATE on the database" in lacks
    assert "the role does not own 3 of the tables (public.parts, public.t, shut.t)" in lacks
    for finding in reported:
        if finding.level == "error":
            execute(dsn, str(finding.remedy).partition(": ")[2])
    healed = findings(settings)
    assert codes(healed, "error") == []
    with psycopg.connect(dsn) as connection:
        published = connection.execute(
            "SELECT tablename FROM pg_publication_tables WHERE pubname = 'smelt_pub' ORDER BY 1"
        )
        assert [name for (name,) in published] == ["parts", "t", "t"], "as printed, nothing is missing"
    assert "set source.manage to false" in str(finding_of(reported, "publication-privilege").remedy)
    assert f'"{name}"' in str(finding_of(reported, "replication-privilege").remedy)


def test_membership_in_a_superuser_is_a_warning(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    owner = f"{name}_super"
    execute(dsn, f"CREATE ROLE {owner} SUPERUSER; GRANT {owner} TO {name}")
    try:
        finding = finding_of(findings(source(theirs)), "role-inherits-superuser")
        assert (finding.level, finding.subject) == ("warning", f"role {name}")
        execute(dsn, str(finding.remedy).partition(" and set")[0])
        assert "role-inherits-superuser" not in codes(findings(source(theirs)))
        assert "role-inherits-superuser" not in codes(findings(source(dsn))), "a superuser knows"
    finally:
        execute(dsn, f"DROP ROLE {owner}")


def test_unmanaged_source_gets_error_with_missing_sql(dsn: str) -> None:
    execute(dsn, "CREATE TABLE a (id int PRIMARY KEY); CREATE TABLE b (id int PRIMARY KEY)")
    settings = source(dsn, manage=False)
    for _ in range(2):
        reported = findings(settings)
        assert set(codes(reported, "error")) <= {
            "publication-missing",
            "publication-incomplete",
            "slot-missing",
        }
        for finding in reported:
            if finding.level == "error":
                sql = str(finding.remedy)
                execute(dsn, sql.partition(": ")[2] if ": " in sql else sql)
        execute(dsn, "ALTER PUBLICATION smelt_pub DROP TABLE b")
    assert codes(findings(settings), "error") == ["publication-incomplete"]


def test_unmatched_patterns_and_keys_name_nearest_table(dsn: str) -> None:
    execute(dsn, "CREATE TABLE orders (id int PRIMARY KEY); CREATE VIEW v AS SELECT 1 AS one")
    reported = findings(
        source(dsn, tables=["public.o*", "public.oders", "public.v"], keys={"public.order": ["id"]})
    )
    assert "did you mean public.orders?" in str(finding_of(reported, "pattern-matches-nothing").remedy)
    assert finding_of(reported, "pattern-matches-nothing").level == "warning"
    assert "did you mean public.orders?" in str(finding_of(reported, "key-table-unknown").remedy)
    assert finding_of(reported, "relation-skipped").subject == "public.v"
    all_excluded = findings(source(dsn, tables=["public.*"], exclude=["public.orders"]))
    assert "pattern-matches-nothing" not in codes(all_excluded), "the view matches"
    execute(dsn, "DROP VIEW v")
    all_excluded = findings(source(dsn, tables=["public.*"], exclude=["public.orders"]))
    assert "source.exclude leaves out" in finding_of(all_excluded, "pattern-matches-nothing").message
    nothing = findings(source(dsn, tables=["shop.*"]))
    assert finding_of(nothing, "pattern-matches-nothing").level == "error"
    assert (
        finding_of(findings(source(dsn, keys={"orders": ["id"]}, tables=["x.y"])), "key-table-invalid").level
        == "error"
    )


def test_doubtful_keys_and_types_are_told(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE doubtful (id int PRIMARY KEY, a int, b int NOT NULL);
        ALTER TABLE doubtful REPLICA IDENTITY FULL;
        CREATE TABLE by_index (id int PRIMARY KEY, code text NOT NULL);
        CREATE UNIQUE INDEX by_code ON by_index (code);
        ALTER TABLE by_index REPLICA IDENTITY USING INDEX by_code;
        CREATE TABLE typed (id int PRIMARY KEY, m money, p point[],
                             c regclass, t regtype[]);
    """)  # fmt: skip
    reported = findings(source(dsn, keys={"public.doubtful": ["a", "b"]}))
    assert 'ALTER COLUMN "a" SET NOT NULL' in str(finding_of(reported, "key-nullable").remedy)
    assert codes(reported, "error") == ["key-nullable"]
    execute(dsn, "ALTER TABLE doubtful ALTER a SET NOT NULL")
    reported = findings(source(dsn, keys={"public.doubtful": ["a", "b"]}))
    assert finding_of(reported, "key-not-unique").subject == "public.doubtful"
    assert finding_of(reported, "key-is-identity-index").subject == "public.by_index"
    assert "m (money), p (point[])" in finding_of(reported, "type-as-text").message
    assert "c (regclass), t (regtype[])" in finding_of(reported, "type-names-objects").message
    assert codes(reported, "error") == []


def test_the_slot_is_told_whatever_its_state(dsn: str) -> None:
    execute(dsn, "SELECT pg_create_physical_replication_slot('smelt_other')")
    try:
        finding = finding_of(findings(source(dsn, slot="smelt_other")), "slot-physical")
        assert (finding.level, finding.subject) == ("error", "slot smelt_other")
    finally:
        execute(dsn, "SELECT pg_drop_replication_slot('smelt_other')")


def test_server_without_replication_setup_gets_errors() -> None:
    limits = {
        "wal_level": "replica", "max_replication_slots": "1", "max_wal_senders": "1",
        "wal_sender_timeout": "2s", "max_slot_wal_keep_size": "100MB",
    }  # fmt: skip
    with CopiedServer(settings=limits) as server:
        execute(server.dsn(), "CREATE TABLE a (id int PRIMARY KEY)")
        reported = findings(source(server.dsn()))
        assert codes(reported, "error") == ["wal-level"]
        assert codes(reported, "warning") == [
            "wal-sender-timeout-short",
            "slots-exhausted",
            "senders-exhausted",
        ]
        assert "100 MB" in finding_of(reported, "wal-keep-limited").message
        execute(server.dsn(), "SELECT pg_create_physical_replication_slot('taken')")
        assert finding_of(findings(source(server.dsn())), "slots-exhausted").level == "error"


def test_slot_close_to_loss_is_warning() -> None:
    with CopiedServer(settings={"max_slot_wal_keep_size": "64MB"}) as server:
        settings = source(server.dsn())
        with connect(settings) as connection:
            ensure_slot(connection, settings)
            for _ in range(5):
                connection.execute("SELECT pg_switch_wal() FROM pg_logical_emit_message(false, 'x', 'x')")
        finding = finding_of(findings(settings), "slot-at-risk")
        assert finding.level == "warning"
        assert "max_slot_wal_keep_size" in str(finding.remedy)


def pooler(server: EmbeddedServer) -> socket.socket:
    """Run a listener that forwards sessions to the server but hangs up on walsenders, like a pooler."""
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


def test_pooler_refusing_walsender_is_detected_by_connecting() -> None:
    with CopiedServer() as server, pooler(server) as listener:
        port = listener.getsockname()[1]
        reported = findings(
            source(f"host=127.0.0.1 port={port} user=postgres dbname=postgres sslmode=disable")
        )
    finding = finding_of(reported, "connection-lost")
    assert (finding.level, finding.subject) == ("error", "replication connection")
    assert "pooler" in str(finding.remedy)


def test_a_standby_is_refused(lake_path: str) -> None:
    with CopiedServer() as server:
        server.stop()
        (server.data / "standby.signal").touch()
        server.start()
        settings = source(server.dsn())
        reported = findings(settings)
        with pytest.raises(DefiniteError) as caught:
            make_reader(settings, lake_path).run()
    assert finding_of(reported, "server-in-recovery").level == "error"
    assert caught.value.code == "server-in-recovery"


def test_version_newer_than_tested_is_warning(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check reports the version and warns of a server newer than any tested."""
    with psycopg.connect(dsn) as connection:
        major = connection.info.server_version // 10000
    version_finding = finding_of(findings(source(dsn)), "server-version")
    assert (version_finding.level, version_finding.message.startswith(f"PostgreSQL {major}.")) == (
        "info",
        True,
    )
    monkeypatch.setattr("deltasmelt.bronze.checks.server.NEWEST_VERSION", 130000)
    assert finding_of(findings(source(dsn)), "server-newer").level == "warning"


def test_doomed_start_stops_before_any_change(
    lake_path: str,
) -> None:
    """A start without a chance of success stops before it makes a slot or a publication."""
    cases: list[tuple[dict[str, str], str, str]] = [
        ({"wal_level": "replica"}, "", "wal-level"),
        (
            {"max_replication_slots": "1"},
            "SELECT pg_create_physical_replication_slot('x')",
            "slots-exhausted",
        ),
        ({"max_wal_senders": "0"}, "", "senders-exhausted"),
    ]
    for number, (limits, spoil, code) in enumerate(cases):
        with CopiedServer(settings=limits) as server:
            execute(server.dsn(), "CREATE TABLE a (id int PRIMARY KEY)")
            if spoil:
                execute(server.dsn(), spoil)
            settings = source(server.dsn())
            reported = finding_of(findings(settings), code)
            with pytest.raises(DefiniteError) as caught:
                make_reader(settings, f"{lake_path}{number}").run()
            with psycopg.connect(server.dsn()) as connection:
                row = connection.execute(
                    "SELECT (SELECT count(*) FROM pg_publication), "
                    "(SELECT count(*) FROM pg_replication_slots WHERE slot_name = 'smelt')"
                ).fetchone()
        assert (reported.level, reported.message, reported.remedy) == (
            "error", caught.value.message, caught.value.remedy,
        )  # fmt: skip
        assert caught.value.code == code
        assert row == (0, 0)


def test_risk_of_start_is_logged_as_warning(
    database18: str, lake_path: str, caplog: pytest.LogCaptureFixture
) -> None:
    execute(database18, "CREATE TABLE a (id int PRIMARY KEY)")
    read_all(source_of(database18), lake_path)
    assert [
        record.levelname
        for record in caplog.records
        if "max_slot_wal_keep_size" in record.message and "until its disk is full" in record.message
    ] == ["WARNING"]


@pytest.fixture(scope="module")
def bare_server() -> Iterator[EmbeddedServer]:
    """Run a server with a too low wal_level and with roles that no other test may see."""
    with CopiedServer(settings={"wal_level": "replica"}) as server:
        yield server


SERVICES = {
    "rds_superuser": ("Amazon RDS", "rds.logical_replication = 1", "DB parameter group"),
    "cloudsqlsuperuser": ("Cloud SQL", "cloudsql.logical_decoding = on", "flags of the instance"),
    "alloydbsuperuser": ("AlloyDB", "alloydb.logical_decoding = on", "flags of the instance"),
    "azure_pg_admin": ("Azure", "wal_level = logical in the server parameters", "server parameters"),
}


@pytest.mark.parametrize("marker", SERVICES)
def test_managed_service_is_recognized_and_gets_own_cures(bare_server: EmbeddedServer, marker: str) -> None:
    """The role identifies the managed service, and each cure uses the service's own command."""
    name, logical, parameters = SERVICES[marker]
    execute(bare_server.dsn(), f"CREATE ROLE {marker}; CREATE ROLE theirs LOGIN")
    try:
        reported = findings(source(bare_server.dsn(user="theirs")))
        assert name in finding_of(reported, "server-version").message
        assert logical in str(finding_of(reported, "wal-level").remedy)
        keep = str(finding_of(reported, "wal-keep-unlimited").remedy)
        assert parameters in keep
        assert not any("ALTER SYSTEM" in str(finding.remedy) for finding in reported)
        grant = str(finding_of(reported, "replication-privilege").remedy)
        rds = marker == "rds_superuser"
        assert ('GRANT "rds_replication" TO "theirs";' in grant) == rds
        assert ('ALTER ROLE "theirs" REPLICATION;' in grant) == (not rds)
    finally:
        execute(bare_server.dsn(), f"DROP ROLE {marker}; DROP ROLE theirs")


def test_membership_in_rds_replication_is_read_then_tried(bare_server: EmbeddedServer) -> None:
    execute(bare_server.dsn(), "CREATE ROLE rds_replication; CREATE ROLE theirs LOGIN")
    settings = source(bare_server.dsn(user="theirs"))
    try:
        outside = finding_of(findings(settings), "replication-privilege")
        execute(bare_server.dsn(), str(outside.remedy).partition(": ")[2])
        # Here such a membership gives nothing, as it would where a pooler or pg_hba.conf is in the way.
        inside = finding_of(findings(settings), "replication-privilege")
        assert (outside.subject, inside.subject) == ("role theirs", "replication connection")
        execute(bare_server.dsn(), "ALTER ROLE theirs REPLICATION")
        assert "replication-privilege" not in codes(findings(settings))
    finally:
        execute(bare_server.dsn(), "DROP ROLE rds_replication; DROP ROLE theirs")


def test_incomplete_publication_is_reported_with_working_sql(dsn: str) -> None:
    execute(dsn, """
        CREATE TABLE a (id int PRIMARY KEY);
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY LIST (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES IN (1);
        CREATE TABLE wide (id int PRIMARY KEY, x int, y int);
        CREATE TABLE some_rows (id int PRIMARY KEY);
        CREATE PUBLICATION smelt_pub FOR TABLE a, p, wide (id, y), some_rows WHERE (id > 5)
            WITH (publish = 'insert');
    """)  # fmt: skip
    settings = source(dsn, manage=False)
    reported = findings(settings)
    incomplete = finding_of(reported, "publication-incomplete")
    assert "publish = 'insert, update, delete, truncate', publish_via_partition_root = true" in str(
        incomplete.remedy
    )
    assert finding_of(reported, "publication-partition-root").subject == "public.p"
    assert finding_of(reported, "publication-columns").subject == "public.wide"
    assert "leaves out x;" in finding_of(reported, "publication-columns").message
    assert "WHERE (id > 5)" in finding_of(reported, "publication-row-filter").message
    execute(dsn, str(incomplete.remedy).partition(": ")[2])
    execute(dsn, str(finding_of(reported, "publication-row-filter").remedy).partition(" (without")[0])
    assert set(codes(findings(settings), "error")) == {"slot-missing"}
    execute(dsn, "ALTER PUBLICATION smelt_pub SET (publish_via_partition_root = false)")
    reported = findings(settings)
    assert set(codes(reported, "error")) == {
        "slot-missing", "publication-partition-root", "publication-incomplete",
    }  # fmt: skip
    execute(dsn, str(finding_of(reported, "publication-partition-root").remedy).partition(": ")[2])
    assert set(codes(findings(settings), "error")) == {"slot-missing"}
    execute(dsn, "ALTER PUBLICATION smelt_pub SET (publish_via_partition_root = false); DROP TABLE p")
    assert set(codes(findings(settings), "error")) == {"slot-missing"}, "only partitions need it"


def test_row_security_and_replica_identity_come_with_cures(dsn: str, role: tuple[str, str]) -> None:
    name, theirs = role
    execute(dsn, f"""
        ALTER ROLE {name} REPLICATION;
        CREATE TABLE guarded (id int PRIMARY KEY);
        ALTER TABLE guarded ENABLE ROW LEVEL SECURITY;
        CREATE TABLE nothing (id int PRIMARY KEY);
        ALTER TABLE nothing REPLICA IDENTITY NOTHING;
        GRANT SELECT ON guarded, nothing TO {name};
        CREATE PUBLICATION smelt_pub FOR TABLE guarded WITH (publish_via_partition_root = true);
    """)  # fmt: skip
    settings = source(theirs, manage=False)
    reported = findings(settings)
    security, identity = (
        finding_of(reported, "row-level-security"),
        finding_of(reported, "replica-identity-nothing"),
    )
    assert (security.subject, identity.subject) == ("public.guarded", "public.nothing")
    assert f'ALTER ROLE "{name}" BYPASSRLS;' in str(security.remedy)
    assert "REPLICA IDENTITY" in str(identity.remedy)
    execute(dsn, f"ALTER ROLE {name} BYPASSRLS; ALTER TABLE nothing REPLICA IDENTITY DEFAULT")
    healed = codes(findings(settings))
    assert not {"row-level-security", "replica-identity-nothing"} & set(healed)


def test_the_state_of_the_slot_is_told(dsn: str) -> None:
    second_dsn = make_conninfo(dsn, dbname="postgres")
    name = f"slot_{conninfo_to_dict(dsn)['dbname']}"
    execute(second_dsn, f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    settings = source(dsn, slot=name)
    assert finding_of(findings(settings), "slot-other-database").level == "error"
    execute(second_dsn, f"SELECT pg_drop_replication_slot('{name}')")
    with connect(settings) as connection:
        ensure_publication(connection, settings, [])
        ensure_slot(connection, settings)
    reading = ReplicationStream(settings, application_name="test")
    reading.start(ZERO)
    try:
        assert finding_of(findings(settings), "slot-in-use").level == "info"
    finally:
        reading.close()


def test_common_problem_of_many_tables_is_reported_once(dsn: str, role: tuple[str, str]) -> None:
    """The check groups a problem of many tables into a single finding with a single cure."""
    name, theirs = role
    execute(dsn, f"""
        ALTER ROLE {name} REPLICATION;
        CREATE SCHEMA shut;
        CREATE PUBLICATION smelt_pub FOR ALL TABLES WITH (publish_via_partition_root = true);
    """)  # fmt: skip
    for number in range(12):
        execute(dsn, f"CREATE TABLE t{number} (id int PRIMARY KEY); CREATE VIEW v{number} AS SELECT 1 AS one")
        execute(dsn, f"CREATE TABLE shut.t{number} (id int PRIMARY KEY)")
    settings = source(theirs, tables=["public.*", "shut.*"], manage=False)
    reported = findings(settings)
    assert sorted(codes(reported, "error")) == [
        "schema-privilege", "slot-missing", "table-privilege", "table-privilege",
    ]  # fmt: skip
    assert "12 of the selected tables are in this schema" in finding_of(reported, "schema-privilege").message
    skipped = finding_of(reported, "relation-skipped")
    assert "12 relations are not replicated, public.v0, public.v1, public.v10" in skipped.message
    assert "public.v9" not in skipped.message
    for finding in reported:
        if finding.code.endswith("-privilege"):
            execute(dsn, str(finding.remedy).partition(": ")[2])
    assert codes(findings(settings), "error") == ["slot-missing"]


def test_rows_of_children_outside_patterns_are_warning(dsn: str) -> None:
    execute(
        dsn,
        """
        CREATE SCHEMA chunks;
        CREATE TABLE readings (id int PRIMARY KEY);
        CREATE TABLE chunks._1 (PRIMARY KEY (id)) INHERITS (readings);
        CREATE TABLE chunks._1_1 (PRIMARY KEY (id)) INHERITS (chunks._1);
        CREATE TABLE people (id int PRIMARY KEY);
        CREATE TABLE staff (PRIMARY KEY (id)) INHERITS (people);
        CREATE TABLE p (id int PRIMARY KEY) PARTITION BY RANGE (id);
        CREATE TABLE p1 PARTITION OF p FOR VALUES FROM (0) TO (10);
        """,
    )
    reported = [finding for finding in findings(source(dsn)) if finding.code == "inherited-rows"]
    assert {finding.subject: finding.level for finding in reported} == {
        "public.people": "info",
        "public.readings": "warning",
    }
    warning = next(finding for finding in reported if finding.level == "warning")
    assert "do not select chunks._1, chunks._1_1, so silver lacks the rows" in warning.message
    assert "add chunks._1, chunks._1_1 to source.tables" in str(warning.remedy)
    execute(
        dsn, "".join(f"CREATE TABLE chunks._2_{n} (PRIMARY KEY (id)) INHERITS (readings);" for n in range(5))
    )
    warning = next(
        finding
        for finding in findings(source(dsn))
        if finding.level == "warning" and "inherited" in finding.code
    )
    assert "add chunks._* to source.tables" in str(warning.remedy)
    every = findings(source(dsn, tables=["public.*", "chunks._*"]))
    assert {finding.level for finding in every if finding.code == "inherited-rows"} == {"info"}
