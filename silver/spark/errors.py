"""Failures of the lake's storage and of the network to it, apart from those of a statement. Needs no Spark.

A store that is out of reach, throttles or has no room raises in whatever statement is under way. It is an
`OSError` (delta-rs, Arrow), delta-rs's own error with the store's text, or a Spark exception whose causes
have it. Spark's error conditions do not tell it from a damaged file: ``FAILED_READ_FILE`` and
``TASK_WRITE_FAILED`` wrap both. So the classes of the causes decide, which are documented by Hadoop's file
systems, the stores' SDKs and Java's network. Where a class is used for more than that, its message decides.

A file that is missing, or has wrong content, is none of these. A bucket that is missing is one: it was there
when the command started (`bronze.lake.failures.lake_opened`).

On a cluster, executors are lost with the rows that they kept, and a statement that needs them fails. That
says nothing of a table either, and is told apart from the storage (`lost_executor`): its remedy is another.
Nor does a request to a Spark Connect server that fails on its way (`silver.spark.errors`).

What a failed statement of Spark raises, with a JVM of ours and without one.

PySpark turns only some of a JVM's exceptions into its own; the others are those of Py4J. A session at a Spark
Connect server raises PySpark's alone, and the client may come without Py4J.
"""

from __future__ import annotations

import errno
import re
import sys
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from deltasmelt.bronze.errors import TransientError, causes
from deltasmelt.bronze.lake.catalog.session import SESSION_ENDED
from deltasmelt.bronze.lake.client import DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.failures import lacks_bucket, words_of

if TYPE_CHECKING:
    from collections.abc import Hashable

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


_ERRNOS: Final = frozenset(
    {
        errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EDQUOT,
        errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.EIO, errno.EMFILE, errno.ENETDOWN, errno.ENETRESET,
        errno.ENETUNREACH, errno.ENFILE, errno.ENOSPC, errno.ENOTCONN, errno.EPIPE, errno.EREMOTEIO,
        errno.ESTALE, errno.ETIMEDOUT,
    }
)  # fmt: skip
_CLASSES: Final = frozenset(
    {
        # java.net, javax.net.ssl, java.io
        "BindException", "ConnectException", "HttpConnectTimeoutException", "HttpTimeoutException",
        "InterruptedIOException", "NoRouteToHostException", "PortUnreachableException",
        "SSLHandshakeException", "SocketException", "SocketTimeoutException", "UnknownHostException",
        # Apache's HTTP client
        "ConnectTimeoutException", "ConnectionClosedException", "ConnectionPoolTimeoutException",
        "ConnectionRequestTimeoutException", "HttpHostConnectException", "NoHttpResponseException",
        # Hadoop's S3A and the SDK below it
        "AWSApiCallTimeoutException", "AWSServiceThrottledException", "AWSStatus500Exception",
        "ApiCallAttemptTimeoutException", "ApiCallTimeoutException", "HttpChannelEOFException",
        "NoSuchBucketException", "RetryableException", "SdkClientException", "UnknownStoreException",
        # HDFS
        "RetriableException", "SafeModeException", "StandbyException",
    }
)  # fmt: skip
"""Simple names of Java's exceptions that say by themselves that the store, or the network to it, is down."""
_GENERAL: Final = frozenset(
    {
        "AWSClientIOException", "AWSRedirectException", "AWSS3IOException", "AWSServiceIOException",
        "AbfsRestOperationException", "AmazonS3Exception", "AzureException", "FSError",
        "FileSystemException", "GoogleJsonResponseException", "HttpResponseException", "IOException",
        "S3Exception", "StorageException", "TokenResponseException", "UncheckedIOException",
    }
)  # fmt: skip
"""Those whose message says it."""
_SAID: Final = re.compile(
    r"""no\ space\ left|disk\ quota\ exceeded|input/output\ error|stale\ (?:nfs\ )?file\ handle
    |too\ many\ open\ files|transport\ endpoint\ is\ not\ connected
    |connection\ (?:reset|refused|closed|aborted|timed\ out|error)|broken\ pipe|timed\ out|\btimeout\b
    |network\ is\ (?:unreachable|down)|no\ route\ to\ host|host\ is\ down
    |name\ resolution|dns\ error|unknown\ host|failed\ to\ lookup\ address|error\ sending\ request
    |slow\ ?down|too\ many\ requests|service\ ?unavailable|internal\ server\ error|bad\ gateway
    |(?:status(?:\ code)?|http(?:/[\d.]+)?|error|response)[\ :="]*(?:429|500|502|503|504)\b
    |\b(?:429|500|502|503|504)(?:\ [A-Z][a-z]+|,\ [A-Z]{3,})
    |request\ limit|server\ is\ (?:currently\ )?busy|ServerBusy|OperationTimedOut""",
    re.IGNORECASE | re.VERBOSE,
)
_RAISED: Final = re.compile(r"^(?:Caused by: |: )?(?:[a-z]\w*\.)+(?:\w+\$)*(\w+)(?:: (.*))?$", re.MULTILINE)
"""A line of Java's that names an exception, with its message; frames begin with a tab."""
_LOST: Final = re.compile(
    r"ExecutorLostFailure \(executor |\[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND\]|FetchFailed\(BlockManagerId"
    r"|spark\.shuffle\.\w*FetchFailedException|\) has failed the maximum allowable number of times"
)
"""What Spark says where an executor, or what it kept, is gone."""
LOST: Final = "an executor of Spark was lost: "
"""What `outage` says begins so where that is the cause."""
_LENGTH: Final = 300
_CYCLES: Final = 5
"""That failures of the storage may end; with the pauses between them half a minute."""
_Key = TypeVar("_Key", bound="Hashable")


