"""Create a silver table by a copy of another empty table's first log entry, without a statement of Spark.

CREATE TABLE costs about as much planning as the INSERT of a small table's rows (docs/performance/silver.md).
So Delta creates the first table of each kind (`kind_of`), and this table's entry with its checksum is the
pattern of the application's further tables of that kind: with another id, description, schema, clustering and
other properties. Protocol, features and the session's own default properties are Delta's choice, as before.

**A pattern is believed only if it reproduces its own table**: the entry that this module would write for the
pattern's table must be Delta's entry. What this module does not know (column mapping, a new type, a new
version of Delta with further actions) therefore stays with Delta's statement, and so do names that Delta
refuses (`_is_accepted`).

**Points of failure.** The table is written into a staging folder, flushed and renamed
(`bronze.lake.folder_table`): a kill or a failed call leaves no part of a table. If another process creates
the table first, or the folder has other files, the caller's CREATE TABLE IF NOT EXISTS follows. An entry
without rows states no window: a kill before the INSERT is the same as a kill after CREATE TABLE.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file.
"""

from __future__ import annotations

import json
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.identifiers import folded
from deltasmelt.bronze.lake.delta import first_entry, make_of
from deltasmelt.silver.schema.clustering import STATISTICS, clustering_columns
from deltasmelt.silver.schema.comments import description_of
from deltasmelt.silver.schema.ddl import MAPPING, schema_of
from deltasmelt.silver.spark.access import access_of
from deltasmelt.silver.spark.tuning import all_settings

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.silver.schema.catalog import SilverTable

_OF_FEEDS: Final = frozenset({"_change_type", "_commit_version", "_commit_timestamp"})
"""Columns of a change feed: Delta would take a row with such a value for a change, and not add the row."""
_WITH_FEATURES: Final = frozenset({"timestamp_ntz", "variant"})
"""Types, in the JSON of a schema, whose columns enable a feature."""
_DEFAULTS: Final = "spark.databricks.delta.properties.defaults."
_CLUSTERING: Final = "delta.clustering"
_MOST: Final = 64
"""Largest number of remembered kinds; the properties of silver's tables make fewer."""


@dataclass(frozen=True, slots=True)
class Kind:
    """The facts by which Delta chooses a new table's protocol, within one application of Spark.

    Attributes:
        properties: those that Delta interprets.
        defaults: the session's settings for further properties.
        types: those of `_WITH_FEATURES`.
    """

    application: str
    properties: frozenset[tuple[str, str]]
    defaults: frozenset[tuple[str, str]]
    types: frozenset[str]
    clustered: bool


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The first entry of a table without rows, line by line, with its checksum.

    `requested` are the properties that the statement stated; any other property is the session's default.
    """

    actions: tuple[dict[str, Any], ...]
    checksum: dict[str, Any]
    requested: frozenset[str]

    def written_for(
        self, table: SilverTable, properties: Mapping[str, str]
    ) -> tuple[tuple[dict[str, Any], ...], dict[str, Any]]:
        """Return the first entry's actions, and the checksum, of another table of the kind."""
        now, transaction = int(time.time() * 1000), str(uuid.uuid4())
        description, clustering = description_of(table), clustering_columns(table)
        actions: list[dict[str, Any]] = []
        checksum = {**self.checksum, "txnId": transaction}
        for action in self.actions:
            ((name, body),) = action.items()
            if name == "commitInfo":
                parameters = {
                    **body["operationParameters"],
                    "description": description,
                    "properties": json.dumps(dict(properties)),
                    "clusterBy": json.dumps(clustering),
                }
                body = {**body, "timestamp": now, "txnId": transaction, "operationParameters": parameters}
                body["engineInfo"] = "deltasmelt"
            elif name == "metaData":
                defaults = {
                    key: value for key, value in body["configuration"].items() if key not in self.requested
                }
                body = {
                    **body,
                    "id": str(uuid.uuid4()),
                    "createdTime": now,
                    "description": description,
                    "schemaString": json.dumps(schema_of(table), separators=(",", ":")),
                    "configuration": {**defaults, **properties},
                }
                checksum["metadata"] = body
            elif name == "domainMetadata":
                domain = {
                    "clusteringColumns": [[column] for column in clustering],
                    "domainName": _CLUSTERING,
                }
                body = {**body, "configuration": json.dumps(domain, separators=(",", ":"))}
                checksum["domainMetadata"] = [body]
            actions.append({name: body})
        return tuple(actions), checksum


_patterns: dict[Kind, _Pattern | None] = {}
"""Patterns of the process; None where Delta's entry cannot be reproduced."""


