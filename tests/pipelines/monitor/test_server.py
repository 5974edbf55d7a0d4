"""The real server on a free port: pages, access, and the error without a free port."""

from __future__ import annotations

import html.parser
import http.client
import json
import socket
import threading
import time
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.pipelines.health.status_json import status_schema
from deltasmelt.pipelines.monitor import probe
from deltasmelt.pipelines.monitor.access import Access, Address, access_to, address_of, is_local
from deltasmelt.pipelines.monitor.chart import lag_chart, span_of
from deltasmelt.pipelines.monitor.samples import LadderPoint
from deltasmelt.pipelines.monitor.server import Answer, PageServer
from deltasmelt.pipelines.monitor.watch import Watched
from deltasmelt.pipelines.settings import load_pipeline
from tests.patience import wait_for
from tests.pipelines.monitor.statuses import ILL, SECRET, WELL, ladder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from deltasmelt.pipelines.health.status import Status
    from deltasmelt.pipelines.settings import Pipeline

TOKEN = "0123456789abcdef0123"
STAGES = {"bronze": True, "silver": True, "gold": True}
HERE = Address("127.0.0.1", 0)


@pytest.fixture
def pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pipeline:
    monkeypatch.setenv("SMELT_LOGS", str(tmp_path / "logs"))
    file = tmp_path / "p.yml"
    file.write_text(
        f"pipeline: shop\nsource: {{host: db, user: smelt, password: '{SECRET}', slot: s, publication: p}}\n"
        f"lake: {{path: lake}}\nalerts: {{webhook: 'https://127.0.0.1:1/{SECRET}'}}\n"
    )
    return load_pipeline(file)


@contextmanager
def serving(pipeline: Pipeline, status: Status | None, access: Access | None = None) -> Iterator[Address]:
    """Start the server over a source of statuses; None: each read fails."""

    def read() -> Status:
        if status is None:
            raise OSError("no answer")
        return status

    watched = Watched(pipeline, ("bronze", "silver", "gold"), read=read, interval=30)
    server = PageServer(HERE, access or Access(), watched.pages())
    server.start()
    watched.runs(lambda: STAGES)
    try:
        if status is not None:
            wait_for(lambda: get(server.address, "/status.json", token=TOKEN)[0] == 200, 10)
        yield server.address
    finally:
        watched.sampler.stop()
        server.stop()


def get(address: Address, path: str, *, token: str | None = None, **headers: str) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=10)
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    try:
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


def status_at_the_end(address: Address) -> int:
    """Return the status code after the server closed the connection; `get` returns after the whole body."""
    with socket.create_connection((address.host, address.port), timeout=10) as client:
        client.sendall(b"GET / HTTP/1.0\r\nHost: localhost\r\n\r\n")
        return int(client.makefile("rb").read().split()[1])


