"""The sampler survives every error; an old sample shows its age; readiness has reasons."""

from __future__ import annotations

import dataclasses
import threading
import time
from datetime import UTC, datetime, timedelta

import pytest

from deltasmelt.pipelines.health.status import Rung, Status
from deltasmelt.pipelines.monitor.samples import Sampler, Samples, View, rest, without_login
from deltasmelt.pipelines.monitor.watch import why_not_alive, why_not_ready
from tests.patience import wait_for
from tests.pipelines.monitor.statuses import ILL, SECRET, WELL

LAYERS = ("bronze", "silver", "gold")
ALIVE = dict.fromkeys(LAYERS, True)


def ready(status: Status | None, *, stages: dict[str, bool] | None = None, **more: object) -> list[str]:
    samples = Samples()
    if status is not None:
        samples.add(status)
    view = dataclasses.replace(samples.view(ALIVE if stages is None else stages), **more)  # type: ignore[arg-type]
    return why_not_ready(view, LAYERS, 300.0)


def test_samples_span_single_hour_of_ladders() -> None:
    samples, now = Samples(), datetime.now(UTC)
    for minutes in (120, 61, 59, 30, 0):
        samples.add(WELL, at=now - timedelta(minutes=minutes))
    assert [round((now - point.at).total_seconds() / 60) for point in samples.view().points] == [59, 30, 0]


class Panic(BaseException):
    """An error like `deltalake`'s panic: no `Exception`."""


def test_failed_poll_keeps_newest_status_and_thread() -> None:
    samples, continued, looks = Samples(), threading.Event(), 0

    def read() -> Status:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise OSError(f"postgresql://smelt:{SECRET}@db/shop does not answer")
        if looks == 3:
            failed.append(samples.view())
            raise Panic("index 3")
        if looks == 4:
            continued.set()
        return WELL

    failed: list[View] = []
    sampler = Sampler(read, samples, interval=0.01)
    sampler.start()
    assert continued.wait(10)
    sampler.stop()
    (view,) = failed
    assert view.status is WELL
    assert view.failure == "OSError: postgresql://smelt:***@db/shop does not answer"
    assert view.failures == 1
    assert samples.view().failure is None


def test_sample_age_counts_from_begin_of_poll() -> None:
    samples, finished = Samples(), threading.Event()

    def read() -> Status:
        if finished.is_set():
            raise OSError("one look is enough")
        time.sleep(0.3)
        finished.set()
        return WELL

    start = datetime.now(UTC)
    sampler = Sampler(read, samples, interval=0.01)
    sampler.start()
    wait_for(lambda: samples.view().status is not None, 10)
    sampler.stop()
    view = samples.view()
    assert view.taken_at is not None
    assert view.took >= 0.3
    assert timedelta() <= view.taken_at - start < timedelta(seconds=view.took)


@pytest.mark.parametrize(
    ("took", "age", "late"),
    [
        (0.1, 119, False), (0.1, 121, True), (95, 220, False), (95, 310, False), (95, 320, True),
        (180, 390, False), (300, 599, False), (300, 601, True), (3000, 601, True),
    ],
)  # fmt: skip
def test_sample_lateness_follows_poll_duration_up_to_limit(*, took: float, age: float, late: bool) -> None:
    """The limit grows with the duration of a poll, up to ten minutes."""
    now = datetime.now(UTC)
    view = View(status=WELL, taken_at=now - timedelta(seconds=age), took=took, stages=ALIVE, now=now)
    assert view.late is late
    assert bool(why_not_ready(view, LAYERS, 300.0)) is late


@pytest.mark.parametrize("took", [0.05, 1.0, 5.0, 10.0])
def test_polling_takes_tenth_of_core_without_late_samples(took: float) -> None:
    assert took / (took + rest(took)) <= 0.1
    now = datetime.now(UTC)
    oldest = timedelta(seconds=took + rest(took) + 2 * took)
    assert not View(status=WELL, taken_at=now - oldest, took=took, now=now).late


def test_failing_status_listener_does_not_end_sampler() -> None:
    samples, calls = Samples(), threading.Semaphore(0)

    def tell(_: Status) -> None:
        calls.release()
        raise RuntimeError("no")

    sampler = Sampler(lambda: WELL, samples, on_status=tell, interval=0.01)
    sampler.start()
    assert all(calls.acquire(timeout=10) for _ in range(3))
    sampler.stop()


def test_stop_does_not_wait_for_hanging_poll() -> None:
    hang = threading.Event()

    def read() -> Status:
        hang.wait(20)
        return WELL

    sampler = Sampler(read, Samples(), interval=0.01)
    sampler.start()
    start = datetime.now(UTC)
    sampler.stop()
    assert datetime.now(UTC) - start < timedelta(seconds=5)
    hang.set()


def test_ready_requires_fresh_sample_near_head() -> None:
    assert ready(WELL) == []
    assert ready(None) == ["the status has not been read yet"]
    assert ready(WELL, failure="OSError: x", now=datetime.now(UTC) + timedelta(seconds=150))[0].endswith(
        "old: OSError: x"
    )
    assert ready(WELL, stages={}) == ["the stages are starting"]
    assert ready(WELL, stages={**ALIVE, "gold": False}) == ["gold does not run"]
    empty = dataclasses.replace(WELL, ladder=(*WELL.ladder[:4], Rung("silver", None, None, None, None)))
    assert ready(empty) == ["silver is still empty"], "gold has no step: there are no documents"
    down = dataclasses.replace(WELL, source_error="db:5432/shop: no answer\nremedy: …")
    assert ready(down) == ["the source does not answer: db:5432/shop: no answer"]


def test_pipeline_lag_and_errors_affect_readiness() -> None:
    """Errors of a single table do not."""
    assert ready(ILL) == [
        "silver is 15 min 0 s behind (limit 5 min 0 s)",
        "gold is 15 min 2 s behind (limit 5 min 0 s)",
        "open error copies-wait-for-transactions",
    ]
    one_table = dataclasses.replace(WELL, errors=ILL.errors[:2])
    assert ready(one_table) == []


def test_alive_says_nothing_of_lag() -> None:
    assert why_not_alive(View(status=ILL, stages=ALIVE)) == []
    assert why_not_alive(View(stages={"bronze": False})) == ["bronze does not run"]


def test_the_role_that_logs_in_is_left_out() -> None:
    address = "db:5432/shop as smelt"
    redacted = without_login(dataclasses.replace(WELL, source=address, source_error=f"{address}: no answer"))
    assert (redacted.source, redacted.source_error) == ("db:5432/shop", "db:5432/shop: no answer")
    assert without_login(WELL) == WELL
