"""What a text may show to who sees the page or gets an alert: no password, and no names of other sessions."""

from __future__ import annotations

from bronze.postgres.blockers import without_names
from pipelines.terminal.failures import without_secrets


def shown_text(text: str) -> str:
    """The text without passwords, and without roles and applications of transactions that it names."""
    return without_secrets(without_names(text))
