"""A slow and obviously correct decoder: message by message, byte by byte.

The columnar decoder must produce equal rows. The two decoders share no code, only the names of the ops.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltasmelt.bronze.identifiers import TableName

Row = dict[str, Any]
Tuple = tuple[list[str | None], list[int]]
"""Values of a tuple, and the positions of the values that the server did not send."""

EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


@dataclass
class Cursor:
    """A reader of one message from front to back."""

    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        assert self.at + count <= len(self.data)
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, code: str) -> int:
        (number,) = struct.unpack(">" + code, self.take(struct.calcsize(code)))
        assert isinstance(number, int)
        return number

    def text(self) -> str:
        text = b""
        while (byte := self.take(1)) != b"\0":
            text += byte
        return text.decode()

    def tuple(self) -> Tuple:
        values: list[str | None] = []
        unchanged = []
        for place in range(self.number("H")):
            kind = self.take(1)
            if kind == b"t":
                values.append(self.take(self.number("I")).decode())
            else:
                assert kind in (b"n", b"u")
                values.append(None)
                if kind == b"u":
                    unchanged.append(place)
        return values, unchanged


@dataclass
class ReferenceDecoder:
    """A collector of all rows of a stream, including the rows of the open transaction."""

    selected: Callable[[TableName], bool]
    table_name: type[TableName]
    rows: list[Row] = field(default_factory=list)
    commits: list[tuple[int, int, datetime | None]] = field(default_factory=list)
    relations: dict[int, tuple[TableName, list[str]]] = field(default_factory=dict)
    transaction: tuple[int, datetime | None, int | None] | None = None
    first_row: int = 0
    """Index in `rows` of the open transaction's first row."""

    def feed(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            self._message(message)

    def _message(self, message: bytes) -> None:
        cursor = Cursor(message)
        assert cursor.take(1) == b"w"
        lsn = cursor.number("Q")
        cursor.take(16)
        kind = cursor.take(1)
        if kind == b"B":
            commit_lsn = cursor.number("Q")
            commit_ts = EPOCH + timedelta(microseconds=cursor.number("q"))
            self._begin(commit_lsn, commit_ts, cursor.number("I"))
        elif kind == b"C":
            cursor.take(1)
            commit_lsn, end_lsn = cursor.number("Q"), cursor.number("Q")
            assert self.transaction is not None
            assert commit_lsn == self.transaction[0]
            self._commit(end_lsn, EPOCH + timedelta(microseconds=cursor.number("q")))
        elif kind == b"R":
            self._relation(cursor)
        elif kind in (b"I", b"U", b"D"):
            self._change(kind, lsn, cursor)
        elif kind == b"T":
            count = cursor.number("I")
            cursor.take(1)
            for _ in range(count):
                self._row("truncate", lsn, cursor.number("I"))
        elif kind == b"M":
            self._logical(lsn, cursor)
        else:
            assert kind in (b"O", b"Y")
            return
        assert cursor.at == len(message)

    def _begin(self, commit_lsn: int, commit_ts: datetime | None, xid: int | None) -> None:
        assert self.transaction is None
        self.transaction = (commit_lsn, commit_ts, xid)
        self.first_row = len(self.rows)

    def _commit(self, end_lsn: int, commit_ts: datetime | None) -> None:
        assert self.transaction is not None
        if len(self.rows) > self.first_row:
            self.rows[-1]["end_of_tx"] = True
        self.commits.append((self.transaction[0], end_lsn, commit_ts))
        self.transaction = None

    def _relation(self, cursor: Cursor) -> None:
        relation_id = cursor.number("I")
        table = self.table_name(cursor.text() or "pg_catalog", cursor.text())
        cursor.take(1)
        names = []
        for _ in range(cursor.number("H")):
            cursor.take(1)
            names.append(cursor.text())
            cursor.take(8)
        self.relations[relation_id] = (table, names)

    def _change(self, kind: bytes, lsn: int, cursor: Cursor) -> None:
        relation_id = cursor.number("I")
        new: Tuple | None = None
        old: Tuple | None = None
        tag = cursor.take(1)
        old_is_key = tag == b"K" if tag != b"N" else None
        if tag != b"N":
            old = cursor.tuple()
            if kind == b"U":
                assert cursor.take(1) == b"N"
        if kind != b"D":
            new = cursor.tuple()
        op = {b"I": "insert", b"U": "update", b"D": "delete"}[kind]
        self._row(op, lsn, relation_id, new=new, old=old, old_is_key=old_is_key)

    def _logical(self, lsn: int, cursor: Cursor) -> None:
        transactional = cursor.number("B") & 1
        message_lsn = cursor.number("Q")
        prefix = cursor.text()
        content = cursor.take(cursor.number("I"))
        if not transactional:
            self._begin(message_lsn - 1, None, None)
        if prefix != "deltasmelt":
            try:
                text = content.decode()
            except UnicodeDecodeError:
                text = "\\x" + content.hex()
            self._row("message", lsn, None, columns=[prefix, text])
        if not transactional:
            self._commit(message_lsn, None)

    def _row(
        self,
        op: str,
        lsn: int,
        relation_id: int | None,
        *,
        columns: list[str] | None = None,
        new: Tuple | None = None,
        old: Tuple | None = None,
        old_is_key: bool | None = None,
    ) -> None:
        assert self.transaction is not None
        table: TableName | None = None
        if relation_id is not None:
            table, columns = self.relations[relation_id]
            if not self.selected(table):
                return
        assert columns is not None
        commit_lsn, commit_ts, xid = self.transaction
        self.rows.append(
            {
                "commit_lsn": commit_lsn,
                "seq": len(self.rows) - self.first_row,
                "lsn": lsn,
                "xid": xid,
                "commit_ts": commit_ts,
                "op": op,
                "table_schema": table and table.schema,
                "table_name": table and table.name,
                "relation_id": relation_id,
                "columns": columns,
                "new": new and new[0],
                "old": old and old[0],
                "old_is_key": old_is_key,
                "unchanged": [columns[place] for place in new[1]] if new and new[1] else None,
                "end_of_tx": False,
            }
        )
