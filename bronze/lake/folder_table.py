"""A table in a local folder: entries, checkpoints and new tables are on disk before any process acts on them.

**Invariant.** The log entry and the entry's name are on disk before any process acts on the entry, above all
before the reader confirms the slot. `deltalake` does not flush: `settle` flushes entries.

**A killed process.** A kill between a commit and the flush leaves an unflushed entry, and the next process
would act on this entry. Every process that opens a table for writing therefore first flushes all entries
since the newest checkpoint. `bronze.lake.torn_log` handles an unflushed entry that a power cut has damaged.

**Checkpoints and new tables.** A checkpoint replaces all earlier entries for every reader, so an empty
checkpoint makes the table unreadable. Checkpoints and new tables are therefore made in a staging folder,
flushed, and then renamed.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.durability import (
    HINT,
    LOG,
    checkpoint_name,
    checksum_path,
    entries_of,
    entry_path,
    flush_to_disk,
    newest_checkpoint,
)
from deltasmelt.bronze.lake.log_table import LogTable, make_at
from deltasmelt.bronze.lake.place import local_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    import pyarrow as pa

_ASIDE: Final = "_checkpoint-"
_ASIDE_SECONDS: Final = 3600.0
_UNFINISHED: Final = "_made-"


class FolderTable(LogTable):
    """A table in a local folder."""

    def __init__(self, uri: str, version: int | None = None) -> None:
        # Before the log is read: a log that is exchanged meanwhile must look like another log.
        self._folder_at_open = _identity_of(_folder(uri) / LOG)
        super().__init__(uri, version)

    @classmethod
    def make(cls, uri: str, schema: pa.Schema, description: str, properties: Mapping[str, str]) -> None:
        """Make a table in a staging folder, flush the table and rename the folder; no reader sees a part."""
        _make(uri, lambda aside: make_at(str(aside), schema, description, properties))

    @classmethod
    def make_of(cls, uri: str, entry: bytes, checksum: bytes) -> bool:
        """Make a table of its first log entry, like `make`; return False if the folder exists already.

        `checksum` is the entry's version checksum: without it Delta computes the table's state by a job.
        """

        def write(aside: Path) -> None:
            (aside / LOG).mkdir(parents=True)
            entry_path(aside / LOG, 0).write_bytes(entry)
            checksum_path(aside / LOG, 0).write_bytes(checksum)

        return not _folder(uri).exists() and _make(uri, write)

    @property
    def _log(self) -> Path:
        return _folder(self.table_uri) / LOG

    def identity(self) -> tuple[int, ...]:
        """Return inode, time and size of the entry at this version; empty if the handle may be wrong."""
        try:
            entry = entry_path(self._log, self.version()).stat()
        except OSError:
            return ()
        # The handle is also wrong if the log's folder was exchanged since the open.
        known = self._folder_at_open is not None and self._folder_at_open == _identity_of(self._log)
        return (entry.st_ino, entry.st_mtime_ns, entry.st_size) if known else ()

    def entry(self, version: int) -> bytes | None:
        """Return the log entry of a version from its file."""

        def read() -> bytes | None:
            try:
                return entry_path(self._log, version).read_bytes()
            except FileNotFoundError:
                return None

        return perform(Effect.REFRESH, self.table_uri, read)

    def history(self, limit: int | None = None) -> list[dict[str, Any]]:
        """Return the newest commits; read the entries' files where `deltalake` cannot."""
        try:
            # `deltalake` finds no entry below a path with a character that URLs reserve, such as `#`, and
            # rejects unknown statistics: a shallow clone has size `-1`.
            return super().history(limit) or list(self._from_files(limit))
        except DeltaError:
            return list(self._from_files(limit))

    def _from_files(self, limit: int | None) -> Iterator[dict[str, Any]]:
        newest = self.version()
        for version in range(newest, -1 if limit is None else max(newest - limit, -1), -1):
            try:
                lines = entry_path(self._log, version).read_text(encoding="utf-8").splitlines()
            except FileNotFoundError:  # removed after the log's retention
                return
            infos = (json.loads(line).get("commitInfo") for line in lines)
            info = next((info for info in infos if info is not None), None)
            if info is not None:
                yield {**info, "version": version}

    def flush(self, after: int, version: int) -> None:
        """Flush the log entries after one version, up to another version."""
        if version > after:
            _flush(self._log, range(after + 1, version + 1))

    def flush_log(self) -> None:
        """Flush the log up to this version, whichever process wrote the entries."""
        known = newest_checkpoint(self._log)
        # Entries before the checkpoint were flushed before the checkpoint was made.
        every = sorted(entries_of(self._log)) if known is None else range(known + 1, self.version() + 1)
        _flush(self._log, every)
        flush_to_disk(self._log.parent)

    def tidy(self, *, retention_hours: int | None = None) -> None:
        """Remove log entries and joined files past their retention; flush the entries of VACUUM."""
        before = self.version()
        super().tidy(retention_hours=retention_hours)
        # VACUUM commits two entries without rows. A torn entry that a later commit follows could not be set
        # aside (`bronze.lake.torn_log`), so both are flushed.
        self.flush(before, max(entries_of(self._log), default=before))

    def checkpoint(self) -> None:
        """Make a checkpoint at this version, or at a newer version."""
        uri, log = self.table_uri, self._log
        # A crash leaves the staging folder, which the first checkpoint after an hour removes.
        _remove_old(log.parent, _ASIDE)
        aside = log.parent / f"{_ASIDE}{uuid.uuid4()}"
        try:
            # `deltalake` would name a checkpoint before the bytes are on disk. In a staging folder over hard
            # links to the log, no reader sees the checkpoint before the flush.
            perform(Effect.CHECKPOINT, uri, lambda: _link_log(log, aside / LOG, self.version()))
            perform(Effect.CHECKPOINT, uri, lambda: DeltaTable(str(aside)).create_checkpoint())
            made = [*(aside / LOG).glob(f"{self.version():020}.checkpoint*.parquet"), aside / LOG / HINT]
            for file in made:
                flush_to_disk(file)
            for file in made:  # the hint last: readers follow the hint to the checkpoint
                name = log / file.name
                perform(Effect.CHECKPOINT, uri, lambda file=file, name=name: file.replace(name))  # type: ignore[misc]
            flush_to_disk(log)
        finally:
            shutil.rmtree(aside, ignore_errors=True)


