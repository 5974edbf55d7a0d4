"""Names and texts as Spark SQL writes them. Pure."""

from __future__ import annotations


def quoted(name: str) -> str:
    """An identifier in backticks."""
    return "`" + name.replace("`", "``") + "`"


def literal(text: str) -> str:
    """A text as Spark SQL reads it under default settings.

    Backslashes start escapes in its string literals, so they are doubled; line ends are written as escapes.
    """
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r")
    return f"'{escaped}'"
