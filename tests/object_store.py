"""An object store in a separate process: moto's S3 behind a proxy that counts, fails and delays requests.

moto checks first whether an object exists and writes the object in a second step. Two concurrent conditional
puts could therefore both succeed. The proxy forwards one request at a time, so ``If-None-Match: *`` is as
atomic as in S3. ``python -m tests.object_store --port 0`` prints the store's URL; `ObjectStore` controls the
store.

An unsigned put does not replace an object (403): moto treats the request as anonymous.
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
from typing import IO, TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

BUCKET: Final = "lake"
_CONTROL: Final = "/_control/"
_BUSY: Final = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>slow down</Message></Error>"
_DENIED: Final = (
    "<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>no</Message>"
    "<StringToSign>{0}</StringToSign></Error>"
)
_GONE: Final = b"<?xml version='1.0'?><Error><Code>NoSuchBucket</Code><Message>gone</Message></Error>"
_UNSERVED: Final = b"<?xml version='1.0'?><Error><Code>NotImplemented</Code><Message>no</Message></Error>"
_CONDITIONS: Final = ("HTTP_IF_NONE_MATCH", "HTTP_IF_MATCH")


class Request(NamedTuple):
    """An answered request; `path` begins with the bucket, `condition` is its If-None-Match or If-Match."""

    method: str
    path: str
    query: str
    condition: str
    status: int


@dataclass(slots=True)
class Faults:
    """Faults that apply to the requests from now on."""

    unavailable: float = 0.0  # seconds for which every request is answered by 503
    latency: float = 0.0  # seconds by which every request is delayed
    hold: str | None = None  # the next PUT whose path matches is carried out only after the next `set_faults`
    lose: str | None = None  # the next PUT whose path matches is carried out, and answered by 503
    gone: bool = False  # every request is answered by 404, as if there were no bucket
    denied: str | None = None  # requests whose method matches are answered by 403, which quotes signatures
    ignored: str | None = None  # conditions whose header matches are ignored
    unlisted: str | None = None  # requests whose query matches are answered by 501
    unserved: str | None = None  # requests with a condition whose header matches are answered by 501


@dataclass
class Front:
    """A proxy before moto's application; the proxy forwards one request at a time."""

    app: WSGIApplication
    requests: list[Request] = field(default_factory=list)
    faults: Faults = field(default_factory=Faults)
    held: list[str] = field(default_factory=list)
    _until: float = 0.0
    _one: threading.Lock = field(default_factory=threading.Lock)
    _state: threading.Lock = field(default_factory=threading.Lock)
    _released: threading.Event = field(default_factory=threading.Event)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, method, body = environ["PATH_INFO"], environ["REQUEST_METHOD"], _body(environ)
        if path.startswith(_CONTROL):
            reply = json.dumps(self._control(path.removeprefix(_CONTROL), body)).encode()
            start_response("200 OK", [("Content-Length", str(len(reply)))])
            return [reply]
        time.sleep(self.faults.latency)
        head, chunks = _refusal("503 Slow Down", _BUSY)
        if self.faults.gone:
            head, chunks = _refusal("404 Not Found", _GONE)
        elif re.fullmatch(self.faults.denied or "", method):
            head, chunks = _refusal(
                "403 Forbidden", _DENIED.format(environ.get("HTTP_AUTHORIZATION")).encode()
            )
        elif _conditions(environ, self.faults.unserved) or re.search(
            self.faults.unlisted or "(?!)", environ["QUERY_STRING"]
        ):
            head, chunks = _refusal("501 Not Implemented", _UNSERVED)
        elif time.monotonic() >= self._until:
            for condition in _conditions(environ, self.faults.ignored):
                del environ[condition]
            if self._meets("hold", method, path):
                self._released.wait()
            with self._one:
                answer = _answer(self.app, {**environ, "wsgi.input": io.BytesIO(body)})
            if not self._meets("lose", method, path):
                head, chunks = answer
        condition = environ.get("HTTP_IF_NONE_MATCH") or environ.get("HTTP_IF_MATCH") or ""
        status = int(head[0].split()[0])
        self.requests.append(Request(method, path, environ["QUERY_STRING"], condition, status))
        start_response(*head)
        return [] if method == "HEAD" else chunks

    def _control(self, what: str, body: bytes) -> list[Any]:
        with self._state:
            if what == "forget":
                self.requests.clear()
            elif what == "faults":
                self._released.set()
                self._released, self.held = threading.Event(), []
                self.faults = Faults(**json.loads(body))
                self._until = time.monotonic() + self.faults.unavailable
            return list(self.requests if what == "requests" else self.held)

    def _meets(self, fault: str, method: str, path: str) -> bool:
        """Check whether a request triggers the fault; each fault triggers once."""
        with self._state:
            pattern = getattr(self.faults, fault)
            if method != "PUT" or pattern is None or not re.search(pattern, path):
                return False
            setattr(self.faults, fault, None)
            if fault == "hold":
                self.held.append(path)
            return True