class _Page(html.parser.HTMLParser):
    """A parser that collects the tags and addresses of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.addresses: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.addresses += [
            value or "" for name, value in attrs if name in {"href", "src", "action", "srcset"}
        ]


def test_running_pipeline_is_ready_on_every_page(pipeline: Pipeline) -> None:
    with serving(pipeline, WELL) as address:
        assert get(address, "/healthz")[:2] == (200, "ok\n")
        assert get(address, "/readyz")[:2] == (200, "ok\n")
        code, text, headers = get(address, "/metrics")
        assert (code, headers["Content-Type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
        assert 'deltasmelt_ready{pipeline="shop"} 1.0' in text
        jsonschema.validate(json.loads(get(address, "/status.json")[1]), status_schema())
        code, text, headers = get(address, "/")
        assert (code, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert "shop is up to date" in text
        assert "Open errors" not in text
        assert get(address, "/elsewhere")[0] == 404
        assert get(address, "/../p.yml")[0] == 404


def test_problem_is_shown_with_remedy_and_without_markup(pipeline: Pipeline) -> None:
    with serving(pipeline, ILL) as address:
        code, text, _ = get(address, "/readyz")
        assert (code, text.splitlines()[0]) == (503, "silver is 15 min 0 s behind (limit 5 min 0 s)")
        assert get(address, "/healthz")[0] == 200
        text = get(address, "/")[1]
        assert "shop is not ready" in text
        assert "ALTER TABLE public.bad ADD PRIMARY KEY (id)" in text
        assert "smelt explain-error key-missing" in text
        assert "next checkpoint" in text
        assert "since the oldest open transaction: pid 4711 (300 s); prepared transaction t1 (9 s)" in text
        assert "public.lines" in text
        assert "<script" not in text
        assert "&lt;script&gt;" in text


@pytest.mark.parametrize("status", [WELL, ILL, None])
def test_the_page_loads_nothing_and_names_no_secret(status: Status | None, pipeline: Pipeline) -> None:
    with serving(pipeline, status) as address:
        for path in ("/", "/metrics", "/status.json", "/readyz", "/healthz"):
            _, text, headers = get(address, path)
            assert SECRET not in text
            assert "boss" not in text, "who has a transaction open"
            assert headers["Content-Security-Policy"].startswith("default-src 'none'")
            assert headers["Cache-Control"] == "no-store"
        page = _Page(get(address, "/")[1])
    assert not {"script", "iframe", "img", "form", "object"} & set(page.tags)
    assert set(page.addresses) - {"status.json", "metrics"} == {
        source for source in page.addresses if source.startswith("data:")
    }


def test_before_the_first_look_it_says_so(pipeline: Pipeline) -> None:
    with serving(pipeline, None) as address:
        wait_for(lambda: "OSError: no answer" in get(address, "/readyz")[1], 10)
        assert get(address, "/readyz")[:2] == (503, "the status has not been read yet: OSError: no answer\n")
        assert get(address, "/status.json")[0] == 503
        assert "no answer" in get(address, "/")[1]
        assert "deltasmelt_sample_failures_total" in get(address, "/metrics")[1]


def test_the_newest_quality_report_is_linked(pipeline: Pipeline) -> None:
    with serving(pipeline, WELL) as address:
        assert get(address, "/quality")[0] == 404
        assert 'href="quality"' not in get(address, "/")[1]
        (pipeline.folder / "quality.html").write_text("<p>the report</p>")
        assert 'href="quality"' in get(address, "/")[1]
        assert get(address, "/quality")[:2] == (200, "<p>the report</p>")


def test_only_header_query_and_cookie_carry_token(
    pipeline: Pipeline,
) -> None:
    with serving(pipeline, WELL, Access(TOKEN)) as address:
        for path in ("/", "/healthz", "/readyz", "/metrics", "/status.json", "/quality", "/elsewhere"):
            code, text, headers = get(address, path)
            assert (code, headers["WWW-Authenticate"]) == (401, "Bearer")
            assert "shop" not in text
        wrong = [{"token": "wrong"}, {"token": ""}, {"token": TOKEN[:-1]}]
        assert [get(address, "/", **arguments)[0] for arguments in wrong] == [401, 401, 401]
        assert get(address, "/", Authorization=f"Basic {TOKEN}")[0] == 401
        assert get(address, "/", authorization=f"Bearer {TOKEN}")[0] == 200
        assert get(address, "/?token=wrong")[0] == 401
        assert get(address, "/?token=%ff")[0] == 401
        assert get(address, "/healthz", token=TOKEN, Host="status.example.com")[0] == 200
        code, text, headers = get(address, f"/?token={TOKEN}")
        assert code == 200
        assert TOKEN not in text
        cookie = headers["Set-Cookie"]
        assert TOKEN not in cookie
        assert "HttpOnly; SameSite=Strict" in cookie
        assert get(address, "/metrics", Cookie=cookie.partition(";")[0])[0] == 200
        name = cookie.partition("=")[0]
        assert get(address, "/metrics", Cookie=f"{name}=wrong")[0] == 401


def test_pipelines_of_same_host_have_separate_cookies() -> None:
    """Browsers share cookies between the ports of a host."""
    first_access, second_access = Access(TOKEN), Access(TOKEN[::-1])
    cookies = [access.cookie(f"token={access.token}") for access in (first_access, second_access)]
    first, second = [(cookie or "").partition(";")[0] for cookie in cookies]
    assert first.partition("=")[0] != second.partition("=")[0]
    cookie_header = {"Cookie": f"{first}; {second}"}
    assert first_access.allows(cookie_header, "")
    assert second_access.allows(cookie_header, "")
    assert not first_access.allows({"Cookie": second}, "")


def test_foreign_host_name_is_rejected(pipeline: Pipeline) -> None:
    with serving(pipeline, WELL) as address:
        assert get(address, "/", Host="evil.example:80")[0] == 403
        assert [get(address, "/healthz", Host=host)[0] for host in ("localhost:8080", "[::1]:8080")] == [
            200,
            200,
        ]


@contextmanager
def one_page(pages: Mapping[str, Callable[[], Answer]] | None = None, **limits: Any) -> Iterator[Address]:
    server = PageServer(HERE, Access(), pages or {"/": lambda: Answer(b"here")}, **limits)
    server.start()
    try:
        yield server.address
    finally:
        server.stop()


def test_excess_clients_are_rejected_and_silent_clients_replaced(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A silent client gives its place to a new client."""
    go_on, arrivals = threading.Event(), threading.Semaphore(0)

    def slow() -> Answer:
        arrivals.release()
        go_on.wait(20)
        return Answer(b"late")

    pages = {"/": lambda: Answer(b"here"), "/healthz": lambda: Answer(b"ok\n"), "/slow": slow}
    with one_page(clients=3, pages=pages) as address, ExitStack() as connections:
        endpoint = (address.host, address.port)
        silent = [connections.enter_context(socket.create_connection(endpoint)) for _ in range(40)]
        assert [status_at_the_end(address) for _ in range(5)] == [200] * 5, "silence holds no place"
        silent[0].settimeout(5)
        assert b"503" in silent[0].recv(1000)
        assert probe.main(["--http", str(address)]) == 0
        clients = [connections.enter_context(socket.create_connection(endpoint)) for _ in range(3)]
        for client in clients:
            client.sendall(b"GET /slow HTTP/1.0\r\n\r\n")
            assert arrivals.acquire(timeout=10)
        assert get(address, "/")[:2] == (503, "too many clients are connected\n")
        assert probe.main(["--http", str(address)]) == 0, "busy is alive"
        assert "too many clients are connected" in capsys.readouterr().out
        assert probe.main(["/readyz", "--http", str(address)]) == 1
        go_on.set()
        assert clients[0].makefile("rb").read().endswith(b"late"), "who asked is answered"
        # By the end of the connection: the place of a client that was answered is free a moment later.
        wait_for(lambda: status_at_the_end(address) == 200, 5)
        assert [status_at_the_end(address) for _ in range(5)] == [200] * 5, "each gives its place back"


