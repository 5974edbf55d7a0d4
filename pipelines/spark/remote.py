"""A session that something else than this process runs: a Spark Connect server, or Databricks.

Then nothing is started here: no JVM, and so no Java is looked for and no jar is fetched. The server has Delta
and its own master, memory and credentials. A setting that it refuses is left as the server has it; what
matters of these is told apart by `silver.spark.semantics` and `silver.run.marks`.

The address is `SPARK_REMOTE`_, or ``spark.remote`` of the pipeline file. It may hold a token, so messages
name host and port alone. Spark's client repeats what it cannot read of an address, a token too. So it is read
here first. Of what the client still refuses no more is told than the name of its condition.

.. _SPARK_REMOTE: https://spark.apache.org/docs/latest/spark-connect-overview.html
"""

from __future__ import annotations

import logging
import os
import re
import sys
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, causes
from deltasmelt.bronze.lake.spark_errors import of_grpc
from deltasmelt.pipelines.terminal.jvm_errors import spark_message
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.connect import Connect
from deltasmelt.silver.spark.tuning import on_databricks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.errors import PySparkException
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
"""Of the first request, and of a later one, which is repeated for a minute. The client would take ten."""

_LOST: Final = "INVALID_HANDLE"
"""How conditions begin of requests for a session that the server no longer has."""

_GONE: Final = ("UNAVAILABLE", "UNAUTHENTICATED", "PERMISSION_DENIED")
"""What gRPC says of a server that cannot be reached, or no longer wants us."""


def address_of(settings: Mapping[str, str]) -> str | None:
    """The address of a Spark Connect server; None where none is named.

    Args:
        settings: the pipeline file's `spark` section.

    Raises:
        ConfigurationError: what is named is no address of one.
    """
    given = os.environ.get(VARIABLE)
    address = given or settings.get(REMOTE)
    if not address:
        return None
    problem = problem_of(address)
    if problem is not None:
        raise ConfigurationError(
            f"what names the Spark Connect server is no address of one: {problem}",
            code="spark-remote",
            where=VARIABLE if given else REMOTE,
            remedy="name a server, e.g. sc://spark.example.org:15002; without one, Spark runs here",
        )
    return address


def problem_of(address: str) -> str | None:
    """Why a text is no address of a Spark Connect server, without a word of it; None where it is one. Pure.

    The client reads it as a URL, and each parameter as a name and a value around its only ``=``.
    """
    found = _ADDRESS.fullmatch(address)
    if found is None and not address.startswith("sc://"):
        return "it does not begin with sc://"
    if found is None:
        return "it is not sc://HOST:PORT, with /;NAME=VALUE;NAME=VALUE after it where there are parameters"
    if found["port"] is not None and int(found["port"]) > _PORTS:
        return f"its port is above {_PORTS}"
    parameters = found["parameters"].split(";") if found["parameters"] else []
    for number, parameter in enumerate(parameters, 1):
        if _PARAMETER.fullmatch(parameter) is None:
            return (
                f"its parameter {number} is not NAME=VALUE; in a value = is written as %3D, / as %2F, ? as "
                "%3F, # as %23, ; as %3B"
            )
    return None


def is_elsewhere(settings: Mapping[str, str]) -> bool:
    """Whether something else than this process runs Spark."""
    return on_databricks() or address_of(settings) is not None


def require_server(settings: Mapping[str, str], *, code: str, where: str, otherwise: str) -> None:
    """See that on Databricks a server is named: the runtime gives the reader's process no session.

    Args:
        settings: the pipeline file's `spark` section.
        code: of the error.
        where: the key of the pipeline file that asks for a session.
        otherwise: what to do where no server can be named.

    Raises:
        ConfigurationError: there is none, or what is named is no address of one.
    """
    if address_of(settings) is None and on_databricks():
        raise ConfigurationError(
            "on Databricks the reader is a process beside the driver's, to which no Spark session is given",
            code=code,
            where=where,
            remedy=f"{otherwise}, or name a Spark Connect server by {VARIABLE}",
        )


def remote_session(settings: Mapping[str, str]) -> SparkSession:
    """A session at the server, or the one that Databricks gives; it is kept while it rests.

    Args:
        settings: the pipeline file's `spark` section.

    Raises:
        ConfigurationError: the client's packages are not installed, or it refuses the address.
        DefiniteError: the server does not answer.
    """
    from pyspark.sql import SparkSession  # noqa: PLC0415 - the reader must not load Spark

    address = address_of(settings)
    # What gRPC itself would print on the terminal is in the errors that it raises.
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
        raise _refused_address(error) from None
    access = access_of(session)
    if isinstance(access, Connect):
        if address is not None:
            _check_answers(session, address)
        access.keep()
    return session


def _refused_address(error: Exception) -> ConfigurationError:
    """What the client does not take of an address; its words repeat values."""
    condition = getattr(error, "getCondition", lambda: None)() or type(error).__name__
    return ConfigurationError(
        f"the client of Spark Connect does not take the address of the server ({condition})",
        code="spark-remote",
        where=VARIABLE if os.environ.get(VARIABLE) else REMOTE,
        remedy="name a server, e.g. sc://spark.example.org:15002, and only parameters that Spark knows",
    )


def _check_answers(session: SparkSession, address: str) -> None:
    """Ask the server something that costs nothing, and do not wait long for the answer.

    Raises:
        DefiniteError: there is none.
    """
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
            f"the Spark Connect server does not answer: {said_by(error)}",
            code="spark-remote",
            where=host_of(address),
            remedy=f"start it, or correct {VARIABLE}; without that, Spark runs on this machine",
        ) from None
    client.set_retry_policies([later])


def host_of(address: str) -> str:
    """Host and port of an address, without what else it may hold."""
    found = _ADDRESS.fullmatch(address)
    return found["host"] if found is not None else "Spark Connect"


def said_by(error: PySparkException) -> str:
    """The words of an error of a server, or of the way to it, in a line."""
    of_request = of_grpc(error)
    return spark_message(error).partition("\n")[0] if of_request is None else ": ".join(of_request)


def lost_server(error: BaseException) -> str | None:
    """What an error, or one that it came from, says of a server that is gone, or of our session there."""
    exceptions: Any = sys.modules.get("pyspark.errors.exceptions.connect")
    if exceptions is None:
        return None
    for one in causes(error, hidden=True):
        if not isinstance(one, exceptions.SparkConnectGrpcException):
            continue
        if (one.getCondition() or "").startswith(_LOST) or one.getGrpcStatusCode().name in _GONE:
            return said_by(one)
    return None
