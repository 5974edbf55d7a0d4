"""Foreign commits: a foreign writer changed rows of the pipeline's tables.

A table's mark states up to which LSN the table reflects the source. A foreign writer can change the rows
without changing the mark: RESTORE brings back older rows under the newest mark; a manual DELETE, UPDATE,
MERGE or INSERT sets no mark. Any table derived from such rows is wrong without an error. Silver and gold
therefore read the log between the version that a cut names and the newest version. The log may contain only
commits of the pipeline and commits without any row change.

**Commits of this pipeline** set a mark of the pipeline (``txn``), or have ``userMetadata`` that begins with
`SIGNATURE` (every session of silver and gold sets the signature), or count their actions (`deltalake`, see
`bronze.lake.torn_log`). A deliberate forgery of the signature is not detected.

**Commits that change no row** have only files with ``dataChange = false``, or name no file: OPTIMIZE, REORG,
VACUUM START and END, CLUSTER BY, properties, comments, new columns, constraints.

**Older commits.** If a commit of the pipeline replaces every row, all earlier commits are irrelevant. A
replacing snapshot, and a rebuild, therefore heal the table.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#commit-provenance-information.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from deltasmelt.bronze.lake.torn_log import ACTIONS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Beginning of the pipeline's ``userMetadata``; the whole text of a commit without further metadata.
SIGNATURE: Final = "deltasmelt"

_CHANGES_ROWS: Final = b'"dataChange":true'
_DROPS: Final = "DROP COLUMNS"
_TAKES_VALUES: Final = frozenset((_DROPS, "REPLACE COLUMNS"))
_EVERY_ROW: Final = frozenset(("", "[]", "true", '["true"]'))
_REPLACES: Final = frozenset(("CREATE OR REPLACE TABLE AS SELECT", "REPLACE TABLE AS SELECT"))


@dataclass(frozen=True, slots=True)
class Commit:
    """Author and effect of a commit, from its log entry."""

    # Delta's name of the operation; empty if the entry has no name
    operation: str
    # whether this pipeline made the commit
    ours: bool
    # whether the commit changed rows, or values within rows
    changes_rows: bool
    # whether the commit left no row of the previous version
    replaces_all: bool
    # condition of the changed rows in the entry; empty if every row changed
    condition: str = ""

    @property
    def drops_columns(self) -> bool:
        """Whether the commit only drops columns or fields; a caller may ignore a drop of unneeded columns."""
        return self.operation == _DROPS


@dataclass(frozen=True, slots=True)
class ForeignCommit:
    """A version by a foreign writer, with Delta's name of the operation."""

    version: int
    operation: str

    def __str__(self) -> str:
        return f"version {self.version} ({self.operation or 'an operation without a name'})"


def commit_of(entry: bytes) -> Commit:
    """Return author and effect of a log entry.

    Raises:
        ValueError: a line of the entry is not JSON.
    """
    info: dict[str, Any] = {}
    ours = False
    for line in entry.splitlines():
        if b'"txn"' not in line and b'"commitInfo"' not in line:  # most lines describe files
            continue
        action = json.loads(line)
        info = action.get("commitInfo") or info
        ours = ours or str((action.get("txn") or {}).get("appId", "")).startswith(SIGNATURE)
    return _commit(info, ours=ours, changes_rows=_CHANGES_ROWS in entry)


def added_by_others(entry: bytes) -> set[str]:
    """Return the paths of the files that an entry adds; none if a session of this release signed it."""
    actions = [json.loads(line) for line in entry.splitlines() if b'"add"' in line or b'"commitInfo"' in line]
    # A mark is no proof here: earlier releases also set marks, and wrote different types into files.
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
        # Dropped columns remove values without changing a file.
        changes_rows or operation in _TAKES_VALUES,
        overwrites or operation in _REPLACES,
        condition,
    )


def restored(info: dict[str, Any] | None) -> Commit:
    """Return a commit from a catalog's history: only a RESTORE counts as foreign."""
    # The history shows neither marks nor which commit changed rows, and on a server with restricted settings
    # no session signs commits. This pipeline never runs RESTORE on a catalog's table.
    commit = _commit(info or {}, ours=True, changes_rows=info is not None)
    return replace(commit, ours=commit.operation != "RESTORE")


def first_foreign(versions: Iterable[int], commit_at: Callable[[int], Commit | None]) -> ForeignCommit | None:
    """Return the oldest foreign commit whose row changes are still in effect; None if there is none.

    The versions are sorted newest first.
    """
    found = None
    for version in versions:
        commit = commit_at(version)
        # Logs are cut oldest first, so no older entry exists either.
        if commit is None:
            break
        if commit.ours and commit.replaces_all:
            break
        if commit.changes_rows and not commit.ours:
            found = ForeignCommit(version, commit.operation)
    return found
