"""Alerts go out: a queue, and a thread that posts them as JSON, one after the other.

Nobody waits for it: `send` only puts into the queue, and one that is full drops the alert. What usually
passes is tried again, with growing pauses, for a limited time. At the end, all that wait are tried in turns;
each alert that is dropped is logged. The URL may hold a token. So it is in no message: a failure is told by
the status code, or by the kind of the system's error.
"""

from __future__ import annotations

import http.client
import json
import logging
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from bronze.backoff import Backoff

if TYPE_CHECKING:
    from pydantic import SecretStr

    from pipelines.monitor.alerts import Alert

_MOST: Final = 100
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


@dataclass(slots=True, eq=False)
class _Waiting:
    """An alert that waits.

    Attributes:
        failed: why its newest attempt failed; empty before the first.
        under_way: an attempt is being made now.
    """

    alert: Alert
    failed: str = ""
    under_way: bool = False


class Webhook:
    """Posts alerts to one URL.

    Args:
        url: where to; it may hold a token.
        patience: how long one alert is tried.
    """

    def __init__(self, url: SecretStr, patience: Patience | None = None) -> None:
        self._url = url
        self._patience = patience or Patience()
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._stop = threading.Event()
        self._end = 0.0
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self.counters = {"sent": 0, "retried": 0, "dropped": 0}

    def start(self) -> None:
        """Begin to post."""
        self._thread.start()

    def send(self, alert: Alert) -> None:
        """Post an alert, some time; returns at once."""
        with self._changed:
            why = "the command has ended" if self._stop.is_set() else "too many alerts wait"
            if not self._stop.is_set() and len(self._waiting) < _MOST:
                self._waiting.append(_Waiting(alert))
                self._changed.notify()
                return
        self._drop(alert, why)

    def stop(self, seconds: float) -> None:
        """Post what is waiting, for at most so many seconds; each that is not delivered by then is logged."""
        with self._changed:
            self._end = time.monotonic() + seconds
            self._stop.set()
            self._changed.notify()
        if self._thread.ident is not None:
            # What is being posted goes first, but the receiver may keep it waiting for longer than this.
            self._thread.join(seconds / 4)
            rest = threading.Thread(target=self._deliver_rest, name="last-alerts", daemon=True)
            rest.start()
            rest.join(max(0.0, self._end - time.monotonic()))
            self._thread.join(max(0.0, self._end - time.monotonic()))
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
        for one in left:
            self._drop(one.alert, one.failed or "the command has ended")

    def _work(self) -> None:
        while (one := self._next()) is not None:
            self._deliver(one)

    def _next(self) -> _Waiting | None:
        """The one that waits longest; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._stop.is_set() or self._waiting)
            return None if self._stop.is_set() else self._waiting[0]

    def _deliver(self, one: _Waiting) -> None:
        backoff = Backoff(self._patience.first, self._patience.longest)
        deadline = time.monotonic() + self._patience.total
        while not self._attempt(one, _TIMEOUT):
            if time.monotonic() >= deadline:
                self._drop_waiting(one, one.failed)
                return
            if backoff.pause(self._stop):
                return  # it is tried with the others that wait

    def _deliver_rest(self) -> None:
        """In turns, so that none is lost behind another; the time of a turn is shared."""
        backoff = Backoff(self._patience.first, self._patience.longest)
        while True:
            with self._changed:
                waiting = list(self._waiting)
            for done, one in enumerate(waiting):
                seconds = self._end - time.monotonic()
                if seconds <= 0:
                    return
                self._attempt(one, min(_TIMEOUT, seconds / (len(waiting) - done)))
            pause = backoff.seconds()
            if not self._waiting or time.monotonic() + pause >= self._end:
                return
            time.sleep(pause)

    def _attempt(self, one: _Waiting, timeout: float) -> bool:
        """Post it; whether it waits no more, so far as this attempt can tell."""
        with self._changed:
            if one.under_way:
                return False
            one.under_way = True
            self.counters["retried"] += bool(one.failed)
        try:
            self._post(one.alert, timeout)
        except _FailedError as error:
            one.failed = str(error)
            return False
        except _RefusedError as error:
            self._drop_waiting(one, f"{error}; check alerts.webhook")
        except Exception as error:  # noqa: BLE001 - nothing ends this thread
            self._drop_waiting(one, type(error).__name__)
        else:
            self.counters["sent"] += self._take(one)
        finally:
            one.under_way = False
        return True

    def _take(self, one: _Waiting) -> bool:
        """It waits no more; whether it did, and had not been given up meanwhile."""
        with self._changed:
            if one not in self._waiting:
                return False
            self._waiting.remove(one)
            return True

    def _drop_waiting(self, one: _Waiting, why: str) -> None:
        if self._take(one):
            self._drop(one.alert, why)

    def _post(self, alert: Alert, timeout: float) -> None:
        try:
            request = urllib.request.Request(  # noqa: S310 - http or https: the pipeline file's model holds it
                self._url.get_secret_value(),
                data=json.dumps(alert.body()).encode(),
                headers={"Content-Type": "application/json", "User-Agent": "deltasmelt"},
                method="POST",
            )
            with self._opener.open(request, timeout=timeout) as answer:
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
