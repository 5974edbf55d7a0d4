"""Create a silver table by a copy of another empty table's first log entry, without a statement of Spark.

CREATE TABLE costs about as much planning as the INSERT of a small table's rows (docs/performance/silver.md).
So Delta creates the first table of each kind (`_kind`), and this table's entry with its checksum is the
pattern of the application's further tables of that kind: with another id, description, schema, clustering and
other properties. Protocol, features and the session's own default properties are Delta's choice, as before.

**A pattern is believed only if it reproduces its own table**: the entry that this module would write for the
pattern's table must be Delta's entry. What this module does not know (column mapping, a new type, a new
version of Delta with further actions) therefore stays with Delta's statement.

**Points of failure.** The table is written into a staging folder, flushed and renamed
(`bronze.lake.folder_table`): a kill or a failed call leaves no part of a table. If another process creates
the table first, or the folder has other files, the caller's CREATE TABLE IF NOT EXISTS follows. An entry
without rows states no window: a kill before the INSERT is the same as a kill after CREATE TABLE.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#version-checksum-file.
"""

from __future__ import annotations

import json
import re
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lake.delta import first_entry, make_of
from deltasmelt.silver.schema.clustering import STATISTICS, clustering_columns
from deltasmelt.silver.schema.comments import description_of
from deltasmelt.silver.schema.ddl import MAPPING, NTZ, definitions
from deltasmelt.silver.spark.access import access_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.silver.schema.catalog import SilverTable

_KNOWN: Final = frozenset(
    {
        "BOOLEAN", "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL", "STRING", "BINARY",
        "DATE", "TIMESTAMP", "ARRAY", "MAP", "STRUCT", NTZ,
    }
)  # fmt: skip
"""Words of types; of these only `NTZ` needs a feature."""
_QUOTED: Final = re.compile(r"`(?:[^`]|``)*`")
_WORD: Final = re.compile(r"[A-Z_]+")
_CLUSTERING: Final = "delta.clustering"
_MOST: Final = 64
"""Largest number of remembered kinds; the properties of silver's tables make fewer."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """What decides Delta's protocol for a new table, within one application of Spark."""

    application: str
    properties: frozenset[tuple[str, str]]
    clustered: bool
    local_times: bool


@dataclass(frozen=True, slots=True)
class _Pattern:
    """The first entry of a table without rows, line by line, with its checksum.

    `requested` are the properties that the statement stated; any other property is the session's default.
    """

    actions: tuple[dict[str, Any], ...]
    checksum: dict[str, Any]
    requested: frozenset[str]

    def written_for(
        self, schema: str, table: SilverTable, properties: Mapping[str, str]
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
                    "schemaString": schema,
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


_patterns: dict[_Kind, _Pattern | None] = {}
"""Patterns of the process; None where Delta's entry cannot be reproduced."""


def copied(session: SparkSession, uri: str, table: SilverTable, properties: Mapping[str, str]) -> bool:
    """Create a table by the pattern of its kind; return False if a statement must create the table."""
    kind = _kind(session, table, properties)
    pattern = None if kind is None else _patterns.get(kind)
    if pattern is None:
        return False
    actions, checksum = pattern.written_for(_schema(table), table, properties)
    entry = "".join(f"{json.dumps(action, separators=(',', ':'))}\n" for action in actions)
    return make_of(uri, entry.encode(), json.dumps(checksum, separators=(",", ":")).encode())


def remember(session: SparkSession, uri: str, table: SilverTable, properties: Mapping[str, str]) -> None:
    """Remember a table that a statement has just created as the pattern of its kind."""
    kind = _kind(session, table, properties)
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
    actions, again = pattern.written_for(_schema(table), table, properties)
    is_same = list(map(_comparable, actions)) == list(map(_comparable, pattern.actions))
    return pattern if is_same and _comparable(again) == _comparable(pattern.checksum) else None


_OWN: Final = frozenset({"id", "createdTime", "txnId", "timestamp", "commitInfo"})
"""What differs between any two tables, or informs people alone."""


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


def _kind(session: SparkSession, table: SilverTable, properties: Mapping[str, str]) -> _Kind | None:
    """Return the kind of a new table; None where a statement creates every table."""
    access = access_of(session)
    types = [column.spark_type for column in table.columns] + list(table.own_columns.values())
    words = {word for ddl in types for word in _WORD.findall(_QUOTED.sub("", ddl))}
    if not access.runs_locally or MAPPING in properties or not words <= _KNOWN:
        return None
    # Delta does not interpret further properties, and the names of columns with statistics enable no feature.
    interpreted = {
        (name, "" if name == STATISTICS else value)
        for name, value in properties.items()
        if name.startswith("delta.")
    }
    return _Kind(
        access.name,
        frozenset(interpreted),
        clustered=bool(clustering_columns(table)),
        local_times=NTZ in words,
    )


def _schema(table: SilverTable) -> str:
    from pyspark.sql.types import StructType  # noqa: PLC0415 - a cycle without work loads no Spark

    return StructType.fromDDL(", ".join(definitions(table))).json()
