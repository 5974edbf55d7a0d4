"""``--log-format json``: what a long run says and logs, one JSON object a line.

A collector of logs reads them without a pattern. Every object has ``time`` (UTC), ``level``, ``logger``,
``process`` and ``message``; an error of ours also has ``code``, ``where`` and ``remedy``, a traceback is
``traceback``. Standard error has what the command says, `smelt.log` what is logged. The choice is the
process's own, made before it says anything; the reader's process is told of it with its orders.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from pipelines.terminal.visible import visible

if TYPE_CHECKING:
    import logging

    from bronze.errors import SmeltError

_chosen: list[bool] = []
_SAID_BY: Final = "smelt"


class LogFormat(StrEnum):
    """What `--log-format` takes."""

    TEXT = "text"
    JSON = "json"


def write_json() -> None:
    """From now on this process says and logs JSON."""
    _chosen.append(True)


def as_json() -> bool:
    """Whether this process says and logs JSON."""
    return bool(_chosen)


def say(message: str, *, level: str = "info", error: SmeltError | None = None) -> None:
    """Print one line to standard error; the message holds no password."""
    record = _record(datetime.now(UTC), level, _SAID_BY, message)
    if error is not None:
        record |= {"code": error.code, "where": error.where, "remedy": error.remedy}
    sys.stderr.write(visible(json.dumps(record, ensure_ascii=False)) + "\n")
    sys.stderr.flush()


def logged(record: logging.LogRecord, message: str, traceback: str | None) -> str:
    """A record of Python's logging as one line."""
    when = datetime.fromtimestamp(record.created, UTC)
    found = _record(when, record.levelname.lower(), record.name, message)
    if traceback:
        found["traceback"] = traceback
    return visible(json.dumps(found, ensure_ascii=False))


def _record(when: datetime, level: str, logger: str, message: str) -> dict[str, object]:
    return {
        "time": when.isoformat(timespec="milliseconds"),
        "level": level,
        "logger": logger,
        "process": os.getpid(),
        "message": message,
    }
