"""Exceptions of Spark, and the session state behind an exception: broken, ended or out of reach.

PySpark converts only some of a JVM's exceptions into its own classes; the rest are Py4J's. A session at a
Spark Connect server raises only PySpark's classes, and this client may be installed without Py4J. No function
here starts Spark.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from deltasmelt.bronze.errors import SmeltError, causes
from deltasmelt.bronze.lake.place import without_keys

# Prefixes of the error conditions of an ended session: first the server's, then the client's.
SESSION_ENDED: Final = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION")
# Module of the exceptions of Spark Connect.
_CONNECT: Final = "pyspark.errors.exceptions.connect"
# Module of exceptions that the client does not convert: the error of a request to clone a session.
_GRPC: Final = "grpc."
_LENGTH: Final = 300
_CONDITION: Final = re.compile(r"\[([A-Z0-9.]+_[A-Z0-9_.]+)\] (.*?)(?: SQLSTATE:|\n\s*at |\Z)", re.DOTALL)
# Exceptions of the JVM as printed by Py4J, the innermost last; a message may have such lines, too.
_THROWN: Final = re.compile(r"^(?:Caused by: |: )((?:[a-z]\w*\.)+\w+.*)$", re.MULTILINE)
_OF_GRPC: Final = re.compile(r'RPC that terminated with:\s+status = (\S+)\s+details = "([^"\n]*)')


def spark_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the exception classes of a failed statement, and `more`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a lake of files needs no Spark

    py4j: Any = sys.modules.get("py4j.protocol")  # pyspark loads it, where it has it
    return (PySparkException, *more) if py4j is None else (PySparkException, py4j.Py4JJavaError, *more)


def of_grpc(error: BaseException) -> tuple[str, str] | None:
    """Return status and details of a request that failed before reaching Spark; None if Spark answered."""
    found = _OF_GRPC.search(str(error)) if type(error).__module__.startswith((_CONNECT, _GRPC)) else None
    return None if found is None else (found[1].removeprefix("StatusCode."), found[2])


def message_of(error: BaseException) -> str:
    """Return an exception's message, also when the JVM behind a `Py4JJavaError` has ended.

    Py4J reads the message of such an exception from the JVM, at each conversion to text.
    """
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a call into an ended JVM raises any error
        return str(getattr(error, "_desc", None) or getattr(error, "errmsg", None) or "the message is lost")


def cause_of(error: BaseException) -> str:
    """Return the message of Spark, or else of the JVM, for the innermost failure, in one line.

    For other errors return the class and the first line of the message; for this project's own errors the
    message alone.
    """
    if isinstance(error, SmeltError):
        return error.message
    message = message_of(error)
    conditions, thrown = _CONDITION.findall(message), _THROWN.findall(message)
    if (of_request := of_grpc(error)) is not None:
        text = ": ".join(of_request)
    elif conditions:
        condition, explanation = conditions[-1]
        text = f"[{condition}] {' '.join(explanation.split())}"
    elif thrown and message.startswith("An error occurred while calling"):
        text = thrown[-1]
    else:
        text = f"{type(error).__name__}: {message.strip().partition(chr(10))[0]}"
    text = without_keys(text)  # before the cut: a part of a key would no longer be found
    return text if len(text) <= _LENGTH else f"{text[:_LENGTH]}…"


def is_broken(error: BaseException) -> bool:
    """Check whether an error means that the JVM has ended or is unreachable."""
    py4j: Any = sys.modules.get("py4j.protocol")
    # No broken pipe: the reader of the program's output causes this error.
    broken = () if py4j is None else (py4j.Py4JNetworkError, ConnectionRefusedError, ConnectionResetError)
    # A connection that breaks during a call raises a bare `Py4JError` without a cause; a JVM that refuses a
    # call raises a bare `Py4JError` with its trace.
    bare = py4j is not None and type(error) is py4j.Py4JError
    return isinstance(error, broken) or (bare and "Trace:\n" not in str(error))


def is_lost(error: BaseException) -> bool:
    """Check whether an error or a cause of the error reports a lost session at the server."""
    found: list[Any] = [*causes(error, hidden=True)]
    of_connect = (one for one in found if type(one).__module__.startswith(_CONNECT))
    return any((one.getCondition() or "").startswith(SESSION_ENDED) for one in of_connect)


def is_out_of_reach(error: BaseException) -> bool:
    """Check whether the server has lost the session or stayed unreachable during all client retries."""
    of_request = of_grpc(error)
    return is_lost(error) or (of_request is not None and of_request[0] == "UNAVAILABLE")
