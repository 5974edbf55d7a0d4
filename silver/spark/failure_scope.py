"""The scope of a failure: the unit at work (a table or a document), or more than the unit.

`FailedUnits` decides for silver's tables, gold's documents and the tables of maintenance:

* An error of every unit (`is_everyones`) is raised at once.
* A definite error (`silver.errors.definite`, `gold.builder.failures.document_error`) needs no second attempt:
  silver stops the table until a newer snapshot, gold pauses the document.
* Any further error is retried once, after all other units. So is an error that a user may repair in the lake,
  and a log that lacks a commit (`_RETRIED`). After a second failure, Spark and the lake must answer.
  Otherwise the failure is no unit's failure, and is raised. The unit's error is recorded before the unit
  pauses, so no unit rests without an open error: a kill or a failed record in between only brings the next
  attempt forward.
* An outage (`outage`) of storage, network or an executor: all units wait, and the caller repeats the cycle.
  If one unit fails in this way in more than `_CYCLES` cycles in a row while the lake answers, the failure
  counts as the unit's own, and all further units no longer wait.

The first pause lasts half a minute, and each further failure doubles the pause, up to ten minutes
(`bronze.backoff`). A new process knows no pause.

An unreachable, throttling or full store fails the running statement. The failure is an `OSError` (delta-rs,
Arrow), delta-rs's own error with the store's text, or a Spark exception with a cause of this kind. Spark's
error conditions do not separate the failure from a damaged file: ``FAILED_READ_FILE`` and
``TASK_WRITE_FAILED`` wrap both. So the classes of the causes decide, as Hadoop's file systems, the stores'
SDKs and Java's network document them. A missing file, or a file with wrong content, is no outage.
"""

from __future__ import annotations

import errno
import logging
import re
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TypeVar

from deltasmelt.bronze.backoff import Pauses
from deltasmelt.bronze.errors import SmeltError, TransientError, causes
from deltasmelt.bronze.lake.client import DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.failures import lacks_bucket, words_of
from deltasmelt.bronze.lake.leases import COMMIT_LOST, PUT_BACK
from deltasmelt.bronze.lake.spark_errors import cause_of, is_lost, is_out_of_reach, message_of, of_grpc
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.silver.spark.lazy_session import lazily
from deltasmelt.silver.spark.tuning import GUARDED

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.silver.spark.lazy_session import LazySession

_LOGGER: Final = logging.getLogger("deltasmelt.failures")
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
"""Simple names of Java's exceptions that alone prove an outage of the store or the network to the store."""
_GENERAL: Final = frozenset(
    {
        "AWSClientIOException", "AWSRedirectException", "AWSS3IOException", "AWSServiceIOException",
        "AbfsRestOperationException", "AmazonS3Exception", "AzureException", "FSError",
        "FileSystemException", "GoogleJsonResponseException", "HttpResponseException", "IOException",
        "S3Exception", "StorageException", "TokenResponseException", "UncheckedIOException",
    }
)  # fmt: skip
"""Simple names of exceptions whose message decides."""
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
"""A line of Java's stack trace with an exception's name and message; frames begin with a tab."""
_LOST: Final = re.compile(
    r"ExecutorLostFailure \(executor |\[CHECKPOINT_RDD_BLOCK_ID_NOT_FOUND\]|FetchFailed\(BlockManagerId"
    r"|spark\.shuffle\.\w*FetchFailedException|\) has failed the maximum allowable number of times"
)
"""Spark's messages about a lost executor, or about lost rows of an executor."""
EXECUTOR_LOST: Final = "executor-lost"
_LENGTH: Final = 300
_CYCLES: Final = 5
"""Number of cycles in which a storage failure may end; with the pauses in between, half a minute."""
_RETRIED: Final = frozenset({"table-failed", "catalog-name-taken", COMMIT_LOST, PUT_BACK})
"""Codes of definite errors that a second attempt may end."""
_Key = TypeVar("_Key", bound="Hashable")


