"""A slot's level of danger without flapping: it rises at once, and falls after a time of calm. Pure.

The server frees WAL in steps, so a slot near a limit crosses it again and again. `bronze.reader.watch` tells
the same in the log, where only a rise matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.checks.slot_risk import RiskLevel, stays_high

if TYPE_CHECKING:
    from bronze.checks.wal_budget import WalBudget

CALM_SECONDS: Final = 300.0
"""Time at lower levels after which the level falls to the highest of them."""
TINY_SECONDS: Final = 3600.0
"""The same for a limit that is passed in ordinary running, which may be once in many minutes."""


class HeldLevel:
    """The level that counts.

    Attributes:
        level: that counts now.
    """

    def __init__(self) -> None:
        self.level = RiskLevel.NONE
        self._since: float | None = None
        self._highest = RiskLevel.NONE

    def after(self, seen: RiskLevel, wal: WalBudget | None, now: float) -> RiskLevel:
        """The level that counts after a look.

        Args:
            seen: the level that this look found.
            wal: what the slot holds back; None where it is not known.
            now: by the monotonic clock, in seconds.
        """
        if self.level >= RiskLevel.MUCH and stays_high(wal):
            seen = max(seen, RiskLevel.MUCH)
        if seen >= self.level:
            self.level, self._since = seen, None
            return self.level
        if self._since is None:
            self._since, self._highest = now, seen
        self._highest = max(self._highest, seen)
        if now - self._since >= (TINY_SECONDS if wal is not None and wal.tiny else CALM_SECONDS):
            self.level, self._since = self._highest, None
        return self.level
