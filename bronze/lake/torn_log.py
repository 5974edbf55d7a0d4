"""Log entries that a power cut left incomplete.

**Failure.** An entry gets its name before its bytes are on disk (`bronze.lake.folder_table`). A power cut in
between leaves the entry empty, full of zeros, or with only some pages. Delta reads an empty entry as a commit
without actions, and accepts an entry that ends after a complete line, although files or marks are missing.
Delta rejects an entry that ends inside a line, and with the entry the whole table.

**Repair.** Every process that opens a table of bronze or control, or any table for writing, checks the newest
entry (`set_torn_aside`) and renames a torn entry. Delta ignores the new name, as if the commit had failed.
Each table of silver and gold has one writer, which holds the layer's lock. Bronze and control have writers in
several processes, and a long-lived handle that has read the torn entry would skip the later entry with the
same number. So every process checks and renames under a lock of the log folder, before any handle reads the
entry.

**Consequence.** No reader of the lost entry is misled:

* The reader confirms the slot only after the flush, so the server sends the rows again. If a disk loses
  flushed bytes, bronze's position is before the slot's position, and `bronze.stream.continuity` raises an
  error.
* Silver and gold do not flush Spark's commits, and a cut may name the lost version. The lost entry also held
  the table's marks. The table is therefore behind its cut, and silver folds its window again from bronze.
  From then on no cut names the lost version (`silver.run.worklist`).

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#delta-log-entries.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import DefiniteError, TransientError
from deltasmelt.bronze.figures import estimate_text
from deltasmelt.bronze.lake.durability import entries_of, entry_path, flush_to_disk, newest_checkpoint
from deltasmelt.bronze.lake.place import local_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# The key in commitInfo under which a commit states how many actions follow.
ACTIONS_KEY: Final = "deltasmelt.actions"

# Layers whose tables have a single writer, which holds the layer's lock.
DERIVED: Final = frozenset(("silver", "gold"))

_ASIDE: Final = ".torn"
_LOCK_SECONDS: Final = 10.0
_LOCK_POLL: Final = 0.05
_LOGGER = logging.getLogger("deltasmelt.reader")


def set_torn_aside(uri: str, *, thorough: bool = True, writes: bool = True) -> bool:
    """Rename the newest entry of a local table's log if the entry is torn; return whether a file was renamed.

    Args:
        thorough: read all entries since the checkpoint; else read the newest entry and check only the size of
            all earlier entries.
        writes: whether the caller is the table's writer; a reader renames nothing.

    Raises:
        DefiniteError: ``log-entry-torn``: later entries follow a torn entry.
        TransientError: ``log-entry-torn``: a reader found the newest entry torn, or another process holds the
            lock of the log for too long.
        OSError: the log cannot be read or changed.
    """
    folder = local_folder(uri)
    # No process is still writing a visible entry: an entry gets a name in one step.
    log = None if folder is None else folder / "_delta_log"
    if folder is None or log is None or not log.is_dir() or _torn(folder, log, thorough=thorough) is None:
        return False
    with _locked(log, writes=writes):
        # No process can write an entry of this number before the torn entry is renamed, and renaming requires
        # the lock.
        found = _torn(folder, log, thorough=thorough)  # another process may have renamed the entry
        if found is None:
            return False
        version, judged = found
        path = entry_path(log, version)
        if not writes:
            raise TransientError(
                f"the newest entry {version} of the table's log is torn",
                code="log-entry-torn",
                where=str(path),
                remedy="start the pipeline: the process that writes the table sets the entry aside",
            )
        # For a person who looks for the cause, the newest torn entry of a table is enough.
        for former in log.glob(f"*{_ASIDE}"):
            former.unlink(missing_ok=True)
        # Spark would use the checksum of the lost commit for the next commit, so all files of the version go.
        for name in _files_of(log, version):
            # Without locks another process may have replaced the entry: rename only the checked file.
            if name == path and _identity(path) != judged:
                return False
            name.replace(name.with_name(f"{name.name}{_ASIDE}"))
        flush_to_disk(log)
    _LOGGER.warning("%s was torn by a power failure; it is set aside, as if its commit had failed", path)
    return True


def _torn(folder: Path, log: Path, *, thorough: bool) -> tuple[int, tuple[int, ...]] | None:
    """Return version and file identity of the newest entry if the entry is torn, else None."""
    # A checkpoint is never torn: `bronze.lake.folder_table` flushes a checkpoint before naming it.
    known = newest_checkpoint(log)
    entries = sorted(each for each in entries_of(log) if known is None or each > known)
    judged = _identity(entry_path(log, entries[-1])) if entries else None
    torn = [
        each for each in entries if _is_torn(entry_path(log, each), whole=thorough or each == entries[-1])
    ]
    if not torn or judged is None:
        return None
    # Processes that had read the table without the torn entry wrote the later entries, so the entry stays.
    if torn != entries[-1:]:
        raise DefiniteError(
            f"entry {torn[0]} of the table's log is torn, and later entries follow",
            code="log-entry-torn",
            where=str(entry_path(log, torn[0])),
            remedy=_remedy(folder),
        )
    return torn[0], judged


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return a value that differs between two files of equal name; None if the file is absent."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def _locked(log: Path, *, writes: bool) -> Iterator[None]:
    """Hold the lock of a log's folder, if the file system has locks; a reader needs no lock."""
    handle = os.open(log, os.O_RDONLY)
    deadline = time.monotonic() + _LOCK_SECONDS
    try:
        while writes:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(_LOCK_POLL)
                    continue
                raise TransientError(
                    "another process has been setting a torn entry of the table's log aside for "
                    f"{estimate_text(_LOCK_SECONDS)}",
                    code="log-entry-torn",
                    where=str(log),
                    remedy="end the process that hangs in this folder; until then deltasmelt retries",
                ) from None
            except OSError:
                _LOGGER.warning("%s is on a file system without locks", log)
            break
        yield
    finally:
        os.close(handle)


