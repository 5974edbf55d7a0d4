"""The start of the reader's process, apart from what it is told to do.

Loading the reader takes about a second of CPU, and so does what a command does before it knows what the
reader has to do: the pipeline file, the documents, the server's WAL position. So a command starts the process
as its first act (`reader_at_hand`), and gives it its orders when it has them: one JSON line on its standard
input. The process waits for them with everything loaded. If standard input ends without any, it ends.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from typing import IO, TYPE_CHECKING

from pipelines.databricks_secrets import known

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bronze.lsn import Lsn


def spawn(log: IO[bytes] | None = None) -> subprocess.Popen[bytes]:
    """A new process of the reader, without orders.

    Args:
        log: takes its standard error. Without one, what it says before it has its orders is lost: it has done
            nothing then, and where it cannot be loaded the next one, which has a log, says the same.
    """
    # -P: nothing in the working folder, such as a `json.py` of the user, is imported instead of ours.
    command = [sys.executable, "-P", "-m", "pipelines.runtime.reader_process"]
    paths = os.pathsep.join(path or "." for path in sys.path)
    return subprocess.Popen(  # noqa: S603 - ourselves
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
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
    """Tell a process what to read; nothing if it has died, which whoever watches it will see.

    The text of the pipeline file goes with the orders. So a reader that is started again after the file
    changed (a ConfigMap, an edit that is not finished) has the lake and the slot that its parent has locked.

    Secrets of Databricks that the pipeline file names go with it. They can be asked for in the process that
    Databricks started, and in no child of it. A pipe shows them to nobody else.

    Args:
        process: of the reader.
        file: the pipeline file.
        text: of the file when the command read it.
        log: what takes its standard error and stray prints.
        until: where it ends, if anywhere.
        as_json: whether it logs lines of JSON.
    """
    end = None if until is None else str(until)
    orders = {"file": str(file), "text": text, "log": str(log), "until": end, "json": as_json}
    line = json.dumps({**orders, "secrets": known()}).encode() + b"\n"
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # past the buffer, which would try again when it is closed
            while line:  # a signal may cut a write short
                line = line[os.write(process.stdin.fileno(), line) :]


@contextlib.contextmanager
def reader_at_hand(*, wanted: bool) -> Iterator[subprocess.Popen[bytes] | None]:
    """A process that loads the reader meanwhile; after the block it is gone, with orders or without."""
    if not wanted:
        yield None
        return
    with spawn() as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
