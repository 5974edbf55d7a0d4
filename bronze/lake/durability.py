"""What a power cut leaves of a table on a local path. An object store keeps what it acknowledged.

The order is: a file's bytes and its name in the folder are on disk before a commit names it. The log entry
and its name are on disk before anybody acts on it, the slot's confirmation above all. Neither Arrow nor
`deltalake` flushes anything, so `PartWriter` does the first and `delta.settle` the second.

A process that was killed between a commit and its flush leaves an entry that the next one finds, and would
act on. So who opens a table to write it flushes the entries first, from the newest checkpoint on; older ones
were flushed before that was made. What a power cut left of an entry that was not flushed is
`bronze.lake.torn_log`'s.

A checkpoint replaces the entries before it for every reader, and one of no length makes the table unreadable.
`deltalake` would give it its name before its bytes are on disk. So it is made in a folder aside, over links
to the same log, flushed, and only then moved to its name. A crash leaves the folder, which the next
checkpoint removes after an hour. A new table is made aside in the same way.
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
    """Make a table's log entries after one version, up to another, outlive a power cut.

    Several, because another process may have committed right before or after us.
    """
    folder = local_folder(uri)
    if folder is not None and version > after:
        log = folder / _LOG
        for each in range(after + 1, version + 1):
            flush_to_disk(entry_path(log, each))
        flush_to_disk(log)


def flush_after(uri: str, version: int) -> None:
    """Make a table's log entries after a version outlive a power cut, however many there are."""
    folder = local_folder(uri)
    if folder is not None:
        flush_commits(uri, version, max(entries_of(folder / _LOG), default=version))


def flush_log(uri: str, version: int) -> None:
    """Make what a table's log says up to a version outlive a power cut, whichever process wrote it."""
    folder = local_folder(uri)
    if folder is None:
        return
    known = newest_checkpoint(folder / _LOG)
    for each in sorted(entries_of(folder / _LOG)) if known is None else range(known + 1, version + 1):
        flush_to_disk(entry_path(folder / _LOG, each))
    flush_to_disk(folder / _LOG)
    flush_to_disk(folder)


def make_whole(uri: str, folder: Path, create: Callable[[str], None]) -> None:
    """Make a local table under another name, flush it, and give it its own; no one sees a part of it.

    Nothing is done where the table has come about meanwhile.

    Args:
        uri: location of the table.
        folder: the same, as a path.
        create: makes it at another one.
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
            if not (folder / _LOG).exists():  # not a lost race
                raise
        for each in made:
            flush_to_disk(each)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def checkpoint(table: DeltaTable) -> None:
    """Make a checkpoint at the version of a table's handle, or a newer one."""
    uri = table.table_uri
    folder = local_folder(uri)
    if folder is None:
        perform(Effect.CHECKPOINT, uri, table.create_checkpoint)
        return
    from deltalake import DeltaTable  # noqa: PLC0415 - a lake in a catalog needs none

    _remove_old(folder)
    aside = folder / f"{_ASIDE}{uuid.uuid4()}"
    try:
        perform(Effect.CHECKPOINT, uri, lambda: _link_log(folder / _LOG, aside / _LOG, table.version()))
        perform(Effect.CHECKPOINT, uri, lambda: DeltaTable(str(aside)).create_checkpoint())
        made = [*(aside / _LOG).glob(f"{table.version():020}.checkpoint*.parquet"), aside / _LOG / _HINT]
        for file in made:
            flush_to_disk(file)
        for file in made:  # the hint last
            name = folder / _LOG / file.name
            perform(Effect.CHECKPOINT, uri, lambda file=file, name=name: file.replace(name))  # type: ignore[misc]
        flush_to_disk(folder / _LOG)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _link_log(log: Path, aside: Path, version: int) -> None:
    """The entries after the newest checkpoint, and that, under other names in the file system."""
    aside.mkdir(parents=True)
    known = newest_checkpoint(log)
    names = [f"{each:020}.json" for each in range((-1 if known is None else known) + 1, version + 1)]
    if known is not None:
        names += [_checkpoint_name(known), f"{known:020}.json"]
    for name in names:
        with suppress(FileNotFoundError):  # an entry at or before a checkpoint may be gone
            os.link(log / name, aside / name)
    with suppress(FileNotFoundError):
        shutil.copyfile(log / _HINT, aside / _HINT)


def newest_checkpoint(log: Path) -> int | None:
    """Version of the newest checkpoint, as the hint says; None where there is none."""
    try:
        hint = json.loads((log / _HINT).read_text())
    except (FileNotFoundError, ValueError):
        return None
    version = int(hint["version"])
    return version if (log / _checkpoint_name(version)).exists() else None


def entry_path(log: Path, version: int) -> Path:
    """Where a log has the entry of a version."""
    return log / f"{version:020}.json"


def _checkpoint_name(version: int) -> str:
    return f"{version:020}.checkpoint.parquet"


def entries_of(log: Path) -> list[int]:
    """Versions of which a log has an entry, in no order."""
    return [int(found[1]) for entry in log.iterdir() if (found := _ENTRY.fullmatch(entry.name))]


def _remove_old(folder: Path) -> None:
    for aside in folder.glob(f"{_ASIDE}*"):
        with suppress(FileNotFoundError):
            if time.time() - aside.stat().st_mtime > _ASIDE_SECONDS:
                shutil.rmtree(aside, ignore_errors=True)
