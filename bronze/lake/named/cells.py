"""Small texts in a table of a catalog, each put on condition: what objects of a store are to other lakes.

A row is a name, a body, and a tag that names this very body. A put changes the row whose tag is the one that
the caller read; Delta's own conflict check lets one of two such statements commit. The other one is run
again, by then finds another tag, and changes nothing. A row that is not there yet is put by a MERGE. It reads
the table, so of two the later one conflicts as well; a plain append would not.

`control.leases` is such a table, and a lease (`bronze.lake.leases`) is one row. Who renews it writes a commit
each time. So it keeps its log for an hour alone, and `smelt maintain` removes its old files.
"""

from __future__ import annotations

import uuid
from typing import Final

import pyarrow as pa

from bronze.lake.client import CommitFailedError, TableNotFoundError
from bronze.lake.conditional import Found
from bronze.lake.named import commits
from bronze.lake.named.owned import MADE_PROPERTY
from bronze.lake.named.sql import run
from bronze.lake.spark_text import literal

LEASES: Final = "control/leases"
"""The table, below the catalog's location."""
_SCHEMA: Final = pa.schema([pa.field(name, pa.string()) for name in ("name", "body", "tag")])
_DESCRIPTION: Final = (
    "Who may write which layer of this lake: one row for each lease, renewed while it is held"
)
_PROPERTIES: Final = {
    MADE_PROPERTY: "true",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 1 hours",
    "delta.checkpointInterval": "50",
}
_ATTEMPTS: Final = 20
"""Others put other rows of the same table, each by one commit; so many in a row come first by ill luck."""


def read(root: str, name: str) -> Found | None:
    """A row's body and tag; None where there is none, or no table.

    Args:
        root: location of the catalog's tables.
        name: of the row.

    Raises:
        OSError: Spark, or the catalog, refuses.
    """
    try:
        row = run(_table(root), f"SELECT body, tag FROM {{}} WHERE name = {literal(name)}").first()
    except TableNotFoundError:
        return None
    return None if row is None else Found(row["body"].encode(), row["tag"])


def put(root: str, name: str, body: bytes, *, over: Found | None) -> Found | None:
    """Put a row; None where another writer was first.

    Args:
        root: location of the catalog's tables.
        name: of the row.
        body: text, as UTF-8.
        over: what it replaces and nothing else; None: it must not be there yet.

    Raises:
        OSError: Spark, or the catalog, refuses. Whether it was put is not known then.
    """
    tag = uuid.uuid4().hex
    text = _insert(name, body, tag) if over is None else _update(name, body, tag, over)
    for _ in range(_ATTEMPTS):
        try:
            row = run(_table(root), text).first()
        except TableNotFoundError:
            if over is not None:
                return None
            commits.create(_table(root), _SCHEMA, _DESCRIPTION, _PROPERTIES)
        except CommitFailedError:
            continue  # another row was put meanwhile, or this one: the tag tells
        else:
            return Found(body, tag) if row is not None and row["num_affected_rows"] else None
    raise OSError(f"{name} was not put: other processes put theirs all the time")


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
    return f"{root}/{LEASES}"
