"""The status for programs: one JSON object and its JSON Schema.

The object is the value `Status`, with LSNs and times as text. The schema is an interface, so the schema is
written by hand: a test compares the schema with the fields of `Status` and with real output. Later versions
may add keys, so the schema allows unknown keys. Existing keys keep their name and meaning.
"""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lsn import Lsn

if TYPE_CHECKING:
    from deltasmelt.pipelines.health.status import Status

TABLE_STATES: Final = ("streaming", "waiting", "snapshot", "stopped", "dropped")
STEPS: Final = ("head", "slot confirmed", "received", "bronze", "silver", "gold")
WAL_STATUS: Final = ("reserved", "extended", "unreserved", "lost")
SCOPES: Final = ("pipeline", "table", "document")

_Schema = dict[str, Any]


def plain_status(status: Status) -> dict[str, Any]:
    """Return the status as values for JSON."""
    plain: dict[str, Any] = _values(dataclasses.asdict(status))
    return plain


def _values(value: Any) -> Any:
    """Return a value with LSNs and times as text, at any depth."""
    if isinstance(value, dict):
        return {key: _values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_values(inner) for inner in value]
    if isinstance(value, Lsn):
        return str(value)
    return value.isoformat() if isinstance(value, datetime) else value


def status_schema() -> _Schema:
    """Return the JSON Schema (draft 2020-12) of `plain_status`."""
    table = _object(
        {
            "name": _text("name of the table, with its schema, or of the document"),
            "state": {
                "enum": list(TABLE_STATES),
                "description": "one of the states that docs/commands/status.md explains",
            },
            "commit_lsn": _lsn("its rows are as of this LSN", optional=True),
            "delta_version": _count("version of its Delta table in the newest cut", optional=True),
            "changes": _count("changes in its newest cycle", optional=True),
            "seconds": _number("seconds of its newest cycle", optional=True),
            "error": _text("message of the error that stopped the table or document", optional=True),
            "unrepresentable": _count(
                "upper limit of rows with values that do not fit silver's decimals; null: not counted",
                optional=True,
            ),
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "smelt status --output json",
        "description": "State of a pipeline. null: unknown.",
        **_object(
            {
                "pipeline": _text("name of the pipeline"),
                "source": _text("server and database, without login data"),
                "source_error": _text("why the source does not answer; null if it answers", optional=True),
                "lake": _text("location of the lake"),
                "lake_error": _text(
                    "why the lake cannot be read or is empty; null if it can be read", optional=True
                ),
                "lake_read": {
                    "type": "boolean",
                    "description": "false: the lake could not be read, and its values here are empty",
                },
                "ladder": _list(_ladder_step(), "the steps, from the server to the last layer"),
                "slot": _optional(_slot(), "the replication slot; null if it does not exist"),
                "slot_seconds_left": _number(
                    "seconds until the slot is lost, at the present rate (on a status page: net, over two "
                    "minutes)",
                    optional=True,
                ),
                "snapshot": _optional(_snapshot(), "snapshots under way, all tables together"),
                "tables": _list(table, "tables in bronze"),
                "documents": _list(table, "documents of gold"),
                "errors": _list(_error(), "open errors"),
                "clustering": _list(_hint(), "tables that `smelt maintain` would cluster"),
                "wal": _optional(_wal(), "write-ahead log that the slot holds back; null: unknown"),
                "retention": _optional(
                    _retention(), "what bronze still has; null: unknown, or bronze.retention is not set"
                ),
            }
        ),
    }


def _ladder_step() -> _Schema:
    return _object(
        {
            "name": {
                "enum": list(STEPS),
                "description": "step; steps of the server are missing while the server is down, and "
                "`received` without a connected reader that the role may see",
            },
            "lsn": _lsn("position of the step", optional=True),
            "bytes": _count("bytes of WAL between the step and the server's head", optional=True),
            "seconds": _number("age of the oldest transaction that the step lacks", optional=True),
            "commits": _count("commits that bronze has and the step lacks", optional=True),
            "at_most": {
                "type": "boolean",
                "description": "true: `seconds` is a bound, because no reader reads the slot; perhaps "
                "nothing waits",
            },
        }
    )


def _slot() -> _Schema:
    return _object(
        {
            "name": _text("name of the slot"),
            "plugin": _text("output plugin; empty for a physical slot"),
            "confirmed_flush": _lsn("every earlier change is confirmed"),
            "active_pid": _count("backend that reads the slot; null: no reader", optional=True),
            "wal_status": {
                "enum": list(WAL_STATUS),
                "description": "as in pg_replication_slots; unreserved: the slot will be lost soon",
            },
            "safe_wal_size": {
                "type": ["integer", "null"],
                "description": "bytes that the server can write before the slot is in danger; null: no limit",
            },
            "database": _text("database of the slot; empty for a physical slot"),
            "temporary": {"type": "boolean"},
            "invalidation": _text("why the slot can no longer be read; null if it can", optional=True),
            "failover": {"type": "boolean", "description": "standbys synchronize the slot"},
            "restart": _lsn("the server keeps its log from this LSN on", optional=True),
        }
    )


def _wal() -> _Schema:
    return _object(
        {
            "limit": _count("bytes that a slot may hold back; null: limited only by the disk", optional=True),
            "held": _count("bytes held back by this slot"),
            "unread": _count("bytes held back that no reader has confirmed"),
            "left": {"type": ["integer", "null"], "description": "bytes until the limit; null: no limit"},
            "rate": _number("bytes of WAL written per second", optional=True),
            "reads": {"type": "boolean", "description": "a reader reads the slot"},
            "transactions": _text(
                "the oldest open transactions, if they hold back most of the WAL; else empty"
            ),
        }
    )


def _snapshot() -> _Schema:
    return _object(
        {
            "rows": _count("copied"),
            "bytes": _count("bytes of text copied"),
            "fraction": {
                "type": "number",
                "minimum": 0,
                "maximum": 1,
                "description": ("share of the data that is copied"),
            },
            "seconds_left": _number("estimated seconds left", optional=True),
            "tables": _list({"type": "string"}, "tables whose snapshot is not complete"),
        }
    )


def _error() -> _Schema:
    return _object(
        {
            "scope": {"enum": list(SCOPES), "description": "what the error stops"},
            "name": _text("name of the pipeline, table or document"),
            "code": _text("stable code; `smelt explain-error CODE` explains it"),
            "message": _text("what happened"),
            "remedy": _text("what to do", optional=True),
            "commit_lsn": _lsn("position in the log", optional=True),
            "opened_at": {"type": ["string", "null"], "format": "date-time", "description": "since when"},
        }
    )


def _retention() -> _Schema:
    holder = _object(
        {
            "name": _text("table of the source, or table of silver"),
            "kind": {
                "enum": ["snapshot", "silver"],
                "description": "snapshot: the table's newest snapshot is old; silver: the table lags behind",
            },
            "lsn": _lsn("the first change that the table needs"),
            "bytes": _count("bytes of files that the table needs, and that are old enough to go"),
        }
    )
    behind = _object(
        {
            "name": _text("table of silver"),
            "first": _lsn("the first change that the table needs"),
            "kind": {"enum": ["silver"], "description": "as in holders"},
        }
    )
    return _object(
        {
            "kept_from": _lsn("bronze has all changes from this LSN on"),
            "due": _lsn("all changes before this LSN are older than bronze.retention"),
            "lsn": _lsn("changes before this LSN may be removed"),
            "holders": _list(holder, "tables that need older changes, oldest first"),
            "held_bytes": _count("bytes of files that are old enough to go, and still needed"),
            "unremoved_bytes": _count("bytes of files before kept_from, which the reader has yet to remove"),
            "behind": _list(behind, "tables of silver that need changes before kept_from, and have stopped"),
        }
    )


def _hint() -> _Schema:
    return _object(
        {
            "table": _text("name in silver"),
            "column": _text("column by which queries read the table"),
            "files": _count("files of the table"),
            "files_read": _number("files that may contain one value, on average"),
            "bytes": _count("bytes that clustering would write, once"),
        }
    )


def _object(properties: _Schema) -> _Schema:
    return {"type": "object", "required": list(properties), "properties": properties}


def _list(items: _Schema, description: str) -> _Schema:
    return {"type": "array", "items": items, "description": description}


def _optional(inner: _Schema, description: str) -> _Schema:
    return {"anyOf": [inner, {"type": "null"}], "description": description}


def _text(description: str, *, optional: bool = False) -> _Schema:
    return {"type": ["string", "null"] if optional else "string", "description": description}


def _number(description: str, *, optional: bool = False) -> _Schema:
    return {"type": ["number", "null"] if optional else "number", "description": description}


def _count(description: str, *, optional: bool = False) -> _Schema:
    kind = ["integer", "null"] if optional else "integer"
    return {"type": kind, "minimum": 0, "description": description}


def _lsn(description: str, *, optional: bool = False) -> _Schema:
    kind = ["string", "null"] if optional else "string"
    return {"type": kind, "pattern": "^[0-9A-F]+/[0-9A-F]+$", "description": description}
