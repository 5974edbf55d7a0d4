"""A server that refuses a reader after earlier logins, and a lake that temporarily rejects writes."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.position import read_position
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    execute,
    make_reader,
    read_all,
    source_of,
)
from tests.bronze.running import Running, confirmed
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = pytest.mark.postgres

ITEMS = "CREATE TABLE items (id int PRIMARY KEY, note text)"
END = "SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots WHERE active"


@pytest.fixture
def admin(own_server: EmbeddedServer) -> SourceSettings:
    """Return an administrator's source on a server that requires a password from the role `smelt`."""
    admin = source_of(own_server.dsn(), slot="smelt_refused")
    execute(
        admin,
        ITEMS,
        "CREATE ROLE smelt LOGIN REPLICATION SUPERUSER PASSWORD 'first'",
    )
    rules = own_server.data / "pg_hba.conf"
    rules.write_text("host all smelt 127.0.0.1/32 scram-sha-256\n" + rules.read_text())
    execute(admin, "SELECT pg_reload_conf()")
    return admin


def as_smelt(own_server: EmbeddedServer, timing: Timing | None = None) -> SourceSettings:
    dsn = own_server.dsn(user="smelt").replace("smelt@", "smelt:first@")
    return source_of(dsn, timing=timing, slot="smelt_refused")


def test_temporarily_changed_password_is_awaited(
    own_server: EmbeddedServer, admin: SourceSettings, lake_path: str
) -> None:
    control = ControlTables(Lake(lake_path))
    with Running(as_smelt(own_server), lake_path) as running:
        execute(admin, "ALTER ROLE smelt PASSWORD 'second'", "INSERT INTO items VALUES (1, 'before')", END)
        wait_for(lambda: "password-rejected" in {error.code for error in control.open_errors()})
        execute(admin, "INSERT INTO items VALUES (2, 'meanwhile')")

        def waits() -> bool:
            progress = running.reader.progress.read()
            return progress["phase"] == "waiting" and "rejected the password" in progress["said"]

        wait_for(waits)  # copies may be refused first, while the stream's line is only lost
        assert running.error is None
        execute(admin, "ALTER ROLE smelt PASSWORD 'first'")
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] == 2, 40)
        assert running.error is None
    assert control.open_errors() == []
    read_all(admin, lake_path)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(admin, lake_path, "public.items")


def test_permanently_wrong_password_stops_reader_later(
    own_server: EmbeddedServer, admin: SourceSettings, lake_path: str
) -> None:
    with Running(as_smelt(own_server, Timing(refused=1.0)), lake_path) as running:
        execute(admin, "ALTER ROLE smelt PASSWORD 'second'", END)
        assert isinstance(error := running.wait_until_failed(), ConfigurationError)
        assert error.code == "password-rejected"


def test_initially_wrong_password_is_not_awaited(
    own_server: EmbeddedServer, admin: SourceSettings, lake_path: str
) -> None:
    execute(admin, "ALTER ROLE smelt PASSWORD 'second'")
    with pytest.raises(ConfigurationError) as caught:
        make_reader(as_smelt(own_server), lake_path).run()
    assert caught.value.code == "password-rejected"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mount a file system of 24 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("only root may mount")
    process = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], check=False, capture_output=True
    )
    if process.returncode != 0:
        pytest.skip(f"a tmpfs may not be mounted here: {process.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_full_lake_disk_is_awaited(database: str, small_disk: Path) -> None:
    source = source_of(database)
    lake_path = str(small_disk / "lake")
    execute(source, ITEMS)
    control = ControlTables(Lake(lake_path))
    with Running(source, lake_path) as running:
        execute(source, "INSERT INTO items VALUES (0, 'room')")
        wait_for(lambda: running.reader.progress.read()["changes"] == 1)
        ballast = small_disk / "ballast"
        with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
            while file.write(b"x" * 65536):
                pass
        execute(source, "INSERT INTO items SELECT i, md5(i::text) FROM generate_series(1, 20000) i")
        wait_for(lambda: running.error is not None or running.reader.progress.read()["phase"] == "waiting")
        assert running.error is None
        assert "cannot be written" in running.reader.progress.read()["said"]
        position = read_position(Lake(lake_path))
        assert position is not None
        assert confirmed(source) <= position.confirm
        ballast.unlink()
        wait_for(lambda: running.error is not None or running.reader.progress.read()["changes"] == 20001, 60)
        assert running.error is None
    assert control.open_errors() == []
    read_all(source, lake_path)
    assert_each_change_once(bronze_rows(lake_path))
    assert_bronze_equals_source(source, lake_path, "public.items")