class FailedUnits(Pauses[_Key]):
    """The failed units of one kind, each with its pause, and the decision about each failure.

    Args:
        meaning: returns the definite error behind a unit's exception; None where no rule knows the failure.
        record: records a unit's error before the unit pauses.
    """

    def __init__(
        self,
        spark: SparkSession | LazySession,
        lake: Lake,
        record: Callable[[_Key, Exception], None],
        meaning: Callable[[_Key, Exception], SmeltError | None] = lambda *_: None,
    ) -> None:
        super().__init__()
        self._spark = lazily(spark)
        self._lake = lake
        self._record = record
        self._meaning = meaning
        self._outages: Counter[_Key] = Counter()

    @property
    def owes_retry(self) -> bool:
        """Check whether the pause of any failed unit is over."""
        return any(not self.rests(key) for key in self)

    @contextmanager
    def attempting(
        self, key: _Key, undecided: dict[_Key, Exception], stop: Callable[[Exception], None]
    ) -> Iterator[None]:
        """Run a unit's work: `stop` receives a definite error, `undecided` any other error of the unit.

        An error that concerns every unit is raised.
        """
        try:
            yield
        except Exception as error:
            if is_everyones(error, self._spark):
                raise
            found = self._meaning(key, error)
            if found is not None and found.code not in _RETRIED:
                stop(error)
                return
            trace = None if isinstance(error, SmeltError) else error
            _LOGGER.warning("%s failed: %s", key, cause_of(error), exc_info=trace)
            undecided[key] = error

    def retry(
        self,
        undecided: Mapping[_Key, Exception],
        attempt: Callable[[Collection[_Key]], Mapping[_Key, Exception]],
    ) -> None:
        """Attempt units a second time, and `pause` the units whose errors `attempt` returns.

        Raises:
            Exception: the first error, where Spark does not answer; else as `pause`.
        """
        if not undecided:
            return
        first = next(iter(undecided.values()))
        # Before the attempt: the errors of an attempt without Spark hide the cause.
        if not answers(self._spark, after=first):
            raise first
        self.pause(attempt(undecided.keys()))

    def pause(self, failed: Mapping[_Key, Exception]) -> None:
        """Record the errors of units that have no further attempt, and pause the units.

        Raises:
            TransientError: the lake, or the network to the lake, does not answer.
            Exception: the first error, where Spark does not answer or the error concerns every unit.
        """
        if failed:
            self.require_answers(next(iter(failed.values())))
        waits: TransientError | None = None
        for key, error in failed.items():
            if (found := outage(error, self._lake)) is not None and self._outages[key] < _CYCLES:
                self._outages[key] += 1
                found.__cause__ = error
                waits = waits or found
                continue
            self._record(key, error)
            _LOGGER.warning("%s is retried in %.0f s", key, self.failed(key))
        if waits is not None:
            raise waits

    def passed(self, key: _Key) -> bool:
        """Forget the failures and outages of a unit; return whether the unit had failed."""
        self._outages.pop(key, None)
        return super().passed(key)

    def require_answers(self, error: Exception) -> None:
        """Check that Spark and the lake answer after an error; raises as `pause` does."""
        if is_everyones(error, self._spark) or not answers(self._spark, after=error):
            raise error
        try:
            open_existing(self._lake.uri("bronze", CHANGES))
        except Exception as unread:  # noqa: BLE001 - any error: the lake cannot be read
            raise unreachable(cause_of(unread), self._lake) from error


def outage(error: BaseException, lake: Lake | None = None) -> TransientError | None:
    """Return a failure of the storage, the network or the cluster; None for a different failure."""
    # First, because a task without a lost executor's rows reports a refused connection.
    if (lost := _lost_executor(error)) is not None:
        return TransientError(
            lost,
            code=EXECUTOR_LOST,
            where="Spark",
            remedy="see the cluster's log for the cause; if an executor had too little memory, raise "
            "spark.executor.memory",
        )
    words = next(filter(None, map(_of_storage, causes(error))), None)
    return None if words is None else unreachable(words, lake)


