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
            "state": {"enum": list(TABLE_STATES), "description": "see the table of states in commands.md"},
            "commit_lsn": _lsn("its rows are as of this LSN", optional=True),
            "delta_version": _count("version of its Delta table in the newest cut", optional=True),
            "changes": _count("in its newest cycle", optional=True),
            "seconds": _number("that its newest cycle took", optional=True),
            "error": _text("message of the error that stopped it", optional=True),
            "unrepresentable": _count(
                "rows, at most, with values that silver's decimals do not hold; null: not counted",
                optional=True,
            ),
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "smelt status --output json",
        "description": "Where a pipeline stands. null: not known.",
        **_object(
            {
                "pipeline": _text("name of the pipeline"),
                "source": _text("server and database, without login data"),
                "source_error": _text("why the source does not answer; null where it does", optional=True),
                "lake": _text("where the lake is"),
                "lake_error": _text("why there is nothing to read; null where there is", optional=True),
                "lake_read": {
                    "type": "boolean",
                    "description": "false: what the lake says is not known, and empty here",
                },
                "ladder": _list(_ladder_step(), "the steps, from the server to the last layer"),
                "slot": _optional(_slot(), "the replication slot; null where there is none"),
                "slot_seconds_left": _number(
                    "until it is lost, at the present rate (a status page: net, of two minutes)",
                    optional=True,
                ),
                "snapshot": _optional(_snapshot(), "snapshots under way, all tables together"),
                "tables": _list(table, "tables that bronze knows"),
                "documents": _list(table, "documents of gold"),
                "errors": _list(_error(), "open errors"),
                "clustering": _list(_hint(), "tables that `smelt maintain` would cluster"),
                "wal": _optional(_wal(), "write-ahead log that the slot holds back; null: not known"),
            }
        ),
    }


def _ladder_step() -> _Schema:
    return _object(
        {
            "name": {"enum": list(STEPS), "description": "step; those of the server lack while it is down"},
            "lsn": _lsn("position of the step", optional=True),
            "bytes": _count("of WAL behind the server's head", optional=True),
            "seconds": _number("age of the oldest transaction that the step lacks", optional=True),
            "commits": _count("that bronze has and the step lacks", optional=True),
        }
    )


def _slot() -> _Schema:
    return _object(
        {
            "name": _text("name of the slot"),
            "plugin": _text("output plugin; empty for a physical slot"),
            "confirmed_flush": _lsn("everything before it is confirmed"),
            "active_pid": _count("backend that reads it; null: no reader", optional=True),
            "wal_status": {
                "enum": list(WAL_STATUS),
                "description": "as in pg_replication_slots; unreserved: about to be lost",
            },
            "safe_wal_size": {
                "type": ["integer", "null"],
                "description": "bytes that may be written before it is in danger; null: no limit",
            },
            "database": _text("its database; empty for a physical slot"),
            "temporary": {"type": "boolean"},
            "invalidation": _text("why it can no longer be read; null where it can", optional=True),
            "failover": {"type": "boolean", "description": "standbys keep a copy of it"},
            "restart": _lsn("the server keeps its log from here on", optional=True),
        }
    )


def _wal() -> _Schema:
    return _object(
        {
            "limit": _count("bytes that a slot may hold back; null: as the disk takes", optional=True),
            "held": _count("bytes held back by this slot"),
            "unread": _count("bytes of it that no reader has confirmed"),
            "left": {"type": ["integer", "null"], "description": "bytes until the limit; null: no limit"},
            "rate": _number("bytes written in a second", optional=True),
            "reads": {"type": "boolean", "description": "somebody reads the slot"},
            "transactions": _text("the oldest open ones, where they hold back most of it; else empty"),
        }
    )


def _snapshot() -> _Schema:
    return _object(
        {
            "rows": _count("copied"),
            "bytes": _count("of text copied"),
            "fraction": {"type": "number", "minimum": 0, "maximum": 1, "description": "share that is copied"},
            "seconds_left": _number("at the pace so far", optional=True),
            "tables": _list({"type": "string"}, "not complete yet"),
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
            "commit_lsn": _lsn("where in the log", optional=True),
            "opened_at": {"type": ["string", "null"], "format": "date-time", "description": "since when"},
        }
    )


def _hint() -> _Schema:
    return _object(
        {
            "table": _text("name in silver"),
            "column": _text("by which its rows are read together"),
            "files": _count("that the table has"),
            "files_read": _number("of these that may hold one value, on average"),
            "bytes": _count("that would be written, once"),
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
