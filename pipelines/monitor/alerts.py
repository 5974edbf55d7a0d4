"""Alerts for a new status: each alert reports a change, never an unchanged state again.

An alert fires when a fault appears, and is resolved when the fault ends. A lag alert is resolved at half the
limit, so a layer near the limit does not fire repeatedly. A slot alert fires again at a higher level of
danger, and is resolved after a time of calm. Unknown facts change nothing: a silent server reports nothing
about its slot, an absent lake nothing about its errors. A half without an answer is an alert of its own kind
(``blind``), after the same time as a layer's allowed lag.

An undelivered alert counts as not fired: after a pause, the alert fires or is resolved once more.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from deltasmelt.bronze.checks.slot_risk import RiskLevel, stays_high
from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.figures import seconds_text
from deltasmelt.bronze.postgres.blockers import without_names
from deltasmelt.pipelines.health.status import slot_danger
from deltasmelt.pipelines.terminal.failures import Failure, foreign_text, without_secrets
from deltasmelt.pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from collections.abc import Collection

    from deltasmelt.bronze.checks.wal_budget import WalBudget
    from deltasmelt.bronze.lake.control import OpenError
    from deltasmelt.bronze.setup.slot import SlotState
    from deltasmelt.pipelines.health.status import Rung, Status
    from deltasmelt.pipelines.settings import AlertKind


def shown_text(text: str) -> str:
    """Return the visible text without passwords, and without roles and applications of other sessions."""
    return visible(without_secrets(without_names(text)))


CALM_SECONDS: Final = 300.0
"""Time at lower levels before the level falls to the highest of these levels."""
TINY_SECONDS: Final = 3600.0
"""The same time for a small limit, which normal operation may cross once in many minutes."""


class HeldLevel:
    """The effective level of danger, without flapping: it rises at once, and falls after a time of calm.

    The server frees WAL in steps, so a slot near a limit crosses the limit repeatedly. `bronze.reader.watch`
    logs the same level, where only a rise matters.
    """

    def __init__(self) -> None:
        self.level = RiskLevel.NONE
        self._since: float | None = None
        self._highest = RiskLevel.NONE

    def after(self, newest: RiskLevel, wal: WalBudget | None, now: float) -> RiskLevel:
        """Return the effective level after a sample."""
        if self.level >= RiskLevel.MUCH and stays_high(wal):
            newest = max(newest, RiskLevel.MUCH)
        if newest >= self.level:
            self.level, self._since = newest, None
            return self.level
        if self._since is None:
            self._since, self._highest = now, newest
        self._highest = max(self._highest, newest)
        if now - self._since >= (TINY_SECONDS if wal is not None and wal.tiny else CALM_SECONDS):
            self.level, self._since = self._highest, None
        return self.level


AGAIN_SECONDS: Final = 300.0
"""Pause after an undelivered alert; the pause protects a refusing receiver from a flood."""
AlertState: TypeAlias = Literal["firing", "resolved"]


@dataclass(frozen=True, slots=True)
class Alert:
    """A new fault, or the end of a fault."""

    pipeline: str
    kind: AlertKind
    state: AlertState
    # the affected layer, slot, table, document or pipeline
    name: str
    # the whole alert in one line; chat services show this key of the body
    text: str
    # the error's code
    code: str | None = None
    message: str | None = None
    # what the operator can do
    remedy: str | None = None
    at: str = ""
    # identity of the fault among the command's alerts; not posted
    key: tuple[str, ...] = ()

    def body(self) -> dict[str, str | None]:
        """Return the body of the post."""
        return {name: value for name, value in asdict(self).items() if name != "key"}


class Alerts:
    """Compares each status with the status before; `now` is in seconds of the monotonic clock.

    Args:
        layers: layers of the command, whose lag counts.
        limit: seconds of lag, and of a half without an answer, before an alert.
    """

    def __init__(
        self, pipeline: str, *, kinds: Collection[AlertKind], layers: Collection[str], limit: float
    ) -> None:
        self._pipeline = pipeline
        self._kinds = kinds
        self._layers = layers
        self._limit = limit
        # A command knows nothing about the command before, so a fault at the start fires once more.
        self._firing: dict[tuple[str, ...], Alert] = {}
        self._held = HeldLevel()
        self._unseen_since: dict[str, float] = {}
        self._dropped: deque[tuple[float, Alert]] = deque()

    def after(self, status: Status, now: float | None = None) -> list[Alert]:
        """Return the alerts for a new status."""
        now = time.monotonic() if now is None else now
        self._fire_repeated(now)
        alerts = self.errors(status.errors) if status.lake_read else []
        alerts += self._unseen("status", None, now)
        alerts += self._unseen("lake", status.unseen.get("lake"), now)
        if "bronze" in self._layers:  # the other layers go on without the server
            alerts += self._unseen("source", status.unseen.get("source"), now)
        if "lag" in self._kinds:
            for rung in status.ladder:
                if rung.name in self._layers:
                    alerts += self._lag(rung)
        if "slot" in self._kinds and status.source_error is None:
            alerts += self._slot(status, now)
        return alerts

    def dropped(self, alert: Alert, now: float | None = None) -> None:
        """Record an undelivered alert; any thread may call."""
        self._dropped.append((time.monotonic() if now is None else now, alert))

    def _fire_repeated(self, now: float) -> None:
        """Forget alerts dropped long enough ago, so the present comparison finds them new."""
        while self._dropped and now - self._dropped[0][0] >= AGAIN_SECONDS:
            _, alert = self._dropped.popleft()
            if alert.state == "resolved" and alert.key not in self._firing:
                self._firing[alert.key] = replace(alert, state="firing")
            elif self._firing.get(alert.key) is alert:
                del self._firing[alert.key]

    def failed(self, why: str, now: float | None = None) -> list[Alert]:
        """Return the alerts after a sample without any answer."""
        return self._unseen("status", why, time.monotonic() if now is None else now)

    def _unseen(self, part: str, why: str | None, now: float) -> list[Alert]:
        key = ("blind", part)
        if why is None or "blind" not in self._kinds:
            self._unseen_since.pop(part, None)
            return [self._resolved(key, f"the {part} can be read again")] if key in self._firing else []
        seconds = now - self._unseen_since.setdefault(part, now)
        if key in self._firing or seconds < self._limit:
            return []
        message, _, remedy = why.partition("\nremedy: ")
        message = shown_text(message)
        text = f"{self._pipeline}: the {part} cannot be read for {seconds_text(seconds)}: {message}"
        remedy = remedy or (
            "smelt status shows the reason; the server keeps WAL while the reader reads nothing"
        )
        return [self._fires(self._alert("blind", "firing", key, part, text, None, message, remedy))]

    def ended(self, error: Exception) -> list[Alert]:
        """Return the alert about the error at the command's end."""
        if "error" not in self._kinds:
            return []
        code = remedy = None
        if isinstance(error, SmeltError):
            place = f"{error.where}: " if error.where else ""
            message, code, remedy = f"{place}{error.message}", error.code, error.remedy
        elif isinstance(error, Failure):
            message, _, remedy = str(error).partition("\nremedy: ")
        else:
            message, remedy = foreign_text(error), "smelt.log contains the full error"
        message = shown_text(message)
        text = f"{self._pipeline}: the command ended: {message}" + (f" [{code}]" if code else "")
        return [self._alert("error", "firing", (), self._pipeline, text, code, message, remedy or None)]

    def errors(self, errors: Collection[OpenError]) -> list[Alert]:
        """Return the alerts for the open errors of the lake."""
        if "error" not in self._kinds:
            return []
        now = {("error", error.scope, error.name, error.code): error for error in errors}
        closed = [key for key in self._firing if key[0] == "error" and key not in now]
        alerts = [self._resolved(key, f"{key[1]} {key[2]}: resolved [{key[3]}]") for key in closed]
        for key, error in now.items():
            if key not in self._firing:
                message = shown_text(error.message)
                text = f"{self._pipeline}: {error.scope} {error.name}: {message} [{error.code}]"
                alerts.append(
                    self._fires(
                        self._alert(
                            "error", "firing", key, error.name, text, error.code, message, error.remedy
                        )
                    )
                )
        return alerts

    def _lag(self, rung: Rung) -> list[Alert]:
        key, seconds = ("lag", rung.name), rung.seconds
        if seconds is None:
            return []
        behind = f"{rung.name} is {seconds_text(seconds)} behind"
        if key in self._firing:
            return [self._resolved(key, behind)] if seconds <= self._limit / 2 else []
        if seconds <= self._limit:
            return []
        text = f"{self._pipeline}: {behind} (limit {seconds_text(self._limit)})"
        remedy = "smelt status shows the delayed step, and open errors"
        return [self._fires(self._alert("lag", "firing", key, rung.name, text, remedy=remedy))]

    def _slot(self, status: Status, now: float) -> list[Alert]:
        key, slot = ("slot",), status.slot
        if slot is None:  # before the first start, or after `smelt drop`; a lost slot ends the reader
            return []
        if slot.wal_status == "lost":
            self._held = HeldLevel()
            was = self._firing.get(key)
            return (
                [] if was is not None and was.code == "slot-lost" else [self._slot_fires(slot, "slot-lost")]
            )
        before, danger = self._held.level, slot_danger(status)
        level = self._held.after(danger.level, status.wal, now)
        if level is RiskLevel.NONE:
            return [self._resolved(key, f"slot {slot.name} is safe again")] if key in self._firing else []
        fires = level > before or (danger.level > RiskLevel.NONE and key not in self._firing)
        return [self._slot_fires(slot, "slot-at-risk", danger.message)] if fires else []

    def _slot_fires(self, slot: SlotState, code: str, message: str = "the slot is lost") -> Alert:
        message = shown_text(message)
        text = f"{self._pipeline}: slot {slot.name}: {message}"
        return self._fires(
            self._alert(
                "slot", "firing", ("slot",), slot.name, text, code, message, f"smelt explain-error {code}"
            )
        )

    def _resolved(self, key: tuple[str, ...], message: str) -> Alert:
        was = self._firing.pop(key)
        text = f"{self._pipeline}: {message}"
        return self._alert(was.kind, "resolved", key, was.name, text, was.code)

    def _fires(self, alert: Alert) -> Alert:
        self._firing[alert.key] = alert
        return alert

    def _alert(  # noqa: PLR0917 - each is one key of the body
        self,
        kind: AlertKind,
        state: AlertState,
        key: tuple[str, ...],
        name: str,
        text: str,
        code: str | None = None,
        message: str | None = None,
        remedy: str | None = None,
    ) -> Alert:
        return Alert(
            pipeline=self._pipeline,
            kind=kind,
            state=state,
            name=shown_text(name),
            text=shown_text(text),
            code=code,
            message=message,
            remedy=None if remedy is None else shown_text(remedy),
            at=datetime.now(UTC).isoformat(timespec="seconds"),
            key=key,
        )
