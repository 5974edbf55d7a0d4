"""Parse the rare messages of pgoutput one at a time: Relation, Type, Truncate, logical decoding Message.

The server announces a relation once per session and after each change of its shape, so plain Python is fast
enough here. Rows never pass through this module. Layouts:
https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html.

Every parser gets the message from its type byte on and raises `ValueError` for a truncated message and for
surplus bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from deltasmelt.bronze.identifiers import TableName

_IDENTITIES: Final = "dnfi"
_IN_IDENTITY: Final = 1


@dataclass(frozen=True, slots=True)
class AnnouncedColumn:
    """A column of a Relation message."""

    name: str
    type_oid: int
    typmod: int
    # whether the replica identity covers the column
    in_identity: bool


@dataclass(frozen=True, slots=True)
class AnnouncedRelation:
    """A Relation message: the columns of the tuples that follow."""

    relation_id: int
    table: TableName
    replica_identity: str
    columns: tuple[AnnouncedColumn, ...]


@dataclass(frozen=True, slots=True)
class AnnouncedType:
    """A Type message: the name of a type that is not built in. Precedes the Relation that uses the type."""

    oid: int
    schema: str
    name: str


@dataclass(frozen=True, slots=True)
class LogicalMessage:
    r"""A message written with ``pg_logical_emit_message``."""

    prefix: str
    # the text; bytes that are not UTF-8 in bytea's `\x` form
    content: str


def parse_relation(body: bytes) -> AnnouncedRelation:
    """Parse ``R``, oid (4), schema, table, identity (1), number of columns (2), and the columns.

    A column has flags (1), name, type oid (4), typmod (4, signed).
    """
    fields = _Fields(body)
    relation_id, schema, name = fields.number(4), fields.text(), fields.text()
    identity = chr(fields.number(1))
    if identity not in _IDENTITIES:
        raise ValueError(f"unknown replica identity {identity!r}")
    columns = []
    for _ in range(fields.number(2)):
        flags, column, type_oid, typmod = fields.number(1), fields.text(), fields.number(4), fields.number(4)
        signed = typmod - 2**32 if typmod >= 2**31 else typmod
        columns.append(AnnouncedColumn(column, type_oid, signed, bool(flags & _IN_IDENTITY)))
    fields.end()
    # The server sends the schema pg_catalog as an empty name.
    return AnnouncedRelation(relation_id, TableName(schema or "pg_catalog", name), identity, tuple(columns))


def parse_type(body: bytes) -> AnnouncedType:
    """Parse ``Y``, oid (4), schema, name."""
    fields = _Fields(body)
    announced = AnnouncedType(fields.number(4), fields.text() or "pg_catalog", fields.text())
    fields.end()
    return announced


def parse_truncate(body: bytes) -> list[int]:
    """Parse ``T``, number of relations (4), options (1: CASCADE, 2: RESTART IDENTITY), oids (4 each)."""
    fields = _Fields(body)
    count = fields.number(4)
    fields.number(1)
    if 4 * count > len(body):
        raise ValueError("the message names more relations than it contains")
    relations = [fields.number(4) for _ in range(count)]
    fields.end()
    return relations


def parse_message(body: bytes) -> LogicalMessage:
    """Parse ``M``, flags (1: transactional), LSN (8), prefix, length (4), content."""
    fields = _Fields(body)
    fields.take(1 + 8)  # flags and LSN: `bronze.pgoutput.transactions` reads them
    prefix = fields.text()
    content = fields.take(fields.number(4))
    fields.end()
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = "\\x" + content.hex()
    return LogicalMessage(prefix, text)


class _Fields:
    """A reader of one message, field by field, from its type byte on."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 1

    def take(self, count: int) -> bytes:
        content = self._body[self._at : self._at + count]
        if len(content) != count:
            raise ValueError("the message is truncated")
        self._at += count
        return content

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def text(self) -> str:
        end = self._body.find(b"\0", self._at)
        if end < 0:
            raise ValueError("a name has no terminator")
        content = self.take(end - self._at)
        self._at += 1
        return content.decode()  # UnicodeDecodeError is a ValueError

    def end(self) -> None:
        if self._at != len(self._body):
            raise ValueError(f"the message has {len(self._body) - self._at} surplus bytes")