def _refusal(status: str, body: bytes) -> tuple[list[Any], list[bytes]]:
    return [status, [("Content-Length", str(len(body)))]], [body]


def _conditions(environ: WSGIEnvironment, pattern: str | None) -> list[str]:
    """Return a request's conditions whose header name (``HTTP_IF_MATCH``) matches a fault's pattern."""
    return [name for name in _CONDITIONS if name in environ and re.search(pattern or "$^", name)]


def _body(environ: WSGIEnvironment) -> bytes:
    body: IO[bytes] = environ["wsgi.input"]
    chunked = "chunked" in environ.get("HTTP_TRANSFER_ENCODING", "").lower()
    return body.read() if chunked else body.read(int(environ.get("CONTENT_LENGTH") or 0))


def _answer(app: WSGIApplication, environ: WSGIEnvironment) -> tuple[list[Any], list[bytes]]:
    head: list[Any] = []

    def start(status: str, headers: list[tuple[str, str]], _: object = None, /) -> Callable[[bytes], object]:
        head.extend((status, headers))
        return lambda _: None

    return head, list(app(environ, start))


def options_of(url: str) -> dict[str, str]:
    """Return the options of a lake in the store at this URL."""
    keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "aws_region": "us-east-1"}
    return {**keys, "aws_endpoint_url": url, "aws_allow_http": "true"}


def lake_text(path: str, options: Mapping[str, str], *, lease: int | None = None) -> str:
    """Return the section of a pipeline file for a lake in a store; `lease` in seconds."""
    lease_line = "" if lease is None else f"  lease: {lease}s\n"
    option_lines = "".join(f"    {name}: '{value}'\n" for name, value in options.items())
    return f"lake:\n  path: {path}\n{lease_line}  options:\n{option_lines}"


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """A test's handle of a running store with the bucket `BUCKET`."""

    url: str

    def options(self) -> dict[str, str]:
        """Return the options of a lake in the store."""
        return options_of(self.url)

    def environment(self) -> dict[str, str]:
        """Return the options of a lake as environment variables."""
        return {name.upper(): value for name, value in self.options().items()}

    def requests(self, method: str = "", prefix: str = "/") -> list[Request]:
        """Return the requests since `forget`, of one method or of all; paths begin with ``/bucket/``."""
        entries = [Request(*entry) for entry in self.send("requests")]
        return [
            request
            for request in entries
            if method in ("", request.method) and request.path.startswith(prefix)
        ]

    def forget(self) -> None:
        self.send("forget")

    def set_faults(self, faults: Faults | None = None) -> None:
        self.send("faults", asdict(faults or Faults()))

    def held(self) -> list[str]:
        """Return the paths of the requests that `Faults.hold` delays."""
        return self.send("held")

    def send(self, what: str, body: object = None) -> list[Any]:
        data = json.dumps(body).encode()
        with urllib.request.urlopen(f"{self.url}{_CONTROL}{what}", data, timeout=30) as answer:  # noqa: S310
            return list(json.load(answer))


@contextmanager
def object_store(python: str = sys.executable) -> Iterator[ObjectStore]:
    """Start a store for the block, with a `python` that has moto."""
    command = [python, "-m", "tests.object_store", "--leashed"]
    pipe, quiet, root = subprocess.PIPE, subprocess.DEVNULL, Path(__file__).parent.parent
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=quiet, cwd=root, text=True) as server:
        try:
            assert server.stdout is not None
            yield ObjectStore(server.stdout.readline().strip())
        finally:
            server.terminate()


def serve(port: int, *, leashed: bool) -> None:
    """Serve until the process ends; if leashed, until standard input closes."""
    from moto.moto_server import werkzeug_app  # noqa: PLC0415 - only this process needs it
    from werkzeug.serving import make_server  # noqa: PLC0415

    # Else headers and body leave as two packets, and the second waits 40 ms for the first one's receipt.
    quick = {"disable_nagle_algorithm": True, "log_request": lambda *_: None}
    handler = type("Handler", (werkzeug_app.MotoRequestHandler,), quick)
    front = Front(werkzeug_app.DomainDispatcherApplication(werkzeug_app.create_backend_app))
    server = make_server("127.0.0.1", port, front, threaded=True, request_handler=handler)
    url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever).start()
    with urllib.request.urlopen(urllib.request.Request(f"{url}/{BUCKET}", method="PUT"), timeout=30):  # noqa: S310
        print(url, flush=True)  # noqa: T201 - what it is asked for
    if leashed:
        sys.stdin.read()
        os._exit(0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--leashed", action="store_true")
    given = parser.parse_args()
    serve(given.port, leashed=given.leashed)
