"""Every kind of connection in libpq, and every refusal of a connection.

A run of the reader opens ordinary connections and a replication connection. So each way is tried with both;
a run of the reader follows where a way has most parts, or changes while the reader runs. The
embedded server has no TLS. `TlsFront` adds TLS, and the tests at the end use a server with native TLS if this
machine has such a server.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.errors import ConfigurationError, SmeltError, TransientError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.postgres.conninfo import address_of
from deltasmelt.bronze.postgres.replication import ReplicationConnection
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer, free_port
from tests.bronze.certificates import Authority
from tests.bronze.replaying import assert_bronze_equals_source, execute, make_reader, read_all, source_of
from tests.bronze.running import Running
from tests.bronze.tls_front import TlsFront
from tests.bronze.tls_server import TlsServer, installation_with_tls
from tests.fix_postgres import CopiedServer, drop_database, make_database
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.bronze.certificates import Certificate

pytestmark = pytest.mark.postgres

PASSWORD = "op3n-s3same"
HBA = """
local all all trust
host all postgres 127.0.0.1/32 trust
host all smelt 127.0.0.1/32 scram-sha-256
host all unlocked 127.0.0.1/32 trust
"""
ROLES = f"""
    SET password_encryption = 'scram-sha-256';
    CREATE ROLE smelt LOGIN REPLICATION PASSWORD '{PASSWORD}';
    CREATE ROLE unlocked LOGIN REPLICATION;
    GRANT smelt TO unlocked;
"""


@pytest.fixture(scope="module")
def server() -> Iterator[EmbeddedServer]:
    """Run a server that requires a password of the role `smelt` by SCRAM, except on the socket."""
    with CopiedServer() as server:
        guard(server, HBA)
        yield server


def guard(server: EmbeddedServer, rules: str) -> None:
    execute(server.dsn(), ROLES)
    (server.data / "pg_hba.conf").write_text(rules)
    server.restart()


@pytest.fixture
def admin(server: EmbeddedServer) -> Iterator[SourceSettings]:
    """Yield an administrator's source of a fresh database with a table that `smelt` owns."""
    dsn = make_database(server.dsn())
    yield prepared(dsn)
    drop_database(server.dsn(), dsn)


def prepared(dsn: str) -> SourceSettings:
    admin = source_of(dsn)
    execute(
        admin,
        f"ALTER DATABASE {database_of(admin)} OWNER TO smelt",
        "CREATE TABLE items (id int PRIMARY KEY, note text)",
        "ALTER TABLE items OWNER TO smelt",
        "INSERT INTO items VALUES (1, 'copied')",
    )
    return admin


def database_of(admin: SourceSettings) -> str:
    assert admin.dsn is not None
    return str(conninfo_to_dict(admin.dsn.get_secret_value())["dbname"])


def way(admin: SourceSettings, **keys: Any) -> SourceSettings:
    """Return the source of `smelt` in the administrator's database, by keys of the pipeline file alone."""
    plain: dict[str, Any] = {"host": "127.0.0.1", "user": "smelt", "database": database_of(admin)}
    return SourceSettings.model_validate(
        {"slot": admin.slot, "publication": admin.publication, **plain, **keys}
    )


def assert_carries_on(settings: SourceSettings, admin: SourceSettings, lake_path: str) -> None:
    read_all(settings, lake_path)
    assert ControlTables(Lake(lake_path)).open_errors() == []
    assert_bronze_equals_source(admin, lake_path, "public.items")


def assert_carries(settings: SourceSettings, admin: SourceSettings, lake_path: str) -> None:
    """Check that a reader with this source copies a table, and then streams later rows."""
    read_all(settings, lake_path)
    execute(admin, "INSERT INTO items VALUES (2, 'streamed')")
    assert_carries_on(settings, admin, lake_path)


def assert_connects(settings: SourceSettings, admin: SourceSettings) -> None:
    """Check both kinds of connection; a reader opens no third kind."""
    with connect(settings) as connection:
        assert connection.info.dbname == database_of(admin)
    walsender = ReplicationConnection(settings, application_name="test")
    assert walsender.query("SELECT current_database()") == [(database_of(admin),)]
    walsender.close()


