"""The parent's side of the reader process: start, events, restart, stop.

A definite error of the reader is raised here as the same error. The reader itself retries transient errors. A
reader that ends without an error message (killed, out of memory) is restarted after growing pauses: the
reader finds its position in bronze, so nothing is lost or duplicated. After a handful of such ends without
any progress in between, the run stops instead of hiding the fault.

A reader's progress report is no progress: each reader reports at its start, also a reader that dies at the
same transaction each time, while the slot retains WAL for the reader. Nor does the process's lifetime show
anything: a transaction with a quarter of an hour of reading may end the process each time. Progress means
that bronze holds more of the stream than ever before (`_progressed`).

A failure in the handling of a report ends the process and is raised by `check`. Otherwise nobody would read
the pipe any more, and the reader would block at its next report, alive to every observer. For the same reason
the thread that reads the pipe passes nothing on: a stopped terminal (Ctrl-S, a pager, a full pipe) blocks
every printing thread. Another thread passes on the newest report, and only the newest.

Loading the reader takes about a second of CPU, and so do a command's steps before the orders are known: the
pipeline file, the documents, the server's WAL position. So a command starts the process as its first act
(`loaded_reader`), and sends the orders later: one JSON line on the process's standard input. Measured: `smelt
bronze --until-caught-up` without changes took 3.3 s, and takes 2.3 s.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from typing import IO, TYPE_CHECKING, Any, Final

from deltasmelt.bronze.backoff import Backoff
from deltasmelt.bronze.errors import ConfigurationError, DefiniteError, SmeltError, TransientError
from deltasmelt.bronze.progress import Growth, is_under_way
from deltasmelt.pipelines.databricks_secrets import secret_values
from deltasmelt.pipelines.terminal import output
from deltasmelt.pipelines.terminal.logs import log_folder, open_log

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.pipelines.settings import Pipeline


def spawn(log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """Start a process of the reader, without orders; `log` receives the process's standard error."""
    # -P: nothing in the working folder, such as a `json.py` of the user, is imported instead of ours.
    command = [sys.executable, "-P", "-m", "deltasmelt.pipelines.runtime.reader_process"]
    paths = os.pathsep.join(path or "." for path in sys.path)
    return subprocess.Popen(  # noqa: S603 - ourselves
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        # Without a log, messages before the orders are lost: the process has done nothing then, and if the
        # process cannot be loaded, the next process, with a log, prints the same.
        stderr=subprocess.DEVNULL if log is None else log,
        env={**os.environ, "PYTHONPATH": paths},
        start_new_session=True,  # Ctrl-C reaches us; we then stop the reader in order
    )


def send_orders(
    process: subprocess.Popen[bytes],
    *,
    file: Path,
    text: str,
    log: Path,
    until: Lsn | None,
    as_json: bool = False,
) -> None:
    """Send a process its orders; do nothing for a dead process, which the caller's watch will notice.

    Args:
        process: process of the reader.
        file: the pipeline file.
        text: text of the file when the command read it.
        log: receives the process's standard error and stray prints.
        until: LSN of the reader's end, if any.
        as_json: write the log as lines of JSON.
    """
    end = None if until is None else str(until)
    # With the text of the pipeline file, a reader restarted after a change of the file (a ConfigMap, an
    # unfinished edit) has the lake and the slot locked by its parent.
    orders = {"file": str(file), "text": text, "log": str(log), "until": end, "json": as_json}
    # Only the process started by Databricks can read the secrets of Databricks, and no child process can. A
    # pipe shows them to nobody else.
    line = json.dumps({**orders, "secrets": secret_values()}).encode() + b"\n"
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # past the buffer, which would try again when it is closed
            while line:  # a signal may cut a write short
                line = line[os.write(process.stdin.fileno(), line) :]


@contextlib.contextmanager
def loaded_reader(*, needed: bool) -> Iterator[subprocess.Popen[bytes] | None]:
    """Yield a process that loads the reader meanwhile; end the process after the block in any case."""
    if not needed:
        yield None
        return
    with spawn() as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()


