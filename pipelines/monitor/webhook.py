"""Alerts go out: a queue, and a thread that posts them as JSON, one after the other.

Nobody waits for it: `send` only puts into the queue, and one that is full drops the alert. What usually
passes is tried again, with growing pauses, for a limited time. The URL may hold a token. So it is in no
message: a failure is told by the status code, or by the kind of the system's error.
"""

from __future__ import annotations

import http.client
import json
import logging
import queue
import ssl
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bronze.backoff import Backoff

if TYPE_CHECKING:
    from pydantic import SecretStr

    from pipelines.monitor.alerts import Alert

_QUEUE: Final = 100
_TIMEOUT: Final = 10.0
_PASSING: Final = frozenset({408, 425, 429})
_LOGGER = logging.getLogger("deltasmelt.alerts")


@dataclass(frozen=True, slots=True)
class Patience:
    """How long one alert is tried.

    Attributes:
        first: seconds of the first pause.
        longest: seconds of the longest pause.
        total: seconds after which it is dropped.
    """

    first: float = 1.0
    longest: float = 60.0
    total: float = 900.0


class _RefusedError(Exception):
    """The receiver will not take it, however often it is tried."""


class _FailedError(Exception):
    """It may work later."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET, to an address that nobody has written down."""

    def redirect_request(self, *_: Any) -> None:
        return None


class Webhook:
    """Posts alerts to one URL.

    Args:
        url: where to; it may hold a token.
        patience: how long one alert is tried.
    """

    def __init__(self, url: SecretStr, patience: Patience | None = None) -> None:
        self._url = url
        self._patience = patience or Patience()
        self._queue: queue.Queue[Alert] = queue.Queue(_QUEUE)
        self._stop = threading.Event()
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self.counters = {"sent": 0, "retried": 0, "dropped": 0}

    def start(self) -> None:
        """Begin to post."""
        self._thread.start()

    def send(self, alert: Alert) -> None:
        """Post an alert, some time; returns at once."""
        try:
            self._queue.put_nowait(alert)
        except queue.Full:
            self._drop(alert, "too many alerts wait")

    def stop(self, seconds: float) -> None:
        """Post what is waiting, for at most so many seconds; then no more."""
        deadline = time.monotonic() + seconds
        while self._thread.is_alive() and self._queue.unfinished_tasks and time.monotonic() < deadline:
            time.sleep(0.02)
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.is_set():
            alert = self._queue.get()
            try:
                self._deliver(alert)
            except Exception as error:  # noqa: BLE001 - nothing ends this thread
                self._drop(alert, type(error).__name__)
            finally:
                self._queue.task_done()

    def _deliver(self, alert: Alert) -> None:
        backoff = Backoff(self._patience.first, self._patience.longest)
        deadline = time.monotonic() + self._patience.total
        while True:
            try:
                self._post(alert)
            except _RefusedError as error:
                self._drop(alert, f"{error}; check alerts.webhook")
                return
            except _FailedError as error:
                if time.monotonic() >= deadline or backoff.pause(self._stop):
                    self._drop(alert, str(error))
                    return
                self.counters["retried"] += 1
            else:
                self.counters["sent"] += 1
                return

    def _post(self, alert: Alert) -> None:
        try:
            request = urllib.request.Request(  # noqa: S310 - http or https: the pipeline file's model holds it
                self._url.get_secret_value(),
                data=json.dumps(alert.body()).encode(),
                headers={"Content-Type": "application/json", "User-Agent": "deltasmelt"},
                method="POST",
            )
            with self._opener.open(request, timeout=_TIMEOUT) as answer:
                answer.read(1000)
        except urllib.error.HTTPError as error:
            error.close()
            kind = _FailedError if error.code >= 500 or error.code in _PASSING else _RefusedError
            raise kind(f"HTTP {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            raise _FailedError(_kind(error)) from None
        except ValueError:  # of urllib, which quotes the URL
            raise _RefusedError("the URL cannot be used") from None

    def _drop(self, alert: Alert, why: str) -> None:
        self.counters["dropped"] += 1
        _LOGGER.warning("an alert (%s, %s) was not delivered: %s", alert.kind, alert.name, why)


def _kind(error: BaseException) -> str:
    """A failure without the address that it quotes."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, OSError) and reason.strerror and not isinstance(reason, ssl.SSLError):
        return f"{type(reason).__name__}: {reason.strerror}"
    return type(reason if isinstance(reason, BaseException) else error).__name__