@pytest.mark.parametrize("begin", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX: "])
def test_slowly_sending_client_is_closed_in_time(begin: bytes) -> None:
    with one_page(seconds=0.5) as address, socket.create_connection((address.host, address.port)) as slow:
        slow.sendall(begin)
        slow.settimeout(0.1)
        start = time.monotonic()
        while time.monotonic() - start < 10:
            try:
                slow.sendall(b"x")
                if slow.recv(100) == b"":
                    break
            except TimeoutError:
                continue
            except OSError:
                break
        assert 0.3 < time.monotonic() - start < 5
        assert get(address, "/")[0] == 200


def test_a_request_in_pieces_is_answered() -> None:
    with one_page(seconds=5) as address, socket.create_connection((address.host, address.port)) as client:
        for piece in (b"GET / HT", b"TP/1.0\r\nHost: local", b"host\r\n\r", b"\n"):
            client.sendall(piece)
            time.sleep(0.05)
        assert client.makefile("rb").read().endswith(b"here")


def test_a_port_in_use_is_one_clear_message() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with pytest.raises(ConfigurationError) as caught:
            PageServer(Address("127.0.0.1", port), Access(), {})
    assert caught.value.code == "cannot-listen"
    assert str(caught.value) == (
        f"--http 127.0.0.1:{port}: cannot listen on this address: Address already in use\nremedy: choose "
        "another port (0 selects a free port), or end the process that listens on this port (ss -ltnp)"
    )
    with pytest.raises(ConfigurationError, match="choose an address of this machine"):
        PageServer(Address("192.0.2.1", 0), Access(), {})


def test_beyond_this_machine_a_token_is_demanded(tmp_path: Path) -> None:
    everywhere, file = Address("0.0.0.0", 8080), tmp_path / "token"  # noqa: S104 - refused
    assert access_to(HERE, token_file=None, variable=None).token is None
    assert access_to(HERE, token_file=None, variable=TOKEN).token == TOKEN
    file.write_text(f"{TOKEN}\n")
    assert access_to(everywhere, token_file=file, variable="another-token-of-the-environment").token == TOKEN
    assert TOKEN not in repr(access_to(everywhere, token_file=file, variable=None))
    file.write_text("short")
    empty, missing = tmp_path / "empty", tmp_path / "missing"
    empty.write_text("\n")
    for token_text, message in (
        (None, "--http 0.0.0.0:8080: other machines can reach this address"),
        (file, f"{file}: the token must be at least 16"),
        (empty, f"{empty}: the file contains no token"),
        (missing, f"{missing}: the file with the token cannot be read: No such file"),
    ):
        with pytest.raises(ConfigurationError) as caught:
            access_to(everywhere, token_file=token_text, variable=None)
        assert caught.value.code == "http-token"
        assert str(caught.value).startswith(message)
        assert "short" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:8080", Address("127.0.0.1", 8080)),
        (":0", HERE),
        ("[::1]:8080", Address("::1", 8080)),
        ("localhost:1", Address("localhost", 1)),
    ],
)
def test_addresses_are_read(text: str, address: Address) -> None:
    assert address_of(text) == address
    assert address.local


@pytest.mark.parametrize(
    "text", ["8080", "host", "host:", "host:x", "::1:8080", "host:70000", "http://h:1", "a@b:1"]
)
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="HOST:PORT"):
        address_of(text)


@pytest.mark.parametrize("name", ["0.0.0.0", "::", "db", "127.0.0.1.evil.example", "10.0.0.1"])  # noqa: S104
def test_names_of_other_machines_are_not_local(name: str) -> None:
    assert not is_local(name)


def test_the_chart_breaks_its_line_where_nobody_looked() -> None:
    end = datetime.now(UTC)
    ago = [3600, 3590, 3580, 60, 30, 0]
    points = [LadderPoint(end - timedelta(seconds=age), ladder(float(age % 100))) for age in ago]
    chart = lag_chart(points, ("silver", "absent"), end)
    (line,) = chart.lines
    assert (line.name, line.now, len(line.paths)) == ("silver", "0.0 s", 2)
    assert line.paths[1].endswith("L720.0 180.0")
    assert [tick.text for tick in chart.ticks] == ["0 s", "1 min", "2 min"]
    assert lag_chart([], ("silver",), end).lines == ()
    spans = [span_of(points[-count:], end) for count in (1, 3, 4)]
    assert spans == [300.0, 300.0, 3600.0]
