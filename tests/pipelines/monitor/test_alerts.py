"""Alerts: firing, resolution, delivery, and the absence of secrets."""

from __future__ import annotations

import dataclasses
import json
import logging
import socket
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.pipelines.monitor.alerts import Alert, Alerts
from deltasmelt.pipelines.monitor.webhook import Patience, Webhook
from deltasmelt.pipelines.settings import ALERT_KINDS, load_pipeline
from tests.patience import wait_for
from tests.pipelines.monitor.statuses import ILL, SECRET, WELL, ladder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deltasmelt.pipelines.health.status import Status

LAYERS = ("bronze", "silver", "gold")
QUICK = Patience(first=0.01, longest=0.02, total=5.0)
ALERT = Alert("shop", "lag", "firing", "silver", "shop: silver is 9 min behind")


def sent_alerts(alerts: Alerts, status: Status, now: float = 0.0) -> list[tuple[str, str, str]]:
    return [(alert.kind, alert.state, alert.name) for alert in alerts.after(status, now)]


def alerts(*kinds: Any, layers: tuple[str, ...] = LAYERS) -> Alerts:
    return Alerts("shop", kinds=kinds or ALERT_KINDS, layers=layers, limit=300.0)


def test_new_problem_fires_once_and_resolves_once() -> None:
    watching = alerts()
    assert sent_alerts(watching, WELL) == []
    assert sent_alerts(watching, ILL) == [
        ("error", "firing", "public.bad"),
        ("error", "firing", "customer"),
        ("error", "firing", "shop"),
        ("lag", "firing", "silver"),
        ("lag", "firing", "gold"),
        ("slot", "firing", "smelt_shop"),
    ]
    assert sent_alerts(watching, ILL) == []
    assert sorted(sent_alerts(watching, WELL, 10)) == sorted(
        (kind, "resolved", name)
        for kind, name in [
            ("error", "public.bad"), ("error", "customer"), ("error", "shop"),
            ("lag", "silver"), ("lag", "gold"),
        ]
    )  # fmt: skip
    assert sent_alerts(watching, WELL, 309) == [], "a slot may cross its limit again"
    assert sent_alerts(watching, WELL, 310) == [("slot", "resolved", "smelt_shop")]
    assert sent_alerts(watching, WELL, 315) == []


def test_lag_is_resolved_at_half_the_limit_only() -> None:
    watching = alerts("lag", layers=("silver",))
    paces = [dataclasses.replace(WELL, ladder=ladder(seconds)) for seconds in (299, 301, 299, 151, 150, 299)]
    assert [len(watching.after(status)) for status in paces] == [0, 1, 0, 0, 1, 0]


def test_unreachable_source_reports_nothing_about_slot() -> None:
    watching = alerts("slot")
    assert len(watching.after(ILL, 0)) == 1
    assert watching.after(dataclasses.replace(WELL, slot=None, source_error="no answer"), 5) == []
    assert sent_alerts(watching, WELL, 10) == []
    assert sent_alerts(watching, WELL, 310) == [("slot", "resolved", "smelt_shop")]


def test_long_invisible_half_alerts_and_keeps_fired_alerts() -> None:
    watching = alerts()
    assert len(watching.after(ILL, 0)) == 6
    no_answer = "s3://lake: no answer\nremedy: check the endpoint"
    away = dataclasses.replace(ILL, ladder=(), errors=(), tables=(), lake_read=False, lake_error=no_answer)
    assert sent_alerts(watching, away, 10) == []
    assert sent_alerts(watching, away, 309) == []
    (alert,) = watching.after(away, 310)
    assert (alert.kind, alert.state, alert.name, alert.remedy) == (
        "blind",
        "firing",
        "lake",
        "check the endpoint",
    )
    assert alert.text == "shop: the lake cannot be read for 5 min 0 s: s3://lake: no answer"
    both_away = dataclasses.replace(away, slot=None, source_error="db: no answer")
    assert sent_alerts(watching, both_away, 320) == []
    assert sent_alerts(watching, both_away, 620) == [("blind", "firing", "source")]
    assert watching.failed("OSError: no", 630) == []
    assert [alert.name for alert in watching.failed("OSError: no", 930)] == ["status"]
    assert sorted(sent_alerts(watching, ILL, 940)) == [
        ("blind", "resolved", name) for name in ("lake", "source", "status")
    ]
    silver = alerts("blind", layers=("silver",))
    assert sent_alerts(silver, both_away, 0) + sent_alerts(silver, both_away, 300) == [
        ("blind", "firing", "lake")
    ], "it needs no server"


