"""Which exceptions Spark raises, and what they say of the session: broken, ended, or out of reach.

PySpark turns only some of a JVM's exceptions into its own; the others are those of Py4J. A session at a Spark
Connect server raises PySpark's alone, and the client may come without Py4J. Nothing here starts Spark.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from deltasmelt.bronze.errors import causes

SESSION_ENDED: Final = ("INVALID_HANDLE.SESSION_", "NO_ACTIVE_SESSION")
"""How conditions begin that say that a session at a server has ended: the server's, and the client's once it
knows."""
_CONNECT: Final = "pyspark.errors.exceptions.connect"
"""Module of the exceptions of Spark Connect."""
_GRPC: Final = "grpc."
"""Module of what the client leaves as it is: the error of a request to clone a session."""
_OF_GRPC: Final = re.compile(r'RPC that terminated with:\s+status = (\S+)\s+details = "([^"\n]*)')


def spark_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """Return the classes of what a failed statement raises, and `more`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a lake of files needs no Spark

    py4j: Any = sys.modules.get("py4j.protocol")  # pyspark loads it, where it has it
    return (PySparkException, *more) if py4j is None else (PySparkException, py4j.Py4JJavaError, *more)


def of_grpc(error: BaseException) -> tuple[str, str] | None:
    """Return status and words of a request that failed on its way to a server; None where Spark answered."""
    found = _OF_GRPC.search(str(error)) if type(error).__module__.startswith((_CONNECT, _GRPC)) else None
    return None if found is None else (found[1].removeprefix("StatusCode."), found[2])


def is_broken(error: BaseException) -> bool:
    """Check whether an error is one of the connection to the JVM: the JVM has ended, or cannot be reached.

    A connection that breaks while an answer is awaited raises a bare `Py4JError` without a cause. A broken
    pipe is no such error: the process that reads our output raises it.
    """
    py4j: Any = sys.modules.get("py4j.protocol")
    broken = () if py4j is None else (py4j.Py4JNetworkError, ConnectionRefusedError, ConnectionResetError)
    return isinstance(error, broken) or (py4j is not None and type(error) is py4j.Py4JError)


def is_lost(error: BaseException) -> bool:
    """Check whether an error, or a cause of it, says that the server no longer has its session."""
    found: list[Any] = [*causes(error, hidden=True)]
    of_connect = (one for one in found if type(one).__module__.startswith(_CONNECT))
    return any((one.getCondition() or "").startswith(SESSION_ENDED) for one in of_connect)


def is_out_of_reach(error: BaseException) -> bool:
    """Check whether the server has lost the session, or could not be reached as long as the client tried."""
    of_request = of_grpc(error)
    return is_lost(error) or (of_request is not None and of_request[0] == "UNAVAILABLE")
