"""Application transactions (marks) of a table's log, read once and updated along with the handle.

`deltalake` returns the mark of one application id per call, and reads the log from the newest checkpoint each
time: 2 to 10 ms. A lake of 200 tables has more than a thousand ids, and each poll of the reader needs most of
them. This module therefore reads all marks of a log in one pass and caches them per handle. After the handle
moves on, the module reads only the new entries.

**Invariant.** The cached marks equal the answers of `deltalake`: the newest entry that names an id wins;
before the first such entry the checkpoint's value holds. Entries are read in version order up to the handle's
version, without gaps. For any unusual log `deltalake` answers instead (`_NotPlainError`). The cache belongs
to a handle (`bronze.lake.log_table`); a recreated table gets a new handle.

Delta protocol: https://github.com/delta-io/delta/blob/master/PROTOCOL.md#transaction-identifiers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.lake.parquet import open_whole

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.bronze.lake.table import Table

_EXPIRY: Final = "setTransactionRetentionDuration"
_LOG: Final = "_delta_log"


@dataclass(frozen=True, slots=True)
class Marks:
    """Cached marks of a log up to a version."""

    version: int
    # mark by application id; None if `deltalake` must answer
    found: dict[str, int] | None
    # marks of the next entry, if already known
    ours: Mapping[str, int] | None = None

    def followed_by(self, marks: Mapping[str, int]) -> Marks:
        """Return these marks with the marks of the next entry; the process wrote or read this entry."""
        return replace(self, ours=marks)


class _NotPlainError(Exception):
    """A log whose form this module does not read."""


def read(table: Table, known: Marks | None, version: int) -> Marks:
    """Return the marks at a handle's version; read only what the known marks lack."""
    uri = table.table_uri
    after = known if known is not None and known.found is not None and known.version < version else None
    if after is not None and after.ours is not None and version == after.version + 1:
        return Marks(version, {**(after.found or {}), **after.ours})

    def marks() -> dict[str, int]:
        if after is not None and after.found is not None:
            return _entries(uri, after.found, after.version, version)
        # Ids expire in this table.
        if any(_EXPIRY in name for name in table.metadata().configuration):
            raise _NotPlainError
        start, found = _checkpoint(uri, version)
        return _entries(uri, found, start, version)

    try:
        return Marks(version, perform(Effect.READ_FILE, f"{uri}/{_LOG}", marks))
    except _NotPlainError:
        return Marks(version, None)


def marks_of(entry: bytes) -> dict[str, int] | None:
    """Return the marks that an entry sets; None for an unsupported form."""
    try:
        return _marks_of(entry)
    except _NotPlainError:
        return None


def _checkpoint(uri: str, version: int) -> tuple[int, dict[str, int]]:
    """Return version and marks of the newest checkpoint; version -1 without a checkpoint."""
    try:
        with open_whole(uri, f"{_LOG}/_last_checkpoint") as file:
            hint = json.loads(file.read())
        # A checkpoint in several parts, under another name, or newer than the handle. Sidecars of a
        # checkpoint contain only files.
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
    """Return the marks of a later version: the known marks, updated by each entry in between."""
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
