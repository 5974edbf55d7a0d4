"""A stream whose texts the server could not convert: they come as they are stored and are converted here.

**Why.** Usually the server sends UTF-8 and converts where the database's encoding is another. One character
without a counterpart ends the stream of all tables, at the same change at each start: byte 0x81 of WIN1252,
whatever is no UTF-8 in a SQL_ASCII database. The log cannot be passed over there, and nothing tells which
table it was.

**How.** The session after such an end asks for the database's own encoding, which the server sends
unconverted, and this module stands before the decoder. Texts with other than ASCII bytes are converted by the
server's own function (``convert``), many in one question over the session's ordinary connection. So a value
is the same, however it came.

**What cannot be converted** is left out, and nothing of it in silence (`ConvertingDecoder._leave_out`).

**For how long.** This costs more than the server's conversion. So sessions begin with that again, but not
before bronze is past the transaction (`ConvertingDecoder.refused_at`). One whose line breaks on the way there
is followed by one that converts here, too.

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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.shapes import Relation

_TEXT, _NULL, _UNCHANGED = b"tnu"
_NEW, _KEY, _OLD = b"NKO"


class ConvertingDecoder(StreamDecoder):
    """A decoder of a stream in the database's own encoding.

    Args:
        describe: as `StreamDecoder`.
        selected: as `StreamDecoder`.
        known: as `StreamDecoder`.
        knows: as `StreamDecoder`.
        recorded: as `StreamDecoder`.
        unreadable: as `StreamDecoder`.
        convert: texts to UTF-8, None for each that cannot be.
        left_out: called with selected tables, each with the LSN of the newest commit of which a change is
            left out, before anything of that transaction is given out.

    Attributes:
        refused_at: commit LSN of the newest transaction with a text that cannot be converted, of whatever
            table; ZERO before the first.
    """

    def __init__(
        self,
        describe: Callable[[int, Lsn], Relation | None],
        selected: Callable[[TableName], bool],
        known: Iterable[Relation] = (),
        *,
        knows: Callable[[int], bool] = lambda _: False,
        recorded: Callable[[int, Lsn], Relation | None] = lambda *_: None,
        unreadable: Callable[[TableName, Lsn, Exception | None], None] | None = None,
        convert: Callable[[Sequence[bytes]], list[bytes | None]],
        left_out: Callable[[Mapping[TableName, Lsn]], None],
    ) -> None:
        super().__init__(describe, selected, known, knows=knows, recorded=recorded, unreadable=unreadable)
        self._convert = convert
        self._tell = left_out
        self._refused: dict[TableName, Lsn] = {}
        self._tables: dict[int, TableName] = {}
        self._commit_lsn = ZERO
        self.refused_at = ZERO
        self._unnamed: set[int] = set()
        self._unnamed_left_out: list[tuple[int, Lsn]] = []

    def feed_blocks(self, blocks: Iterable[Block]) -> Decoded:
        """`StreamDecoder.feed_blocks` of messages whose texts are not UTF-8 yet.

        Raises:
            DefiniteError: ``stream-malformed``; ``character-not-convertible``: the prefix of a message.
            SmeltError: the server cannot be asked, the gap cannot be written.
        """
        converted = [self._converted(block) for block in blocks]
        if self._refused:
            self._tell(self._refused)
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
            for message, found in zip(messages, spans, strict=True)
            for span in found
            if not (text := message[span.start : span.end]).isascii()
        }
        wanted = list(foreign)
        texts = dict(zip(wanted, self._convert(wanted), strict=True))
        kept = []
        for message, found in zip(messages, spans, strict=True):
            new = _rewritten(message, found, texts)
            if new is None:
                self._leave_out(message)
            else:
                self._note(new)
                if self._unnamed:
                    new = self._without_unnamed(new)
                if new is not None:
                    kept.append(new)
        return Block.of(kept)

    def _without_unnamed(self, message: bytes) -> bytes | None:
        """The message without tables whose names cannot be said; None where nothing is left of it."""
        match message[HEADER]:
            case kind if kind in (INSERT, UPDATE, DELETE):
                return None if _number(message, HEADER + 1, 4) in self._unnamed else message
            case kind if kind == TRUNCATE:
                oids = [message[at : at + 4] for at in range(HEADER + 6, len(message), 4)]
                left = [oid for oid in oids if int.from_bytes(oid, "big") not in self._unnamed]
                head = message[: HEADER + 1] + len(left).to_bytes(4, "big") + message[HEADER + 5 : HEADER + 6]
                return head + b"".join(left) if left else None
        return message

    def _note(self, message: bytes) -> None:
        """Keep what tells where and of which table a change is."""
        match message[HEADER]:
            case kind if kind == BEGIN:
                self._commit_lsn = Lsn(_number(message, HEADER + 1, 8))
            case kind if kind == RELATION:
                try:
                    relation = parse_relation(message[HEADER:])
                except ValueError:
                    return  # the decoder says so
                self._tables[relation.relation_id] = relation.table
                self._unnamed.discard(relation.relation_id)

    def _leave_out(self, message: bytes) -> None:
        """A message with a text that cannot be converted never reaches the decoder.

        * **A change**: its table gets a gap at that transaction (`bronze.store.gaps`) before anything of the
          transaction can be committed. The gap asks for a copy, which silver waits for. Until the source is
          mended it fails with an error of that table (`COPY` meets the same text), and is tried again from
          time to time. Then it heals all that was left out. Killed or failed in between: the gap is there or
          the change is sent again.
        * **A Relation message**: the table has a name that cannot be converted (`bronze.postgres.unnamed`).
          It is left out from here on; the table's changes never reach the decoder either. Where bronze has
          the table from before, under names that could be said, these get a gap.
        * **A type's name** serves messages alone.

        Raises:
            DefiniteError: ``character-not-convertible``: the prefix of an application's own message.
        """
        self.refused_at = self._commit_lsn
        match message[HEADER]:
            case kind if kind == TYPE:
                return
            case kind if kind == MESSAGE:
                raise DefiniteError(
                    "the prefix of a logical decoding message cannot be converted to UTF-8",
                    code="character-not-convertible",
                    where=f"transaction that commits at {self._commit_lsn}",
                    remedy="use one whose characters exist in UTF-8; "
                    "see `smelt explain-error character-not-convertible`",
                )
        relation_id = _number(message, HEADER + 1, 4)
        if message[HEADER] == RELATION:
            self._unnamed.add(relation_id)
            if self._knows(relation_id):
                self._unnamed_left_out.append((relation_id, self._commit_lsn))
            return
        if relation_id in self._unnamed:
            return
        announced = self._tables.get(relation_id)
        table = None if announced is None else self._kept_as(relation_id, announced, self._commit_lsn)
        if table is not None:
            self._refused[table] = self._commit_lsn


class _Span(NamedTuple):
    """A text inside a message; `counted`: its length stands in the four bytes before it."""

    start: int
    end: int
    counted: bool


def _rewritten(message: bytes, spans: Sequence[_Span], texts: dict[bytes, bytes | None]) -> bytes | None:
    """The message with other texts; None where one of them is None."""
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
    """Every text of a message in the client's encoding; formats as in `bronze.pgoutput.messages`."""
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
        malformed(f"a {chr(message[HEADER])!r} message is cut short", None)
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
