"""Conditional writes of small texts in a catalog's table; the counterpart of a store's objects.

A lease (`bronze.lake.leases`) is a row of `control.leases`. A row has a name, a body, and a tag that
identifies exactly this body. A write changes the row whose tag the caller has read. Delta's own conflict
check lets only one of two concurrent statements commit. The second statement runs again, finds a different
tag, and changes nothing.

**First write.** After inserting the first row the writer reads again, and deletes its row if a second row
exists. After two concurrent inserts, the later reader always sees both rows.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.lake.catalog import commits
from deltasmelt.bronze.lake.catalog.sql import MADE_PROPERTY, failures, run
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.client import CommitFailedError, TableNotFoundError
from deltasmelt.bronze.lake.lease_objects import LEASES, Found
from deltasmelt.bronze.lake.location import literal
from deltasmelt.bronze.lake.place import Location

if TYPE_CHECKING:
    from pyspark.sql import Row

_SCHEMA: Final = pa.schema([pa.field(name, pa.string()) for name in ("name", "body", "tag")])
_DESCRIPTION: Final = "Leases of this lake's layers: one row for each lease, which its process renews"
_PROPERTIES: Final = {
    MADE_PROPERTY: "true",
    # Each renewal is a commit. Delta counts log hours from midnight; maintenance removes the files.
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "50",
    # With deletion vectors Databricks checks conflicts per row: two inserts would not conflict.
    "delta.enableDeletionVectors": "false",
    "delta.isolationLevel": "Serializable",
}
# Maximum attempts: commits to further rows of the table conflict too, and rarely so many in succession.
_ATTEMPTS: Final = 20
_PAUSE_SECONDS: Final = 0.1


def read(root: str, name: str) -> Found | None:
    """Return body and tag of a row; None if the row or the table is absent."""
    try:
        rows = _rows(root, f"SELECT body, tag FROM {{}} WHERE name = {literal(name)}")
    except TableNotFoundError:
        return None
    found = [Found(row["body"].encode(), row["tag"]) for row in rows]
    return min(found, key=lambda one: one.tag, default=None)


def put(root: str, name: str, body: bytes, *, over: Found | None) -> Found | None:
    """Write a row conditionally; return None if another writer was faster.

    Args:
        over: the exact row that the write replaces; None if the row must not exist yet.

    Raises:
        DefiniteError: ``catalog-name-taken``: the table is foreign.
        OSError: Spark, or the catalog, refuses; whether the row was written is then unknown.
    """
    tag = uuid.uuid4().hex
    text = _insert(name, body, tag) if over is None else _update(name, body, tag, over)
    mine = Found(body, tag)
    for _ in range(_ATTEMPTS):
        try:
            _require_ours(root)
            changed = _affected(root, text)
        except TableNotFoundError:  # the lake was removed, or another process is creating the table
            _known.discard(root)
            if over is not None:
                return None
            time.sleep(_PAUSE_SECONDS)
        else:
            return mine if changed and (over is not None or _is_first(root, name, mine)) else None
    raise OSError(f"{name} was not written: other processes create and remove its table all the time")


def _affected(root: str, text: str) -> int:
    """Run a statement until Delta commits the statement; return the number of changed rows."""
    for _ in range(_ATTEMPTS):
        # A rejected statement changed nothing. The tag in the text makes a second execution harmless, even if
        # the first execution succeeded.
        with suppress(CommitFailedError):
            return int(_rows(root, text)[0]["num_affected_rows"])
    raise OSError("other processes change rows of the table all the time")


def _is_first(root: str, name: str, mine: Found) -> bool:
    """Check whether an inserted row is the only row of its name; else delete the inserted row."""
    rows = _rows(root, f"SELECT tag FROM {{}} WHERE name = {literal(name)}")
    if [row["tag"] for row in rows] == [mine.tag]:
        return True
    # The order of two rows is unknown, so each writer that sees two rows has failed; possibly both writers.
    _affected(root, f"DELETE FROM {{}} WHERE name = {literal(name)} AND tag = {literal(mine.tag)}")
    return False


# Locations whose table is verified as the pipeline's.
_known: set[str] = set()


def _require_ours(root: str) -> None:
    if root in _known:
        return
    try:
        table = CatalogTable(_table(root))
    except TableNotFoundError:
        commits.create(_table(root), _SCHEMA, _DESCRIPTION, _PROPERTIES)
        table = CatalogTable(_table(root))
    table.require_ours(MADE_PROPERTY)
    _known.add(root)


def _rows(root: str, text: str) -> list[Row]:
    uri = _table(root)
    with failures(uri):
        return run(uri, text).collect()


def _insert(name: str, body: bytes, tag: str) -> str:
    values = ", ".join(literal(one) for one in (name, body.decode(), tag))
    return (
        # A MERGE reads the table, so of two concurrent MERGEs the later one conflicts; a plain append would
        # not.
        f"MERGE INTO {{}} AS t USING (SELECT {literal(name)} AS name) AS s ON t.name = s.name\n"
        f"WHEN NOT MATCHED THEN INSERT (name, body, tag) VALUES ({values})"
    )


def _update(name: str, body: bytes, tag: str, over: Found) -> str:
    return (
        f"UPDATE {{}} SET body = {literal(body.decode())}, tag = {literal(tag)}\n"
        f"WHERE name = {literal(name)} AND tag = {literal(over.tag)}"
    )


def _table(root: str) -> str:
    return Location(root) / f"control/{LEASES}"