def refusal(settings: SourceSettings, lake_path: str) -> SmeltError:
    """Return the equal, immediate error of an ordinary connection, a replication connection and a reader."""
    errors: list[SmeltError] = []
    started = time.monotonic()
    for step in (
        lambda: connect(settings),
        lambda: ReplicationConnection(settings, application_name="test"),
        lambda: make_reader(settings, lake_path).run(),
    ):
        with pytest.raises(ConfigurationError) as caught:
            step()
        errors.append(caught.value)
    assert time.monotonic() - started < 10, "it is not asked again and again"
    for error in errors:
        assert (error.code, error.remedy) == (errors[0].code, errors[0].remedy)
        assert error.where == address_of(settings)
        assert "\n" not in error.message
        assert PASSWORD not in str(error)
        assert error.remedy
    return errors[0]


# --- passwords -------------------------------------------------------------------------------------


def test_a_password_by_scram(server: EmbeddedServer, admin: SourceSettings, lake_path: str) -> None:
    execute(admin, f"DO $$ BEGIN ASSERT (SELECT rolpassword ^@ 'SCRAM-SHA-256$' {AUTHID}); END $$")
    dsn = "require_auth=scram-sha-256"  # libpq itself refuses any other way
    assert_carries(way(admin, dsn=dsn, port=server.port, password=PASSWORD), admin, lake_path)


AUTHID = "FROM pg_authid WHERE rolname = 'smelt'"


def test_a_wrong_password_by_scram(server: EmbeddedServer, admin: SourceSettings, lake_path: str) -> None:
    error = refusal(way(admin, port=server.port, password="wrong"), lake_path)
    assert error.code == "password-rejected"
    assert "wrong" not in str(error).replace(str(error.remedy), "")


def password_file(folder: Path, server: EmbeddedServer, mode: int = 0o600) -> Path:
    file = folder / "passwords"
    file.write_text(f"# ours\nelsewhere:5432:*:smelt:no\n127.0.0.1:{server.port}:*:smelt:{PASSWORD}\n")
    file.chmod(mode)
    return file


