"""Writers of pgoutput messages in a server's format, for streams that none of the tests' servers sends."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

UNCHANGED = "\0unchanged"
"""A cell for an out-of-line value that the server did not send."""

Cells = "Sequence[str | None]"


def xlog(body: bytes, lsn: int = 0) -> bytes:
    """Wrap a pgoutput message in XLogData."""
    return b"w" + struct.pack(">QQq", lsn, lsn, 777) + body


def begin(commit_lsn: int, *, ts: int = 1_000_000, xid: int = 7) -> bytes:
    return xlog(b"B" + struct.pack(">QqI", commit_lsn, ts, xid), commit_lsn - 8)


def commit(commit_lsn: int, *, end_lsn: int | None = None, ts: int = 1_000_000) -> bytes:
    end = commit_lsn + 16 if end_lsn is None else end_lsn
    return xlog(b"C\0" + struct.pack(">QQq", commit_lsn, end, ts), end)


def origin(name: str) -> bytes:
    return xlog(b"O" + struct.pack(">Q", 5) + name.encode() + b"\0")


def named_type(oid: int, schema: str, name: str) -> bytes:
    return xlog(b"Y" + struct.pack(">I", oid) + schema.encode() + b"\0" + name.encode() + b"\0")


def relation(
    relation_id: int,
    schema: str,
    name: str,
    columns: Sequence[tuple[str, int, int, bool]],
    identity: str = "d",
) -> bytes:
    """Return a Relation message; each column is (name, type oid, typmod, in identity)."""
    body = b"R" + struct.pack(">I", relation_id) + schema.encode() + b"\0" + name.encode() + b"\0"
    body += identity.encode() + struct.pack(">H", len(columns))
    for column, oid, typmod, key in columns:
        body += bytes([key]) + column.encode() + b"\0" + struct.pack(">Ii", oid, typmod)
    return xlog(body)


def plain_relation(relation_id: int, name: str, columns: Sequence[str], schema: str = "public") -> bytes:
    """Return a Relation message of text columns with the first column as the key."""
    return relation(relation_id, schema, name, [(column, 25, -1, i == 0) for i, column in enumerate(columns)])


def cells(values: Sequence[str | None]) -> bytes:
    body = struct.pack(">H", len(values))
    for value in values:
        if value is None:
            body += b"n"
        elif value == UNCHANGED:
            body += b"u"
        else:
            body += b"t" + struct.pack(">I", len(value.encode())) + value.encode()
    return body


def insert(relation_id: int, new: Sequence[str | None], lsn: int = 1) -> bytes:
    return xlog(b"I" + struct.pack(">I", relation_id) + b"N" + cells(new), lsn)


def update(
    relation_id: int,
    new: Sequence[str | None],
    old: Sequence[str | None] | None = None,
    tag: str = "K",
    lsn: int = 1,
) -> bytes:
    before = b"" if old is None else tag.encode() + cells(old)
    return xlog(b"U" + struct.pack(">I", relation_id) + before + b"N" + cells(new), lsn)


def delete(relation_id: int, old: Sequence[str | None], tag: str = "K", lsn: int = 1) -> bytes:
    return xlog(b"D" + struct.pack(">I", relation_id) + tag.encode() + cells(old), lsn)


def truncate(relation_ids: Sequence[int], options: int = 0, lsn: int = 1) -> bytes:
    body = struct.pack(">IB", len(relation_ids), options) + b"".join(
        struct.pack(">I", relation_id) for relation_id in relation_ids
    )
    return xlog(b"T" + body, lsn)


def message(prefix: str, content: bytes, *, transactional: bool = True, lsn: int = 1) -> bytes:
    body = (
        struct.pack(">BQ", transactional, lsn)
        + prefix.encode()
        + b"\0"
        + struct.pack(">I", len(content))
        + content
    )
    return xlog(b"M" + body, lsn)
