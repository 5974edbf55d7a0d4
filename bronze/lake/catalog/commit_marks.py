"""Marks in the metadata of commits, for tables that only Spark writes.

SQL can write Delta's ``txn`` action, which normally holds a mark (`bronze.lake.transactions`), but cannot
read the action. SQL can read each commit's ``userMetadata`` (``DESCRIBE HISTORY``), which is part of the log
entry of the rows: marks and rows are committed together here too. The content is JSON: ``{"deltasmelt":
{"marks": {"deltasmelt.stream": 42}}}``.

**Limited history.** A history is cut from time to time. All marks are therefore written periodically into a
property of the table (`MARKS_PROPERTY`), as a checkpoint of marks.

**Restricted servers.** A server may forbid the setting that gives a MERGE its ``userMetadata``, as serverless
compute does. A MERGE then states its mark in its condition (`condition`), which the history shows too.

Pure. Delta: https://docs.delta.io/latest/delta-utility.html#retrieve-delta-table-history.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Table property: all marks as of `AS_OF`, as JSON.
MARKS_PROPERTY: Final = "deltasmelt.marks"

# Key in the property next to the marks: the version of the marks.
AS_OF: Final = "deltasmelt.as_of"

# Spark setting for the ``userMetadata`` of commits of SQL statements.
USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"

_OURS: Final = "deltasmelt"
_IN_A_CONDITION: Final = re.compile(
    r"""[\["( ]*NOT \((?:\w+\.)?`?(?:_commit_lsn|_valid_from_lsn)`?(?:#\d+L?)? <=> -(\d+)L?\)"""
)
"""Matches only at the start of a condition, before any value of a row; no source has these columns.
"""


@dataclass(frozen=True, slots=True)
class Said:
    """Marks and further metadata of one commit."""

    # mark version by application id
    marks: Mapping[str, int] = field(default_factory=dict)
    # whether the marks include those of all commits at or before `AS_OF`
    complete: bool = False
    # further metadata of the commit, by name
    more: Mapping[str, Any] = field(default_factory=dict)
    # version of the commit; -1 if unknown
    version: int = -1


def said(marks: Mapping[str, int], **more: Any) -> str:
    """Return the ``userMetadata`` of a commit, with its marks and further JSON values."""
    return json.dumps({_OURS: {"marks": dict(marks), **more}}, separators=(",", ":"))


def read(entry: Mapping[str, Any], *, app: str | None = None) -> Said:
    """Return marks and metadata of a history row.

    Args:
        app: application id of marks in MERGE conditions, if the table has such marks.
    """
    parameters, version = entry.get("operationParameters") or {}, entry.get("version", -1)
    if entry.get("operation") == "SET TBLPROPERTIES":
        properties = _object(parameters.get("properties"))
        # Setting the property is a commit too. A writer may have committed since the marks were read, so the
        # entry states the version of the marks (`AS_OF`), at which backward reading ends.
        if MARKS_PROPERTY in properties:
            marks = _numbers(_object(properties[MARKS_PROPERTY]))
            return Said(marks, complete=True, version=version)
    ours = _object(entry.get("userMetadata")).get(_OURS)
    if isinstance(ours, dict):
        more = {name: value for name, value in ours.items() if name != "marks"}
        return Said(_numbers(ours.get("marks") or {}), more=more, version=version)
    if app is not None and entry.get("operation") == "MERGE":
        found = _IN_A_CONDITION.match(str(parameters.get("predicate")))
        if found is not None:
            return Said({app: int(found[1])}, version=version)
    return Said(version=version)


def condition(column: str, version: int) -> str:
    """Return a MERGE condition that is true for every row of the table and states the mark.

    Args:
        column: a column of the target that holds LSNs, which are never negative; as quoted for SQL.
    """
    return f"NOT ({column} <=> -{version}L)"


def collected(entries: Iterable[Said]) -> dict[str, int]:
    """Return all marks of a history that reaches back; the newest value of an id wins.

    The entries are sorted newest first.
    """
    found: dict[str, int] = {}
    base: Mapping[str, int] | None = None
    as_of = -1
    for one in entries:
        if base is not None and one.version <= as_of:
            break
        if not one.complete:
            found = {**one.marks, **found}
        elif base is None:
            base, as_of = one.marks, one.marks.get(AS_OF, one.version)
    found = {**(base or {}), **found}
    found.pop(AS_OF, None)
    return found


def gone_on(entries: Iterable[Said], known: Mapping[str, int]) -> dict[str, int]:
    """Return known marks, updated with the marks of all later commits."""
    # Entries of the property may be older than the known marks, and the other commits contain their marks
    # anyway.
    return {**known, **collected(one for one in entries if not one.complete)}


def gone_on_from_property(
    entries: Sequence[Said], properties: Mapping[str, str], version: int, *, newest: bool
) -> dict[str, int] | None:
    """Return a version's marks from the table's property and the remaining commits; None if some are missing.

    Args:
        entries: metadata of the remaining commits up to the version, newest first.
        newest: whether the version was still the newest when the caller read the properties.
    """
    # Only the newest property counts. An older property among the commits proves nothing about removed
    # commits between the two.
    as_of = _numbers(_object(properties.get(MARKS_PROPERTY))).get(AS_OF)
    if as_of is None or as_of > version:
        return None
    oldest = entries[-1].version if entries else version + 1
    set_before = newest and not any(one.complete for one in entries)
    # Every commit after the property's marks must exist. A single commit may be missing if this commit set
    # the property.
    if oldest > as_of + (2 if set_before else 1):
        return None
    return gone_on((one for one in entries if one.version > as_of), marks_of(properties))


def reaches_back(entries: Sequence[Said]) -> bool:
    """Check whether these commits reach back to a commit that restates every mark."""
    whole = next((one for one in entries if one.complete), None)
    return whole is not None and entries[-1].version <= whole.marks.get(AS_OF, whole.version)


def marks_of(properties: Mapping[str, str]) -> dict[str, int]:
    """Return the marks in a table's properties."""
    found = _numbers(_object(properties.get(MARKS_PROPERTY)))
    found.pop(AS_OF, None)
    return found


def _object(text: Any) -> dict[str, Any]:
    """Return a JSON object; empty for any further text, because any user may set a text."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): value for name, value in found.items() if isinstance(value, int)}
