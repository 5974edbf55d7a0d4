"""A slot in danger in the monitor: the slot's room over minutes, and alerts without flapping."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.checks.slot_risk import RiskLevel
from deltasmelt.bronze.checks.wal_budget import WalBudget
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.reader.watch import SlotWatch
from deltasmelt.pipelines.health.status import slot_danger
from deltasmelt.pipelines.monitor.alerts import Alerts
from deltasmelt.pipelines.monitor.metrics import SlotTrend
from tests.pipelines.monitor.statuses import HEAD, WELL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltasmelt.pipelines.health.status import Status

MB = 1 << 20


def slot_with(left: float, *, limit: int = 1000, status: str = "reserved", written: float = 0.0) -> Status:
    """Return a status with `left` MB of room for the slot, after `written` MB of log since the start."""
    assert WELL.slot is not None
    head, used = dataclasses.replace(WELL.ladder[0], lsn=Lsn(HEAD + int(written * MB))), limit - left
    return dataclasses.replace(
        WELL,
        ladder=(head, *WELL.ladder[1:]),
        slot=dataclasses.replace(WELL.slot, safe_wal_size=int(left * MB), wal_status=status),
        slot_seconds_left=5.0,
        wal=WalBudget(limit * MB, int(used * MB), 0, int(max(left, 0) * MB), None, reads=True),
    )


def lefts(room: Callable[[int], float], times: Iterable[int]) -> list[float | None]:
    trend = SlotTrend()
    return [trend.of(slot_with(room(now)), now).slot_seconds_left for now in times]


def test_time_left_follows_two_minutes_of_samples() -> None:
    seconds_left = lefts(lambda now: 900 - now, range(0, 181, 5))
    assert seconds_left[:24] == [None] * 24, "two minutes are not over"
    assert seconds_left[24] == pytest.approx(780)
    assert seconds_left[36] == pytest.approx(720)


def test_stepwise_returning_room_does_not_shrink() -> None:
    def room(now: int) -> float:
        return 500 - 5.0 * (now % 30)

    assert set(lefts(room, range(0, 600, 5))) == {None}
    most = [
        seconds_left
        for seconds_left in lefts(lambda now: room(now) - now / 10, range(0, 600, 5))
        if seconds_left is not None
    ]
    assert min(most) > 2000, "it shrinks by 0.1 MB/s, however fast it goes down between two steps"


def test_looks_that_are_rare_show_it_too() -> None:
    assert lefts(lambda now: 900 - now, (0, 100, 200))[-1] == pytest.approx(700)


def test_another_limit_or_another_slot_begins_anew() -> None:
    trend = SlotTrend()
    for now in range(0, 121, 5):
        trend.of(slot_with(900), now)
    assert trend.of(slot_with(300, limit=400), 125).slot_seconds_left is None, "the limit was lowered"
    for now in range(130, 251, 5):
        status = trend.of(slot_with(300 - (now - 125), limit=400), now)
    assert status.slot_seconds_left == pytest.approx(175)
    down = dataclasses.replace(WELL, slot=None, slot_seconds_left=None, wal=None, source_error="no answer")
    assert trend.of(down, 255) == down
    assert trend.of(slot_with(170, limit=400), 260).slot_seconds_left is not None, "the looks before count"


def test_the_rate_is_what_was_written_meanwhile() -> None:
    trend = SlotTrend()
    for now in range(0, 121, 5):
        status = trend.of(slot_with(900, written=now * 2.0), now)
    assert status.wal is not None
    assert status.wal.rate == pytest.approx(2 * MB)


def slot_alerts(samples: Iterable[tuple[float, Status]]) -> list[tuple[float, str, str]]:
    """Return time, state and text (after the slot's name) of each alert."""
    watching = Alerts("shop", kinds=["slot"], layers=(), limit=300.0)
    return [
        (now, alert.state, alert.text.partition("slot smelt_shop")[2])
        for now, status in samples
        for alert in watching.after(status, now)
    ]


def test_an_alert_fires_again_when_the_danger_rises() -> None:
    short = dataclasses.replace(slot_with(100), slot_seconds_left=60.0)
    half = dataclasses.replace(slot_with(450), slot_seconds_left=None)
    past = slot_with(-5, status="unreserved")
    fired = slot_alerts([(0, half), (5, half), (10, short), (15, past), (20, short), (25, past)])
    assert [(now, state) for now, state, _ in fired] == [(0, "firing"), (10, "firing"), (15, "firing")]
    assert "the slot has used" in fired[0][2]
    assert "the slot is lost in 60 s" in fired[1][2]
    assert "next checkpoint" in fired[2][2]


def test_alert_resolves_after_calm_and_fires_again() -> None:
    well = dataclasses.replace(slot_with(900), slot_seconds_left=None)
    past = slot_with(-5, status="unreserved")
    looks = [
        (0.0, past),
        (5.0, well),
        (200.0, past),
        (205.0, well),
        (500.0, well),
        (505.0, well),
        (510.0, past),
    ]
    assert [(now, state) for now, state, _ in slot_alerts(looks)] == [
        (0, "firing"), (505, "resolved"), (510, "firing"),
    ]  # fmt: skip


def test_budget_alert_resolves_well_below_half() -> None:
    looks = [(now, dataclasses.replace(slot_with(room_left), slot_seconds_left=None)) for now, room_left in (
        (0, 490), (100, 550), (900, 550), (1000, 490), (1100, 700), (1400, 700),
    )]  # fmt: skip
    assert [(now, state) for now, state, _ in slot_alerts(looks)] == [(0, "firing"), (1400, "resolved")]


def test_limit_below_segment_raises_single_alert() -> None:
    def look(now: int) -> Status:
        written = now / 60 % 16  # MB since the last segment began; the first minute of each is past the limit
        status = "unreserved" if written < 1 else "reserved"
        return dataclasses.replace(
            slot_with(16 - written, limit=1, status=status), slot_seconds_left=None, wal=tiny(written)
        )

    def tiny(written: float) -> WalBudget:
        return WalBudget(MB, int(written * MB), 0, int((16 - written) * MB), None, reads=True)

    assert [(now, state) for now, state, _ in slot_alerts((now, look(now)) for now in range(0, 9000, 5))] == [
        (0, "firing")
    ]


def test_absolute_amount_without_limit_is_stable_danger() -> None:
    def look(held: float) -> Status:
        assert WELL.slot is not None
        wal = WalBudget(
            None, int(held * 1024 * MB), 4096, None, None, reads=True, transactions="pid 7 (36,000 s)"
        )
        slot = dataclasses.replace(WELL.slot, safe_wal_size=None)
        return dataclasses.replace(WELL, slot=slot, wal=wal, slot_seconds_left=None)

    assert slot_danger(look(9.9)).level is RiskLevel.NONE
    assert slot_danger(look(10)).level is RiskLevel.MUCH
    assert slot_danger(look(250)).level is RiskLevel.SHORT
    assert (
        "250 GB of WAL is held back, and only the server's disk limits the amount"
        in slot_danger(look(250)).message
    )
    assert "oldest open transaction: pid 7" in slot_danger(look(250)).message
    steps = [(now, look(9.9 + now % 2 * 0.2)) for now in range(600)]
    assert [state for _, state, _ in slot_alerts(steps)] == ["firing"]
    watch = SlotWatch()
    levels = [
        watch.check(status.slot, now, None, status.wal) for now, status in steps if status.slot is not None
    ]
    assert [danger.level for danger in levels if danger is not None] == [RiskLevel.MUCH]


def test_half_of_small_limit_is_no_danger() -> None:
    small = dataclasses.replace(slot_with(10, limit=40), slot_seconds_left=None)
    assert slot_danger(small).level is RiskLevel.NONE
    assert slot_danger(dataclasses.replace(small, slot_seconds_left=60.0)).level is RiskLevel.SHORT
