"""What a failed Spark statement says about a document.

Spark tells its errors by SQLSTATE. Class 22 (a value that cannot be computed) and class 42 (a query that is
not well-formed) are the document's own. They may come as Spark's error, or deep inside a task's. What
begins with ``DELTA_`` is about a table, not an expression.

Anything else is not known to be the document's: a disk, memory, a lost executor, but also a Java exception
that an expression raised. It is tried once more, and then recorded in its own words (`unknown_error`), so
that the other documents continue.
"""

from __future__ import annotations

import re
from typing import Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.spark_errors import spark_errors

SPARK_ERRORS: Final = spark_errors()
"""What a failed statement raises."""

_CONDITION: Final = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9_.]+)\] (?P<said>.*?) SQLSTATE: (?P<state>\w{5})", re.DOTALL
)
_LENGTH: Final = 300
_CAUSE: Final = re.compile(r"^Caused by: (.+)$", re.MULTILINE)
"""The innermost comes last."""


def document_error(name: str, error: Exception) -> DefiniteError | None:
    """The document's error that a Spark failure stands for; None where it is not the document's."""
    for found in _CONDITION.finditer(str(error)):
        if found["state"][:2] in {"22", "42"} and not found["condition"].startswith("DELTA_"):
            said = " ".join(found["said"].split())
            return DefiniteError(
                f"[{found['condition']}] {said[:_LENGTH]}{'…' if len(said) > _LENGTH else ''}",
                code="document-failed",
                where=name,
                remedy="correct the expression in the document file, or the value at the source",
            )
    return None


def unknown_error(name: str, error: Exception) -> DefiniteError:
    """The document's error where its build failed twice for a reason that no rule knows."""
    said = " ".join(str(error).strip().partition("\n")[0].split())
    cause = _CAUSE.findall(str(error))
    if cause and cause[-1] not in said:
        said = f"{said} … {cause[-1]}"
    return DefiniteError(
        f"{type(error).__name__}: {said[:_LENGTH]}",
        code="document-failed",
        where=name,
        remedy="see the message: either an expression fails on some value, or files of a table "
        "cannot be read (smelt rebuild FILE silver TABLE); it was tried twice, and is "
        "retried with the next change",
    )


def condition(error: Exception) -> str:
    """A failure in a few words: its condition, else its first line."""
    found = _CONDITION.search(str(error))
    return found["condition"] if found else str(error).strip().partition("\n")[0][:_LENGTH]
