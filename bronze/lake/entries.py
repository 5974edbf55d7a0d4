"""Direct commit in an object store: files and marks in one log entry, written by one request.

`deltalake` lists the log, writes the entry, lists again and reads the entry twice: five requests, although a
commit needs one. Measured: the usual commit of the reader, with its file, takes 6 requests instead of 13.

`put_next` writes the entry only if the entry's number is free; Delta defines a commit by exactly this
condition. In any doubtful case `put_next` writes nothing, and `deltalake` commits. Three cases show why the
condition suffices:

* *Another commit since the handle's version.* The number is then taken, and `deltalake` compares the marks'
  ids with the commits in between.
* *A table that differs from the handle's state.* Protocol and columns change only by an entry, which also
  takes the number.
* *A free number that an earlier entry had.* Entries are removed oldest first, long after a checkpoint; a
  recreated table has fewer entries or none. In both cases the preceding entry is missing, so `put_next`
  checks for the preceding entry.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#delta-log-entries.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.client import AddAction
from deltasmelt.bronze.lake.failures import lacks_bucket
from deltasmelt.bronze.lake.torn_log import ACTIONS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from deltasmelt.bronze.lake.client import Transaction
    from deltasmelt.bronze.lake.log_table import LogTable
    from deltasmelt.bronze.lake.table import Actions
    from deltasmelt.bronze.lake.tail import Tail

_READER: Final = 1
# Highest protocol version without any feature that an added file must respect.
_WRITER: Final = 2


def put_next(
    table: LogTable,
    actions: Actions,
    marks: Sequence[Transaction],
    *,
    after: int | None = None,
    looks: bool = True,
) -> bytes | None:
    """Write and return the entry after the handle's version; None if `deltalake` must commit instead.

    The handle stays at its version. With any removed file the function writes nothing. After an OSError,
    whether the entry was written is unknown.

    Args:
        after: a version newer than the handle's, which the caller wrote or saw.
        looks: whether to check that the preceding entry exists; False if the caller wrote it a moment ago.
    """
    uri = table.table_uri
    added = [action for action in actions if isinstance(action, AddAction) and _is_plain(action)]
    protocol, version = table.protocol(), table.version() if after is None else after
    # Writer version 2 has append-only tables and invariants; neither restricts an added file.
    if len(added) < len(actions) or protocol.min_reader_version > _READER:
        return None
    if protocol.min_writer_version > _WRITER:
        return None
    # `bronze.lake.control_table` skips this check a moment after writing the preceding entry.
    # A gap between check and write remains, as in `deltalake`, which lists the log for this purpose.
    if looks and not objects.exists(uri, _name(version)):
        return None
    entry = _entry(added, marks)
    return entry if objects.create(uri, _name(version + 1), entry) else None


def has_entry(uri: str, version: int) -> bool:
    """Check whether a table in a store has the entry of a version."""
    return perform(Effect.REFRESH, uri, lambda: objects.exists(uri, _name(version)))


def read_entry(uri: str, version: int) -> bytes | None:
    """Return the entry of a version of a table in a store; None if the entry is absent."""

    def read() -> bytes | None:
        try:
            return objects.read_whole(uri, _name(version))
        except FileNotFoundError as error:
            if lacks_bucket(error):
                raise
            return None

    return perform(Effect.REFRESH, uri, read)


def advance(tail: Tail, uri: str, enough: Callable[[Tail], bool] = lambda _: False) -> bool:
    """Follow a table to its newest entry; return False if the caller must refresh the handle.

    The function updates the tail, and calls `enough` after each entry; True ends the following early.
    """
    while (entry := read_entry(uri, tail.version + 1)) is not None:
        if not tail.follow(entry):
            return False
        if enough(tail):
            break
    return True


def _is_plain(action: AddAction) -> bool:
    """Check whether a file has no partition and a path that needs no percent-encoding in the log."""
    return quote(action.path) == action.path and not action.partition_values


def _name(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _entry(added: Sequence[AddAction], marks: Sequence[Transaction]) -> bytes:
    lines: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": int(time.time() * 1000),
                "operation": "WRITE",
                "operationParameters": {"mode": "Append", "partitionBy": "[]"},
                "engineInfo": "deltasmelt",
                "txnId": str(uuid.uuid4()),  # no two entries are the same
                ACTIONS_KEY: str(len(added) + len(marks)),
            }
        }
    ]
    lines += [
        {
            "add": {
                "path": action.path,
                "partitionValues": {},
                "size": action.size,
                "modificationTime": action.modification_time,
                "dataChange": action.data_change,
                "stats": action.stats,
            }
        }
        for action in added
    ]
    lines += [{"txn": {"appId": mark.app_id, "version": mark.version}} for mark in marks]
    return "".join(f"{json.dumps(line, separators=(',', ':'))}\n" for line in lines).encode()
