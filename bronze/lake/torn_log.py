"""A log entry of which a power cut left a part.

**What is left.** An entry gets its name before its bytes are on disk (`bronze.lake.durability`). A power cut
between the name and the flush leaves the entry empty, full of zeros, or with some pages of its bytes. Delta
reads an empty entry as a commit of nothing. Delta refuses an entry that breaks off inside of a line, and with
the entry the whole table. An entry that breaks off after a line is read as a whole one, although it names
only a part of the files, or the files without the marks.

**What is torn.** Delta writes no entry without a line, and every line is JSON. So in a table that only this
pipeline writes an entry is torn that is empty, or has a line that is no JSON. Commits of `deltalake` also
state in their first line how many actions follow. Spark's commits do not: one that breaks off exactly at the
end of a line is not recognised, which of 500 entries torn inside is about one.

**What is done.** Whoever opens a table of bronze or control, or any table to write it, looks at its newest
entry (`set_torn_aside`). A torn one gets another name, by which Delta passes it over: it is as if the commit
had failed. Tables of silver and gold have one writer, under the lock of the layer: a process that only reads
such a table leaves the entry and raises a temporary error. Bronze and control have writers in several
processes, and handles that live for long: a handle that had read the torn entry would pass over the entry
that takes its number. So every process judges and renames under a lock of the log's folder, before the entry
is read. No process can write an entry of the same number before the torn one is gone, and that takes the
lock. Where a file system has no locks, the file that is renamed must still be the file that was judged.
Nothing that relied on the entry is misled:

* the reader confirms the slot after the flush alone, so the server sends the rows again. Should a disk have
  lost what it acknowledged, bronze's position is then before the slot's: an error of its own
  (`bronze.stream.continuity`);
* silver and gold do not flush what Spark commits, and a cut may name the lost version. Their marks were in
  that entry too. So a table is found before its cut, and its window is folded again from bronze. No cut names
  the lost version from then on (`silver.run.worklist`).

Files beside the entry that describe the same version go with it: Spark would take the checksum of the lost
commit for that of the next one.

**What is not done.** A torn entry that others follow stays. Processes that had read the table without it
wrote those: the error names the file. A torn checkpoint is none of this: `bronze.lake.durability` flushes its
own before they are named.

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
from deltasmelt.bronze.lake.durability import entries_of, entry_path, flush_to_disk, newest_checkpoint
from deltasmelt.bronze.lake.place import local_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

ACTIONS_KEY: Final = "deltasmelt.actions"
"""Key of commitInfo under which a commit says how many actions follow it."""

DERIVED: Final = frozenset(("silver", "gold"))
"""Layers whose tables one process writes, under the layer's lock."""

_ASIDE: Final = ".torn"
_LOCK_SECONDS: Final = 10.0
_LOCK_POLL: Final = 0.05
_LOGGER = logging.getLogger("deltasmelt.reader")


def set_torn_aside(uri: str, *, thorough: bool = True, writes: bool = True) -> bool:
    """Take the newest entry of a local table's log away if it is torn, and return whether it was.

    No process is in the middle of writing an entry that is found here: entries appear under their name by one
    step.

    Args:
        uri: location of the table.
        thorough: read all entries since the checkpoint; else the newest one, and of the others the size.
        writes: the caller is the table's writer; a reader takes nothing away.

    Raises:
        DefiniteError: ``log-entry-torn``: an entry is torn that others follow.
        TransientError: ``log-entry-torn``: a reader found the newest entry torn.
        OSError: the log cannot be read or changed.
    """
    folder = local_folder(uri)
    log = None if folder is None else folder / "_delta_log"
    if folder is None or log is None or not log.is_dir() or _torn(folder, log, thorough=thorough) is None:
        return False
    with _locked(log, writes=writes):
        found = _torn(folder, log, thorough=thorough)  # another process may have been first
        if found is None:
            return False
        version, judged = found
        path = entry_path(log, version)
        if not writes:
            raise TransientError(
                f"entry {version} of the table's log, the newest, is torn",
                code="log-entry-torn",
                where=str(path),
                remedy="start the pipeline: the process that writes the table sets the entry aside",
            )
        for name in _files_of(log, version):
            if name == path and _identity(path) != judged:
                return False
            name.replace(name.with_name(f"{name.name}{_ASIDE}"))
        flush_to_disk(log)
    _LOGGER.warning("%s was torn by a power cut; it is set aside, as if its commit had failed", path)
    return True


