"""Small texts in a table of a catalog, each put on condition: what objects of a store are to other lakes.

A row is a name, a body, and a tag that names this very body. A put changes the row whose tag is the one that
the caller read; Delta's own conflict check lets one of two such statements commit. The other one is run
again, by then finds another tag, and changes nothing.

A row that is not there yet is put by a MERGE. It reads the table, so of two the later one conflicts as well;
a plain append would not. Where a server orders single rows, as Databricks does by deletion vectors, two such
statements have no row in common. So the table has none, and is serializable. And who has put a first row
looks again, and takes it back where another one is there, too. Of two, the later one sees both in any case.

`control.leases` is such a table, and a lease (`bronze.lake.leases`) is one row. Who renews it writes a commit
each time. So log and files are kept for an hour; Delta counts the log's hours from midnight, and files go
when the table is maintained.
"""

from __future__ import annotations

import time
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.lake.catalog import commits
from deltasmelt.bronze.lake.catalog.sql import MADE_PROPERTY, failures, require_ours, run
from deltasmelt.bronze.lake.catalog.table import CatalogTable
from deltasmelt.bronze.lake.client import CommitFailedError, TableNotFoundError
from deltasmelt.bronze.lake.lease_objects import Found
from deltasmelt.bronze.lake.location import literal
from deltasmelt.bronze.lake.place import Location

if TYPE_CHECKING:
    from pyspark.sql import Row

LEASES: Final = "leases"
"""The table, in `control`."""
_SCHEMA: Final = pa.schema([pa.field(name, pa.string()) for name in ("name", "body", "tag")])
_DESCRIPTION: Final = (
    "Who may write which layer of this lake: one row for each lease, renewed while it is held"
)
_PROPERTIES: Final = {
    MADE_PROPERTY: "true",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "50",
    "delta.enableDeletionVectors": "false",
    "delta.isolationLevel": "Serializable",
}
_ATTEMPTS: Final = 20
"""Others put other rows of the same table, each by one commit; so many in a row come first by ill luck."""
_PAUSE_SECONDS: Final = 0.1


def read(root: str, name: str) -> Found | None:
    """A row's body and tag; None where there is none, or no table.

    Args:
        root: location of the catalog's tables.
        name: of the row.

    Raises:
        OSError: Spark, or the catalog, refuses.
    """
    try:
        rows = _rows(root, f"SELECT body, tag FROM {{}} WHERE name = {literal(name)}")
    except TableNotFoundError:
        return None
    found = [Found(row["body"].encode(), row["tag"]) for row in rows]
    return min(found, key=lambda one: one.tag, default=None)


def put(root: str, name: str, body: bytes, *, over: Found | None) -> Found | None:
    """Put a row; None where another writer was first.

    Args:
        root: location of the catalog's tables.
        name: of the row.
        body: text, as UTF-8.
        over: what it replaces and nothing else; None: it must not be there yet.

    Raises:
        DefiniteError: ``catalog-name-taken``: the table is somebody else's.
        OSError: Spark, or the catalog, refuses. Whether it was put is not known then.
    """
    tag = uuid.uuid4().hex
    text = _insert(name, body, tag) if over is None else _update(name, body, tag, over)
    mine = Found(body, tag)
    for _ in range(_ATTEMPTS):
        try:
            _require_ours(root)
            changed = _affected(root, text)
        except TableNotFoundError:  # the lake was removed, or another process is making the table
            _known.discard(root)
            if over is not None:
                return None
            time.sleep(_PAUSE_SECONDS)
        else:
            return mine if changed and (over is not None or _is_first(root, name, mine)) else None
    raise OSError(f"{name} was not put: its table is made and removed all the time")


def _affected(root: str, text: str) -> int:
    """Run a statement until Delta commits it, and return how many rows it changed.

    A refused statement changed nothing, and the tag in its text tells whether it came about before. So it can
    run again.

    Raises:
        TableNotFoundError: there is no table.
        OSError: Spark refuses it, or others commit first each time.
    """
    for _ in range(_ATTEMPTS):
        with suppress(CommitFailedError):
            return int(_rows(root, text)[0]["num_affected_rows"])
    raise OSError("other processes change rows of the table all the time")


def _is_first(root: str, name: str, mine: Found) -> bool:
    """Whether a row that was put where none was is alone; else it is taken back.

    Which was first is not known, so also who sees the other one only now has not put it. Both may have to.
    """
    rows = _rows(root, f"SELECT tag FROM {{}} WHERE name = {literal(name)}")
    if [row["tag"] for row in rows] == [mine.tag]:
        return True
    _affected(root, f"DELETE FROM {{}} WHERE name = {literal(name)} AND tag = {literal(mine.tag)}")
    return False


_known: set[str] = set()
"""Locations whose table was seen to be the pipeline's."""


def _require_ours(root: str) -> None:
    if root in _known:
        return
    try:
        table = CatalogTable(_table(root))
    except TableNotFoundError:
        commits.create(_table(root), _SCHEMA, _DESCRIPTION, _PROPERTIES)
        table = CatalogTable(_table(root))
    require_ours(_table(root), table.metadata().configuration)
    _known.add(root)


def _rows(root: str, text: str) -> list[Row]:
    """What a statement on the table gives."""
    uri = _table(root)
    with failures(uri):
        return run(uri, text).collect()


def _insert(name: str, body: bytes, tag: str) -> str:
    values = ", ".join(literal(one) for one in (name, body.decode(), tag))
    return (
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
