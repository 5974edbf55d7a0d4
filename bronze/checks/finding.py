"""One finding about the source, as `smelt check` prints the finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from deltasmelt.bronze.errors import SmeltError

Level: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding."""

    # `error` stops the pipeline or a table, `warning` is a danger or a loss of quality, `info` needs no
    # action
    level: Level
    # stable slug; `docs/errors/<code>.md` explains the finding
    code: str
    # the object of the finding: a table, a slot, a setting, file:line
    subject: str
    message: str
    # the SQL or the setting that cures the problem
    remedy: str | None = None

    @classmethod
    def of(cls, error: SmeltError, subject: str | None = None) -> Self:
        """Return an error of deltasmelt as a finding."""
        return cls("error", error.code, subject or error.where or "", error.message, error.remedy)
