"""Files of `bronze.changes` that no version names, removed by the lake's new reader.

A process that is killed while it writes leaves them: up to the whole of a table that was being copied.
Nothing else removes them, because vacuum cannot tell them from files that are still to be named
(`bronze.lake.retention`).

Why it is safe: it runs right after the reader's claim (`bronze.store.sink`), before it writes anything
itself. From then on no commit of an earlier reader comes about, so no file that is not named now will ever
be. Files that were compacted are named as removed; they stay until `bronze.lake.retention` takes
them, for an older version may be being read. Only files whose names the reader gives are touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSelector

from bronze.doors import Door, through
from bronze.lake import delta
from bronze.lake.parquet import delete_files, file_system

if TYPE_CHECKING:
    from deltalake import DeltaTable

PREFIXES: Final = ("stream-", "snapshot-")
"""What the names of the reader's files begin with."""


def remove_leftovers(changes: DeltaTable) -> int:
    """Remove what no version names; how many files that were.

    Args:
        changes: `bronze.changes` at its newest version, claimed.

    Raises:
        DeltaError, OSError: the lake cannot be read or written.
    """
    uri = changes.table_uri
    found = through(Door.LIST_FILES, uri, lambda: file_system(uri).get_file_info(FileSelector("")))
    names = {file.base_name for file in found if file.base_name.startswith(PREFIXES)}
    if not names:
        return 0
    names -= set(delta.paths_of(changes))
    if names:
        names -= set(_joined(changes))
    delete_files(uri, sorted(names))
    return len(names)


def _joined(changes: DeltaTable) -> list[str]:
    """Files that the log names as removed, and that are still there."""
    return through(
        Door.LIST_FILES,
        changes.table_uri,
        lambda: changes.vacuum(0, dry_run=True, enforce_retention_duration=False, full=False),
    )
