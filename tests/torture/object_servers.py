"""Real servers of object stores: versitygw (S3, written in Go) and Azurite (Azure's blobs, on Node).

The first use builds or installs each server into the account's cache. Without Go or Node a test is skipped
with a reason.
"""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import subprocess
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.pipelines.demo.embedded_postgres import free_port
from deltasmelt.pipelines.spark.jars import cache_root
from tests.server_process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_GATEWAY: Final = "v1.8.0"
_AZURITE: Final = "3.35.0"
_SECONDS: Final = 900
ACCOUNT: Final = "devstoreaccount1"
_KEY: Final = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The emulator's public key, from its documentation."""


@contextmanager
def versitygw(folder: Path) -> Iterator[tuple[str, Path]]:
    """Start the server; yield its URL and the parent folder of all buckets. Login: ``test``, ``testtest``."""
    port, buckets = free_port(), folder / "buckets"
    buckets.mkdir()
    login = ["--access", "test", "--secret", "testtest"]
    command = [str(_gateway()), *login, "--port", f"127.0.0.1:{port}", "posix", str(buckets)]
    with ServerProcess(command, port, folder / "versitygw.log"):
        yield f"http://127.0.0.1:{port}", buckets


@contextmanager
def azurite(folder: Path) -> Iterator[str]:
    """Start the server; yield the URL of its blobs. Account: `ACCOUNT` with the emulator's public key."""
    port = free_port()
    command = [
        *(str(_azurite()), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"),
        *("--disableTelemetry", "--skipApiVersionCheck", "--inMemoryPersistence"),
    ]
    with ServerProcess(command, port, folder / "azurite.log"):
        yield f"http://127.0.0.1:{port}"


def make_container(url: str, name: str) -> None:
    """Create a container in Azurite, with the emulator's public key.

    https://learn.microsoft.com/en-us/rest/api/storageservices/authorize-with-shared-key.
    """
    date, path = email.utils.formatdate(usegmt=True), f"/{ACCOUNT}/{name}"
    headers = {"x-ms-date": date, "x-ms-version": "2021-08-06"}
    signed = "".join(f"{header}:{value}\n" for header, value in headers.items())
    text = f"PUT{12 * chr(10)}{signed}/{ACCOUNT}{path}\nrestype:container"
    key = base64.b64decode(_KEY)
    signature = base64.b64encode(hmac.new(key, text.encode(), hashlib.sha256).digest()).decode()
    request = urllib.request.Request(  # noqa: S310 - of 127.0.0.1
        f"{url}{path}?restype=container",
        method="PUT",
        headers={**headers, "Authorization": f"SharedKey {ACCOUNT}:{signature}", "Content-Length": "0"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310
        assert answer.status == 201


def _gateway() -> Path:
    folder = cache_root() / "servers" / f"versitygw-{_GATEWAY}"
    program = folder / "versitygw"
    if not program.exists():
        if shutil.which("go") is None:
            pytest.skip("versitygw is built by Go, which is not installed")
        folder.mkdir(parents=True, exist_ok=True)
        package = f"github.com/versity/versitygw/cmd/versitygw@{_GATEWAY}"
        environment = {**os.environ, "GOBIN": str(folder)}
        subprocess.run(["go", "install", package], check=True, env=environment, timeout=_SECONDS)
    return program


def _azurite() -> Path:
    folder = cache_root() / "servers" / f"azurite-{_AZURITE}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if not program.exists():
        if shutil.which("npm") is None:
            pytest.skip("Azurite needs Node and npm, which are not installed")
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            "npm",
            "install",
            "--no-audit",
            "--no-fund",
            "--prefix",
            str(folder),
            f"azurite@{_AZURITE}",
        ]
        subprocess.run(command, check=True, timeout=_SECONDS)
    return program