def unreachable(words: str, lake: Lake | None) -> TransientError:
    """Return the error of a lake that does not answer, or of the network to the lake."""
    return TransientError(
        f"the lake does not answer: {words}",
        code="lake-unreachable",
        where=None if lake is None else lake.label,
        remedy="check the store, the network to the store, its credentials and free space",
    )


def is_everyones(error: BaseException, spark: SparkSession | LazySession) -> bool:
    """Check, without a statement, whether an error concerns every unit, so that the caller raises the error.

    Such errors are a temporary failure, a failed start of Spark, a lost session, and a setting that the
    server forbids but no commit can do without.
    """
    if isinstance(error, SmeltError) and (isinstance(error, TransientError) or error.code == GUARDED):
        return True
    return error is lazily(spark).failure or is_out_of_reach(error)


def is_general(error: Exception, spark: SparkSession | LazySession) -> bool:
    """Check whether a failure concerns more than the unit at work: the storage, the cluster, or Spark."""
    return outage(error) is not None or not answers(spark, after=error)


def answers(spark: SparkSession | LazySession, *, after: BaseException | None = None) -> bool:
    """Check whether Spark answers: without an answer, a failure is no table's failure, and no retry helps."""
    # `after` may come from a sibling session: if the server ended the sibling, an answer of `spark` proves
    # nothing.
    if after is not None and is_lost(after):
        return False
    lazy = lazily(spark)
    # A session that never started caused no failure.
    if not lazy.started:
        return lazy.failure is None
    try:
        lazy.get().sql("SELECT 1").collect()
    except Exception:  # noqa: BLE001 - an error is the answer
        return False
    return True


def _of_storage(error: BaseException) -> str | None:
    """Return the message of a storage or network failure; None for any other error, causes left out."""
    if isinstance(error, TransientError):
        return error.message
    if (of_request := of_grpc(error)) is not None:
        return f"Spark Connect, {of_request[0]}: {of_request[1]}"[:_LENGTH]
    return _of_delta_rs(error) if isinstance(error, OSError | DeltaError) else _java(error)


def _lost_executor(error: BaseException) -> str | None:
    """Return a failure's message about a lost executor; None without a message."""
    for one in causes(error):
        if isinstance(one, DeltaError | OSError):
            continue
        said = f"{message_of(one)}\n{_stack(one)}"
        if (found := _LOST.search(said)) is not None:
            line = said[said.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            return f"an executor of Spark was lost: {' '.join(line.split())}"[:_LENGTH]
    return None


def _stack(error: BaseException) -> str:
    """Return the causes in the JVM, which Spark Connect stores under a different name."""
    return getattr(error, "_stackTrace", None) or getattr(error, "_stacktrace", None) or ""


def _of_delta_rs(error: OSError | DeltaError) -> str | None:
    # A missing bucket is an outage: it existed at the start of the command (`bronze.lake.failures`).
    if lacks_bucket(error):  # first: the error may be a FileNotFoundError
        return _short(error, words_of(error))
    if isinstance(error, TableNotFoundError | FileNotFoundError | PermissionError):
        return None
    number = error.errno if isinstance(error, OSError) else None
    if number in _ERRNOS or (number is None and _SAID.search(str(error))):
        return _short(error, words_of(error))
    return None


def _java(error: BaseException) -> str | None:
    """Return the first cause that proves an outage, from the text of a JVM exception."""
    text = f"{message_of(error)}\n{_stack(error)}"
    for found in _RAISED.finditer(text):
        name, said = found[1], found[2] or ""
        if name in _CLASSES or (name in _GENERAL and _SAID.search(said)):
            return f"{name}: {said}"[:_LENGTH].rstrip(": ")
    return None


def _short(error: BaseException, text: str) -> str:
    return f"{type(error).__name__}: {' '.join(text.split())}"[:_LENGTH]