def _torn(folder: Path, log: Path, *, thorough: bool) -> tuple[int, tuple[int, ...]] | None:
    """Return the newest entry and what identifies its file, if the entry is torn; None where it is whole.

    Raises:
        DefiniteError: an entry is torn that others follow.
    """
    known = newest_checkpoint(log)
    entries = sorted(each for each in entries_of(log) if known is None or each > known)
    judged = _identity(entry_path(log, entries[-1])) if entries else None
    torn = [
        each for each in entries if _is_torn(entry_path(log, each), whole=thorough or each == entries[-1])
    ]
    if not torn or judged is None:
        return None
    if torn != entries[-1:]:
        raise DefiniteError(
            f"entry {torn[0]} of the table's log is torn, and later ones follow it",
            code="log-entry-torn",
            where=str(entry_path(log, torn[0])),
            remedy=_remedy(folder),
        )
    return torn[0], judged


def _identity(path: Path) -> tuple[int, ...] | None:
    """Return what tells a file from another one of the same name; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


@contextmanager
def _locked(log: Path, *, writes: bool) -> Iterator[None]:
    """Hold the lock of a log's folder, where the file system has locks; a reader needs none.

    Raises:
        TransientError: ``log-entry-torn``: another process has the lock for too long.
    """
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
                    f"another process sets a torn entry of the table's log aside since {_LOCK_SECONDS:.0f} s",
                    code="log-entry-torn",
                    where=str(log),
                    remedy="end the process that hangs in this folder; until then it is tried again",
                ) from None
            except OSError:
                _LOGGER.warning("%s is on a file system without locks", log)
            break
        yield
    finally:
        os.close(handle)


def _remedy(folder: Path) -> str:
    """Return what brings a table back; silver and gold are derived, so the table alone can be made anew."""
    layer = folder.parent.name
    if layer in DERIVED:
        return (
            f"stop the pipeline, and restore the file from a backup; or: mv {folder} {folder}.torn. The next "
            f"start then makes the table anew from {'bronze' if layer == 'silver' else 'silver'}; "
            "see `smelt explain-error log-entry-torn`"
        )
    return (
        "restore the file from a backup, or move the lake away, drop its slot and start anew; "
        "see `smelt explain-error log-entry-torn`"
    )


def _files_of(log: Path, version: int) -> Iterable[Path]:
    """Return the entry of a version, the version's checksum, and what Hadoop lays beside both; entry last."""
    entry, checksum = f"{version:020}.json", f"{version:020}.crc"
    names = [f".{checksum}.crc", checksum, f".{entry}.crc", entry]
    return [path for name in names if (path := log / name).exists()]


def _is_torn(path: Path, *, whole: bool) -> bool:
    """Check whether an entry lacks something of what was written; by its size alone if not `whole`."""
    try:
        lines = path.read_bytes().splitlines() if whole else [b""] * bool(path.stat().st_size)
    except FileNotFoundError:  # removed meanwhile: a checkpoint stands for it
        return False
    if not lines or not whole:
        return not lines
    try:
        actions = [json.loads(line) for line in lines if line.strip()]
    except ValueError:
        return True
    return not actions or len(actions) - 1 < _stated(actions[0])


def _stated(first: object) -> int:
    """Return how many actions an entry says in its first one that it has after it; 0 where it says none."""
    try:
        return int(first["commitInfo"][ACTIONS_KEY])  # type: ignore[index]
    except (ValueError, KeyError, TypeError):
        return 0
