"""A PostgreSQL that was built with TLS, where this machine has one; the embedded one was built without."""

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
    """Installation folder of the newest server from 14 on that offers TLS; None where there is none."""
    candidates = {path for pattern in _FOLDERS for path in Path("/").glob(pattern.lstrip("/"))}
    if found := shutil.which("postgres"):
        candidates.add(Path(found).resolve().parent)
    suited: list[tuple[int, Path]] = []
    for folder in candidates:
        if not (folder / "postgres").exists() or not (folder / "initdb").exists():
            continue
        said = subprocess.run([folder / "postgres", "--version"], check=False, capture_output=True, text=True)
        libraries = subprocess.run(["ldd", folder / "postgres"], check=False, capture_output=True, text=True)
        version = int("".join(filter(str.isdigit, said.stdout.partition(")")[2].partition(".")[0])) or 0)
        if version >= 14 and "libssl" in libraries.stdout:
            suited.append((version, folder.parent))
    return max(suited)[1] if suited else None


class TlsServer(EmbeddedServer):
    """As the embedded server, with binaries of this machine and TLS switched on.

    Args:
        installation: see `installation_with_tls`.
        certificate: of the server.
        clients: authority that vouches for clients' certificates.
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