def _remedy(folder: Path) -> str:
    """Return the remedy for a table; silver and gold are derived, so a single table can be rebuilt."""
    layer = folder.parent.name
    if layer in DERIVED:
        return (
            f"stop the pipeline, and restore the file from a backup; or: mv {folder} {folder}.torn. The "
            f"next start then recreates the table from {'bronze' if layer == 'silver' else 'silver'}; see "
            "`smelt explain-error log-entry-torn`"
        )
    return (
        "restore the file from a backup, or move the lake away, drop its slot and start with a new lake; "
        "see `smelt explain-error log-entry-torn`"
    )


def _files_of(log: Path, version: int) -> Iterable[Path]:
    """Return the existing files of a version: checksum, Hadoop's copies, and last the entry."""
    entry, checksum = f"{version:020}.json", f"{version:020}.crc"
    names = [f".{checksum}.crc", checksum, f".{entry}.crc", entry]
    return [path for name in names if (path := log / name).exists()]


def _is_torn(path: Path, *, whole: bool) -> bool:
    """Check whether an entry is incomplete; check only the size unless `whole`.

    Delta writes no entry without a line, every line is JSON, and commits of `deltalake` state how many
    actions follow.
    """
    try:
        lines = path.read_bytes().splitlines() if whole else [b""] * bool(path.stat().st_size)
    except FileNotFoundError:  # removed meanwhile: a checkpoint replaces the entry
        return False
    if not lines or not whole:
        return not lines
    try:
        actions = [json.loads(line) for line in lines if line.strip()]
    except ValueError:
        return True
    # Spark states no number. A Spark entry that ends exactly at a line end passes: about 1 of 500 torn ones.
    return not actions or len(actions) - 1 < _stated(actions[0])


def _stated(first: object) -> int:
    # Only commits of this project's `deltalake` state a number; 0 for every further commit.
    try:
        return int(first["commitInfo"][ACTIONS_KEY])  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        return 0