def test_a_password_file_by_key_or_environment(
    server: EmbeddedServer, admin: SourceSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = password_file(tmp_path, server)
    assert_connects(way(admin, port=server.port, passfile=str(file)), admin)
    monkeypatch.setenv("PGPASSFILE", str(file))
    assert_connects(way(admin, port=server.port), admin)


def test_a_password_file_open_to_others_is_refused(
    server: EmbeddedServer, admin: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    file = password_file(tmp_path, server, mode=0o644)
    error = refusal(way(admin, port=server.port, passfile=str(file)), lake_path)
    assert error.code == "password-missing"
    assert "chmod 600" in str(error.remedy)


# --- sockets, services, several hosts --------------------------------------------------------------


def test_a_unix_socket(server: EmbeddedServer, admin: SourceSettings) -> None:
    settings = way(admin, host=str(server.folder), port=server.port)
    with connect(settings) as connection:
        row = connection.execute(
            "SELECT client_port FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        ).fetchone()
        assert row == (-1,), "PostgreSQL's own mark of a socket"
    assert address_of(settings) == f"{server.folder}:{server.port}/{database_of(admin)} as smelt"
    assert_connects(settings, admin)


def test_an_account_that_the_socket_does_not_admit(admin: SourceSettings, lake_path: str) -> None:
    with CopiedServer() as guarded:
        guard(guarded, "local all all peer map=nobody_at_all\nhost all postgres 127.0.0.1/32 trust\n")
        error = refusal(
            way(admin, host=str(guarded.folder), port=guarded.port, database="postgres"), lake_path
        )
    assert error.code == "peer-rejected"
    assert "pg_ident.conf" in str(error.remedy)


@pytest.fixture
def services(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set the path of libpq's service file; return the path."""
    file = tmp_path / "services.conf"
    monkeypatch.setenv("PGSERVICEFILE", str(file))
    return file


def service_file(file: Path, server: EmbeddedServer, database: str) -> None:
    file.write_text(
        f"[elsewhere]\nhost=nowhere.invalid\n\n# ours\n[shop]\nhost=127.0.0.1\nport={server.port}\n"
        f"user=smelt\ndbname={database}\npassword={PASSWORD}\n"
        "options=-c work_mem=12MB -c TimeZone=Asia/Tokyo\n"
    )


@pytest.mark.parametrize("named_by", ["pipeline file", "DSN", "PGSERVICE"])
def test_options_of_a_service_file_yield_to_ours(
    server: EmbeddedServer,
    admin: SourceSettings,
    lake_path: str,
    services: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    named_by: str,
) -> None:
    service_file(services, server, database_of(admin))
    keys: dict[str, Any] = {"service": "shop"} if named_by == "pipeline file" else {}
    if named_by == "DSN":
        keys = {"dsn": "service=shop"}
    if named_by == "PGSERVICE":
        monkeypatch.setenv("PGSERVICE", "shop")
    settings = way(admin, host=None, user=None, database=None, **keys)
    assert address_of(settings) == f"127.0.0.1:{server.port}/{database_of(admin)} as smelt"
    with connect(settings) as connection:
        cursor = connection.execute("SELECT current_setting('work_mem'), current_setting('TimeZone')")
        assert cursor.fetchone() == ("12MB", "UTC")
    walsender = ReplicationConnection(settings, application_name="test")
    assert walsender.query("SHOW work_mem") == [("12MB",)]
    walsender.close()
    if named_by == "pipeline file":
        assert_carries(settings, admin, lake_path)


def test_errors_of_services_omit_the_password(
    server: EmbeddedServer, admin: SourceSettings, lake_path: str, services: Path
) -> None:
    service_file(services, server, "no_such_database")
    settings = way(admin, host=None, user=None, database=None, service="shop")
    error = refusal(settings, lake_path)
    assert (error.code, error.where) == (
        "database-unknown",
        f"127.0.0.1:{server.port}/no_such_database as smelt",
    )
    assert error.message == "database no_such_database does not exist on this server"
    error = refusal(settings.model_copy(update={"service": "shopp"}), lake_path)
    assert (error.code, error.where) == ("service-unknown", "service shopp")
    services.write_text("[shop]\nhsot=127.0.0.1\n")
    assert refusal(settings, lake_path).code == "service-unknown"


def test_of_several_hosts_the_one_that_answers(server: EmbeddedServer, admin: SourceSettings) -> None:
    settings = way(admin, host="127.0.0.1,127.0.0.1", port=f"{free_port()},{server.port}", password=PASSWORD)
    assert_connects(settings, admin)


def test_of_several_hosts_the_primary(server: EmbeddedServer, admin: SourceSettings, lake_path: str) -> None:
    with CopiedServer() as standby:
        standby.stop()
        (standby.data / "standby.signal").touch()
        standby.start()
        with psycopg.connect(standby.dsn()) as connection:
            assert connection.execute("SELECT pg_is_in_recovery()").fetchone() == (True,)
        hosts = {"host": "127.0.0.1,127.0.0.1", "port": f"{standby.port},{server.port}", "user": "postgres"}
        for attributes in ("read-write", "primary"):
            settings = way(admin, **hosts, target_session_attrs=attributes)
            walsender = ReplicationConnection(settings, application_name="test")
            assert walsender.query("SELECT pg_is_in_recovery()") == [("f",)]
            walsender.close()
        assert_carries(settings, admin, lake_path)
        nowhere = settings.model_copy(
            update={"port": f"{standby.port},{free_port()}", "database": "postgres"}
        )
        with pytest.raises(TransientError) as caught:
            connect(nowhere)
    assert caught.value.code == "primary-not-found"


# --- TLS -------------------------------------------------------------------------------------------


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def front(server: EmbeddedServer, authority: Authority) -> Iterator[TlsFront]:
    with TlsFront(authority.issue("localhost", hosts=["localhost"]), server.port) as front:
        yield front


def encrypted(admin: SourceSettings, front: TlsFront, **keys: Any) -> SourceSettings:
    """Return a source with TLS to the front, under the name in the front's certificate."""
    plain = {"host": "localhost", "hostaddr": "127.0.0.1", "port": front.port, "password": PASSWORD}
    return way(admin, **{**plain, "sslmode": "verify-full", **keys})


def test_tls_verified_by_an_authority_of_ones_own(
    front: TlsFront, authority: Authority, admin: SourceSettings, lake_path: str
) -> None:
    settings = encrypted(admin, front, sslrootcert=str(authority.root))
    with connect(settings) as connection:
        assert connection.pgconn.ssl_in_use
    assert_carries(settings, admin, lake_path)


def test_tls_verified_by_the_systems_authorities(
    front: TlsFront,
    authority: Authority,
    admin: SourceSettings,
    lake_path: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = encrypted(admin, front, sslrootcert="system")
    assert refusal(settings, lake_path).code == "ssl-untrusted"
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.root))
    assert_connects(settings, admin)


def test_a_certificate_for_another_host(
    front: TlsFront, authority: Authority, admin: SourceSettings, lake_path: str
) -> None:
    settings = encrypted(admin, front, sslrootcert=str(authority.root), host="127.0.0.1", hostaddr=None)
    error = refusal(settings, lake_path)
    assert error.code == "ssl-host-mismatch"
    assert 'certificate for "localhost"' in error.message
    assert 'does not match host name "127.0.0.1"' in error.message
    connect(settings.model_copy(update={"sslmode": "verify-ca"})).close()


def test_a_certificate_of_an_unknown_authority(
    front: TlsFront, admin: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "another authority")
    error = refusal(encrypted(admin, front, sslrootcert=str(stranger.root)), lake_path)
    assert error.code == "ssl-untrusted"
    assert "sslrootcert" in str(error.remedy)


def test_a_certificate_that_has_expired(
    server: EmbeddedServer, authority: Authority, admin: SourceSettings, lake_path: str
) -> None:
    certificate = authority.issue("localhost", hosts=["localhost"], expired=True)
    with TlsFront(certificate, server.port) as front:
        error = refusal(encrypted(admin, front, sslrootcert=str(authority.root)), lake_path)
    assert error.code == "ssl-untrusted"
    assert "expired" in str(error.remedy)


def test_a_missing_or_wrong_authority_file_is_refused(
    front: TlsFront, admin: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    file = tmp_path / "root.pem"
    settings = encrypted(admin, front, sslrootcert=str(file))
    error = refusal(settings, lake_path)
    assert error.code == "ssl-file"
    assert str(file) in error.message
    file.write_text("no certificate\n")
    error = refusal(settings, lake_path)
    assert error.code == "ssl-file"
    assert str(file) in error.message


def test_a_server_without_tls(server: EmbeddedServer, admin: SourceSettings, lake_path: str) -> None:
    for mode in ("require", "verify-full"):
        error = refusal(
            way(admin, port=server.port, password=PASSWORD, sslmode=mode, sslrootcert="system"
                if mode == "verify-full" else None),
            lake_path,
        )  # fmt: skip
        assert error.code == "ssl-not-offered"
        assert "ssl = on" in str(error.remedy)


def test_channel_binding_needs_tls_at_the_server(
    front: TlsFront, authority: Authority, admin: SourceSettings, lake_path: str
) -> None:
    settings = encrypted(admin, front, sslrootcert=str(authority.root), channel_binding="require")
    assert refusal(settings, lake_path).code == "auth-method-refused"


# --- certificates of clients -----------------------------------------------------------------------


@pytest.fixture
def demanding(server: EmbeddedServer, authority: Authority) -> Iterator[TlsFront]:
    """Run a front that refuses every client without a certificate of the authority."""
    certificate = authority.issue("localhost", hosts=["localhost"])
    with TlsFront(certificate, server.port, clients=authority.root) as front:
        yield front


def test_a_client_certificate_is_shown_when_asked_for(
    demanding: TlsFront, authority: Authority, admin: SourceSettings
) -> None:
    ours = authority.issue("smelt")
    settings = encrypted(
        admin,
        demanding,
        sslrootcert=str(authority.root),
        sslcert=str(ours.certificate),
        sslkey=str(ours.key),
    )
    assert_connects(settings, admin)
    assert set(demanding.clients_seen) == {"smelt"}


def test_a_missing_or_wrong_client_certificate_is_refused(
    demanding: TlsFront, authority: Authority, admin: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    settings = encrypted(admin, demanding, sslrootcert=str(authority.root))
    stranger = Authority(tmp_path, "another authority").issue("smelt")
    for wrong in (None, authority.issue("smelt", expired=True), stranger):
        files = {} if wrong is None else {"sslcert": str(wrong.certificate), "sslkey": str(wrong.key)}
        error = refusal(settings.model_copy(update=files), lake_path)
        assert error.code == "client-certificate-rejected"
        assert "sslkey" in str(error.remedy)


def test_a_wrong_or_open_private_key_is_refused(
    demanding: TlsFront, authority: Authority, admin: SourceSettings, lake_path: str, tmp_path: Path
) -> None:
    ours, another = authority.issue("smelt"), authority.issue("smelt")
    settings = encrypted(admin, demanding, sslrootcert=str(authority.root), sslcert=str(ours.certificate))
    ours.key.chmod(0o644)
    for key in (ours.key, tmp_path / "nowhere.key", another.key):
        error = refusal(settings.model_copy(update={"sslkey": str(key)}), lake_path)
        assert error.code == "ssl-file"
        assert "chmod 600" in str(error.remedy)
        assert str(key) in error.message
    missing = settings.model_copy(update={"sslcert": str(tmp_path / "nowhere.crt")})
    assert refusal(missing, lake_path).code == "client-certificate-rejected"


def test_an_expired_client_certificate_is_renewed_while_running(
    demanding: TlsFront, authority: Authority, admin: SourceSettings, lake_path: str
) -> None:
    ours, expired, renewed = (authority.issue("smelt", expired=late) for late in (False, True, False))
    settings = encrypted(
        admin,
        demanding,
        sslrootcert=str(authority.root),
        sslcert=str(ours.certificate),
        sslkey=str(ours.key),
    )

    def replaced_by(other: Certificate) -> None:
        for file, new in ((ours.certificate, other.certificate), (ours.key, other.key)):
            file.write_bytes(new.read_bytes())

    end = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE slot_name = '{}'"
    with Running(settings, lake_path) as running:
        replaced_by(expired)
        execute(admin, end.format(admin.slot), "INSERT INTO items VALUES (2, 'meanwhile')")
        wait_for(lambda: running.reader.progress.read()["phase"] == "waiting")
        wait_for(lambda: "client certificate" in running.reader.progress.read()["said"])
        replaced_by(renewed)
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] == 1, 40)
        assert running.error is None
    assert_carries_on(settings, admin, lake_path)


# --- a server with TLS of its own, where there is one ----------------------------------------------

TLS_HBA = """
host all postgres 127.0.0.1/32 trust
hostssl all unlocked 127.0.0.1/32 cert
hostssl all smelt 127.0.0.1/32 scram-sha-256 clientcert=verify-ca
"""


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[TlsServer, Authority]]:
    """Run a server: a certificate suffices for `unlocked`; `smelt` needs certificate and password."""
    installation = installation_with_tls()
    if installation is None:
        pytest.skip("this machine has no PostgreSQL that was built with TLS")
    authority = Authority(tmp_path_factory.mktemp("authority"))
    certificate = authority.issue("localhost", hosts=["localhost"])
    with TlsServer(installation, certificate, authority.root) as server:
        guard(server, TLS_HBA)
        yield server, authority


def proven(tls: tuple[TlsServer, Authority], admin: SourceSettings, name: str, **keys: Any) -> SourceSettings:
    server, authority = tls
    ours = authority.issue(name)
    return way(
        admin,
        **{
            "host": "localhost",
            "hostaddr": "127.0.0.1",
            "port": server.port,
            "sslmode": "verify-full",
            "sslrootcert": str(authority.root),
            "sslcert": str(ours.certificate),
            "sslkey": str(ours.key),
            **keys,
        },
    )


def test_a_role_is_whom_its_certificate_names(tls: tuple[TlsServer, Authority], lake_path: str) -> None:
    admin = prepared(make_database(tls[0].dsn()))
    assert_carries(proven(tls, admin, "unlocked", user="unlocked"), admin, lake_path)
    error = refusal(proven(tls, admin, "somebody", user="unlocked"), lake_path)
    assert error.code == "client-certificate-rejected"
    assert "pg_ident.conf" in str(error.remedy)


def test_scram_with_channel_binding_and_a_client_certificate(
    tls: tuple[TlsServer, Authority], lake_path: str
) -> None:
    admin = prepared(make_database(tls[0].dsn()))
    settings = proven(tls, admin, "anybody", password=PASSWORD, channel_binding="require")
    assert_carries(settings, admin, lake_path)
    assert refusal(settings.model_copy(update={"sslcert": None, "sslkey": None}), lake_path).code == (
        "client-certificate-rejected"
    )
    unencrypted = settings.model_copy(update={"sslmode": "disable", "channel_binding": None})
    with pytest.raises(SmeltError) as caught:
        connect(unencrypted)
    assert caught.value.code == "pg-hba-rejected"
