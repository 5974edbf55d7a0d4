"""One thing that somebody should know about the source: what `smelt check` prints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self, TypeAlias

if TYPE_CHECKING:
    from deltasmelt.bronze.errors import SmeltError

Level: TypeAlias = Literal["error", "warning", "info"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A finding.

    Attributes:
        level: ``error`` stops the pipeline or a table, ``warning`` endangers or degrades it, ``info`` is
            good to know.
        code: stable slug; ``docs/errors/<code>.md`` explains it.
        subject: what it is about: a table, a slot, a setting, file:line.
        remedy: the SQL or setting that cures it.
    """

    level: Level
    code: str
    subject: str
    message: str
    remedy: str | None = None

    @classmethod
    def of(cls, error: SmeltError, subject: str | None = None) -> Self:
        """An error of ours as a finding."""
        return cls("error", error.code, subject or error.where or "", error.message, error.remedy)
