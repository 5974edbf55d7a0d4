"""The health check of containers: exit codes for each answer of a running command, and for no answer."""

from __future__ import annotations

import socket
import time
from contextlib import contextmanager
from http import HTTPStatus
from typing import TYPE_CHECKING

import pytest

from deltasmelt.pipelines.monitor import probe
from deltasmelt.pipelines.monitor.access import Access, Address
from deltasmelt.pipelines.monitor.server import Answer, PageServer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "0123456789abcdef0123"


@contextmanager
def served(host: str = "127.0.0.1", token: str | None = None) -> Iterator[int]:
    """Serve the pages of a command that is alive and not ready; yield the port."""
    late = Answer(b"silver is 6 min behind\nopen error x\n", status=HTTPStatus.SERVICE_UNAVAILABLE)
    pages = {"/healthz": lambda: Answer(b"ok\n"), "/readyz": lambda: late}
    server = PageServer(Address(host, 0), Access(token), pages)
    server.start()
    try:
        yield server.address.port
    finally:
        server.stop()


def test_probe_returns_0_if_alive_1_if_unready(capsys: pytest.CaptureFixture[str]) -> None:
    """A command that is not ready prints the reasons."""
    with served() as port:
        assert probe.main(["--http", f"127.0.0.1:{port}"]) == 0
        assert capsys.readouterr().out == "ok\n"
        assert probe.main(["/readyz", "--http", f"localhost:{port}"]) == 1
        assert capsys.readouterr().out == "silver is 6 min behind\nopen error x\n"
    assert probe.main(["--http", f"127.0.0.1:{port}"]) == 1
    output = capsys.readouterr().out
    assert output.startswith(f"no answer from 127.0.0.1:{port}: ")
    assert "refused" in output


def test_probe_of_wildcard_address_uses_localhost_and_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SMELT_HTTP_TOKEN", raising=False)
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    with served("0.0.0.0", TOKEN) as port:  # noqa: S104 - as a container does
        address = f"0.0.0.0:{port}"
        assert probe.main(["--http", address]) == 1
        assert "token is needed" in capsys.readouterr().out
        assert probe.main(["--http", address, "--http-token-file", str(file)]) == 0
        monkeypatch.setenv("SMELT_HTTP_TOKEN", TOKEN)
        assert probe.main(["--http", address]) == 0
        monkeypatch.setenv("SMELT_HTTP_TOKEN", f"{TOKEN}\nX: y")
        assert probe.main(["--http", address]) == 1
    assert TOKEN not in capsys.readouterr().out


def test_a_command_that_hangs_is_not_waited_for(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        start = time.monotonic()
        assert probe.main(["--seconds", "0.2", "--http", f"127.0.0.1:{silent.getsockname()[1]}"]) == 1
        assert time.monotonic() - start < 3
    assert "timed out" in capsys.readouterr().out


@pytest.mark.parametrize("broken", [b"\xff\xfe", None])
def test_unreadable_token_file_is_reported(
    broken: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "token"
    if broken is not None:
        file.write_bytes(broken)
    assert probe.main(["--http-token-file", str(file)]) == 1
    assert capsys.readouterr().out.startswith(f"{file} cannot be read: ")


@pytest.mark.parametrize("words", [["/metrics"], ["--http", "8080"], ["--http", "http://x:1"]])
def test_what_does_not_parse_is_exit_code_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        probe.main(words)
    assert end.value.code == 2
    assert "usage: python -m deltasmelt.pipelines.monitor.probe" in capsys.readouterr().err
