"""One pipeline at a time on one lake.

A second pipeline would write the same tables beside the first. In a folder nothing would be lost (Delta
refuses the later commit), but both would fail alternately. So each stage holds a file lock in the lake's
folder. The kernel releases the lock at any end of the process, so a crash never leaves a lake locked.
`writing` is a second lock, which a process holds for one cycle or for the maintenance of one table.

**Interruptions.** A lock must not be released while this process's JVM can still commit. So at Ctrl-C or a
signal in a command that writes, `writing` kills the JVM, and waits for its death, before the interruption
takes effect: before any block ends, and also at a second signal (`end_writing`). A killed JVM is a crash like
any other. A run ends its cycle instead, in a thread, and its JVM (`pipelines.runtime.supervisor`).

In an object store or a catalog both locks are leases (`bronze.lake.leases`). On S3 the leases protect
commits: Spark's commits are not safe there. A lease left by a crash lasts another minute, in a catalog two
and a half.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import socket
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING, Any, Final

from deltasmelt.bronze.errors import ConfigurationError, DefiniteError
from deltasmelt.bronze.lake.failures import lake_failures
from deltasmelt.bronze.lake.leases import leased, watch, writing_of
from deltasmelt.pipelines.private import unread_folder
from deltasmelt.pipelines.spark.session_owner import end_writing
from deltasmelt.pipelines.terminal import output
from deltasmelt.pipelines.terminal.interrupts import before_interruption, terminable
from deltasmelt.pipelines.terminal.visible import visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from deltasmelt.bronze.lake.location import Lake

_STOP_SECONDS: Final = 0.1
_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
_LOGGER = logging.getLogger("deltasmelt.run")


def _report_wait(message: str) -> None:
    """Report a wait, also to a person at a terminal: after a crash the wait lasts a minute or two."""
    _LOGGER.warning("%s", message)
    if output.as_json():
        output.report(message, level="warning")
    else:
        sys.stderr.write(f"{visible(message)}\n")
        sys.stderr.flush()


@contextmanager
def lake_lock(lake: Lake, stages: Sequence[str], *, command: str) -> Iterator[None]:
    """Hold the lake's lock of each stage while the block runs; make a missing lake.

    Raises:
        DefiniteError: another process holds a lock.
        ConfigurationError: the lake's folder cannot be made.
        TransientError: the lake's store cannot be reached, or refuses.
    """
    with ExitStack() as stack:
        folder = lake.locks
        if folder is None:
            with lake_failures(lake.root, "the leases of the lake"):
                watch(lake.root, [*stages, *map(writing_of, stages)])
            for stage in stages:
                stack.enter_context(leased(lake.root, stage, command=command, wait=False, say=_report_wait))
        else:
            try:
                _make(folder)
            except OSError as error:
                reason = f"the folder cannot be made: {os.strerror(error.errno or 0)}"
                raise lake_folder(folder.parent, reason) from None
            for stage in stages:
                stack.enter_context(_locked(folder / stage, str(lake.path), command))
        yield


@contextmanager
def _locked(path: Path, lake: str, command: str) -> Iterator[None]:
    with path.open("a+", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise DefiniteError(
                f"this lake's {path.name} stage is already running: {_holder(path)}",
                code="already-running",
                where=lake,
                remedy="wait for this stage or stop it (Ctrl-C, or SIGTERM); only one process at a time can "
                "run a stage",
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _LOGGER.warning("%s is on a file system without locks; a second start cannot be detected", path)
        file.truncate(0)
        json.dump(
            {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "command": command,
                "since": datetime.now(UTC).isoformat(timespec="seconds"),
            },
            file,
        )
        file.flush()
        yield


@contextmanager
def writing(lake: Lake, layer: str, *, stop: threading.Event | None = None) -> Iterator[None]:
    """Hold the exclusive right to write a layer's tables while the block runs; wait for another holder.

    Raises:
        InterruptedError: `stop` was set during the wait.
    """
    folder = lake.locks
    if folder is None:
        with (
            leased(lake.root, writing_of(layer), command=f"writing {layer}", wait=True, stop=stop),
            terminable(),
            before_interruption(end_writing),
        ):
            yield
        return
    _make(folder)  # a failure here is an outage of the file system, which a run waits out
    with (folder / f"{layer}.writing").open("a") as file:
        try:
            _wait_for(file, stop)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
        with terminable(), before_interruption(end_writing):
            yield


def _wait_for(file: IO[str], stop: threading.Event | None) -> None:
    """Take a file's lock in the kernel's order of those who wait."""
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return
    if stop is None:
        fcntl.flock(file, fcntl.LOCK_EX)
        return
    waiting = threading.Thread(target=fcntl.flock, args=(file, fcntl.LOCK_EX), daemon=True)
    waiting.start()
    while waiting.is_alive():
        if stop.is_set():
            raise InterruptedError("the run ended during its wait for another process")
        waiting.join(_STOP_SECONDS)


def _make(folder: Path) -> None:
    """Make the folder of the locks, and a missing lake."""
    unread_folder(folder.parent)
    folder.mkdir(exist_ok=True)


def lake_folder(folder: Path, reason: str) -> ConfigurationError:
    """Return the error of a place that cannot be a lake."""
    return ConfigurationError(
        reason,
        code="lake-folder",
        where=str(folder),
        remedy="correct lake.path, or the permissions of the folder",
    )


def _holder(path: Path) -> str:
    try:
        lock: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return "`{command}`, process {pid} on {host}, since {since}".format(**lock)
    except (ValueError, KeyError):  # the holder has just taken the lock and has yet to write
        return "by a process that has just started"
