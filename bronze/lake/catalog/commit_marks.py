"""What a commit of ours says of itself in a table that only Spark writes: the marks that belong to its rows.

Delta's ``txn`` action, in which marks stand otherwise (`bronze.lake.transactions`), can be written but not
read through SQL. What can be read is each commit's ``userMetadata`` (``DESCRIBE HISTORY``). It is part of the
same log entry as the rows, so mark and rows come about together here too. It is JSON:
``{"deltasmelt": {"marks": {"deltasmelt.stream": 42}}}``.

A history does not last for ever. So all marks are written into a property of the table now and then
(`MARKS_PROPERTY`): that is the checkpoint of marks. Setting a property is a commit too, and its own entry
says what was set, and as of which version (`AS_OF`): another writer's commit may have come between. So
reading backwards ends at that version.

A server may refuse the setting that gives a MERGE its ``userMetadata``, as serverless compute does. A MERGE
then says its mark in its condition (`condition`), which the history shows, too.

Pure. Delta: https://docs.delta.io/latest/delta-utility.html#retrieve-delta-table-history.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

MARKS_PROPERTY: Final = "deltasmelt.marks"
"""Table property: all marks as of the commit that set it, as JSON."""

AS_OF: Final = "deltasmelt.as_of"
"""In the property, beside the marks: the version that they were read of."""

USER_METADATA: Final = "spark.databricks.delta.commitInfo.userMetadata"
"""Setting that gives the commits of SQL statements what they say of themselves."""

_OURS: Final = "deltasmelt"
_IN_A_CONDITION: Final = re.compile(
    r"""[\["( ]*NOT \((?:\w+\.)?`?(?:_commit_lsn|_valid_from_lsn)`?(?:#\d+L?)? <=> -(\d+)L?\)"""
)
"""At the very start of what the history shows, where no value of a row can stand; of columns that no source
has."""


@dataclass(frozen=True, slots=True)
class Said:
    """What one commit says.

    Attributes:
        marks: version by application id.
        complete: no commit at or before `AS_OF` says anything besides.
        more: whatever else it says, by name.
        version: of the commit; -1 where that is not known.
    """

    marks: Mapping[str, int] = field(default_factory=dict)
    complete: bool = False
    more: Mapping[str, Any] = field(default_factory=dict)
    version: int = -1


def said(marks: Mapping[str, int], **more: Any) -> str:
    """The ``userMetadata`` of a commit.

    Args:
        marks: version by application id.
        more: what else the commit says; values that JSON knows.
    """
    return json.dumps({_OURS: {"marks": dict(marks), **more}}, separators=(",", ":"))


def read(entry: Mapping[str, Any], *, app: str | None = None) -> Said:
    """What an entry of a table's history says.

    Args:
        entry: ``version``, ``operation``, ``operationParameters`` and ``userMetadata`` of a commit.
        app: application id of a mark that stands in a MERGE's condition, if the table has such.
    """
    parameters, version = entry.get("operationParameters") or {}, entry.get("version", -1)
    if entry.get("operation") == "SET TBLPROPERTIES":
        properties = _object(parameters.get("properties"))
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
    """A condition of a MERGE that holds for every row of the table, and tells its mark.

    Args:
        column: a column of the target that holds LSNs, which are never negative; as SQL names it.
        version: of the mark.
    """
    return f"NOT ({column} <=> -{version}L)"


def collected(entries: Iterable[Said]) -> dict[str, int]:
    """Return all marks that a history gives which reaches back; the newest word counts.

    Args:
        entries: what commits say, newest first.
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
    """Return the marks that are known as of a version, with what all commits after that version say.

    What the property was set to meanwhile may be of before that version, and is said by these anyway.

    Args:
        entries: of all commits after the version, newest first.
        known: marks as of the version.
    """
    return {**known, **collected(one for one in entries if not one.complete)}


def gone_on_from_property(
    entries: Sequence[Said], properties: Mapping[str, str], version: int, *, newest: bool
) -> dict[str, int] | None:
    """Return the marks of a version by the table's property and the commits that are left; None if some lack.

    The property is the newest one, and so are its marks: an older property among the commits says nothing of
    commits that are gone between the two. Each commit after the property's marks has to be there. A single
    one may lack, if that is the commit which set the property.

    Args:
        entries: what the commits that are left say up to the version, newest first.
        properties: the table's.
        version: that is asked for.
        newest: whether the table had no later version when its properties were read.
    """
    as_of = _numbers(_object(properties.get(MARKS_PROPERTY))).get(AS_OF)
    if as_of is None or as_of > version:
        return None
    oldest = entries[-1].version if entries else version + 1
    set_before = newest and not any(one.complete for one in entries)
    if oldest > as_of + (2 if set_before else 1):
        return None
    return gone_on((one for one in entries if one.version > as_of), marks_of(properties))


def reaches_back(entries: Sequence[Said]) -> bool:
    """Whether commits, newest first, go back to where no older one says anything besides."""
    whole = next((one for one in entries if one.complete), None)
    return whole is not None and entries[-1].version <= whole.marks.get(AS_OF, whole.version)


def marks_of(properties: Mapping[str, str]) -> dict[str, int]:
    """The marks in a table's properties."""
    found = _numbers(_object(properties.get(MARKS_PROPERTY)))
    found.pop(AS_OF, None)
    return found


def _object(text: Any) -> dict[str, Any]:
    """A JSON object; empty where the text is none, for anybody may set a text of his own."""
    try:
        found = json.loads(text) if isinstance(text, str) else text
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _numbers(found: Mapping[str, Any]) -> dict[str, int]:
    return {str(name): value for name, value in found.items() if isinstance(value, int)}
