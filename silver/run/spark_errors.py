"""What a failed statement of Spark raises, with a JVM of ours and without one.

PySpark turns only some of a JVM's exceptions into its own; the others are those of Py4J. A session at a Spark
Connect server raises PySpark's alone, and the client may come without Py4J.
"""

from __future__ import annotations

import re
import sys
from typing import Any, Final

from bronze.errors import causes
from bronze.lake.named.session import SESSION_ENDED

_CONNECT: Final = "pyspark.errors.exceptions.connect"
"""Module of the exceptions of Spark Connect."""

_GRPC: Final = "grpc."
"""Module of what the client leaves as it is: the error of a request to clone a session."""

_OF_GRPC: Final = re.compile(r'RPC that terminated with:\s+status = (\S+)\s+details = "([^"\n]*)')


def spark_errors(*more: type[Exception]) -> tuple[type[Exception], ...]:
    """The classes of what a failed statement raises, and `more`."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - a cycle that folds nothing loads no Spark

    py4j: Any = sys.modules.get("py4j.protocol")  # pyspark loads it, where it has it
    return (PySparkException, *more) if py4j is None else (PySparkException, py4j.Py4JJavaError, *more)


def of_grpc(error: BaseException) -> tuple[str, str] | None:
    """Status and words of a request to a server that failed on its way; None where Spark has answered."""
    found = _OF_GRPC.search(str(error)) if type(error).__module__.startswith((_CONNECT, _GRPC)) else None
    return None if found is None else (found[1].removeprefix("StatusCode."), found[2])


def is_lost(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that the server no longer has its session."""
    found: list[Any] = [*causes(error, hidden=True)]
    of_connect = (one for one in found if type(one).__module__.startswith(_CONNECT))
    return any((one.getCondition() or "").startswith(SESSION_ENDED) for one in of_connect)


def is_out_of_reach(error: BaseException) -> bool:
    """Whether the server has lost the session, or could not be reached as long as the client tried."""
    of_request = of_grpc(error)
    return is_lost(error) or (of_request is not None and of_request[0] == "UNAVAILABLE")
