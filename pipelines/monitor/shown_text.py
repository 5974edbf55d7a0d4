"""What page and alerts may show of a text: no password, no other sessions, no control characters."""

from __future__ import annotations

from bronze.postgres.blockers import without_names
from pipelines.terminal.failures import without_secrets
from pipelines.terminal.visible import visible


def shown_text(text: str) -> str:
    """Return the visible text without passwords, and without roles and applications of other sessions."""
    return visible(without_secrets(without_names(text)))
