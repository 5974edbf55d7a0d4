"""A PostgreSQL of this machine that was built with TLS, if installed; the embedded server has no TLS."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

if TYPE_CHECKING:
    from tests.bronze.certificates import Certificate

_FOLDERS = ("/usr/lib/postgresql/*/bin", "/usr/pgsql-*/bin", "/opt/homebrew/opt/postgresql*/bin")


def installation_with_tls() -> Path | None:
    """Return the folder of the newest installed server from 14 on with TLS; None without such a server."""
    candidates = {path for pattern in _FOLDERS for path in Path("/").glob(pattern.lstrip("/"))}
    if program := shutil.which("postgres"):
        candidates.add(Path(program).resolve().parent)
    suited: list[tuple[int, Path]] = []
    for folder in candidates:
        if not (folder / "postgres").exists() or not (folder / "initdb").exists():
            continue
        process = subprocess.run(
            [folder / "postgres", "--version"], check=False, capture_output=True, text=True
        )
        libraries = subprocess.run(["ldd", folder / "postgres"], check=False, capture_output=True, text=True)
        version = int("".join(filter(str.isdigit, process.stdout.partition(")")[2].partition(".")[0])) or 0)
        if version >= 14 and "libssl" in libraries.stdout:
            suited.append((version, folder.parent))
    return max(suited)[1] if suited else None


class TlsServer(EmbeddedServer):
    """An embedded server with the machine's binaries and TLS enabled.

    Args:
        installation: folder from `installation_with_tls`, with ``bin/``.
        clients: authority that issues the clients' certificates.
    """

    def __init__(self, installation: Path, certificate: Certificate, clients: Path) -> None:
        self._installation = installation
        super().__init__()
        for source, name in (
            (certificate.certificate, "server.crt"),
            (certificate.key, "server.key"),
            (clients, "clients.crt"),
        ):
            target = self.data / name
            shutil.copyfile(source, target)
            target.chmod(0o600)
            if self._user is not None:
                shutil.chown(target, self._user, self._group)
        self._settings |= {"ssl": "on", "ssl_ca_file": "clients.crt"}

    def _readable_install(self) -> Path:
        return self._installation
