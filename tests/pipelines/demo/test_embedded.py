"""The embedded server: the permitted users, and no leftovers after any end of its start."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import psycopg
import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.pipelines.demo import embedded_postgres
from deltasmelt.pipelines.demo.embedded_copy import binaries, shared_copy
from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer
from deltasmelt.pipelines.terminal.interrupts import terminable

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[3]

DEMO = """
import sys, time
from deltasmelt.pipelines.demo.demo import shop_database
from deltasmelt.pipelines.terminal.failures import Terminated, report
from deltasmelt.pipelines.terminal.output import Output
from deltasmelt.pipelines.commands.run import terminable
try:
    with terminable(), shop_database(Output(), None) as dsn:
        print(dsn, flush=True)
        time.sleep(100)
except Terminated as error:
    sys.exit(report(error))
"""


def servers(folder: Path) -> list[int]:
    """Return the postgres processes whose command line contains a folder."""
    pids = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            line = (entry / "cmdline").read_bytes()
        except OSError:  # it ended while we looked
            continue
        if str(folder).encode() in line and b"postgres" in line:
            pids.append(int(entry.name))
    return pids


@pytest.fixture
def listener() -> Iterator[int]:
    """Return a port on which a foreign socket listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


@pytest.mark.postgres
def test_a_port_taken_meanwhile_is_left_alone(listener: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = embedded_postgres.free_port
    ports = iter([listener])
    monkeypatch.setattr(
        "deltasmelt.pipelines.demo.embedded_postgres.free_port", lambda: next(ports, None) or free()
    )
    with EmbeddedServer() as server:
        assert server.port != listener
        with psycopg.connect(server.dsn()) as connection:
            assert connection.execute("SELECT inet_server_port()").fetchone() == (server.port,)
        port = server.port
        server.restart()
        assert server.port == port
        # One that was asked for is not exchanged, and whoever answers there is not taken for the server.
        server.stop()
        server.port = listener
        with pytest.raises(DefiniteError, match="could not bind"):
            server.start()
        assert servers(server.folder) == []


@pytest.mark.postgres
def test_an_interrupted_start_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(seconds: float) -> NoReturn:
        monkeypatch.setattr(embedded_postgres, "time", time)
        assert seconds < 1
        raise KeyboardInterrupt

    server = EmbeddedServer()
    # The module's own clock alone: other threads of this process sleep too.
    clock = SimpleNamespace(sleep=interrupted, monotonic=time.monotonic)
    monkeypatch.setattr(embedded_postgres, "time", clock)
    try:
        with pytest.raises(KeyboardInterrupt), server:
            pass
        assert servers(server.folder) == []
        assert not server.folder.exists()
    finally:
        for pid in servers(server.folder):
            os.kill(pid, signal.SIGQUIT)


@pytest.mark.postgres
def test_the_demo_server_admits_our_account_alone() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEMO], stdout=subprocess.PIPE, text=True, cwd=ROOT, stderr=subprocess.DEVNULL
    ) as demo:
        assert demo.stdout is not None
        dsn = demo.stdout.readline().strip()
        folder = Path(str(psycopg.conninfo.conninfo_to_dict(dsn).get("host") or "/nowhere"))
        try:
            with psycopg.connect(dsn) as connection:
                rules = connection.execute(
                    "SELECT type, auth_method, current_setting('listen_addresses') FROM pg_hba_file_rules"
                ).fetchall()
                assert rules == [("local", "peer", "")]
                port = connection.info.port
            assert folder.stat().st_mode & 0o077 == 0
            with socket.socket() as nobody:
                assert nobody.connect_ex(("127.0.0.1", port)) != 0
            with pytest.raises(psycopg.OperationalError, match="eer authentication failed"):
                psycopg.connect(dsn, user="other")
            if os.geteuid() == 0:  # also as the account that the server itself runs as
                code = f"import os, psycopg; os.setuid({folder.stat().st_uid}); psycopg.connect({dsn!r})"
                refused = subprocess.run(
                    [sys.executable, "-c", code], check=False, capture_output=True, text=True
                )
                assert "eer authentication failed" in refused.stderr
            demo.send_signal(signal.SIGHUP)
            assert demo.wait(60) == 129
            assert servers(folder) == []
            assert not folder.exists()
        finally:
            demo.kill()
            for pid in servers(folder):
                os.kill(pid, signal.SIGQUIT)


def test_a_hang_up_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a cache that all accounts can read, like `/var/cache`."""
    folder = Path(tempfile.mkdtemp(prefix="smelt-cache-"))
    folder.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    yield folder
    shutil.rmtree(folder)


def test_a_damaged_or_foreign_copy_is_replaced(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packaged = tmp_path / "package" / "install"
    (packaged / "bin").mkdir(parents=True)
    (tmp_path / "package.libs").mkdir()
    (tmp_path / "package.libs" / "libpq.so").write_text("lib")
    for name in ("postgres", "initdb"):
        (packaged / "bin" / name).write_text(f"#!{name}\n")
        (packaged / "bin" / name).chmod(0o700)
    copy = shared_copy(packaged, 16)
    cached = cache / "deltasmelt" / "postgresql-16"
    assert copy == cached / "package" / "install"
    assert (cached / "package.libs" / "libpq.so").read_text() == "lib"
    assert (copy / "bin" / "postgres").stat().st_mode & 0o777 == 0o744
    inode = (copy / "bin").stat().st_ino
    assert shared_copy(packaged, 16) == copy
    assert (copy / "bin").stat().st_ino == inode, "it is made once"

    (cached.parent / ".draft-killed").mkdir()
    (copy / "bin" / "initdb").unlink()
    assert shared_copy(packaged, 16) == copy
    assert (copy / "bin" / "initdb").read_text() == "#!initdb\n"
    (packaged / "bin" / "postgres").write_text("#!postgres, newer\n")
    assert (shared_copy(packaged, 16) / "bin" / "postgres").read_text() == "#!postgres, newer\n"

    cached.chmod(0o777)
    (copy / "bin" / "initdb").write_text("#!theirs\n")
    assert (shared_copy(packaged, 16) / "bin" / "initdb").read_text() == "#!initdb\n"
    shutil.rmtree(cached)
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    cached.symlink_to(theirs)
    assert (shared_copy(packaged, 16) / "bin" / "initdb").read_text() == "#!initdb\n"
    assert not cached.is_symlink()
    assert sorted(path.name for path in cached.parent.iterdir()) == [".lock", "postgresql-16"]

    cached.parent.chmod(0o777)
    monkeypatch.setattr("deltasmelt.pipelines.demo.embedded_copy.SYSTEM_CACHE", cached.parent)
    elsewhere = shared_copy(packaged, 16)
    assert not elsewhere.is_relative_to(cache)
    assert (elsewhere / "bin" / "initdb").read_text() == "#!initdb\n"


def test_a_copy_of_the_packaged_server_runs(cache: Path) -> None:
    copy = shared_copy(binaries(16), 16)
    assert copy.is_relative_to(cache)
    for program in ("initdb", "psql", "postgres"):
        process = subprocess.run(
            [copy / "bin" / program, "--version"], check=False, capture_output=True, text=True
        )
        assert "(PostgreSQL) 16" in process.stdout, process.stderr
