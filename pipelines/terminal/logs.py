"""The log files: deltasmelt's own log, and the output of Spark and its JVM.

Each pipeline has one folder below the user's state folder, or below the folder in ``SMELT_LOGS``. All
processes of a pipeline share `smelt.log` (each line names its process). Spark has a file for each JVM,
because log4j shares no file. A start removes old files of ended processes, so files never pile up.

`SharedLog` rotates `smelt.log` by size, also in a process of many months, and `conf/log4j2.properties`
rotates Spark's file. Both files may quote values and names of the source, so only their account can read
them.
"""

from __future__ import annotations

import fcntl
import functools
import logging
import os
import tempfile
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import IO, Any, Final

from deltasmelt.pipelines.private import own_folder, unread_folder
from deltasmelt.pipelines.terminal import output
from deltasmelt.pipelines.terminal.failures import without_secrets
from deltasmelt.pipelines.terminal.visible import visible

_LARGEST: Final = 10_000_000
_OLDER: Final = 3
"""Number of rotated files beside the present file."""
_SPARK_FILES: Final = 10
_FORMAT: Final = "%(asctime)s %(levelname)s %(process)d %(name)s: %(message)s"


def log_folder(pipeline: str) -> Path:
    """Return the folder of a pipeline's log files; make a missing folder."""
    configured = os.environ.get("SMELT_LOGS")
    base = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    folder = (Path(configured) if configured else Path(base) / "deltasmelt") / pipeline
    try:
        unread_folder(folder)
    except OSError:  # a job's account often has no home that it may write to
        folder = _temporary() / pipeline
        unread_folder(folder)
    return folder


@functools.cache
def _temporary() -> Path:
    """Return a private folder below a folder writable by all accounts; refuse another account's folder."""
    folder = Path(tempfile.gettempdir()) / f"deltasmelt-{os.geteuid()}"
    return folder if own_folder(folder) else Path(tempfile.mkdtemp(prefix=f"{folder.name}-"))


def spark_log(pipeline: str) -> Path:
    """Return a new log file for this process's Spark; keep the newest few files of ended processes."""
    folder = log_folder(pipeline)
    dated = []
    for path in folder.glob("spark-*.log*"):  # each with the older half that log4j put aside
        if _is_running(path):
            continue
        try:
            dated.append((path.stat().st_mtime, path))
        except FileNotFoundError:  # another process removes old files at the same moment
            continue
    for _, path in sorted(dated)[: -_SPARK_FILES + 1]:
        path.unlink(missing_ok=True)
    return folder / f"spark-{os.getpid()}.log"


def _is_running(log: Path) -> bool:
    """Check whether the process in the file's name lives; the process may be idle for days."""
    number = log.name.removeprefix("spark-").partition(".")[0]
    if not number.isdecimal():
        return False
    try:
        os.kill(int(number), 0)
    except PermissionError:  # another account's
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True


def open_log(path: str | Path, mode: str = "a") -> IO[Any]:
    """Open a log file for writing; no other account can read the file, whatever its mode was before."""
    number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(number, 0o600)
    except OSError:  # another account's, or a file system without modes
        logging.getLogger("deltasmelt").debug("the mode of %s is not changed", path)
    return os.fdopen(number, mode, encoding=None if "b" in mode else "utf-8")


class SharedLog(RotatingFileHandler):
    """A log file with several writing processes, any of which rotates the file.

    A process whose file has lost the name continues in the new file. Each line is written whole, at the
    file's end; a line during a rotation goes to the old file.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=_LARGEST, backupCount=_OLDER, encoding="utf-8")

    def _open(self) -> Any:
        return open_log(self.baseFilename, self.mode)

    def shouldRollover(self, record: logging.LogRecord) -> bool:  # noqa: N802 - its interface
        """Check whether the file is too long, after a switch to the file with the name."""
        self._follow()
        return bool(super().shouldRollover(record))

    def doRollover(self) -> None:  # noqa: N802 - its interface
        """Rotate, unless another process just rotated."""
        with open_log(f"{self.baseFilename}.lock") as lock:
            try:
                # Another process may rotate the file at the same moment, so lock and then check again.
                fcntl.flock(lock, fcntl.LOCK_EX)
            except OSError:  # a file system without locks: at worst a file is rotated twice
                logging.getLogger("deltasmelt").debug("no lock on %s", lock.name)
            if not self._follow():
                super().doRollover()

    def _follow(self) -> bool:
        """Switch to the file with the name; return whether the file is a new one."""
        if self.stream is None:
            return False
        try:
            if os.path.samestat(Path(self.baseFilename).stat(), os.fstat(self.stream.fileno())):
                return False
        except FileNotFoundError:  # removed by another process; `_open` makes a new file
            pass
        self.stream.close()
        self.stream = self._open()
        return True


class _WithoutSecrets(logging.Formatter):
    """Formatter against quoted connection strings, in a message or in a traceback of a foreign error.

    Only the first line of a record begins at the margin, so no message can imitate a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return visible(without_secrets(super().format(record))).replace("\n", "\n  ")


class _JsonLines(logging.Formatter):
    """Formatter with one JSON object per line, filtered as above."""

    def format(self, record: logging.LogRecord) -> str:
        trace = self.formatException(record.exc_info) if record.exc_info else None
        message = without_secrets(record.getMessage())
        return output.logged(record, message, None if trace is None else without_secrets(trace))


def start_logging(pipeline: str) -> Path:
    """Send Python's logging to the pipeline's `smelt.log`; return the file."""
    path = log_folder(pipeline) / "smelt.log"
    handler = SharedLog(path)
    handler.setFormatter(_JsonLines() if output.as_json() else _WithoutSecrets(_FORMAT))
    root = logging.getLogger()
    root.addHandler(handler)
    root.setLevel(logging.WARNING)
    logging.getLogger("deltasmelt").setLevel(logging.INFO)
    logging.captureWarnings(capture=True)
    return path
