"""What a failed Spark statement says about a document.

Spark tells its errors by SQLSTATE. Class 22 (a value that cannot be computed) and class 42 (a query that is
not well-formed) are the document's own, whether they come as Spark's error or deep inside a task's. Anything
else (a disk, memory, a lost executor) is nothing that a document file could mend.
"""

from __future__ import annotations

import re
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from bronze.errors import DefiniteError

SPARK_ERRORS: Final[tuple[type[Exception], ...]] = (PySparkException, Py4JJavaError)
"""What a failed statement raises: PySpark turns only some of the JVM's exceptions into its own."""

_CONDITION: Final = re.compile(
    r"\[(?P<condition>[A-Z][A-Z0-9_.]+)\] (?P<said>.*?) SQLSTATE: (?P<state>\w{5})", re.DOTALL
)
_LENGTH: Final = 300


def document_error(name: str, error: Exception) -> DefiniteError | None:
    """The document's error that a Spark failure stands for; None where it is not the document's."""
    for found in _CONDITION.finditer(str(error)):
        if found["state"][:2] in {"22", "42"}:
            said = " ".join(found["said"].split())
            return DefiniteError(
                f"[{found['condition']}] {said[:_LENGTH]}{'…' if len(said) > _LENGTH else ''}",
                code="document-failed",
                where=name,
                remedy="correct the expression in the document file, or the value at the source",
            )
    return None


def condition(error: Exception) -> str:
    """A failure in a few words: its condition, else its first line."""
    found = _CONDITION.search(str(error))
    return found["condition"] if found else str(error).strip().partition("\n")[0][:_LENGTH]
