"""Commits to a table of ours that somebody else made, and that changed its rows.

A table's mark states up to which LSN the table holds the source. Others can change the rows and leave the
mark: RESTORE brings older rows back under the newest mark, and DELETE, UPDATE, MERGE or an INSERT by hand set
none. What is built on such rows is wrong without a sign. So the log between the version that a cut names and
the newest one is read, and must hold nothing but commits of this pipeline and commits that change no row.

**Which commits are ours.** One that sets a mark of ours (``txn``), one whose ``userMetadata`` begins with
`SIGNATURE`, which every session of silver and gold sets, and one of `deltalake` that counts its actions
(`bronze.lake.torn_log`). Somebody who signs so on purpose is not found out.

**Which commits change no row.** Those whose files all come and go with ``dataChange = false`` or that name
none: OPTIMIZE, REORG, VACUUM START and END, CLUSTER BY, properties, comments, new columns, constraints.
Columns that are dropped take values along, without a file. A caller that knows the columns which are
needed may leave the others out (`Commit.drops_columns`).

**What makes older commits irrelevant.** A commit of ours that replaces every row: whatever came before it is
gone. So a snapshot that replaces a table, and a rebuild, heal the table.

**Where commits are read.** `deltalake` finds no entry where the folder's path holds a character that a URL
does not, as ``#``. It refuses a log whose statistics it does not know: a shallow clone has ``-1`` as a size.
A local log is then read file by file: entries are `_delta_log/<version>.json`, and `commitInfo` is a line of
each. Of a catalog's table Spark's history alone shows the commits.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#commit-provenance-information.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.durability import entry_path
from deltasmelt.bronze.lake.place import is_named, local_folder
from deltasmelt.bronze.lake.torn_log import ACTIONS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from deltalake import DeltaTable

SIGNATURE: Final = "deltasmelt"
"""The ``userMetadata`` of every commit of ours that states nothing else there; others begin with the same."""

_CHANGES_ROWS: Final = b'"dataChange":true'
_DROPS: Final = "DROP COLUMNS"
_TAKES_VALUES: Final = frozenset((_DROPS, "REPLACE COLUMNS"))
_EVERY_ROW: Final = frozenset(("", "[]", "true", '["true"]'))
_REPLACES: Final = frozenset(("CREATE OR REPLACE TABLE AS SELECT", "REPLACE TABLE AS SELECT"))


@dataclass(frozen=True, slots=True)
class Commit:
    """What an entry of a log states of who made it, and of what it did.

    Attributes:
        operation: in Delta's words; empty where the entry names none.
        ours: whether this pipeline made it.
        changes_rows: whether the rows, or values in them, are others after it.
        replaces_all: whether no row of the version before it is left.
        condition: of the rows that it changed, as the entry states it; empty where it changed every row.
    """

    operation: str
    ours: bool
    changes_rows: bool
    replaces_all: bool
    condition: str = ""

    @property
    def drops_columns(self) -> bool:
        """Whether columns are gone after it, or fields inside of them, and nothing else."""
        return self.operation == _DROPS


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A version that somebody else wrote, with the operation in Delta's words."""

    version: int
    operation: str

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation or 'an operation without a name'})"


def commit_of(entry: bytes) -> Commit:
    """Return what an entry of a log states of itself.

    Raises:
        ValueError: a line of it is no JSON.
    """
    info: dict[str, Any] = {}
    ours = False
    for line in entry.splitlines():
        if b'"txn"' not in line and b'"commitInfo"' not in line:  # most lines are of files
            continue
        action = json.loads(line)
        info = action.get("commitInfo") or info
        ours = ours or str((action.get("txn") or {}).get("appId", "")).startswith(SIGNATURE)
    return _commit(info, ours=ours, changes_rows=_CHANGES_ROWS in entry)


def added_by_others(entry: bytes) -> set[str]:
    """Return the paths of the files that an entry adds; none where a session of this release signed it.

    A mark is no proof here: earlier releases set marks, too, and wrote other types into files.
    """
    actions = [json.loads(line) for line in entry.splitlines() if b'"add"' in line or b'"commitInfo"' in line]
    if any(_is_signed(action.get("commitInfo") or {}) for action in actions):
        return set()
    return {unquote(action["add"]["path"]) for action in actions if "add" in action}


def _is_signed(info: dict[str, Any]) -> bool:
    return str(info.get("userMetadata") or "").lstrip('{"').startswith(SIGNATURE)


def _commit(info: dict[str, Any], *, ours: bool, changes_rows: bool) -> Commit:
    operation = str(info.get("operation") or "")
    parameters = info.get("operationParameters") or {}
    predicate = parameters.get("predicate")
    condition = "" if predicate is None or str(predicate) in _EVERY_ROW else str(predicate)
    overwrites = operation == "WRITE" and parameters.get("mode") == "Overwrite" and not condition
    return Commit(
        operation,
        ours or _is_signed(info) or ACTIONS_KEY in info,
        changes_rows or operation in _TAKES_VALUES,
        overwrites or operation in _REPLACES,
        condition,
    )


def restored(info: dict[str, Any] | None) -> Commit:
    """Return what a catalog's history states of a commit: that it is a RESTORE, or nothing to object to.

    A history shows neither marks nor which commit changed rows, and where a server guards settings no session
    signs. This pipeline restores no catalog's table.

    Args:
        info: of the commit; None where the history has it not.
    """
    commit = _commit(info or {}, ours=True, changes_rows=info is not None)
    return replace(commit, ours=commit.operation != "RESTORE")


def first_foreign(versions: Iterable[int], commit_at: Callable[[int], Commit | None]) -> ForeignCommit | None:
    """Return the oldest commit by others that changed rows which are still there; None where none did.

    Args:
        versions: those to look at, newest first.
        commit_at: gives the commit of a version; None where the log no longer has its entry. A log is cut
            oldest first, so no older version is asked for then.
    """
    found = None
    for version in versions:
        commit = commit_at(version)
        if commit is None:
            break
        if commit.ours and commit.replaces_all:
            break
        if commit.changes_rows and not commit.ours:
            found = ForeignCommit(version, commit.operation)
    return found


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
        return table.history(limit) or list(_from_files(table, folder, limit))
    except DeltaError:
        return list(_from_files(table, folder, limit))


def _from_files(table: DeltaTable, folder: Path, limit: int) -> Iterator[dict[str, Any]]:
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


def commits_of(uri: str, opened: Callable[[], DeltaTable], limit: int) -> Callable[[int], Commit | None]:
    """Return what gives the commit of a version; None of a version that the log no longer has.

    Args:
        uri: location of the table.
        opened: gives the table at its newest version; asked where no log can be read.
        limit: commits back to which versions are asked for.
    """
    if is_named(uri):
        told = {one["version"]: one for one in history(opened(), limit)}
        return lambda version: restored(told.get(version))

    def commit_at(version: int) -> Commit | None:
        entry = entry_of(uri, version)
        return None if entry is None else commit_of(entry)

    return commit_at


def entry_of(uri: str, version: int) -> bytes | None:
    """Return the entry of a version of a table at a location; None where the log no longer has it.

    Raises:
        OSError: the log cannot be read.
    """

    def read() -> bytes | None:
        folder = local_folder(uri)
        if folder is None:
            from deltasmelt.bronze.lake import entries  # noqa: PLC0415 - a local lake needs no client

            return entries.read_entry(uri, version)
        try:
            return entry_path(folder / "_delta_log", version).read_bytes()
        except FileNotFoundError:
            return None

    return perform(Effect.REFRESH, uri, read)
