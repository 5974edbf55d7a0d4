"""Log following in a store: a request for each new entry, and a final request without a result.

A handle of `deltalake` lists the log and reads each new entry twice. An entry states the effect on the
table's files, rows and marks, so `Tail` reads each entry once and does not move the handle. An entry with a
further effect, or in an unknown form, ends the following: the caller refreshes the handle and follows again
from there.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#actions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from deltasmelt.bronze.lake.foreign_commits import Commit, commit_of

if TYPE_CHECKING:
    import pyarrow as pa

# Actions that change only files, marks and domains; no code of this project reads domains.
_PLAIN: Final = frozenset({"add", "remove", "txn", "commitInfo", "cdc", "domainMetadata"})
# Number of newest entries whose commitInfo and commit are kept.
_KEPT: Final = 200

Files = dict[str, tuple[int, int]]
Values = dict[str, int | None]


@dataclass
class Tail:
    """State of a table since the last refresh of its handle."""

    # last version that was followed
    version: int
    # rows and bytes of each file by its path
    files: Files
    # marks that were set since the refresh
    marks: dict[str, int] = field(default_factory=dict)
    # commitInfo of each newest entry since the refresh, by version
    said: dict[int, dict[str, Any]] = field(default_factory=dict)
    # author and actions of each of these entries
    commits: dict[int, Commit] = field(default_factory=dict)
    # name, within files, of a column whose values are counted; None to count no column
    column: str | None = None
    # number of the column's values per file path, only for files with any value; None if the file's
    # statistics do not state the number
    values: Values = field(default_factory=dict)

    def follow(self, entry: bytes) -> bool:
        """Apply the next entry; return False for an entry in an unknown form, and change nothing then."""
        try:
            actions = [json.loads(line) for line in entry.splitlines() if line.strip()]
            if not all(action.keys() <= _PLAIN for action in actions):
                return False
            gone = [unquote(action["remove"]["path"]) for action in actions if "remove" in action]
            come = dict(_file(action["add"]) for action in actions if "add" in action)
            values = dict(_values(action["add"], self.column) for action in actions if "add" in action)
            marks = {one["appId"]: int(one["version"]) for action in actions if (one := action.get("txn"))}
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        self.version += 1
        # In one version no two files have the same path. An entry with a new deletion vector for a file
        # removes and adds the file's path, in any order.
        for path in gone:
            self.files.pop(path, None)
        for path in (*gone, *come):
            self.values.pop(path, None)
        self.files |= come
        self.values |= {path: count for path, count in values.items() if count != 0}
        self.marks |= marks
        infos = [action["commitInfo"] for action in actions if "commitInfo" in action]
        self.said[self.version] = infos[0] if infos else {}
        self.commits[self.version] = commit_of(entry)
        for known in (self.said, self.commits):
            known.pop(self.version - _KEPT, None)
        return True

    def size(self) -> tuple[int, int]:
        """Return rows and bytes of all files."""
        return sum(rows for rows, _ in self.files.values()), sum(size for _, size in self.files.values())

    def total(self) -> int | None:
        """Return how many values of the column all files contain; None if statistics do not state the number.

        Deleted rows count as long as their files remain.
        """
        counts = [count for count in self.values.values() if count is not None]
        return sum(counts) if len(counts) == len(self.values) else None


def tail_of(version: int, actions: pa.Table, column: str | None = None) -> Tail:
    """Return the state of a table at a version, from all its files; `Tail` explains the column."""
    columns = (actions[name].to_pylist() for name in ("path", "num_records", "size_bytes"))
    files = {path: (rows or 0, size) for path, rows, size in zip(*columns, strict=True)}
    return Tail(version, files, column=column, values=_counted(actions, column))


def _counted(actions: pa.Table, column: str | None) -> Values:
    if column is None:
        return {}
    paths, nulls = actions["path"].to_pylist(), None
    if "null_count" in actions.column_names:
        nulls = actions["null_count"].combine_chunks()
    if nulls is None or nulls.type.get_field_index(column) < 0:
        return dict.fromkeys(paths)
    lines = zip(paths, actions["num_records"].to_pylist(), nulls.field(column).to_pylist(), strict=True)
    counts = {path: _difference(rows, count) for path, rows, count in lines}
    return {path: count for path, count in counts.items() if count != 0}


def _file(add: dict[str, Any]) -> tuple[str, tuple[int, int]]:
    stats = json.loads(add.get("stats") or "{}")
    return unquote(add["path"]), (int(stats.get("numRecords") or 0), int(add["size"]))


def _values(add: dict[str, Any], column: str | None) -> tuple[str, int | None]:
    path = unquote(add["path"])
    if column is None:
        return path, 0
    stats = json.loads(add.get("stats") or "{}")
    return path, _difference(stats.get("numRecords"), (stats.get("nullCount") or {}).get(column))


def _difference(rows: int | None, nulls: int | None) -> int | None:
    return None if rows is None or nulls is None else int(rows) - int(nulls)
