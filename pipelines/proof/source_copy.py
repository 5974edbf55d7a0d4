"""Copy the source's rows at an LSN: a snapshot like the reader's, in a separate lake.

The copy is the reader's snapshot (`bronze.snapshot`): an exported snapshot with a known LSN, read by several
connections, in chunks, under the same pinned settings. The slot is temporary and dropped before the first row
is read, and the transactions only read. So nothing stays at the server, whatever ends this process.

**After a killed process.** A living process touches its copy every minute. So a copy untouched for an hour
has no process: the next comparison removes the copy, and so does `smelt maintain` (`remove_left`). A process
asleep for an hour finds its copy removed when the process wakes, and fails, because Spark does not find the
files.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from obstore.exceptions import BaseError

from deltasmelt.bronze.backoff import Backoff
from deltasmelt.bronze.errors import ConfigurationError, TransientError
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.failures import words_of
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Location
from deltasmelt.bronze.postgres.connection import connect, identify, translated
from deltasmelt.bronze.progress import Progress
from deltasmelt.bronze.snapshot.snapshot import Snapshot
from deltasmelt.bronze.snapshot.table_copy import Outcome
from deltasmelt.bronze.store.landing import Landing
from deltasmelt.bronze.store.relations import ShapeLog
from deltasmelt.bronze.store.sink import DeltaSink
from deltasmelt.pipelines.proof.documents import ServerDocuments
from deltasmelt.pipelines.proof.load import has_sample, in_postgres

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from deltasmelt.bronze.catalog.source_table import SourceTable
    from deltasmelt.bronze.errors import TableError
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.pipelines.proof.load import Load
    from deltasmelt.pipelines.settings import Pipeline

_FOLDER: Final = "_verify"
"""Folder next to the layers' folders; no layer has this name."""
_OWN: Final = "copy-"
_OWN_TEMPORARY: Final = "smelt-verify-"
"""Prefixes of folders: within a local lake, and among the machine's temporary folders."""
_TOUCHED: Final = "alive"
_TOUCH_SECONDS: Final = 60.0
_LEFT_SECONDS: Final = 3600.0
_END_SECONDS: Final = 30.0
_LOGGER: Final = logging.getLogger("deltasmelt.verify")


@contextmanager
def scratch_lake(lake: Lake, *, tasks_are_local: bool) -> Iterator[Lake]:
    """Yield a lake visible to all tasks, until the block ends.

    Raises:
        ConfigurationError: no suitable place exists.
    """
    # A local lake has room for its tables, so the copy is next to the tables. Otherwise the copy is in the
    # temporary folder of the machine, or, for tasks on other machines, in the object store.
    folder = lake.folder
    if folder is not None or tasks_are_local:
        place = _own_folder(None if folder is None else folder / _FOLDER)
        try:
            with _touching(lambda: os.utime(place)):
                yield Lake(path=str(place))
        finally:
            shutil.rmtree(place, ignore_errors=True)
            if folder is not None:
                _remove_empty(place.parent)
        return
    if lake.place.needs_session:
        raise ConfigurationError(
            "all executors must see the copy of the source's rows, and the lake is a catalog without such a "
            "folder",
            code="verify-place",
            where=str(lake.catalog),
            remedy="run the command with spark.master local[*], or compare only documents: --document '*'",
        )
    _remove_left_objects(lake.root)
    copy = lake.below(f"{_FOLDER}/{uuid.uuid4().hex}")
    try:
        with _touching(lambda: objects.replace(copy.root, _TOUCHED, b"")):
            yield copy
    finally:
        objects.discard(copy.root)


def remove_left(lake: Lake) -> list[str]:
    """Remove the copies of killed comparisons, and return their places."""
    # Copies in this machine's temporary folder are of every lake.
    removed = _remove_left_folders(Path(tempfile.gettempdir()), _OWN_TEMPORARY)
    if lake.in_store:
        return removed + _remove_left_objects(lake.root)
    folder = lake.folder
    if folder is None:
        return removed
    removed += _remove_left_folders(folder / _FOLDER, _OWN)
    _remove_empty(folder / _FOLDER)
    return removed


@contextmanager
def _touching(touch: Callable[[], None]) -> Iterator[None]:
    """Touch a copy now, and every minute until the block ends."""
    end = threading.Event()

    def run() -> None:
        while not end.wait(_TOUCH_SECONDS):
            with suppress(OSError, BaseError):  # a store that is away: the copying itself reports that
                touch()

    touch()
    thread = threading.Thread(target=run, name="smelt-verify-alive", daemon=True)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join(_END_SECONDS)


def _own_folder(parent: Path | None) -> Path:
    """Return a new folder readable by this account alone; without a parent, among the temporary folders."""
    if parent is None:
        _remove_left_folders(Path(tempfile.gettempdir()), _OWN_TEMPORARY)
        return Path(tempfile.mkdtemp(prefix=_OWN_TEMPORARY))
    while True:
        parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        _remove_left_folders(parent, _OWN)
        try:
            return Path(tempfile.mkdtemp(prefix=_OWN, dir=parent))
        except FileNotFoundError:  # a process that ended has just removed the empty parent
            continue


def _remove_left_folders(parent: Path, prefix: str) -> list[str]:
    """Remove this account's folders with a prefix and untouched for an hour; return the folders."""
    removed: list[str] = []
    try:
        # Both times come from the clock that stamps the files, because this process stamps a file, too.
        with tempfile.TemporaryFile(dir=parent) as stamped:
            now = os.fstat(stamped.fileno()).st_mtime
        for folder in parent.glob(f"{prefix}*"):
            with suppress(FileNotFoundError):  # its own process removes it
                status = folder.lstat()
                if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                    continue
                newest = max(path.stat().st_mtime for path in [folder, *folder.rglob("*")])
                if now - newest > _LEFT_SECONDS:
                    shutil.rmtree(folder, ignore_errors=True)
                    removed.append(str(folder))
    except FileNotFoundError:  # no comparison has been here
        return []
    except OSError as error:
        _LOGGER.warning("%s: copies of killed comparisons could not be removed: %s", parent, error)
    return removed


