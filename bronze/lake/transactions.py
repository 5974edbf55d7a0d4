"""The application transactions of a table's log, read once and carried forward with the handle.

`deltalake` answers one application id at a time, and reads the log from its newest checkpoint on for each:
2 to 10 ms. A lake of 200 tables has more than a thousand ids, and each of the reader's looks asks for most of
them. So what a log says of all of them is read in one pass, and kept beside the handle. Where the handle has
moved on, only the entries after are read.

Why it is what `deltalake` would say:

* the newest entry that names an id holds; before that, what the checkpoint says. Entries are read in order of
  their versions, up to that of the handle, none left out;
* where the log is not of that plain form, `deltalake` is asked: a checkpoint of several parts or under
  another name, one that is newer than the handle, an entry that is gone or cannot be read, ids that expire
  (``delta.setTransactionRetentionDuration``). Sidecars of a checkpoint hold files alone.

An entry that we have just put or read ourselves (`bronze.lake.entries`) need not be read again: it is the one
after the handle's version, and we know its marks (`expect_marks`, `expect_entry`).

What is kept belongs to a handle and goes with it. So a table that is made anew is read anew, as its handle
is. A handle is used by one thread at a time.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final
from weakref import ref

import pyarrow as pa
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.parquet import open_whole
from deltasmelt.bronze.lake.place import is_named

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable, Transaction

_EXPIRY: Final = "setTransactionRetentionDuration"
_LOG: Final = "_delta_log"


@dataclass(frozen=True, slots=True)
class _Known:
    """What a log says up to a version.

    Attributes:
        version: of the handle.
        found: version by application id; None where `deltalake` has to be asked.
        ours: marks of the entry after it, where that is known already.
    """

    version: int
    found: dict[str, int] | None
    ours: dict[str, int] | None = None


_known: dict[int, tuple[ref[DeltaTable], _Known]] = {}
"""By the id of a handle that lives: handles have no hash."""


class _NotPlainError(Exception):
    """The log is not of the form that is read here."""


def transaction_version(table: DeltaTable, app_id: str) -> int | None:
    """The newest version that an application id has, as of the handle's version; None if it has none.

    Args:
        table: open.
        app_id: of the application.

    Raises:
        OSError: the log cannot be read.
    """
    if is_named(table.table_uri):
        return table.transaction_version(app_id)
    number, version = id(table), table.version()
    handle, known = _known.get(number, (None, None))
    if handle is None or handle() is not table:
        handle, known = ref(table, lambda _: _known.pop(number, None)), None
    if known is None or known.version != version:
        known = _read(table, known, version)
        _known[number] = handle, known
    if known.found is None:
        return table.transaction_version(app_id)
    return known.found.get(app_id)


def expect_marks(table: DeltaTable, marks: Iterable[Transaction]) -> None:
    """The entry after a handle's version is our own, with these marks; the handle still stands before it."""
    _expect(table, {mark.app_id: mark.version for mark in marks})


def expect_entry(table: DeltaTable, entry: bytes) -> None:
    """The entry after a handle's version is this one; the handle still stands before it."""
    with suppress(_NotPlainError):
        _expect(table, _marks_of(entry))


def _expect(table: DeltaTable, marks: dict[str, int]) -> None:
    handle, known = _known.get(id(table), (None, None))
    if handle is not None and handle() is table and known is not None and known.version == table.version():
        _known[id(table)] = handle, replace(known, ours=marks)


def _read(table: DeltaTable, known: _Known | None, version: int) -> _Known:
    uri = table.table_uri
    after = known if known is not None and known.found is not None and known.version < version else None
    if after is not None and after.ours is not None and version == after.version + 1:
        return _Known(version, {**(after.found or {}), **after.ours})

    def read() -> dict[str, int]:
        if after is not None and after.found is not None:
            return _entries(uri, after.found, after.version, version)
        if any(_EXPIRY in name for name in table.metadata().configuration):
            raise _NotPlainError
        start, found = _checkpoint(uri, version)
        return _entries(uri, found, start, version)

    try:
        return _Known(version, perform(Effect.READ_FILE, f"{uri}/{_LOG}", read))
    except _NotPlainError:
        return _Known(version, None)


def _checkpoint(uri: str, version: int) -> tuple[int, dict[str, int]]:
    """Version of the newest checkpoint and what it says; -1 where there is none.

    Raises:
        _NotPlainError: it is another kind of checkpoint, or newer than the version.
    """
    try:
        with open_whole(uri, f"{_LOG}/_last_checkpoint") as file:
            hint = json.loads(file.read())
        if hint.get("parts") or hint.get("v2Checkpoint") or int(hint["version"]) > version:
            raise _NotPlainError
    except FileNotFoundError:
        return -1, {}
    except (ValueError, KeyError, AttributeError) as error:
        raise _NotPlainError from error
    start = int(hint["version"])
    try:
        with (
            open_whole(uri, f"{_LOG}/{start:020}.checkpoint.parquet") as file,
            pq.ParquetFile(file) as parquet,
        ):
            rows = parquet.read(["txn"])["txn"].drop_null().to_pylist()
    except (FileNotFoundError, KeyError, pa.ArrowException) as error:
        raise _NotPlainError from error
    return start, {row["appId"]: row["version"] for row in rows if row["appId"] is not None}


def _entries(uri: str, found: dict[str, int], after: int, until: int) -> dict[str, int]:
    """What is known after one version, carried to another.

    Raises:
        _NotPlainError: an entry is gone, or says what is not understood here.
    """
    found = dict(found)
    for version in range(after + 1, until + 1):
        try:
            with open_whole(uri, f"{_LOG}/{version:020}.json") as file:
                entry = file.read()
        except FileNotFoundError as error:
            raise _NotPlainError from error
        found |= _marks_of(entry)
    return found


def _marks_of(entry: bytes) -> dict[str, int]:
    """The marks that an entry sets.

    Raises:
        _NotPlainError: it says what is not understood here.
    """
    found: dict[str, int] = {}
    if _EXPIRY.encode() in entry:
        raise _NotPlainError
    for line in entry.splitlines():
        if b'"txn"' not in line:  # most lines are of files
            continue
        try:
            action = json.loads(line)
        except ValueError as error:
            raise _NotPlainError from error
        if "txn" in action:
            found[action["txn"]["appId"]] = int(action["txn"]["version"])
    return found