def _make(uri: str, write: Callable[[Path], None]) -> bool:
    """Make a table by a function that writes the table into a folder; return False if a table is there."""
    folder = _folder(uri)
    made = [folder.parent, *(each.parent for each in folder.parents if not each.exists())]
    remove_unfinished(folder.parent)
    # Not with the table's name, which may be as long as the file system allows.
    aside = folder.with_name(f"{_UNFINISHED}{uuid.uuid4()}")
    is_ours = True
    try:
        perform(Effect.CREATE_TABLE, uri, lambda: write(aside))
        _flush(aside / LOG, [0])
        flush_to_disk(aside)
        try:
            perform(Effect.CREATE_TABLE, uri, lambda: aside.rename(folder))
        except OSError:
            if not (folder / LOG).exists():  # no other process made the table
                raise
            is_ours = False
        for each in made:
            flush_to_disk(each)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return is_ours


def remove_unfinished(layer: Path, *, seconds: float = _ASIDE_SECONDS) -> None:
    """Remove tables that killed processes left unfinished in a layer's folder so many seconds ago."""
    _remove_old(layer, _UNFINISHED, seconds)


def _identity_of(folder: Path) -> tuple[int, int] | None:
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _folder(uri: str) -> Path:
    folder = local_folder(uri)
    assert folder is not None  # noqa: S101 - `bronze.lake.delta` chose the class by the place
    return folder


def _flush(log: Path, versions: Iterable[int]) -> None:
    for each in versions:
        flush_to_disk(entry_path(log, each))
    flush_to_disk(log)


def _link_log(log: Path, aside: Path, version: int) -> None:
    """Link the newest checkpoint and all later entries into a staging folder."""
    aside.mkdir(parents=True)
    known = newest_checkpoint(log)
    names = [f"{each:020}.json" for each in range((-1 if known is None else known) + 1, version + 1)]
    if known is not None:
        names += [checkpoint_name(known), f"{known:020}.json"]
    for name in names:
        with suppress(FileNotFoundError):  # an entry at or before a checkpoint may be absent
            os.link(log / name, aside / name)
    with suppress(FileNotFoundError):
        shutil.copyfile(log / HINT, aside / HINT)


def _remove_old(folder: Path, prefix: str, seconds: float = _ASIDE_SECONDS) -> None:
    """Remove the staging folders of killed processes."""
    for aside in folder.glob(f"{prefix}*"):
        with suppress(FileNotFoundError):
            if time.time() - aside.stat().st_mtime >= seconds:
                shutil.rmtree(aside, ignore_errors=True)
