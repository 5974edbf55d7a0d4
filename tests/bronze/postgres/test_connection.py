"""Connections to real servers: pinned settings, identity, and every failure of a connection."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

import psycopg
import pytest
from psycopg import pq

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.identifiers import TableName, quote_literal
from deltasmelt.bronze.postgres import connection
from deltasmelt.bronze.postgres.connection import connect, identify, translated, until_stopped
from deltasmelt.bronze.postgres.conninfo import address_of, conninfo, replication_conninfo
from deltasmelt.bronze.postgres.error_translation import table_error, translate, translate_result
from deltasmelt.bronze.postgres.replication import ReplicationConnection
from deltasmelt.bronze.reader.table_errors import SOURCE_CODES
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer, free_port
from tests.bronze.enumerated import swallow
from tests.fix_postgres import CopiedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

PASSWORD = "op3n-s3same"
HBA = """
local all all trust
host all postgres 127.0.0.1/32 trust
host all guest 127.0.0.1/32 scram-sha-256
host all sleeper 127.0.0.1/32 trust
host all unknown 127.0.0.1/32 trust
hostssl all encrypted 127.0.0.1/32 trust
"""


def source(dsn: str | None = None, **values: object) -> SourceSettings:
    return SourceSettings.model_validate({"dsn": dsn, "slot": "smelt", "publication": "smelt_pub", **values})


def failure(settings: SourceSettings) -> SmeltError:
    with pytest.raises(SmeltError) as caught:
        connect(settings)
    assert PASSWORD not in str(caught.value)
    assert caught.value.remedy
    return caught.value


@pytest.fixture(scope="module")
def guarded() -> Iterator[EmbeddedServer]:
    """Run a server with passwords, few connections, and a locked database."""
    with CopiedServer(settings={"max_connections": "8", "superuser_reserved_connections": "3",
                                  "max_wal_senders": "2"}) as guarded:  # fmt: skip
        with psycopg.connect(guarded.dsn(), autocommit=True) as connection:
            connection.execute(f"CREATE ROLE guest LOGIN PASSWORD '{PASSWORD}'")
            connection.execute("CREATE ROLE sleeper")
            connection.execute("CREATE ROLE encrypted LOGIN")
            connection.execute("CREATE DATABASE locked")
            connection.execute("REVOKE CONNECT ON DATABASE locked FROM PUBLIC")
            (guarded.data / "pg_hba.conf").write_text(HBA)
            connection.execute("SELECT pg_reload_conf()")
        wait_for_refusal(guarded.dsn(user="nobody_knows"))
        yield guarded


def wait_for_refusal(dsn: str) -> None:
    """Wait until the new pg_hba.conf is in force: pg_reload_conf() only sends a signal."""
    for _ in range(200):
        try:
            psycopg.connect(dsn).close()
        except psycopg.OperationalError as error:
            if "pg_hba.conf" in str(error):
                return
        time.sleep(0.02)
    raise AssertionError("pg_hba.conf was not read again")


def other_server(
    guarded: EmbeddedServer, password: str | None = PASSWORD, **values: object
) -> SourceSettings:
    plain = {"host": "127.0.0.1", "port": guarded.port, "database": "postgres", "user": "guest"}
    return source(None, password=password, **{**plain, **values})


RENDERED = """
    SELECT timestamptz '2024-02-29 12:00:00.5+00', date '2024-02-29', interval '1 month -2 days 3.5 seconds',
           float8 '0.1', float4 '0.1', '\\x00ff'::bytea, 12.5::float8::numeric::money
