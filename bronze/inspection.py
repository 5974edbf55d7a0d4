"""Findings about the source: everything that would stop or degrade the pipeline, each with its cure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import psycopg

    from bronze.settings import SourceSettings


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that somebody should know.

    Attributes:
        level: ``error`` stops the pipeline or a table, ``warning`` endangers or degrades it, ``info`` is
        good to know. subject: what it is about: a table, a slot, a setting.
    """

    level: Literal["error", "warning", "info"]
    code: str
    subject: str
    message: str
    remedy: str | None = None


def inspect(connection: psycopg.Connection[Any], source: SourceSettings) -> list[Finding]:
    """Look at everything; change nothing."""
    raise NotImplementedError
