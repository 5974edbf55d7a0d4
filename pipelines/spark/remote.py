"""Connect to a session that runs outside this process: at a Spark Connect server, or on Databricks.

This process then starts no JVM, checks no Java and fetches no jar. The server has Delta and its own master,
memory and credentials. A setting that the server refuses keeps the server's value. For settings that decide
results, `silver.spark.semantics` and `silver.run.marks` handle the difference.

The address is `SPARK_REMOTE`_, or ``spark.remote`` of the pipeline file. The address may hold a token, so
messages name host and port alone. Spark's client repeats the unreadable part of an address in its errors,
even a token. So this module parses the address first.

.. _SPARK_REMOTE: https://spark.apache.org/docs/latest/spark-connect-overview.html
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, causes
from deltasmelt.bronze.lake.spark_errors import cause_of
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.tuning import on_databricks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

_LOGGER: Final = logging.getLogger("deltasmelt.session")

REMOTE: Final = "spark.remote"
VARIABLE: Final = "SPARK_REMOTE"

_ADDRESS: Final = re.compile(
    r"sc://(?P<host>(?:\[[0-9A-Fa-f:.]+\]|[^\s/;:@?#\[\]]+)(?::(?P<port>[0-9]{1,5}))?)"
    r"(?:/(?:;(?P<parameters>.*))?)?",
    re.DOTALL,
)
_PARAMETER: Final = re.compile(r"[^\s=/?#]+=[^\s=/?#]*")
_PORTS: Final = 65_535
_TRIES: Final = (3, 6)
"""Retries of the first request, and of later requests (for a minute); the default takes ten minutes."""

_LOST: Final = "INVALID_HANDLE"  # beginning of conditions for a session that the server has ended

_GONE: Final = ("UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED")
"""gRPC's status codes of a server that is unreachable, or refuses this client."""


def address_of(settings: Mapping[str, str]) -> str | None:
    """Return the address of a Spark Connect server; None without an address.

    Raises:
        ConfigurationError: the text is not an address of a server.
    """
    address = os.environ.get(VARIABLE) or settings.get(REMOTE)
    if not address:
        return None
    problem = problem_of(address)
    if problem is not None:
        raise _wrong_address(
            f"the address of the Spark Connect server is not valid: {problem}",
            "without a server, Spark runs on this machine",
        )
    return address


def problem_of(address: str) -> str | None:
    """Return why a text is no address of a Spark Connect server; None for an address. Pure.

    The reason repeats no part of the text.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None and not address.startswith("sc://"):
        return "the address does not begin with sc://"
    if found is None:
        return "the form is sc://HOST:PORT, followed by /;NAME=VALUE;NAME=VALUE if the address has parameters"
    if found["port"] is not None and int(found["port"]) > _PORTS:
        return f"the port is above {_PORTS}"
    # The client reads each parameter as a name and a value around its only ``=``.
    parameters = found["parameters"].split(";") if found["parameters"] else []
    for number, parameter in enumerate(parameters, 1):
        if _PARAMETER.fullmatch(parameter) is None:
            return (
                f"parameter {number} is not NAME=VALUE; in a value = is written as %3D, / as %2F, ? as %3F, "
                "# as %23, ; as %3B"
            )
    return None


def is_elsewhere(settings: Mapping[str, str]) -> bool:
    """Check whether Spark runs outside this process."""
    return on_databricks() or address_of(settings) is not None


def require_server(settings: Mapping[str, str], *, code: str, where: str, otherwise: str) -> None:
    """Require the address of a server on Databricks: the runtime gives the reader's process no session.

    Args:
        otherwise: what to do where no server can be named.

    Raises:
        ConfigurationError: the address is missing, or is no address of a server.
    """
    if address_of(settings) is None and on_databricks():
        raise ConfigurationError(
            "on Databricks the reader runs in its own process, which has no Spark session",
            code=code,
            where=where,
            remedy=f"{otherwise}, or set a Spark Connect server by {VARIABLE}",
        )


def remote_session(settings: Mapping[str, str]) -> SparkSession:
    """Return a session at the server, or Databricks's own session; keep an idle session alive.

    Raises:
        ConfigurationError: the client's packages are not installed, or the client refuses the address.
        DefiniteError: the server does not answer.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the reader must not load Spark

    address = address_of(settings)
    # gRPC's errors repeat the text that gRPC would print on the terminal.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        builder: Any = SparkSession.builder
        session: SparkSession = (builder if address is None else builder.remote(address)).getOrCreate()
    except ImportError as error:
        raise ConfigurationError(
            f"the client of Spark Connect is not installed: {str(error).partition(chr(10))[0]}",
            code="spark-missing",
            remedy="pip install 'deltasmelt[connect]'",
        ) from None
    except Exception as error:
        if address is None:
            raise
        # The client's text repeats values of the address.
        condition = getattr(error, "getCondition", lambda: None)() or type(error).__name__
        raise _wrong_address(
            f"the client of Spark Connect rejects the address of the server ({condition})",
            "use only parameters that Spark knows",
        ) from None
    if address is not None:
        _check_answers(session, address)
    access_of(session).keep()
    return session


def _wrong_address(message: str, remedy: str) -> ConfigurationError:
    return ConfigurationError(
        message,
        code="spark-remote",
        where=VARIABLE if os.environ.get(VARIABLE) else REMOTE,
        remedy=f"set a server, e.g. sc://spark.example.org:15002; {remedy}",
    )


def _check_answers(session: SparkSession, address: str) -> None:
    """Send a cheap request to the server, with few retries; refuse a server without an answer."""
    from pyspark.errors import PySparkException  # noqa: PLC0415 - as above
    from pyspark.sql.connect.client.retries import DefaultPolicy  # noqa: PLC0415

    remote: Any = session
    client = remote.client
    first, later = (DefaultPolicy(max_retries=tries) for tries in _TRIES)
    client.set_retry_policies([first])
    try:
        _LOGGER.info("Spark %s at %s", session.version, host_of(address))
    except PySparkException as error:
        session.stop()
        raise DefiniteError(
            f"the Spark Connect server does not answer: {cause_of(error)}",
            code="spark-remote",
            where=host_of(address),
            remedy=f"start the server, or correct {VARIABLE}; without {VARIABLE}, Spark runs on this machine",
        ) from None
    client.set_retry_policies([later])


def host_of(address: str) -> str:
    """Return host and port of an address, without further parts."""
    found = _ADDRESS.fullmatch(address)
    return found["host"] if found is not None else "Spark Connect"


def lost_server(error: BaseException) -> str | None:
    """Return the message, from an error or its causes, about an unreachable server or an ended session."""
    exceptions: Any = sys.modules.get("pyspark.errors.exceptions.connect")
    if exceptions is None:
        return None
    for one in causes(error, hidden=True):
        if not isinstance(one, exceptions.SparkConnectGrpcException):
            continue
        if (one.getCondition() or "").startswith(_LOST) or one.getGrpcStatusCode().name in _GONE:
            return cause_of(one)
    return None
