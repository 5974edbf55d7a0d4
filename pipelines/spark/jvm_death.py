"""Report a JVM that ended during a call, with the reason from its exit code and its log.

A call into an ended JVM only raises an error of the connection, in whatever code made the call. A Spark
Connect server that is unreachable, or has ended the session, is reported alike, in gRPC's words.
"""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, SmeltError, causes
from deltasmelt.bronze.lake.spark_errors import is_broken, is_lost
from deltasmelt.pipelines.spark.remote import address_of, host_of, lost_server
from deltasmelt.pipelines.spark.session import DEFAULT_HEAP
from deltasmelt.silver.spark.access import jvm_process

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

CODE: Final = "spark-died"
_OUT_OF_MEMORY: Final = (3, 52)
"""Exit codes: of `ExitOnOutOfMemoryError` (`pipelines.spark.launch`), and of Spark for a task."""
_KILLED: Final = -9
_SECONDS: Final = 5.0
"""Seconds to wait for the end of a process whose connection is already broken."""
_TAIL: Final = 65_536
_SAID: Final = "java.lang.OutOfMemoryError"
_SILENT: Final = (
    "Spark no longer answers: its JVM has ended, or cannot be reached",
    "read the log of the Spark application, then start the command again",
)


@contextmanager
def death_reported(settings: Mapping[str, str], log: Path) -> Iterator[None]:
    """Raise the block's error, or ``spark-died`` if the JVM has ended.

    Raises:
        DefiniteError: the JVM ended, or does not answer.
    """
    try:
        yield
    except Exception as error:
        death_error = death(error, settings, log)
        if death_error is None:
            raise
        raise death_error from error


def death(error: BaseException, settings: Mapping[str, str], log: Path) -> DefiniteError | None:
    """Return the error for an ended JVM or server session; None if it lives, or for a different cause."""
    said = lost_server(error) or ("the session was closed" if is_lost(error) else None)
    if said is not None:
        return _error(
            f"the Spark Connect server no longer answers, or has ended the session: {said}",
            "check whether the server runs, then start the command again. No data is lost: the next start "
            "continues where the lake ends",
            host_of(address_of(settings) or ""),
        )
    process = jvm_process()
    broken = any(map(is_broken, causes(error, hidden=True)))
    if process is None:
        return _error(*_SILENT, log) if broken else None
    if broken:
        try:
            process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            return None
    code = process.poll()
    if code is None or (isinstance(error, SmeltError) and not broken):
        return None
    heap = settings.get("spark.driver.memory", DEFAULT_HEAP)
    if code in _OUT_OF_MEMORY or (code != _KILLED and _SAID in _end_of(log)):
        what = f"the JVM of Spark ran out of memory, with a heap of {heap}"
        remedy = (
            "set a larger heap in the pipeline file, spark: {spark.driver.memory: …}, if the machine has "
            "the memory; or make documents smaller (`limit`, `cap`, counts instead of arrays)"
        )
    elif code == _KILLED:
        what = "the JVM of Spark was killed (signal 9); the operating system does this when memory runs out"
        remedy = (
            f"leave more memory for the JVM: with a heap of {heap} (spark.driver.memory) it needs about 1.5 "
            "times as much in all"
        )
    else:
        what = f"the JVM of Spark ended ({_how(code)})"
        remedy = "read the log named above, then start the command again"
    return _error(what, f"{remedy}. No data is lost: the next start continues where the lake ends", log)


def _error(message: str, remedy: str, where: Path | str) -> DefiniteError:
    return DefiniteError(message, code=CODE, where=str(where), remedy=remedy)


def _how(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _end_of(log: Path) -> str:
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL))
            return file.read().decode(errors="replace")
    except OSError:
        return ""
