"""An object store in a process of its own: moto's S3 behind a front that counts, fails and holds requests.

moto looks whether an object is there and puts it in two steps, so two conditional puts at the same moment
would both succeed. The front lets one request through at a time. With that ``If-None-Match: *`` is as atomic
as at S3 itself.

``python -m tests.object_store --port 0`` prints its URL. What is not for S3 is below ``/_control/``:
`ObjectStore` speaks it.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

BUCKET: Final = "lake"
_CONTROL: Final = "/_control/"
_HELD_SECONDS: Final = 120.0
_BUSY: Final = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>slow down</Message></Error>"


@dataclass(frozen=True, slots=True)
class Request:
    """A request as it was answered; `path` begins with the bucket, `condition` is its If-(None-)Match."""

    method: str
    path: str
    query: str
    condition: str
    status: int
    seconds: float


@dataclass(slots=True)
class Faults:
    """What goes wrong from now on.

    Attributes:
        unavailable: seconds for which every request is answered by 503.
        latency: seconds by which every request is delayed.
        hold: the next PUT whose path matches waits for `ObjectStore.release`; None holds nothing.
        after: the held one is carried out first, and its answer waits.
        lose: puts whose path matches are carried out and answered by 503, as many as `losses`.
    """

    unavailable: float = 0.0
    latency: float = 0.0
    hold: str | None = None
    after: bool = False
    lose: str | None = None
    losses: int = 1


@dataclass
class Front:
    """In front of moto's application, whose requests it lets through one at a time."""

    app: WSGIApplication
    requests: list[Request] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    held: list[str] = field(default_factory=list)
    _until: float = 0.0
    _one: threading.Lock = field(default_factory=threading.Lock)
    _state: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        body = _body(environ)
        if path.startswith(_CONTROL):
            answer = json.dumps(self._control(path.removeprefix(_CONTROL), body)).encode()
            start_response("200 OK", [("Content-Length", str(len(answer)))])
            return [answer]
        environ["wsgi.input"] = io.BytesIO(body)
        began = time.monotonic()
        time.sleep(self.faults.latency)
        said: list[Any] = ["503 Slow Down", [("Content-Length", str(len(_BUSY)))]]
        chunks: list[bytes] = [_BUSY]
        if time.monotonic() >= self._until:
            held = self._holds(method, path)
            if held == "before":
                self._wait(path)
            with self._one:
                answer, answered = _answer(self.app, environ)
            if held == "after":
                self._wait(path)
            if not self._loses(method, path):
                said, chunks = answer, answered
        condition = environ.get("HTTP_IF_NONE_MATCH") or environ.get("HTTP_IF_MATCH") or ""
        with self._state:
            self.requests.append(
                Request(
                    *(method, path, environ.get("QUERY_STRING", ""), condition, int(said[0].split()[0])),
                    seconds=round(time.monotonic() - began, 4),
                )
            )
        start_response(*said)
        return [] if method == "HEAD" else chunks

    def _control(self, what: str, body: bytes) -> object:
        with self._state:
            if what == "requests":
                return [asdict(request) for request in self.requests]
            if what == "forget":
                self.requests.clear()
            if what == "faults":
                self._released.clear()
                self.faults = Faults(**json.loads(body))
                self._until = time.monotonic() + self.faults.unavailable
            if what == "release":
                self._released.set()
            return list(self.held)

    def _holds(self, method: str, path: str) -> Literal["before", "after"] | None:
        with self._state:
            if method != "PUT" or self.faults.hold is None or not re.search(self.faults.hold, path):
                return None
            self.faults.hold = None
            self.held.append(path)
            return "after" if self.faults.after else "before"

    def _wait(self, path: str) -> None:
        self._released.wait(_HELD_SECONDS)
        with self._state:
            self.held.remove(path)

    def _loses(self, method: str, path: str) -> bool:
        with self._state:
            lose = self.faults.lose
            if method != "PUT" or lose is None or self.faults.losses == 0 or not re.search(lose, path):
                return False
            self.faults.losses -= 1
            return True


def _body(environ: WSGIEnvironment) -> bytes:
    body: IO[bytes] = environ["wsgi.input"]
    if "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower():
        return body.read()
    return body.read(int(environ.get("CONTENT_LENGTH") or 0))


def _answer(app: WSGIApplication, environ: WSGIEnvironment) -> tuple[list[Any], list[bytes]]:
    said: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], _: object = None, /) -> Callable[[bytes], object]:
        said.extend((status, headers))
        return lambda _: None

    return said, list(app(environ, start))


def options_of(url: str) -> dict[str, str]:
    """The options of a lake in the store at this URL."""
    return {
        "aws_endpoint_url": url,
        "aws_allow_http": "true",
        "aws_access_key_id": "test",
        "aws_secret_access_key": "test",
        "aws_region": "us-east-1",
    }


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A running one, as a test sees it."""

    url: str
    bucket: str = BUCKET

    def options(self) -> dict[str, str]:
        """Of a lake that lies in it."""
        return options_of(self.url)

    def environment(self) -> dict[str, str]:
        """The same in the environment of the process that uses it."""
        return {name.upper(): value for name, value in self.options().items()}

    def requests(self, method: str = "", prefix: str = "/") -> list[Request]:
        """What was answered since `forget`: of one method, or all; paths begin with ``/bucket/``."""
        found = [Request(**one) for one in self._say("requests")]
        return [one for one in found if method in ("", one.method) and one.path.startswith(prefix)]

    def forget(self) -> None:
        self._say("forget")

    def set_faults(self, faults: Faults | None = None) -> None:
        self._say("faults", asdict(faults or Faults()))

    def held(self) -> list[str]:
        return [str(path) for path in self._say("held")]

    def release(self) -> None:
        self._say("release")

    def _say(self, what: str, body: object = None) -> Any:
        with urllib.request.urlopen(f"{self.url}{_CONTROL}{what}", json.dumps(body).encode(), 30) as answer:  # noqa: S310
            return json.load(answer)


@contextmanager
def object_store(python: str = sys.executable) -> Iterator[ObjectStore]:
    """One with an empty bucket, until the block ends; `python` has moto[server]."""
    command = [python, "-m", "tests.object_store", "--leashed"]
    pipe, root = subprocess.PIPE, Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, cwd=root, text=True) as server:
        try:
            assert server.stdout is not None
            yield ObjectStore(server.stdout.readline().strip())
        finally:
            server.terminate()


def serve(port: int, *, leashed: bool) -> None:
    """Serve until the process ends; leashed, until its standard input does."""
    from moto.moto_server.werkzeug_app import (  # noqa: PLC0415 - only this process needs it
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server  # noqa: PLC0415

    class Handler(MotoRequestHandler):  # type: ignore[misc]
        disable_nagle_algorithm = True

        def log_request(self, *_: object) -> None: ...

    front = Front(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", port, front, threaded=True, request_handler=Handler)
    url = f"http://127.0.0.1:{server.server_port}"
    if leashed:
        threading.Thread(target=_leash, daemon=True).start()
    threading.Thread(target=server.serve_forever).start()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=30):  # noqa: S310
        print(url, flush=True)  # noqa: T201 - what it is asked for


def _leash() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--leashed", action="store_true")
    given = parser.parse_args()
    serve(given.port, leashed=given.leashed)
