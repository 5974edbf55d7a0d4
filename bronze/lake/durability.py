"""Durability on a local path: after a power cut, a table is never behind a confirmed position.

An object store needs no flush: a store loses nothing after acknowledging a write.

**Order.** The bytes of a file and the file's name are on disk before a commit names the file. The log entry
and the entry's name are on disk before any process acts on the entry, above all before the reader confirms
the slot. Neither Arrow nor `deltalake` flushes: `PartWriter` flushes files, and `delta.settle` flushes
entries.

**A killed process.** A process that is killed between a commit and the flush leaves an unflushed entry, and
the next process would act on this entry. Every process that opens a table for writing therefore first flushes
all entries since the newest checkpoint. `bronze.lake.torn_log` handles an unflushed entry that a power cut
has damaged.

**Checkpoints and new tables.** A checkpoint replaces all earlier entries for every reader, so an empty
checkpoint makes the table unreadable. Checkpoints and new tables are therefore made in a staging folder,
flushed, and then renamed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.place import local_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from deltalake import DeltaTable

_LOG: Final = "_delta_log"
_HINT: Final = "_last_checkpoint"
_ASIDE: Final = "_checkpoint-"
_ASIDE_SECONDS: Final = 3600.0
_ENTRY: Final = re.compile(r"(\d{20})\.json")


def flush_to_disk(path: Path) -> None:
    """Wait until a file or folder has reached the disk."""
    perform(Effect.FLUSH, str(path), lambda: _flush(path))


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def flush_commits(uri: str, after: int, version: int) -> None:
    """Flush a table's log entries after one version, up to another version.

    There may be several entries: another process may have committed at almost the same moment.
    """
    folder = local_folder(uri)
    if folder is not None and version > after:
        log = folder / _LOG
        for each in range(after + 1, version + 1):
            flush_to_disk(entry_path(log, each))
        flush_to_disk(log)


def flush_after(uri: str, version: int) -> None:
    """Flush all log entries of a table after a version."""
    folder = local_folder(uri)
    if folder is not None:
        flush_commits(uri, version, max(entries_of(folder / _LOG), default=version))


def flush_log(uri: str, version: int) -> None:
    """Flush a table's log up to a version, whichever process wrote the entries."""
    folder = local_folder(uri)
    if folder is None:
        return
    known = newest_checkpoint(folder / _LOG)
    # Entries before the checkpoint were flushed before the checkpoint was made.
    for each in sorted(entries_of(folder / _LOG)) if known is None else range(known + 1, version + 1):
        flush_to_disk(entry_path(folder / _LOG, each))
    flush_to_disk(folder / _LOG)
    flush_to_disk(folder)


def make_whole(uri: str, folder: Path, create: Callable[[str], None]) -> None:
    """Make a local table in a staging folder, flush the table and rename the folder; no reader sees a part.

    Return without an error if another process has meanwhile made the table.

    Args:
        uri: location of the table, as from `Lake.uri`.
        folder: path of the same location.
        create: makes the table at the path that it receives.
    """
    made = [folder.parent, *(each.parent for each in folder.parents if not each.exists())]
    aside = folder.with_name(f"_{folder.name}-{uuid.uuid4()}")
    try:
        perform(Effect.CREATE_TABLE, uri, lambda: create(str(aside)))
        flush_commits(str(aside), -1, 0)
        flush_to_disk(aside)
        try:
            perform(Effect.CREATE_TABLE, uri, lambda: aside.rename(folder))
        except OSError:
            if not (folder / _LOG).exists():  # no other process made the table
                raise
        for each in made:
            flush_to_disk(each)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def checkpoint(table: DeltaTable) -> None:
    """Make a checkpoint at the version of a table's handle, or at a newer version.

    A crash leaves the staging folder, which the first checkpoint after an hour removes.
    """
    uri = table.table_uri
    folder = local_folder(uri)
    if folder is None:
        perform(Effect.CHECKPOINT, uri, table.create_checkpoint)
        return
    from deltalake import DeltaTable  # noqa: PLC0415 - a lake in a catalog needs none

    _remove_old(folder)
    aside = folder / f"{_ASIDE}{uuid.uuid4()}"
    try:
        # `deltalake` would name a checkpoint before the bytes are on disk. In a staging folder over hard
        # links to the log, no reader sees the checkpoint before the flush.
        perform(Effect.CHECKPOINT, uri, lambda: _link_log(folder / _LOG, aside / _LOG, table.version()))
        perform(Effect.CHECKPOINT, uri, lambda: DeltaTable(str(aside)).create_checkpoint())
        made = [*(aside / _LOG).glob(f"{table.version():020}.checkpoint*.parquet"), aside / _LOG / _HINT]
        for file in made:
            flush_to_disk(file)
        for file in made:  # the hint last: readers follow the hint to the checkpoint
            name = folder / _LOG / file.name
            perform(Effect.CHECKPOINT, uri, lambda file=file, name=name: file.replace(name))  # type: ignore[misc]
        flush_to_disk(folder / _LOG)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _link_log(log: Path, aside: Path, version: int) -> None:
    """Link the newest checkpoint and all later entries into a staging folder."""
    aside.mkdir(parents=True)
    known = newest_checkpoint(log)
    names = [f"{each:020}.json" for each in range((-1 if known is None else known) + 1, version + 1)]
    if known is not None:
        names += [_checkpoint_name(known), f"{known:020}.json"]
    for name in names:
        with suppress(FileNotFoundError):  # an entry at or before a checkpoint may be absent
            os.link(log / name, aside / name)
    with suppress(FileNotFoundError):
        shutil.copyfile(log / _HINT, aside / _HINT)


def newest_checkpoint(log: Path) -> int | None:
    """Return the version of the newest checkpoint from the hint file; None without a checkpoint."""
    try:
        hint = json.loads((log / _HINT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    version = int(hint["version"])
    return version if (log / _checkpoint_name(version)).exists() else None


def entry_path(log: Path, version: int) -> Path:
    """Return the path of a version's entry in a log."""
    return log / f"{version:020}.json"


def _checkpoint_name(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def entries_of(log: Path) -> list[int]:
    """Return the versions that have an entry in a log, unordered."""
    return [int(found[1]) for entry in log.iterdir() if (found := _ENTRY.fullmatch(entry.name))]


def _remove_old(folder: Path) -> None:
    for aside in folder.glob(f"{_ASIDE}*"):
        with suppress(FileNotFoundError):
            if time.time() - aside.stat().st_mtime > _ASIDE_SECONDS:
                shutil.rmtree(aside, ignore_errors=True)