class Patience(Generic[_Key]):
    """For how many cycles all wait for one that meets such a failure in each, while the lake answers."""

    def __init__(self) -> None:
        self._ended: dict[_Key, int] = {}

    def waits(self, key: _Key) -> bool:
        """One more cycle met it; whether all wait once more. If not, the cause is its own after all."""
        seen = self._ended.get(key, 0)
        self._ended[key] = seen + 1
        return seen < _CYCLES

    def passed(self, key: _Key) -> None:
        """It went through, or it no longer matters."""
        self._ended.pop(key, None)


def outage(error: BaseException) -> str | None:
    """What a failure says of the storage, the network to it, or the cluster; None where it is about none."""
    if (lost := lost_executor(error)) is not None:
        return lost
    for one in causes(error):
        if isinstance(one, TransientError):
            return one.message
        if (of_request := of_grpc(one)) is not None:
            return f"Spark Connect, {of_request[0]}: {of_request[1]}"[:_LENGTH]
        said = _of_delta_rs(one) if isinstance(one, OSError | DeltaError) else _java(one)
        if said is not None:
            return said
    return None


def lost_executor(error: BaseException) -> str | None:
    """What a failure says of an executor that is gone; None where it is about something else.

    Before the network: a task that cannot fetch what the executor had names a connection that was refused.
    """
    for one in causes(error):
        if isinstance(one, DeltaError | OSError):
            continue
        said = f"{one}\n{_stack(one)}"
        if (found := _LOST.search(said)) is not None:
            line = said[said.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            return f"{LOST}{' '.join(line.split())}"[:_LENGTH]
    return None


def _stack(error: BaseException) -> str:
    """The causes in the JVM, which Spark Connect has under another name."""
    return getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None) or ""


def _of_delta_rs(error: OSError | DeltaError) -> str | None:
    if lacks_bucket(error):  # also where a file is what was not found
        return _short(error, words_of(error))
    if isinstance(error, TableNotFoundError | FileNotFoundError | PermissionError):
        return None
    number = error.errno if isinstance(error, OSError) else None
    if number in _ERRNOS or (number is None and _SAID.search(str(error))):
        return _short(error, words_of(error))
    return None


def _java(error: BaseException) -> str | None:
    """Of an exception of the JVM the first of its causes that says so; its text has all of them."""
    text = f"{error}\n{_stack(error)}"
    for found in _RAISED.finditer(text):
        name, said = found[1], found[2] or ""
        if name in _CLASSES or (name in _GENERAL and _SAID.search(said)):
            return f"{name}: {said}"[:_LENGTH].rstrip(": ")
    return None


def _short(error: BaseException, said: str) -> str:
    return f"{type(error).__name__}: {' '.join(said.split())}"[:_LENGTH]
