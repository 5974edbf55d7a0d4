"""What the newest commits of a table say of themselves (``commitInfo``).

`deltalake` finds no entry where the folder's path holds a character that a URL does not, as ``#``. It refuses
a log whose statistics it does not know: a shallow clone says ``-1`` for a size. A local log is then read file
by file: entries are `_delta_log/<version>.json`, and `commitInfo` is a line of each.

Protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#commit-provenance-information.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from bronze.lake.client import DeltaError
from bronze.lake.disk import entry_path
from bronze.lake.folders import local_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltalake import DeltaTable


def history(table: DeltaTable, limit: int) -> list[dict[str, Any]]:
    """What the newest commits say, newest first; each with its ``version``, as far as the log still has it.

    Args:
        table: as of some version.
        limit: number of commits; at least 1.
    """
    folder = local_folder(table.table_uri)
    if folder is None:
        return table.history(limit)
    try:
        return table.history(limit) or list(_read(table, folder, limit))
    except DeltaError:
        return list(_read(table, folder, limit))


def _read(table: DeltaTable, folder: Path, limit: int) -> Iterator[dict[str, Any]]:
    newest = table.version()
    for version in range(newest, max(newest - limit, -1), -1):
        try:
            lines = entry_path(folder / "_delta_log", version).read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:  # past its retention
            return
        for line in lines:
            said = json.loads(line).get("commitInfo")
            if said is not None:
                yield {**said, "version": version}
                break