"""
EXPECTED = ("2024-02-29 12:00:00.5+00", "2024-02-29", "P1M-2DT3.5S", "0.1", "0.1", "\\x00ff", "$12.50")


def as_text(connection: psycopg.Connection[tuple[object, ...]]) -> tuple[str, ...]:
    result = connection.pgconn.exec_(RENDERED.encode())
    return tuple((result.get_value(0, column) or b"").decode() for column in range(result.nfields))


@pytest.fixture
def drifted(database: str) -> str:
    """Create a database whose owner changed every setting that affects printed values."""
    with psycopg.connect(database, autocommit=True) as connection:
        name = connection.info.dbname
        for setting in (
            "TimeZone = 'Asia/Kolkata'", "DateStyle = 'German, DMY'", "IntervalStyle = 'postgres_verbose'",
            "extra_float_digits = -5", "bytea_output = 'escape'", "statement_timeout = '5s'",
            "search_path = 'elsewhere'", "idle_in_transaction_session_timeout = '5s'", "lock_timeout = '1s'",
            "row_security = on", "client_encoding = 'LATIN1'",
        ):  # fmt: skip
            connection.execute(f'ALTER DATABASE "{name}" SET {setting}'.encode())
    return database


def test_values_are_rendered_alike_whatever_the_database_sets(drifted: str) -> None:
    with connect(source(drifted)) as connection:
        rendered = as_text(connection)
        assert rendered[:6] == EXPECTED[:6]
        for name, value in (
            ("statement_timeout", "0"), ("lock_timeout", "0"), ("search_path", "pg_catalog"),
            ("idle_in_transaction_session_timeout", "0"), ("row_security", "off"),
            ("idle_session_timeout", "0"), ("client_encoding", "UTF8"), ("lc_monetary", "C"),
        ):  # fmt: skip
            assert connection.execute("SELECT current_setting(%s)", [name]).fetchone() == (value,)


def test_walsenders_render_as_connections_do(drifted: str) -> None:
    walsender = pq.PGconn.connect(replication_conninfo(source(drifted)).encode())
    try:
        result = walsender.exec_(RENDERED.encode())
        rendered = [(result.get_value(0, column) or b"").decode() for column in range(6)]
        assert rendered == list(EXPECTED[:6])
    finally:
        walsender.finish()


def test_client_variables_that_beat_options_are_overruled(
    drifted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGTZ", "America/New_York")
    monkeypatch.setenv("PGDATESTYLE", "SQL, DMY")
    with connect(source(drifted)) as connection:
        assert as_text(connection)[:2] == EXPECTED[:2]
    with connect(source(drifted), replication="database") as walsender:
        assert walsender.command(RENDERED).get_value(0, 0) == EXPECTED[0].encode()


def test_user_options_stay_but_never_override_required_options(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(source(f"{database} options='-c work_mem=12MB -c TimeZone=Asia/Tokyo'")) as connection:
        row = connection.execute("SELECT current_setting('work_mem'), current_setting('TimeZone')").fetchone()
        assert row == ("12MB", "UTC")
    monkeypatch.setenv("PGOPTIONS", "-c work_mem=13MB -c DateStyle=German")
    with connect(source(database)) as connection:
        row = connection.execute(
            "SELECT current_setting('work_mem'), current_setting('DateStyle')"
        ).fetchone()
        assert row == ("13MB", "ISO, MDY")


def test_identity_names_cluster_timeline_version_and_database(database: str, database18: str) -> None:
    with connect(source(database)) as connection, connect(source(database18)) as second:
        first_identity, second_identity = identify(connection), identify(second)
        assert first_identity.database == connection.info.dbname
        assert first_identity.version // 10000 == connection.info.server_version // 10000
        assert second_identity.version // 10000 == 18
        assert first_identity.timeline == second_identity.timeline == 1
        assert first_identity.system_identifier != second_identity.system_identifier
        assert identify(connection) == first_identity


def test_a_source_is_described_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGDATABASE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    assert (
        address_of(source(f"postgresql://me:{PASSWORD}@db.example:6543/shop")) == "db.example:6543/shop as me"
    )
    assert address_of(source(f"host=db user=me password={PASSWORD}")) == "db:5432/me as me"
    numeric = source(host="::1", user="me", database="shop", password=PASSWORD)
    assert address_of(numeric) == "[::1]:5432/shop as me"
    assert address_of(source(host="/run/pg", user="me", database="shop")) == "/run/pg:5432/shop as me"
    assert address_of(source(service="shop")) == "service shop"
    monkeypatch.setenv("PGHOST", "env.example")
    monkeypatch.setenv("PGDATABASE", "envdb")
    assert address_of(source(user="me")) == "env.example:5432/envdb as me"


def test_keywords_win_over_the_dsn_and_reach_libpq() -> None:
    values = psycopg.conninfo.conninfo_to_dict(
        conninfo(
            source(
                "postgresql://a@h1:1/d1",
                host="h2",
                port=2,
                database="d2",
                user="b",
                password=PASSWORD,
                sslmode="require",
                sslrootcert="/ca.pem",
            ),
            application_name="x",
        )
    )
    names = ("host", "port", "dbname", "user", "password", "sslmode", "sslrootcert")
    assert [values[name] for name in names] == ["h2", "2", "d2", "b", PASSWORD, "require", "/ca.pem"]
    assert values["application_name"] == "x"


@pytest.mark.parametrize(
    "dsn",
    [
        f"postgresql://me:{PASSWORD}@@db/shop",
        f"postgresql://me:{PASSWORD}@x@db/shop",
        f"postgresql://me:%zz{PASSWORD}@db/shop",
        f"host=db user=me {PASSWORD}",
        f"host=db user=me password='{PASSWORD}",
        f"postgresql://me@db:{PASSWORD}:5432/shop?{PASSWORD}",
    ],
)
def test_unreadable_dsn_is_rejected_without_quoting_parts(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        conninfo(source(dsn))
    assert caught.value.code == "dsn-invalid"
    assert "s3same" not in str(caught.value)
    assert "write postgresql://user@host:5432/database, and set the password" in str(caught.value)
    assert "s3same" not in address_of(source(dsn))


@pytest.mark.parametrize(
    ("dsn", "reason"),
    [
        ("mysql://me@db/shop", "mysql is another database than PostgreSQL"),
        ("jdbc:mysql://db/shop", "mysql is another database than PostgreSQL"),
        ("jdbc:postgresql://db:5432/shop", "it begins with jdbc:postgresql://, which libpq does not know"),
        ("postgresql+psycopg2://me@db/shop", "it begins with postgresql+psycopg2://, which libpq does not"),
        ("db.example.com", "it is neither a URI nor a list like host=… dbname=…"),
        ("db.example.com:5432/shop", "it is neither a URI nor a list like host=… dbname=…"),
    ],
)
def test_string_of_another_library_is_named(dsn: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(reason)):
        conninfo(source(dsn))


def test_a_wrong_password(guarded: EmbeddedServer) -> None:
    error = failure(other_server(guarded, password="wrong"))
    assert isinstance(error, ConfigurationError)
    assert error.code == "password-rejected"
    assert "guest" in error.message
    assert error.where == f"127.0.0.1:{guarded.port}/postgres as guest"
    assert "wrong" not in error.message


def test_a_missing_password(guarded: EmbeddedServer) -> None:
    error = failure(other_server(guarded, password=None, passfile="/nonexistent"))
    assert isinstance(error, ConfigurationError)
    assert error.code == "password-missing"
    assert "PGPASSWORD" in str(error.remedy)


def test_an_unknown_database(guarded: EmbeddedServer) -> None:
    error = failure(other_server(guarded, database="shopp"))
    assert isinstance(error, ConfigurationError)
    assert error.code == "database-unknown"
    assert error.message == "database shopp does not exist on this server"


def test_a_database_without_the_connect_privilege(guarded: EmbeddedServer) -> None:
    error = failure(other_server(guarded, database="locked"))
    assert isinstance(error, DefiniteError)
    assert error.code == "connect-denied"
    assert 'GRANT CONNECT ON DATABASE "locked" TO "guest";' in str(error.remedy)


def test_unknown_role_and_role_without_login(guarded: EmbeddedServer) -> None:
    for user in ("sleeper", "unknown"):
        error = failure(other_server(guarded, user=user))
        assert isinstance(error, ConfigurationError)
        assert error.code == "role-unknown"
        assert f'"{user}"' in str(error.remedy)


def test_a_connection_that_pg_hba_does_not_admit(guarded: EmbeddedServer) -> None:
    error = failure(other_server(guarded, user="stranger"))
    assert isinstance(error, DefiniteError)
    assert error.code == "pg-hba-rejected"
    assert "hostssl postgres stranger" in str(error.remedy)


def test_server_requiring_tls_and_server_without_tls(guarded: EmbeddedServer) -> None:
    assert failure(other_server(guarded, user="encrypted")).code == "pg-hba-rejected"
    error = failure(other_server(guarded, sslmode="require"))
    assert isinstance(error, ConfigurationError)
    assert error.code == "ssl-not-offered"


def test_a_port_that_nobody_listens_on() -> None:
    error = failure(source(f"postgresql://me:{PASSWORD}@127.0.0.1:{free_port()}/shop"))
    assert isinstance(error, TransientError)
    assert error.code == "server-unreachable"


def test_a_host_name_that_nobody_knows() -> None:
    error = failure(source(f"postgresql://me:{PASSWORD}@no-such-host.invalid/shop"))
    assert isinstance(error, TransientError)
    assert error.code == "host-unknown"


def test_a_service_that_is_not_defined() -> None:
    error = failure(source(service="no_such_service"))
    assert isinstance(error, ConfigurationError)
    assert error.code == "service-unknown"


def test_an_option_that_the_server_does_not_know(guarded: EmbeddedServer) -> None:
    error = failure(source(f"{guarded.dsn()}?options=-c%20no_such_setting%3D1"))
    assert isinstance(error, ConfigurationError)
    assert error.code == "connection-option-unknown"
    assert "no_such_setting" in error.message


def test_a_server_without_a_free_connection(guarded: EmbeddedServer) -> None:
    connections = [psycopg.connect(guarded.dsn(user="guest"), password=PASSWORD) for _ in range(5)]
    try:
        error = failure(other_server(guarded))
        assert isinstance(error, TransientError)
        assert error.code == "too-many-connections"
    finally:
        for connection in connections:
            connection.close()


def test_a_role_without_replication(guarded: EmbeddedServer) -> None:
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(replication_conninfo(other_server(guarded)))
    error = translate(caught.value, other_server(guarded))
    assert isinstance(error, DefiniteError)
    assert error.code == "replication-privilege"
    assert 'ALTER ROLE "guest" REPLICATION;' in str(error.remedy)


def test_no_free_walsender(guarded: EmbeddedServer) -> None:
    settings = source(guarded.dsn())
    walsenders = [pq.PGconn.connect(replication_conninfo(settings).encode()) for _ in range(3)]
    try:
        failed = [walsender for walsender in walsenders if walsender.status != pq.ConnStatus.OK]
        assert len(failed) == 1
        error = translate(psycopg.OperationalError(failed[0].get_error_message()), settings)
        assert isinstance(error, DefiniteError)
        assert error.code == "slots-exhausted"
    finally:
        for walsender in walsenders:
            walsender.finish()


def test_a_server_older_than_supported(database: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MINIMUM_VERSION", 990000)
    error = failure(source(database))
    assert isinstance(error, DefiniteError)
    assert error.code == "server-too-old"


def test_a_connection_that_an_administrator_ends(own_server: EmbeddedServer) -> None:
    settings = source(own_server.dsn())
    with connect(settings) as first, connect(settings) as second:
        second.execute("SELECT pg_terminate_backend(%s, 10000)", [first.info.backend_pid])
        with pytest.raises(psycopg.Error) as caught:
            first.execute("SELECT 1")
        ended = translate(caught.value, settings)
        with pytest.raises(psycopg.Error) as caught:
            first.execute("SELECT 1")
        closed = translate(caught.value, settings)
        own_server.stop("immediate")
        with pytest.raises(psycopg.Error) as caught:
            second.execute("SELECT 1")
        crashed = translate(caught.value, settings)
    for error in (ended, closed, crashed):
        assert isinstance(error, TransientError)
        assert error.code == "connection-lost"


def test_missing_answer_ends_by_patience_or_stop(database: str) -> None:
    hasty, patient = source(database).with_timing(Timing(answer=0.5)), source(database)
    with connect(hasty) as first, connect(hasty) as second:
        swallow(first)
        swallow(second)
        with pytest.raises(TransientError, match="has not answered"), translated(hasty):
            first.execute("SELECT 1")
        with pytest.raises(TransientError, match="has not answered"), translated(hasty):
            second.command("SELECT 1")
        assert first.closed
        assert second.closed
    walsender = ReplicationConnection(hasty, application_name="deltasmelt test")
    swallow(walsender._connection)
    with pytest.raises(TransientError, match="has not answered"):
        walsender.query("IDENTIFY_SYSTEM")
    walsender.close()
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    with connect(patient) as first, until_stopped(stop, first):
        swallow(first)
        with pytest.raises(psycopg.OperationalError, match="has not answered"):
            first.execute("SELECT 1")
    with connect(patient) as first:
        with until_stopped(stop, first), pytest.raises(psycopg.errors.QueryCanceled):
            first.execute("SELECT pg_sleep(30)")
        assert first.execute("SELECT 1").fetchone() == (1,), "a server that answers loses nothing"


def test_a_server_that_shuts_down_or_has_gone(own_server: EmbeddedServer) -> None:
    settings = source(own_server.dsn())
    open_connection = connect(settings)
    stopping = threading.Thread(target=own_server.stop, args=("smart",))
    stopping.start()  # waits for our session, and admits no other meanwhile
    try:
        for _ in range(100):
            try:
                connect(settings).close()
            except SmeltError as error:
                shutting = error
                break
            time.sleep(0.05)
        assert isinstance(shutting, TransientError)
        assert shutting.code == "server-starting"
    finally:
        open_connection.close()
        stopping.join()
    down = failure(settings)
    assert isinstance(down, TransientError)
    assert down.code == "server-unreachable"


def server_error(sqlstate: str, message: str, detail: str = "") -> str:
    """Return SQL that fails with a rare error of the server."""
    parts = {"ERRCODE": sqlstate, "MESSAGE": message} | ({"DETAIL": detail} if detail else {})
    using = ", ".join(f"{name} = {quote_literal(text)}" for name, text in parts.items())
    return f"DO $$BEGIN RAISE EXCEPTION USING {using}; END$$"


@pytest.mark.parametrize(
    ("statement", "kind", "code"),
    [
        ("SELECT pg_replication_slot_advance('smelt', '0/1')", DefiniteError, "slot-missing"),
        ("ALTER PUBLICATION smelt_pub SET (publish = 'insert')", DefiniteError, "publication-missing"),
        ("SET statement_timeout = '10ms'; SELECT pg_sleep(5)", TransientError, "statement-cancelled"),
        ("SET transaction_read_only = on; CREATE PUBLICATION x", DefiniteError, "server-read-only"),
        ("SELECT 1/0", DefiniteError, "server-error"),
        ("LOAD 'no_such_library'", DefiniteError, "server-error"),
        (server_error("58P01", 'could not access file "$libdir/postgis-3"'), DefiniteError, "server-error"),
        (
            server_error("58P01", "requested WAL segment 00000001000000000000002A has already been removed"),
            DefiniteError,
            "slot-lost",
        ),
        (
            server_error("55000", 'replication slot "smelt" was not created in this database'),
            DefiniteError,
            "server-error",
        ),
        (
            server_error("55000", "der Slot »smelt« kann nicht gelesen werden", "Er wurde ungültig gemacht."),
            DefiniteError,
            "slot-lost",
        ),
        (
            server_error("53400", 'temporary file size exceeds "temp_file_limit" (10kB)'),
            TransientError,
            "server-resources",
        ),
    ],
)
def test_a_statement_that_fails(database: str, statement: str, kind: type[SmeltError], code: str) -> None:
    settings = source(database)
    with connect(settings) as connection:
        result = connection.pgconn.exec_(statement.encode())
        error = translate_result(result, settings)
    assert isinstance(error, kind)
    assert error.code == code
    assert error.where == address_of(settings)
    if code == "server-error":
        assert "(SQLSTATE " in error.message


def test_copy_error_code_closes_with_its_copy(database: str) -> None:
    settings, table = source(database), TableName("public", "a")
    with connect(settings) as connection:
        for sqlstate, message in (
            ("55000", 'replication slot "smelt" can no longer be read (wal_level)'),
            ("42704", 'unrecognized configuration parameter "app.tenant"'),
            ("25006", "cannot execute INSERT in a read-only transaction"),
            ("42501", "permission denied for table replication_log"),
            ("53400", "all replication slots are in use"),
            ("22021", "invalid byte sequence"),
        ):
            with pytest.raises(psycopg.Error) as caught:
                connection.execute(server_error(sqlstate, message).encode())
            error = table_error(table, caught.value, settings)
            assert error.code in SOURCE_CODES, sqlstate
            assert message in error.message
            assert "snapshot" not in str(error.remedy)
            assert (error.code == "permission-denied") == (sqlstate == "42501")
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(server_error("22P02", "invalid input syntax: SECRET").encode())
        filtered = source(database, where={"public.a": "code::int > 1"})
        shown = table_error(table, caught.value, filtered)
        assert ("SECRET" in str(shown), "22P02" in str(shown)) == (False, True)
        with pytest.raises(psycopg.Error) as caught:
            connection.execute(server_error("58030", "could not read block 7").encode())
        with pytest.raises(TransientError, match="block 7"):
            table_error(table, caught.value, settings)


def test_foreign_language_messages_are_classified_by_names(
    guarded: EmbeddedServer,
) -> None:
    """Names in the message, and a second connection, identify errors in foreign languages."""

    def said(text: str, settings: SourceSettings) -> SmeltError:
        whole = f'connection to server at "127.0.0.1", port 1 failed: {text}'
        return translate(psycopg.OperationalError(whole), settings)

    guest_settings = other_server(guarded, password="wrong")
    assert said("FATAL:  Datenbank »postgres« existiert nicht", guest_settings).code == "database-unknown"
    refused = said("FATAL:  Passwort-Authentifizierung für Benutzer »guest« fehlgeschlagen", guest_settings)
    assert isinstance(refused, ConfigurationError)
    assert refused.code == "connection-refused"
    assert (
        said("FATAL:  kein pg_hba.conf-Eintrag für Host »127.0.0.1«", guest_settings).code
        == "pg-hba-rejected"
    )
    nowhere = source(f"postgresql://me@127.0.0.1:{free_port()}/shop")
    assert isinstance(said("FATAL:  das Datenbanksystem startet", nowhere), TransientError)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("SSL error: unexpected eof while reading", "connection-lost"),
        ("SSL connection has been closed unexpectedly", "connection-lost"),
        ("SSL error: certificate verify failed", "ssl-untrusted"),
        ('FATAL:  too many connections for role "shop"', "too-many-connections"),
        ('FATAL:  too many connections for database "shop"', "too-many-connections"),
        ("FATAL:  sorry, too many clients already", "too-many-connections"),
    ],
)
def test_restarting_or_full_server_is_awaited(text: str, code: str) -> None:
    settings = source("postgresql://shop@127.0.0.1:1/shop")
    error = translate(
        psycopg.OperationalError(f'connection to server at "127.0.0.1", port 1 failed: {text}'), settings
    )
    assert error.code == code
    assert isinstance(error, TransientError) == (code != "ssl-untrusted")
    assert ('ALTER ROLE "shop" CONNECTION LIMIT' in str(error.remedy)) == ("connections for" in text)
