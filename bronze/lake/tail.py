"""A table in a store, followed from entry to entry: by one request each, and one where there is none.

A handle of `deltalake` lists the log and reads each new entry twice. What an entry does to a table's files,
their rows and its marks it says itself, so it is read once, and the handle stays where it is. An entry that
does more, or is not understood, ends that: the handle is brought up and followed anew.

Of one version no two files have one path. An entry that gives a file another deletion vector removes and adds
the same path, in any order.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#actions.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import entries
from deltasmelt.bronze.lake.foreign_commits import Commit, commit_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltalake import DeltaTable

_PLAIN: Final = frozenset({"add", "remove", "txn", "commitInfo", "cdc", "domainMetadata"})
"""What an entry may say without changing more than files, marks, and domains, which nobody here reads."""
_KEPT: Final = 200
"""Newest entries of which is known what they say of themselves."""

Files = dict[str, tuple[int, int]]
Values = dict[str, int | None]


@dataclass
class Tail:
    """A table since its handle was brought up.

    Attributes:
        version: up to which it was followed.
        files: rows and bytes of each file by its path.
        marks: that were set since.
        said: what each entry since says of itself, by version.
        commits: of each entry since: who made it, and what it did.
        column: name, within files, of a column whose values are counted; None: of none.
        values: how many values of that column each file has, by its path; only files with some. None: the
            file's statistics do not say.
    """

    version: int
    files: Files
    marks: dict[str, int] = field(default_factory=dict)
    said: dict[int, dict[str, Any]] = field(default_factory=dict)
    commits: dict[int, Commit] = field(default_factory=dict)
    column: str | None = None
    values: Values = field(default_factory=dict)

    def follow(self, entry: bytes) -> bool:
        """Take the next entry; False where it says what is not understood here, and nothing was taken."""
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
        """Rows and bytes of all files."""
        return sum(rows for rows, _ in self.files.values()), sum(size for _, size in self.files.values())

    def total(self) -> int | None:
        """Return how many values of the column all files have; None where statistics do not say.

        Deleted rows count as long as their files stay.
        """
        counts = [count for count in self.values.values() if count is not None]
        return sum(counts) if len(counts) == len(self.values) else None


def tail_of(table: DeltaTable, column: str | None = None) -> Tail:
    """Return a table as of its handle; see `Tail` for the column."""
    actions = pa.table(table.get_add_actions())
    columns = (actions[name].to_pylist() for name in ("path", "num_records", "size_bytes"))
    files = {path: (rows or 0, size) for path, rows, size in zip(*columns, strict=True)}
    return Tail(table.version(), files, column=column, values=_counted(actions, column))


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


def advance(tail: Tail, uri: str, enough: Callable[[Tail], bool] = lambda _: False) -> bool:
    """Follow a table to its newest entry; False where the handle has to be brought up.

    Args:
        tail: of the table.
        uri: its location.
        enough: nothing after what is there now is asked for; it is asked after each entry.

    Raises:
        OSError: the store cannot be reached, or refuses.
    """
    while True:
        version = tail.version + 1
        entry = perform(Effect.REFRESH, uri, lambda version=version: entries.read_entry(uri, version))  # type: ignore[misc]
        if entry is None:
            return True
        if not tail.follow(entry):
            return False
        if enough(tail):
            return True


def has_entry(tail: Tail, uri: str) -> bool:
    """Whether the entry of the version up to which a table was followed is still there, by one request.

    Raises:
        OSError: the store cannot be reached, or refuses.
    """
    return perform(Effect.REFRESH, uri, lambda: entries.has_entry(uri, tail.version))


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
