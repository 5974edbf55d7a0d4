"""The usual entry of a table's log in an object store: files and marks, put by one request.

`deltalake` lists the log, puts the entry, lists again and reads the entry twice: five requests, of which a
commit needs one. Here it is put on the condition that its number is free, which is all that a commit to Delta
is. What would have to be checked before it, is not there:

* *another commit since the handle's version.* Had there been one, the number would be taken. Then, as in any
  other doubt, nothing is put, and `deltalake` commits: it compares the marks' ids with what came between;
* *a table that is not as the handle knows it.* Protocol and columns change by an entry, which takes it too;
* *a free number of which there was an entry once.* Entries go from the oldest on, long after a checkpoint. A
  table that was made anew has fewer, or none. In both cases the entry before is not there, so that is looked
  for. `deltalake` lists the log for it, and has the same moment between look and put. Who put that entry
  a moment ago need not look (`bronze.lake.control_table`).

Only files that come and marks are written here, on tables of the protocol that ours are made with: version 2
of writers has no features but append-only and invariants, and neither concerns a file of ours that comes.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#delta-log-entries.
"""

from __future__ import annotations

import json
import time
import uuid
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.client import AddAction
from deltasmelt.bronze.lake.failures import lacks_bucket

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable, Transaction
    from deltalake.transaction import RemoveAction

_READER: Final = 1
_WRITER: Final = 2
"""Versions of the protocol up to which a table has no feature that an entry of ours would have to heed."""


def put_next(
    table: DeltaTable,
    actions: Sequence[AddAction | RemoveAction],
    marks: Sequence[Transaction],
    said: Mapping[str, str],
    *,
    after: int | None = None,
    looks: bool = True,
) -> bool:
    """Write the entry after the handle's version; False where nothing is written: it is left to `deltalake`.

    Args:
        table: open, in a store; its handle stays at its version.
        actions: files that come, or go.
        marks: set by the same commit.
        said: goes into the entry's commitInfo.
        after: a newer version than the handle's: it was put, or seen.
        looks: whether to ask if the entry before is still there; not where it was put a moment ago.

    Raises:
        OSError: the store cannot be reached, or refuses. Whether the entry was put is not known then.
    """
    uri = table.table_uri
    added = [action for action in actions if isinstance(action, AddAction) and _is_plain(action)]
    protocol, version = table.protocol(), table.version() if after is None else after
    if len(added) < len(actions) or protocol.min_reader_version > _READER:
        return False
    if protocol.min_writer_version > _WRITER:
        return False
    if looks and not objects.exists(uri, _name(version)):
        return False
    return objects.create(uri, _name(version + 1), _entry(added, marks, said))


def has_entry(uri: str, version: int) -> bool:
    """Whether a table in a store has the entry of a version.

    Raises:
        OSError: the store cannot be reached, or refuses.
    """
    return objects.exists(uri, _name(version))


def read_entry(uri: str, version: int) -> bytes | None:
    """The entry of a version of a table in a store; None where there is none.

    Raises:
        OSError: the store cannot be reached, or refuses.
    """
    try:
        return objects.read_whole(uri, _name(version))
    except FileNotFoundError as error:
        if lacks_bucket(error):
            raise
        return None


def _is_plain(action: AddAction) -> bool:
    """Whether its path is the same in the log, where it is part of a URL, and it is of no partition."""
    return quote(action.path) == action.path and not action.partition_values


def _name(version: int) -> str:
    return f"_delta_log/{version:020}.json"


def _entry(added: Sequence[AddAction], marks: Sequence[Transaction], said: Mapping[str, str]) -> bytes:
    lines: list[dict[str, Any]] = [
        {
            "commitInfo": {
                "timestamp": int(time.time() * 1000),
                "operation": "WRITE",
                "operationParameters": {"mode": "Append", "partitionBy": "[]"},
                "engineInfo": "deltasmelt",
                "txnId": str(uuid.uuid4()),  # no two entries are the same
                **said,
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
