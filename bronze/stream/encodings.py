"""Convert texts of a stream here if the server failed to convert them.

**Why.** Usually the server sends UTF-8 and converts from the database's encoding. One character without a
counterpart ends the stream of all tables, at the same change after each start. Examples: byte 0x81 of
WIN1252, any byte that is not UTF-8 in a SQL_ASCII database. The reader cannot skip this place of the log, and
no message names the table.

**How.** The next session requests the database's own encoding, which the server sends unconverted, and this
module runs before the decoder. The server's function ``convert`` converts texts with non-ASCII bytes, many in
one query over the session's ordinary connection. So both ways produce the same value.

**An unconvertible text** is left out, and never silently (`ConvertingDecoder._leave_out`).

**Duration.** Conversion here costs more than conversion in the server. So sessions return to the server's
conversion as soon as bronze has passed the transaction (`ConvertingDecoder.refused_at`), and not earlier. If
the connection breaks before, the next session converts here too.

PostgreSQL docs: https://www.postgresql.org/docs/current/multibyte.html (Automatic Character Set Conversion
Between Server and Client).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.pgoutput.decoder import Decoded, StreamDecoder
from deltasmelt.bronze.pgoutput.framing import (
    BEGIN,
    DELETE,
    HEADER,
    INSERT,
    MESSAGE,
    RELATION,
    TRUNCATE,
    TYPE,
    UPDATE,
    Block,
    malformed,
)
from deltasmelt.bronze.pgoutput.messages import parse_relation
from deltasmelt.bronze.rules import TableRules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation

_TEXT, _NULL, _UNCHANGED = b"tnu"
_NEW, _KEY, _OLD = b"NKO"


class ConvertingDecoder(StreamDecoder):
    """A decoder of a stream in the database's own encoding; further parameters as in `StreamDecoder`.

    Args:
        convert: converts texts to UTF-8; returns None for each unconvertible text.
        left_out: called with selected tables before any row of the transaction is returned. Each table comes
            with the LSN of the newest commit that lost a change.
    """

    def __init__(
        self,
        describe: Callable[[int, Lsn], Relation | None],
        selected: Callable[[TableName], bool],
        known: Iterable[Relation] = (),
        *,
        knows: Callable[[int], bool] = lambda _: False,
        recorded: Callable[[int, Lsn], Relation | None] = lambda *_: None,
        rules: Callable[[int, TableName], TableRules] = lambda *_: TableRules(),
        names: Callable[[int, TableName], Mapping[int, str]] = lambda *_: {},
        reads_after: Mapping[TableName, Lsn] | None = None,
        renamed: Callable[[int, TableName], bool] = lambda *_: False,
        hides: Callable[[int, TableName], bool] = lambda *_: False,
        unreadable: Callable[[TableName, Lsn, Exception | None], None] | None = None,
        convert: Callable[[Sequence[bytes]], list[bytes | None]],
        left_out: Callable[[Mapping[TableName, Lsn]], None],
    ) -> None:
        super().__init__(
            describe,
            selected,
            known,
            knows=knows,
            recorded=recorded,
            rules=rules,
            names=names,
            reads_after=reads_after,
            renamed=renamed,
            hides=hides,
            unreadable=unreadable,
        )
        self._convert = convert
        self._on_left_out = left_out
        self._refused: dict[TableName, Lsn] = {}
        self._tables: dict[int, TableName] = {}
        self._commit_lsn = ZERO
        # commit LSN of the newest transaction with an unconvertible text of any table; ZERO before the first
        self.refused_at = ZERO
        self._unnamed: set[int] = set()
        self._unnamed_left_out: list[tuple[int, Lsn]] = []

    def feed_blocks(self, blocks: Iterable[Block]) -> Decoded:
        """Convert the messages to UTF-8 and call `StreamDecoder.feed_blocks`.

        Raises:
            DefiniteError: ``stream-malformed``; ``character-not-convertible``: the prefix of a message.
            SmeltError: the server cannot convert, or the gap cannot be written.
        """
        converted = [self._converted(block) for block in blocks]
        if self._refused:
            self._on_left_out(self._refused)
            self._refused = {}
        decoded = super().feed_blocks(converted)
        if self._unnamed_left_out:
            decoded = replace(decoded, left_out=[*decoded.left_out, *self._unnamed_left_out])
            self._unnamed_left_out = []
        return decoded

    def _converted(self, block: Block) -> Block:
        messages = block.messages()
        spans = [_spans(message) for message in messages]
        foreign = {
            text
            for message, in_message in zip(messages, spans, strict=True)
            for span in in_message
            if not (text := message[span.start : span.end]).isascii()
        }
        originals = list(foreign)
        texts = dict(zip(originals, self._convert(originals), strict=True))
        remaining = []
        for message, places in zip(messages, spans, strict=True):
            new = _rewritten(message, places, texts)
            if new is None:
                self._leave_out(message)
            else:
                self._note(new)
                if self._unnamed:
                    new = self._without_unnamed(new)
                if new is not None:
                    remaining.append(new)
        return Block.of(remaining)

    def _without_unnamed(self, message: bytes) -> bytes | None:
        """Return the message without tables whose names are unconvertible; None if no table is left."""
        match message[HEADER]:
            case kind if kind in (INSERT, UPDATE, DELETE):
                return None if _number(message, HEADER + 1, 4) in self._unnamed else message
            case kind if kind == TRUNCATE:
                oids = [message[at : at + 4] for at in range(HEADER + 6, len(message), 4)]
                named = [oid for oid in oids if int.from_bytes(oid, "big") not in self._unnamed]
                head = (
                    message[: HEADER + 1] + len(named).to_bytes(4, "big") + message[HEADER + 5 : HEADER + 6]
                )
                return head + b"".join(named) if named else None
        return message

    def _note(self, message: bytes) -> None:
        """Record the commit LSN of a Begin and the table name of a Relation message."""
        match message[HEADER]:
            case kind if kind == BEGIN:
                self._commit_lsn = Lsn(_number(message, HEADER + 1, 8))
            case kind if kind == RELATION:
                try:
                    relation = parse_relation(message[HEADER:])
                except ValueError:
                    return  # the decoder reports the error
                self._tables[relation.relation_id] = relation.table
                self._unnamed.discard(relation.relation_id)

    def _leave_out(self, message: bytes) -> None:
        """Drop a message with an unconvertible text before the decoder; record the loss.

        Raises:
            DefiniteError: ``character-not-convertible``: the prefix of an application's own message.
        """
        self.refused_at = self._commit_lsn
        match message[HEADER]:
            # A type's name appears in messages only, so nothing is recorded.
            case kind if kind == TYPE:
                return
            case kind if kind == MESSAGE:
                raise DefiniteError(
                    "the prefix of a logical decoding message cannot be converted to UTF-8",
                    code="character-not-convertible",
                    where=f"transaction that commits at {self._commit_lsn}",
                    remedy="use a prefix whose characters exist in UTF-8; see `smelt explain-error "
                    "character-not-convertible`",
                )
        relation_id = _number(message, HEADER + 1, 4)
        if message[HEADER] == RELATION:
            # The table has an unconvertible name (`bronze.postgres.unnamed`). From here on the table's
            # changes do not reach the decoder either. If bronze has the table from before, its former names
            # get a gap.
            self._unnamed.add(relation_id)
            if self._knows(relation_id):
                self._unnamed_left_out.append((relation_id, self._commit_lsn))
            return
        if relation_id in self._unnamed:
            return
        announced = self._tables.get(relation_id)
        table = None if announced is None else self._kept_as(relation_id, announced, self._commit_lsn)
        if table is not None:
            # The table gets a gap at the transaction (`bronze.store.gaps`) before any row of the transaction
            # can be committed. The gap requests a copy, and silver waits for the copy. The copy fails with an
            # error of the table until a person mends the source, because `COPY` meets the same text. The
            # reader retries the copy from time to time, and a successful copy heals all dropped changes.
            # After a kill or a failure in between, either the gap is durable or the server sends the change
            # again.
            self._refused[table] = self._commit_lsn


class _Span(NamedTuple):
    """A text inside a message; if `counted`, the four bytes before the text hold its length."""

    start: int
    end: int
    counted: bool


def _rewritten(message: bytes, spans: Sequence[_Span], texts: dict[bytes, bytes | None]) -> bytes | None:
    """Return the message with converted texts; None if a text is unconvertible."""
    pieces, at = [], 0
    for span in spans:
        old = message[span.start : span.end]
        if old not in texts:
            continue
        new = texts[old]
        if new is None:
            return None
        if span.counted:
            pieces += [message[at : span.start - 4], len(new).to_bytes(4, "big"), new]
        else:
            pieces += [message[at : span.start], new]
        at = span.end
    return b"".join([*pieces, message[at:]]) if pieces else message


def _spans(message: bytes) -> list[_Span]:
    """Return every text of a message in the client's encoding; formats as in `bronze.pgoutput.messages`."""
    try:
        match message[HEADER]:
            case kind if kind in (INSERT, UPDATE, DELETE):
                return list(_cells(message))
            case kind if kind == RELATION:
                return list(_relation(message))
            case kind if kind == TYPE:
                schema = _name(message, HEADER + 5)
                return [schema, _name(message, schema.end + 1)]
            case kind if kind == MESSAGE:
                return [_name(message, HEADER + 10)]
    except (IndexError, ValueError):
        malformed(f"a {chr(message[HEADER])!r} message is truncated", None)
    return []


def _cells(message: bytes) -> Iterator[_Span]:
    at = HEADER + 5
    while at < len(message):
        if message[at] not in (_NEW, _KEY, _OLD):
            raise ValueError("no tuple")
        columns, at = _number(message, at + 1, 2), at + 3
        for _ in range(columns):
            kind = message[at]
            if kind in (_NULL, _UNCHANGED):
                at += 1
                continue
            start = at + 5
            at = start + _number(message, at + 1, 4)
            if kind == _TEXT:
                yield _Span(start, at, counted=True)


def _relation(message: bytes) -> Iterator[_Span]:
    schema = _name(message, HEADER + 5)
    table = _name(message, schema.end + 1)
    yield from (schema, table)
    at = table.end + 4
    for _ in range(_number(message, table.end + 2, 2)):
        column = _name(message, at + 1)
        yield column
        at = column.end + 9


def _name(message: bytes, at: int) -> _Span:
    return _Span(at, message.index(b"\0", at), counted=False)


def _number(message: bytes, at: int, size: int) -> int:
    return int.from_bytes(message[at : at + size], "big")
