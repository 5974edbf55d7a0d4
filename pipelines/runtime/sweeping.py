"""The physical end of former versions of a local table: their files, log entries and checkpoints.

The caller holds the layer alone (or states `shared`), and no cut names a version before the newest. The
order keeps the newest version readable at each moment: the log is cut behind a checkpoint, oldest entries
first, and only files that the newest version does not name are removed. A repeated call removes the rest.

A killed writer leaves parts of log entries under names that Delta does not read, and deltasmelt puts torn
entries aside. Both may hold values of rows, so they go with the log.

Spark does not flush what it writes. So before the first removal all files of the newest version, the whole
log and their names are flushed: after a power cut nothing is gone that the newest version needs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSelector

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.durability import LOG, flush_to_disk
from deltasmelt.bronze.lake.parquet import delete_files, file_system, files_folder
from deltasmelt.pipelines.runtime.log_entries import cut_log

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.table import Table

_NUMBER: Final = re.compile(r"\d{20}")
_ASIDE: Final = re.compile(r"\.(?:tmp|torn)(?:\.crc)?$")


@dataclass(slots=True)
class Swept:
    """Numbers of removed files."""

    files: int = 0
    log_entries: int = 0

    def add(self, other: Swept) -> None:
        """Add the numbers of another table."""
        self.files += other.files
        self.log_entries += other.log_entries


def unnamed_files(table: Table) -> list[str]:
    """Return the files of a table that its newest version does not name, without the log; sorted.

    Raises:
        DefiniteError: ``erasure-incomplete``: files that the newest version names are absent.
    """
    table.refresh()
    uri, named = table.table_uri, set(table.paths())
    listed = perform(
        Effect.LIST_FILES, uri, lambda: file_system(uri).get_file_info(FileSelector("", recursive=True))
    )
    paths = {info.path for info in listed if info.is_file and not info.path.startswith("_delta_log/")}
    if not named <= paths:
        raise DefiniteError(
            f"{len(named - paths)} files of the newest version are absent or have an unknown spelling",
            code="erasure-incomplete",
            where=uri,
            remedy="restore the files, or rebuild the table; then run the command again",
        )
    return sorted(path for path in paths if _data_file(path) not in named)


def former_rows(changes: Table) -> list[str]:
    """Return the files with rows of `bronze.changes` that its newest version does not name."""
    # A killed process may have left a checkpoint in a folder of its own.
    return [path for path in unnamed_files(changes) if "/" not in path and path.endswith(".parquet")]


def _data_file(path: str) -> str:
    """Return the file that a checksum file of Hadoop belongs to, or the path itself."""
    folder, slash, name = path.rpartition("/")
    checked = name.startswith(".") and name.endswith(".crc")
    return f"{folder}{slash}{name[1:-4]}" if checked else path


def sweep(table: Table, *, sparing: bool = False, shared: bool = False) -> Swept:
    """Remove all files and log entries of former versions; with `sparing` only the log entries.

    The log must have a checkpoint at the newest version, or one commit before.

    Args:
        shared: whether processes without a lock of the lake may append. Their next commit may name a file
            that no version names yet, so only files that the log records as removed are removed.
    """
    unnamed = sorted(table.removed_files()) if shared else unnamed_files(table)
    _flush(table)
    entries = cut_log(table, table.version())
    _remove_aside(table, shared=shared)
    _require_short(table)
    paths = [] if sparing else unnamed
    delete_files(table.table_uri, paths)
    return Swept(sum(not path.endswith(".crc") for path in paths), entries)


def _flush(table: Table) -> None:
    """Wait until the newest version's files, the log and their names are on disk."""
    folder = files_folder(table.table_uri)
    assert folder is not None  # noqa: S101 - the caller has refused other places
    files = [folder / path for path in table.paths()]
    files += [file for file in (folder / LOG).iterdir() if file.is_file()]
    for file in files:
        flush_to_disk(file)
    for parent in {folder, *(file.parent for file in files)}:
        flush_to_disk(parent)


def _remove_aside(table: Table, *, shared: bool) -> None:
    """Remove what is no entry of the log; with `shared` only for versions that are past."""
    folder = files_folder(table.table_uri)
    assert folder is not None  # noqa: S101 - the caller has refused other places
    for file in sorted((folder / LOG).iterdir()):
        number = _NUMBER.search(file.name)
        past = number is not None and int(number[0]) < table.version()
        # `smelt snapshot` requests snapshots without a lock, by files without a number.
        if _ASIDE.search(file.name) and file.is_file() and (past or (number is not None and not shared)):
            file.unlink(missing_ok=True)


def _require_short(table: Table) -> None:
    """Check that only the newest checkpoint, its entry and one later entry are left of the log.

    Raises:
        DefiniteError: ``erasure-incomplete``.
    """
    folder = files_folder(table.table_uri)
    assert folder is not None  # noqa: S101 - the caller has refused other places
    numbers = [int(name[0]) for file in (folder / LOG).iterdir() if (name := _NUMBER.search(file.name))]
    if min(numbers) < table.version() - 1 or (folder / LOG / "_sidecars").exists():
        raise DefiniteError(
            "entries of former versions are left in the log: the table has no classic checkpoint",
            code="erasure-incomplete",
            where=table.table_uri,
            remedy="run the command again; if it stays, set delta.checkpointPolicy of the table to classic",
        )