STOP_SECONDS: Final = 30.0
"""Time limit of the commit under way, from the request to end."""
REPORT_SECONDS: Final = 2.0
"""Time limit for the last reports of an ended reader; their receiver may block for ever."""
_SILENT_ENDS: Final = 5
_PAUSE_SECONDS: Final = 1.0
_LONGEST_PAUSE: Final = 10.0
_LOGGER = logging.getLogger("deltasmelt.run")


class ReaderProcess:
    """The reader of one pipeline as a child process.

    Args:
        pipeline: the pipeline.
        until: LSN of the reader's end, if any.
        on_progress: receives the reader's reports.
        loaded: process for the first start (`loaded_reader`).

    Attributes:
        finished: True after the reader reached its target and ended.
        restarts: number of restarts.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        *,
        until: Lsn | None = None,
        on_progress: Callable[[dict[str, Any]], None] | None = None,
        loaded: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._pipeline = pipeline
        self._loaded = loaded
        self._until = until
        self._on_progress = on_progress
        self._process: subprocess.Popen[bytes] | None = None
        self._listener: threading.Thread | None = None
        self._reporter: threading.Thread | None = None
        self._news = threading.Condition()
        self._newest: dict[str, Any] | None = None
        self._reporting = self._over = False
        self._error: Exception | None = None
        self._silent_ends = 0
        self._backoff = Backoff(_PAUSE_SECONDS, _LONGEST_PAUSE)
        self._growth = Growth()
        self._streamed = self._copied = self._copying = False
        self._start_again_at: float | None = None
        self._kill_at: float | None = None
        self._kill_level = logging.WARNING
        self.finished = False
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Process id of the running process."""
        return None if self._process is None else self._process.pid

    @property
    def alive(self) -> bool:
        """True while the process runs, and after its target; False before a restart."""
        process = self._process
        return self.finished or (process is not None and process.poll() is None)

    def start(self) -> None:
        """Start the process; the pipe to its standard input shows the process the parent's end."""
        path = log_folder(self._pipeline.pipeline) / "smelt.log"
        process, self._loaded = self._loaded, None
        if process is None:
            with open_log(path, "ab") as log:
                process = spawn(log)
        self._process = process
        file, text = self._pipeline.path, self._pipeline.text
        send_orders(process, file=file, text=text, log=path, until=self._until, as_json=output.as_json())
        self._streamed = self._copied = self._copying = False
        self._listener = threading.Thread(target=self._listen, args=(self._process,), daemon=True)
        self._listener.start()
        if self._on_progress is not None and self._reporter is None:
            self._reporter = threading.Thread(target=self._report, args=(self._on_progress,), daemon=True)
            self._reporter.start()

    def check(self) -> None:
        """Raise the reader's reported error; restart a reader that ended without an error.

        Raises:
            SmeltError: the reader's own error, or repeated ends without an error.
            Exception: a failure in the handling of a report.
        """
        if self._start_again_at is not None:
            if time.monotonic() >= self._start_again_at:
                self._start_again_at = None
                self.restarts += 1
                self.start()
            return
        process = self._process
        if process is None or self.finished or process.poll() is None:
            return
        self._await_reports()
        if process.stdin is not None:
            process.stdin.close()
        if self._error is not None:
            raise self._error
        if self.finished:
            return
        if self._progressed():
            self._silent_ends = 0
            self._backoff.worked()
        self._silent_ends += 1
        reason = (
            f"signal {-process.returncode}" if process.returncode < 0 else f"exit code {process.returncode}"
        )
        if self._silent_ends >= _SILENT_ENDS:
            raise DefiniteError(
                f"the reader process ended {self._silent_ends} times without an error message "
                f"(last: {reason})",
                code="reader-died",
                where=str(log_folder(self._pipeline.pipeline) / "smelt.log"),
                remedy="read the log named above; a common cause is too little memory. Until the reader "
                "runs, the slot holds back WAL at the server",
            )
        _LOGGER.warning(
            "the reader process ended with %s; restarting it (%d of %d ends without progress)",
            reason,
            self._silent_ends,
            _SILENT_ENDS,
        )
        self._start_again_at = time.monotonic() + self._backoff.seconds()

    def request_end(self, moment: float = 0.0, *, limit: float | None = None) -> None:
        """Request the process's end after its current commit; `stop` waits for the end.

        Args:
            moment: seconds to wait for the end at once.
            limit: seconds until `stop` kills the process, for a person who waits; None: `STOP_SECONDS`.
        """
        process, self._start_again_at = self._process, None
        if process is None or self._kill_at is not None:
            return
        self._kill_at = time.monotonic() + (STOP_SECONDS if limit is None else limit)
        self._kill_level = logging.WARNING if limit is None else logging.INFO
        if process.poll() is None:
            process.terminate()
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            # Most readers end at once.
            process.wait(moment)

    def stop(self) -> None:
        """Request the process's end, and wait; kill the process some time after the first request."""
        self.request_end()
        process, self._process = self._process, None
        kill_at, self._kill_at = self._kill_at, None
        if process is None or kill_at is None:
            return
        try:
            process.wait(max(0.0, kill_at - time.monotonic()))
        except subprocess.TimeoutExpired:
            _LOGGER.log(self._kill_level, "the reader process did not end in its time; killing it")
            _kill(process)
            process.wait()
        self._await_reports()
        with self._news:
            self._over = True
            self._news.notify_all()

    def kill(self) -> None:
        """End the process as a crash would; `check` restarts the process."""
        if self._process is not None:
            _kill(self._process)

    def _await_reports(self) -> None:
        """Wait, for a limited time, until all reports of an ended process are read and passed on."""
        if self._listener is not None:
            self._listener.join(REPORT_SECONDS)
        with self._news:
            self._news.wait_for(lambda: self._newest is None and not self._reporting, REPORT_SECONDS)

    def _report(self, on_progress: Callable[[dict[str, Any]], None]) -> None:
        """Pass on the newest report, until the end or a failure."""
        while True:
            with self._news:
                self._reporting = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._newest is not None or self._over)
                event, self._newest = self._newest, None
                if event is None:
                    return
                self._reporting = True
            try:
                on_progress(event)
            except OSError as error:
                _LOGGER.warning("progress could not be reported: %s", error)
                on_progress = _ignore
            except Exception as error:
                _LOGGER.exception("a report of the reader could not be forwarded; the reader is stopped")
                self._error = self._error or error
                self.kill()

    def _listen(self, process: subprocess.Popen[bytes]) -> None:
        if process.stdout is None:
            return
        with process.stdout:
            try:
                for line in process.stdout:
                    if line.endswith(b"\n"):  # the rest of a line is lost with the process that wrote it
                        self._receive(json.loads(line))
            except Exception as error:
                _LOGGER.exception("a report of the reader could not be read; the reader is stopped")
                self._error = self._error or error
                _kill(process)

    def _receive(self, event: dict[str, Any]) -> None:
        kind = event.pop("event", None)
        if kind == "error":
            self._error = _error(event, str(log_folder(self._pipeline.pipeline) / "smelt.log"))
        elif kind == "end":
            self.finished = not event["stopped"]
        elif kind == "progress":
            self._streamed |= self._growth.streamed(event)
            self._copied |= self._growth.copied(event)
            self._copying = any(map(is_under_way, event["snapshots"].values()))
            if self._on_progress is not None:
                with self._news:
                    self._newest = event
                    self._news.notify_all()

    def _progressed(self) -> bool:
        """Check whether the ended reader made more progress than every reader before."""
        # While a reader copies tables, the stream may advance although each copy ends the process. So only
        # more copied rows of a table than ever before, or a complete table, count then.
        return self._copied or (self._streamed and not self._copying)


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a reader with all processes of its session, such as the JVM of a snapshot by Spark.

    Spark's Python workers have sessions of their own, and end as soon as their JVM has ended.
    """
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()


def _ignore(_: dict[str, Any]) -> None:
    """Drop a report that no receiver needs any more."""


def _error(fields: dict[str, Any], log: str) -> SmeltError:
    """Return the reader's error, as the same kind of error."""
    kinds = {kind.__name__: kind for kind in (ConfigurationError, TransientError, DefiniteError, SmeltError)}
    kind = kinds.get(fields["kind"], DefiniteError)
    if fields["kind"] == "unexpected":
        return DefiniteError(
            f"the reader failed: {fields['message']}",
            code="reader-failed",
            where=log,
            remedy="read the traceback in the log named above",
        )
    return kind(fields["message"], code=fields["code"], where=fields["where"], remedy=fields["remedy"])
