"""Errors of Spark as text that outlives its JVM.

An exception that pyspark or Py4J raised asks the JVM for its text each time it is printed. Once the session
is stopped, or the JVM has died, printing it fails instead. The cause is then lost, on the terminal as in the
log. So the error is turned into text before a session is stopped. One of Spark Connect has its text with it,
and is turned into the same, so that both are told alike.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from pyspark.errors import PySparkException


_TOLD: Final = (
    ("py4j.protocol", "Py4JJavaError"),
    ("pyspark.errors.exceptions.captured", "CapturedException"),
    ("pyspark.errors.exceptions.connect", "SparkConnectException"),
)
"""Modules and classes of exceptions that a JVM, here or at a server, has raised."""

_DEEPEST: Final = 20
"""Causes that are looked at: a chain may be a ring."""


class SparkFailure(Exception):  # noqa: N818 - it is whatever it was in the JVM
    """What an exception of Spark said.

    Attributes:
        name: of its class.
    """

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, str(self))


def in_words(error: BaseException) -> BaseException:
    """The error, and those behind it, with nothing left that needs a JVM to be printed.

    One that needs none stays the object that it is.
    """
    return _in_words(error, {})


def _in_words(error: BaseException, known: dict[int, BaseException]) -> BaseException:
    if id(error) in known:
        return known[id(error)]
    failure = known[id(error)] = _failure(error) if _asks_the_jvm(error) else error
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if behind is None:
        failure.__suppress_context__ = failure.__suppress_context__ or failure is not error
        return failure
    cause = _in_words(behind, known)
    if failure is not error or cause is not behind:
        # Raised again in a handler, it would get the error as it was for its context.
        failure.__cause__ = cause
    return failure


def _asks_the_jvm(error: BaseException) -> bool:
    if "pyspark" not in sys.modules:
        return False
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, name in _TOLD
        if module in sys.modules
    )


def _failure(error: BaseException) -> SparkFailure:
    failure = SparkFailure(type(error).__name__, _said(error))
    stack = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)
    if stack and stack not in str(failure):
        failure.add_note(f"JVM stacktrace:\n{stack}")
    return failure.with_traceback(error.__traceback__)


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - whatever a call into a JVM that is gone raises
        return str(getattr(error, "_desc", None) or getattr(error, "errmsg", None) or "its words are lost")


def spark_message(error: PySparkException | SparkFailure) -> str:
    """Spark's message without plan and stack; the statement's place is kept."""
    lines = []
    for line in str(error).strip().splitlines():
        if line.startswith(("'", "+-", "\tat ", "JVM stacktrace", "Caused by")):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def root_message(error: Any) -> str:
    """What a `Py4JJavaError` and its causes say, in a line: Spark's own innermost words, and what is behind.

    Rows that are streamed fail inside wrappers that only say that something was waited for. Spark's own words
    begin with a condition in brackets. What is not Spark's is named by its class: its message alone may be no
    more than a name.
    """
    message, behind, cause = "", "", error.java_exception
    for _ in range(_DEEPEST):
        if cause is None:
            break
        line = str(cause.getMessage() or "").partition("\n")[0]
        kind = str(cause.getClass().getSimpleName())
        if line.startswith("["):
            message, behind = line, ""
        else:
            behind = f"{kind}: {line}"
        cause = cause.getCause()
    return " ".join(filter(None, (message, f"({behind})" if message and behind else behind)))