def copied(kind: Kind | None, uri: str, table: SilverTable, properties: Mapping[str, str]) -> bool:
    """Create a table by the pattern of its kind; return False if a statement must create the table."""
    pattern = None if kind is None else _patterns.get(kind)
    if pattern is None:
        return False
    actions, checksum = pattern.written_for(table, properties)
    entry = "".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions)
    return make_of(uri, entry.encode(), json.dumps(checksum, separators=(",", ":")).encode())


def remember(kind: Kind | None, uri: str, table: SilverTable, properties: Mapping[str, str]) -> None:
    """Remember a table that a statement has just created as the pattern of its kind."""
    if kind is None or kind in _patterns:
        return
    first = first_entry(uri)
    while len(_patterns) >= _MOST:
        _patterns.pop(next(iter(_patterns)), None)
    _patterns[kind] = None if first is None else _pattern(*first, table, properties)


def _pattern(
    entry: bytes, checksum: bytes, table: SilverTable, properties: Mapping[str, str]
) -> _Pattern | None:
    """Return a table's pattern; None if the pattern would not reproduce the table."""
    pattern = _Pattern(
        tuple(map(json.loads, entry.splitlines())), json.loads(checksum), frozenset(properties)
    )
    names = [next(iter(action)) for action in pattern.actions]
    expected = ["commitInfo", "domainMetadata", "metaData", "protocol"]
    if not clustering_columns(table):
        expected.remove("domainMetadata")
    if sorted(names) != expected or any(len(action) > 1 for action in pattern.actions):
        return None
    if any("inCommitTimestamp" in action.get("commitInfo", {}) for action in pattern.actions):
        return None  # a commit's own time, which a copy would repeat
    actions, again = pattern.written_for(table, properties)
    is_same = list(map(_comparable, actions)) == list(map(_comparable, pattern.actions))
    return pattern if is_same and _comparable(again) == _comparable(pattern.checksum) else None


_OWN: Final = frozenset({"id", "createdTime", "txnId", "timestamp", "commitInfo"})
"""Names of the values that differ between any two tables, or inform people alone."""


def _comparable(value: Any) -> Any:
    """Return an action or a checksum without `_OWN`, and with texts of JSON parsed."""
    if isinstance(value, list):
        return [_comparable(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {
        name: json.loads(item)
        if name in {"schemaString", "configuration"} and isinstance(item, str)
        else _comparable(item)
        for name, item in value.items()
        if name not in _OWN
    }


def kind_of(session: SparkSession, table: SilverTable, properties: Mapping[str, str]) -> Kind | None:
    """Return the kind of a new table; None where a statement creates every table."""
    access = access_of(session)
    if not access.runs_locally or MAPPING in properties:
        return None
    try:
        schema = schema_of(table)
    except ValueError:
        return None
    if not _is_accepted(schema["fields"]):
        return None
    # Delta does not interpret further properties, and the names of columns with statistics enable no feature.
    interpreted = {
        (name, "" if name == STATISTICS else value)
        for name, value in properties.items()
        if name.startswith("delta.")
    }
    defaults = {item for item in all_settings(session).items() if item[0].startswith(_DEFAULTS)}
    return Kind(
        access.name,
        frozenset(interpreted),
        frozenset(defaults),
        _WITH_FEATURES.intersection(_leaves(schema)),
        clustered=bool(clustering_columns(table)),
    )


def _is_accepted(fields: Sequence[dict[str, Any]], *, inside: bool = False) -> bool:
    """Check whether Delta accepts the names of a table's columns, or of the fields `inside` a column."""
    names = [folded(field["name"]) for field in fields]
    if len({*names}) < len(names) or (not inside and not _OF_FEEDS.isdisjoint(names)):
        return False
    structs = [struct for field in fields for struct in _parts(field["type"]) if "fields" in struct]
    return all(_is_accepted(struct["fields"], inside=True) for struct in structs)


def _leaves(plain: str | dict[str, Any]) -> Iterator[str]:
    """Yield the simple types in a type or schema."""
    if isinstance(plain, str):
        yield plain
        return
    for part in _parts(plain):
        for field in part.get("fields", ()):
            yield from _leaves(field["type"])
        yield from (item for item in part.values() if isinstance(item, str))


def _parts(plain: str | dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a container and the containers in it, but not those in the fields of a struct."""
    if isinstance(plain, dict):
        yield plain
        for part in ("elementType", "keyType", "valueType"):
            yield from _parts(plain.get(part, ""))
