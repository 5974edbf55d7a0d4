"""Posting of alerts: a thread posts every waiting alert as JSON as soon as the alert is due.

`send` returns at once, and drops an alert beyond the limit of waiting alerts. After a temporary failure, the
thread posts the alert again for a limited time, with growing pauses for each alert. So a retried alert delays
no alert about another fault. Each dropped alert is logged and reported, and fires again
(`pipelines.monitor.alerts`). The URL may contain a token, so no message names the URL: messages name a
failure by status code or kind of system error.
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
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import SecretStr

    from deltasmelt.pipelines.monitor.alerts import Alert

_MOST: Final = 100
_TIMEOUT: Final = 10.0
_PASSING: Final = frozenset({408, 425, 429})
_LOGGER = logging.getLogger("deltasmelt.alerts")


@dataclass(frozen=True, slots=True)
class Patience:
    """Time limits for one alert."""

    # seconds of the first pause
    first: float = 1.0
    # seconds of the longest pause
    longest: float = 60.0
    # seconds before the drop of the alert
    total: float = 900.0


class _RefusedError(Exception):
    """The receiver refuses the alert for good."""


class _FailedError(Exception):
    """The post failed and may succeed later."""


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: a redirected POST would become a GET, to an address outside the pipeline file."""

    def redirect_request(self, *_: Any) -> None:
        return None


@dataclass(slots=True, eq=False)
class _Waiting:
    """A waiting alert."""

    alert: Alert
    # the alert's pauses
    backoff: Backoff
    # deadline of the alert, by the monotonic clock
    end: float
    # time of the next attempt
    due: float = 0.0
    # reason of the newest attempt's failure; empty before the first
    failed: str = ""
    # True during an attempt
    under_way: bool = False


class Webhook:
    """Posts alerts to one URL.

    Args:
        url: address of the receiver; may contain a token.
        dropped: receives each dropped alert, in any thread.
    """

    def __init__(
        self,
        url: SecretStr,
        patience: Patience | None = None,
        *,
        dropped: Callable[[Alert], None] = lambda _: None,
    ) -> None:
        self._url = url
        self._dropped = dropped
        self._patience = patience or Patience()
        self._changed = threading.Condition()
        self._waiting: list[_Waiting] = []
        self._end: float | None = None
        self._opener = urllib.request.build_opener(_NoRedirects)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)
        self.counters = {"sent": 0, "retried": 0, "dropped": 0}

    def start(self) -> None:
        """Begin to post."""
        self._thread.start()

    def send(self, alert: Alert) -> None:
        """Queue an alert for posting; return at once."""
        with self._changed:
            reason = "too many alerts are waiting" if self._end is None else "the command has ended"
            if self._end is None and len(self._waiting) < _MOST:
                backoff = Backoff(self._patience.first, self._patience.longest)
                self._waiting.append(_Waiting(alert, backoff, time.monotonic() + self._patience.total))
                self._changed.notify()
                return
        self._drop(alert, reason)

    def stop(self, seconds: float) -> None:
        """Post the waiting alerts for at most the given seconds; log each undelivered alert."""
        with self._changed:
            # At the end of the command all waiting alerts are due at once, and a second thread overtakes a
            # post without an answer.
            self._end = time.monotonic() + seconds
            for entry in self._waiting:
                entry.due = 0.0
                entry.backoff.worked()
            self._changed.notify_all()
        if self._thread.ident is not None:
            # The post under way gets a share of the time; its receiver may take longer.
            self._thread.join(seconds / 4)
            last_posts = threading.Thread(target=self._work, name="last-alerts", daemon=True)
            last_posts.start()
            for thread in (last_posts, self._thread):
                thread.join(max(0.0, self._end - time.monotonic()))
        with self._changed:
            unsent = list(self._waiting)
            self._waiting.clear()
        for entry in unsent:
            self._drop(entry.alert, entry.failed or "the command has ended")

    def _work(self) -> None:
        while (due_alert := self._next()) is not None:
            self._attempt(*due_alert)

    def _next(self) -> tuple[_Waiting, float] | None:
        """Return the oldest alert of a key once it is due, with the time for its post; None at the end."""
        with self._changed:
            while True:
                now = time.monotonic()
                oldest: dict[tuple[str, ...], _Waiting] = {}
                for entry in self._waiting:
                    # Post alerts with one key in order, each after the delivery or drop of the alert before.
                    # A newer alert has shorter pauses, and otherwise an old "resolved" could be the
                    # receiver's last word while the error is open again.
                    oldest.setdefault(entry.alert.key, entry)
                idle = [entry for entry in oldest.values() if not entry.under_way]
                if self._end is not None and (now >= self._end or not idle):
                    return None
                first = min(idle, key=lambda waiting: waiting.due, default=None)
                if first is not None and first.due <= now:
                    first.under_way = True
                    # At the end, the waiting alerts share the remaining time.
                    seconds = _TIMEOUT if self._end is None else (self._end - now) / len(idle)
                    return first, min(_TIMEOUT, seconds)
                pause = None if first is None else first.due - now
                if self._end is not None:
                    pause = min(self._end - now, self._end - now if pause is None else pause)
                self._changed.wait(pause)

    def _attempt(self, alert: _Waiting, timeout: float) -> None:
        """Post an alert; remove the alert from the queue, or plan a retry after a pause."""
        self.counters["retried"] += bool(alert.failed)
        try:
            self._post(alert.alert, timeout)
        except _FailedError as error:
            alert.failed = str(error)
            alert.due = time.monotonic() + alert.backoff.seconds()
            if self._end is None and time.monotonic() >= alert.end:
                self._drop_waiting(alert, alert.failed)
        except _RefusedError as error:
            self._drop_waiting(alert, f"{error}; check alerts.webhook")
        except Exception as error:  # noqa: BLE001 - nothing ends this thread
            self._drop_waiting(alert, type(error).__name__)
        else:
            self.counters["sent"] += self._take(alert)
        finally:
            alert.under_way = False

    def _take(self, alert: _Waiting) -> bool:
        """Remove an alert from the queue; return False for an alert already removed."""
        with self._changed:
            if alert not in self._waiting:
                return False
            self._waiting.remove(alert)
            return True

    def _drop_waiting(self, waiting: _Waiting, why: str) -> None:
        if self._take(waiting):
            self._drop(waiting.alert, why)

    def _post(self, alert: Alert, timeout: float) -> None:
        try:
            request = urllib.request.Request(  # noqa: S310 - http or https: the pipeline file's model requires it
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
        self._dropped(alert)


def _kind(error: BaseException) -> str:
    """Return a failure's description without the address."""
    reason = getattr(error, "reason", error)
    if isinstance(reason, OSError) and reason.strerror and not isinstance(reason, ssl.SSLError):
        return f"{type(reason).__name__}: {reason.strerror}"
    return type(reason if isinstance(reason, BaseException) else error).__name__