def _remove_left_objects(root: str) -> list[str]:
    """Remove copies in an object store untouched for an hour; return their places."""
    marker = uuid.uuid4().hex
    removed: list[str] = []
    try:
        objects.replace(root, f"{_FOLDER}/{marker}/{_TOUCHED}", b"")
        newest = objects.newest_below(root, _FOLDER)
        now = newest.pop(marker)
        for name, touched in newest.items():
            if (now - touched).total_seconds() > _LEFT_SECONDS:
                objects.delete_below(root, f"{_FOLDER}/{name}")
                removed.append(f"{root}/{_FOLDER}/{name}")
    except (OSError, BaseError) as error:
        _LOGGER.warning("%s: copies of killed comparisons could not be removed: %s", root, words_of(error))
    objects.discard(Location(root) / f"{_FOLDER}/{marker}")
    return removed


def _remove_empty(parent: Path) -> None:
    try:
        parent.rmdir()
    except OSError:  # another copy is there, or no folder
        return


_ATTEMPTS: Final = 6


@dataclass(slots=True)
class CopyResult:
    """The copied tables: LSN of each complete table's rows, and the reason of each other table's failure."""

    lsns: dict[TableName, Lsn] = field(default_factory=dict)
    failed: list[TableError] = field(default_factory=list)


def _at_once(_: int) -> None:
    """Never slow the reading down."""


class Pace:
    """Limits the bytes per second of all readers together."""

    def __init__(self, rate: int, stop: threading.Event) -> None:
        self._rate = rate
        self._stop = stop
        self._lock = threading.Lock()
        self._free_at = 0.0

    def __call__(self, size: int) -> None:
        """Wait after a block of this size, as long as the limit requires."""
        with self._lock:
            now = time.monotonic()
            self._free_at = max(self._free_at, now) + size / self._rate
            seconds = self._free_at - now
        self._stop.wait(seconds)


class SourceCopy:
    """Copies tables to a new lake in a separate thread, so Spark can start meanwhile.

    The server computes the `documents` in the same snapshot.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        tables: Sequence[SourceTable],
        lake: Lake,
        load: Load,
        documents: ServerDocuments | None = None,
    ) -> None:
        self._documents = documents or ServerDocuments(pipeline, [], tables)
        self._pipeline = pipeline
        self._tables = tables
        self._lake = lake
        self._load = load
        self._stop = threading.Event()
        self._progress = Progress()
        self._result = CopyResult()
        self._failure: BaseException | None = None
        self._outcome = Outcome()
        self._exported = threading.Event()
        self._thread = threading.Thread(target=self._run, name="smelt-verify-copy", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def wait(self, seconds: float) -> bool:
        """Wait a while; return whether the copy has ended."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def exported(self, seconds: float) -> Lsn | None:
        """Wait for the first snapshot, or the end; return the snapshot's LSN, known before the rows."""
        self._exported.wait(seconds)
        return self._outcome.lsn or None

    def stop(self) -> None:
        """End the copy between two blocks, and wait for the end."""
        self._stop.set()
        self._documents.stop()
        self._thread.join()

    def counters(self) -> dict[str, Any]:
        """Return the progress of the copy (`bronze.progress.Progress.read`)."""
        return self._progress.read()

    def result(self) -> CopyResult:
        """Return the copied tables, after the end; raise the error that ended the copy."""
        if self._failure is not None:
            raise self._failure
        return self._result

    def _run(self) -> None:
        try:
            self._copy()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._failure = error
        finally:
            self._exported.set()

    def _copy(self) -> None:
        source, load = self._pipeline.source, self._load
        with translated(source), connect(source, application_name="deltasmelt verify") as connection:
            sink = DeltaSink(self._lake, self._pipeline.pipeline, identify(connection))
        landing = Landing(
            sink,
            ShapeLog(sink.relations(), sink.add_relations),
            self._progress,
            self._reached,
            pace=_at_once if load.rate is None else Pace(load.rate, self._stop),
        )
        settings = self._pipeline.snapshot
        if load.connections is not None:
            settings = settings.model_copy(update={"workers": load.connections})
        snapshot = Snapshot(
            source,
            settings,
            landing,
            application_name="deltasmelt verify",
            condition=self._condition,
            on_export=self._documents.begin,
        )
        backoff, waiting = Backoff(0.5, 10.0), list(self._tables)
        for attempt in range(_ATTEMPTS):
            outcome = self._outcome = Outcome()
            try:
                snapshot.take(waiting, self._stop, outcome)
            except TransientError:
                if attempt + 1 == _ATTEMPTS:
                    raise
            finally:
                self._result.failed += outcome.failed
            settled = {*outcome.copied, *(error.table for error in outcome.failed)}
            waiting = [table for table in waiting if table.table not in settled]
            if not waiting or self._stop.is_set() or backoff.pause(self._stop):
                break
        self._result.lsns = sink.tables.snapshots([table.table for table in self._tables])

    def _reached(self, point: str) -> None:
        if point == "snapshot-exported":
            self._exported.set()

    def _condition(self, shape: Relation) -> str:
        sample = self._load.sample
        sampled = sample is not None and has_sample(shape, self._pipeline.silver.types)
        return in_postgres(shape, sample) if sample is not None and sampled else ""