def test_slot_at_risk_fires_again_when_lost() -> None:
    watching = alerts("slot")
    assert ILL.slot is not None
    lost = dataclasses.replace(ILL, slot=dataclasses.replace(ILL.slot, wal_status="lost"))
    assert [alert.code for status in (ILL, lost, lost) for alert in watching.after(status)] == [
        "slot-at-risk", "slot-lost",
    ]  # fmt: skip


def test_only_requested_kinds_and_layers_of_command_count() -> None:
    assert sent_alerts(alerts("lag", layers=("gold",)), ILL) == [("lag", "firing", "gold")]
    error = DefiniteError("the slot is lost", code="slot-lost", where="db:5432/shop", remedy="do this")
    assert alerts("lag").ended(error) == []
    (alert,) = alerts("error").ended(error)
    assert alert.text == "shop: the command ended: db:5432/shop: the slot is lost [slot-lost]"
    assert alert.remedy == "do this"


def test_no_body_holds_a_password() -> None:
    bodies = [alert.body() for alert in alerts().after(ILL)]
    assert SECRET not in json.dumps(bodies)
    assert "boss" not in json.dumps(bodies), "who has a transaction open"
    assert "***" in json.dumps(bodies)


@contextmanager
def receiver(
    *answers: int, before: Callable[[], object] = lambda: None
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Start a receiver that sends the answers and repeats the last; yield address and accepted alerts."""
    remaining, accepted = list(answers), []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            before()
            code = remaining.pop(0) if len(remaining) > 1 else remaining[0]
            if code == 200:
                accepted.append({"path": self.path, "type": self.headers["Content-Type"], **json.loads(body)})
            self.send_response(code)
            if code == 302:
                self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            """Log nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/hook/{SECRET}", accepted
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def posting(url: str, patience: Patience = QUICK) -> Webhook:
    webhook = Webhook(SecretStr(url), patience)
    webhook.start()
    return webhook


def test_alert_reaches_receiver_after_two_failures(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with receiver(503, 429, 200) as (url, accepted):
        webhook = posting(url)
        webhook.send(ALERT)
        webhook.stop(10)
    assert webhook.counters == {"sent": 1, "retried": 2, "dropped": 0}
    assert accepted == [{"path": f"/hook/{SECRET}", "type": "application/json", **ALERT.body()}]
    assert SECRET not in caplog.text


@pytest.mark.parametrize("code", [404, 302])
def test_a_receiver_that_refuses_is_not_asked_again(code: int, caplog: pytest.LogCaptureFixture) -> None:
    with receiver(code) as (url, _):
        webhook = posting(url)
        webhook.send(ALERT)
        webhook.stop(10)
    assert webhook.counters == {"sent": 0, "retried": 0, "dropped": 1}
    assert f"not delivered: HTTP {code}; check alerts.webhook" in caplog.text
    assert SECRET not in caplog.text


@pytest.mark.parametrize(
    "url", [f"http://127.0.0.1:1/{SECRET}", f"http://{SECRET}.invalid/", f"http://127.0.0.1:99999/{SECRET}"]
)
def test_absent_receiver_delays_nothing_and_stays_unnamed(url: str, caplog: pytest.LogCaptureFixture) -> None:
    webhook = posting(url, Patience(0.01, 0.02, 0.1))
    start = time.monotonic()
    for _ in range(150):
        webhook.send(ALERT)
    assert time.monotonic() - start < 1
    wait_for(lambda: webhook.counters["dropped"] > 50, 20)
    start = time.monotonic()
    webhook.stop(0.2)
    assert time.monotonic() - start < 2
    assert "too many alerts are waiting" in caplog.text
    assert SECRET not in caplog.text


def test_alerts_overtake_retry_and_all_are_tried_finally(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """No alert waits behind an alert in a retry."""
    with receiver(503, 200, 503, 503, 200, 503) as (url, accepted):
        webhook = posting(url, Patience(first=60, longest=60))
        for name in ("silver", "gold", "bronze"):
            webhook.send(dataclasses.replace(ALERT, name=name, key=("lag", name)))
        wait_for(
            lambda: len(accepted) == 1 and sum(map(bool, (entry.failed for entry in webhook._waiting))) == 2,
            10,
        )
        assert [alert["name"] for alert in accepted] == ["gold"], "not behind the pause of silver's"
        start = time.monotonic()
        webhook.stop(1)
        assert time.monotonic() - start < 3
    assert [alert["name"] for alert in accepted] == ["gold", "bronze"]
    assert (webhook.counters["sent"], webhook.counters["dropped"]) == (2, 1)
    assert "an alert (lag, silver) was not delivered: HTTP 503" in caplog.text


def test_alerts_about_same_subject_keep_order_after_outage() -> None:
    with receiver(503, 200) as (url, accepted):
        webhook = posting(url, Patience(first=0.5, longest=0.5))
        webhook.send(dataclasses.replace(ALERT, state="resolved", key=("lag", "silver")))
        wait_for(lambda: webhook._waiting[0].failed != "", 10)
        for name in ("silver", "gold"):
            webhook.send(dataclasses.replace(ALERT, name=name, key=("lag", name)))
        wait_for(lambda: len(accepted) == 3, 10)
        webhook.stop(1)
    silver = [alert["state"] for alert in accepted if alert["name"] == "silver"]
    assert silver == ["resolved", "firing"], "a newer alert has no pause yet"
    assert accepted[0]["name"] == "gold"


def test_undelivered_alert_and_its_end_fire_again() -> None:
    watching = alerts()
    fired = watching.after(ILL, 0)
    with receiver(404) as (url, _):
        refuses = Webhook(SecretStr(url), QUICK, dropped=lambda alert: watching.dropped(alert, 10))
        refuses.start()
        for alert in fired:
            refuses.send(alert)
        wait_for(lambda: refuses.counters["dropped"] == len(fired) == 6, 10)
        refuses.stop(1)
    assert sent_alerts(watching, ILL, 309) == [], "a receiver that refuses all is not flooded"
    assert sorted(sent_alerts(watching, ILL, 310)) == sorted(
        (alert.kind, "firing", alert.name) for alert in fired
    )
    assert sent_alerts(watching, ILL, 315) == []
    (ended, *_) = watching.after(WELL, 320)
    watching.dropped(ended, 320)
    resolved = [(ended.kind, "resolved", ended.name)]
    assert [sent_alerts(watching, WELL, now) for now in (325, 620, 625)][1:] == [
        [*resolved, ("slot", "resolved", "smelt_shop")], [],
    ]  # fmt: skip


def test_final_alerts_overtake_unanswered_post() -> None:
    hang, hung = threading.Event(), threading.Event()

    def first_hangs() -> None:
        if not hung.is_set():
            hung.set()
            hang.wait(20)

    with receiver(200, before=first_hangs) as (url, accepted):
        webhook = posting(url)
        for name in ("silver", "gold"):
            webhook.send(dataclasses.replace(ALERT, name=name, key=("lag", name)))
        assert hung.wait(10)
        webhook.stop(2)
        assert [alert["name"] for alert in accepted] == ["gold"]
        hang.set()


def test_silent_receiver_delays_end_by_limit_only(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        webhook = posting(f"http://127.0.0.1:{silent.getsockname()[1]}/{SECRET}")
        for name in ("silver", "gold"):
            webhook.send(dataclasses.replace(ALERT, name=name, key=("lag", name)))
        time.sleep(0.2)
        start = time.monotonic()
        webhook.stop(0.5)
        assert time.monotonic() - start < 2
    webhook.send(dataclasses.replace(ALERT, name="late"))
    assert webhook.counters["dropped"] == 3
    for name in ("silver", "gold", "late"):
        assert f"an alert (lag, {name}) was not delivered: " in caplog.text


@pytest.mark.parametrize("url", [f"ftp://host/{SECRET}", SECRET, f"http://[{SECRET}", "https://"])
def test_invalid_address_is_rejected_without_showing_secret(url: str, tmp_path: Path) -> None:
    file = tmp_path / "p.yml"
    file.write_text(
        "pipeline: shop\nsource: {slot: s, publication: p}\nlake: {path: lake}\n"
        f"alerts:\n  webhook: '{url}'\n"
    )
    with pytest.raises(ConfigurationError) as caught:
        load_pipeline(file)
    assert "p.yml:5: alerts.webhook: expected a URL that begins with https:// or http://" in str(caught.value)
    assert SECRET not in str(caught.value)


def test_alert_section_is_read_with_hidden_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK", f"https://hooks.example.com/{SECRET}")
    file = tmp_path / "p.yml"
    begin = "pipeline: shop\nsource: {slot: s, publication: p}\nlake: {path: lake}\n"
    file.write_text(begin + "alerts: {webhook: '${HOOK}', kinds: [slot], lag: 10m}\n")
    pipeline = load_pipeline(file)
    assert (pipeline.alerts.kinds, pipeline.alerts.lag) == (["slot"], 600.0)
    assert SECRET not in repr(pipeline)
    file.write_text(begin + "alerts: {kind: [slot]}\n")
    with pytest.raises(ConfigurationError, match="unknown key 'kind'"):
        load_pipeline(file)
