"""Turn a failed Spark statement into a document's error.

Spark names its errors by SQLSTATE. Class 22 (a value cannot be computed) and class 42 (a query is not
well-formed) are the document's own errors. Spark raises both directly, or a task's error contains them.

Any further failure may have a cause outside the document: a disk, memory, a lost executor, but also a Java
exception from an expression. The cycle retries the build once and then records the failure in the words of
the exception (`unknown_error`), so that all remaining documents continue.
"""

from __future__ import annotations

import re
from typing import Final

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.spark_errors import cause_of, message_of, spark_errors

SPARK_ERRORS: Final = spark_errors()  # exceptions that a failed statement raises

_CONDITION: Final = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9_.]+)\] (?P<said>.*?) SQLSTATE: (?P<state>\w{5})", re.DOTALL
)
_MISSING_FILE: Final = "42K03"
_LENGTH: Final = 300


def document_error(name: str, error: Exception) -> DefiniteError | None:
    """Return the document's error behind a Spark failure; None if the failure is not the document's."""
    for found in _CONDITION.finditer(message_of(error)):
        # An error of Delta (``DELTA_…``) or of a missing file concerns a table, not an expression.
        concerns_table = found["condition"].startswith("DELTA_") or found["state"] == _MISSING_FILE
        if found["state"][:2] in {"22", "42"} and not concerns_table:
            said = " ".join(found["said"].split())
            return DefiniteError(
                f"[{found['condition']}] {said[:_LENGTH]}{'…' if len(said) > _LENGTH else ''}",
                code="document-failed",
                where=name,
                remedy="correct the expression in the document file, or the value at the source",
            )
    return None


def unknown_error(name: str, error: Exception) -> DefiniteError:
    """Return the document's error after two failed builds for a reason that no rule knows."""
    return DefiniteError(
        cause_of(error),
        code="document-failed",
        where=name,
        remedy="see the message: an expression fails on a value, or files of a table cannot be read (smelt "
        "rebuild FILE silver TABLE). Gold has tried the build twice and retries with growing pauses",
    )
