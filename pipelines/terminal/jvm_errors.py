"""Turn errors of Spark into text that outlives Spark's JVM.

An exception of pyspark or Py4J requests its text from the JVM for each print. Once the session is stopped, or
the JVM has died, printing fails instead, and the cause is lost, on the terminal and in the log. So callers
turn the error into text before they stop a session. An error of Spark Connect already includes its text, but
gets an equal form, and both kinds are reported alike.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lake.spark_errors import message_of

if TYPE_CHECKING:
    from pyspark.errors import PySparkException


_CONVERTED: Final = (
    ("py4j.protocol", "Py4JJavaError"),
    ("pyspark.errors.exceptions.captured", "CapturedException"),
    ("pyspark.errors.exceptions.connect", "SparkConnectException"),
)
"""Modules and classes of exceptions from a JVM, on this machine or at a server."""

_DEEPEST: Final = 20
"""Number of causes to read: a chain of causes may be a ring."""


class SparkFailure(Exception):  # noqa: N818 - any exception of the JVM
    """Name and message of an exception of Spark."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, str(self))


def in_words(error: BaseException) -> BaseException:
    """Return the error, and the errors behind it, in a form that prints without a JVM.

    An error without a link to the JVM is returned as the same object.
    """
    return _in_words(error, {})


def _in_words(error: BaseException, known: dict[int, BaseException]) -> BaseException:
    if id(error) in known:
        return known[id(error)]
    failure = known[id(error)] = _failure(error) if _is_of_spark(error) else error
    behind = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if behind is None:
        failure.__suppress_context__ = failure.__suppress_context__ or failure is not error
        return failure
    cause = _in_words(behind, known)
    if failure is not error or cause is not behind:
        # Without a cause, a raise in a handler would add the unconverted error as context.
        failure.__cause__ = cause
    return failure


def _is_of_spark(error: BaseException) -> bool:
    if "pyspark" not in sys.modules:
        return False
    return any(
        isinstance(error, getattr(sys.modules[module], name))
        for module, name in _CONVERTED
        if module in sys.modules
    )


def _failure(error: BaseException) -> SparkFailure:
    failure = SparkFailure(type(error).__name__, message_of(error))
    stack = getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None)
    if stack and stack not in str(failure):
        failure.add_note(f"JVM stacktrace:\n{stack}")
    return failure.with_traceback(error.__traceback__)


def spark_message(error: PySparkException | SparkFailure) -> str:
    """Return Spark's message with the statement's position, without plan and stack."""
    lines = []
    for line in str(error).strip().splitlines():
        if line.startswith(("'", "+-", "\tat ", "JVM stacktrace", "Caused by")):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def root_message(error: Any) -> str:
    """Return the innermost message of Spark in a `Py4JJavaError`, and the cause behind it, in one line.

    A failure of streamed rows is inside wrappers, and a wrapper only reports a wait. Spark's own messages
    begin with a condition in brackets. A cause from outside Spark gets its class name as a prefix, because
    the message alone may be only a name.
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
