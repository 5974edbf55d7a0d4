"""The decoder refuses malformed streams with their place in WAL, and never misreads a stream."""

from __future__ import annotations

import struct
import tracemalloc
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltasmelt.bronze.pgoutput.tuples
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.pgoutput.decoder import StreamDecoder
from tests.bronze import wire
from tests.bronze.reference_decoder import ReferenceDecoder

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LSN = 0x1_6B37_4848
GOOD = [
    wire.begin(LSN),
    wire.named_type(70000, "public", "mood"),
    wire.plain_relation(1, "a", ["id", "v"]),
    wire.plain_relation(2, "b", ["id", "v", "w"]),
    wire.insert(1, ["1", "text"], LSN - 90),
    wire.insert(2, ["1", None, "x"], LSN - 80),
    wire.update(1, ["1", wire.UNCHANGED], ["1", None], "K", LSN - 70),
    wire.update(1, ["1", "new"], ["1", "old"], "O", LSN - 60),
    wire.delete(1, ["1", None], "K", LSN - 50),
    wire.truncate([1, 2], lsn=LSN - 40),
    wire.message("outbox", b"content", lsn=LSN - 30),
    wire.commit(LSN, end_lsn=LSN + 48),
]


@pytest.fixture(params=[0, 8], ids=["side by side", "one by one"], autouse=True)
def both_walks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(deltasmelt.bronze.pgoutput.tuples, "_FEW_ROWS", request.param)
    return iter([None])


def decode(messages: Sequence[bytes]) -> list[dict[str, object]]:
    decoder = StreamDecoder(lambda _relation, _lsn: None, lambda _table: True)
    decoded = decoder.feed(messages)
    decoded.changes.validate(full=True)
    rows: list[dict[str, object]] = decoded.changes.drop_columns(["ingested_at"]).to_pylist()
    return rows


def refused(messages: Sequence[bytes], match: str, where: str = str(Lsn(LSN))) -> None:
    with pytest.raises(DefiniteError, match=match) as caught:
        decode(messages)
    assert caught.value.code == "stream-malformed"
    assert caught.value.where is not None
    assert where in caught.value.where


def test_unbroken_base_stream_is_decoded() -> None:
    slow = ReferenceDecoder(lambda _table: True, TableName)
    slow.feed(GOOD)
    assert decode(GOOD) == slow.rows
    assert len(slow.rows) == 8


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_a_message_that_is_cut_anywhere_is_refused(place: int) -> None:
    for length in range(len(GOOD[place])):
        with pytest.raises(DefiniteError) as caught:
            decode([*GOOD[:place], GOOD[place][:length], *GOOD[place + 1 :]])
        assert caught.value.code == "stream-malformed"


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_message_with_surplus_byte_is_rejected(place: int) -> None:
    with pytest.raises(DefiniteError) as caught:
        decode([*GOOD[:place], GOOD[place] + b"t", *GOOD[place + 1 :]])
    assert caught.value.code == "stream-malformed"


@pytest.mark.parametrize("place", range(len(GOOD)))
def test_stream_missing_message_is_rejected_unless_still_consistent(place: int) -> None:
    remaining = [*GOOD[:place], *GOOD[place + 1 :]]
    if remaining[-1][25:26] != b"C":
        assert len(decode(remaining)) == 7  # all but the row held back for a Commit to come
    elif GOOD[place][25:26] in b"BR":
        refused(remaining, "outside a transaction|which the server did not announce", "")
    else:
        slow = ReferenceDecoder(lambda _table: True, TableName)
        slow.feed(remaining)
        assert decode(remaining) == slow.rows


@settings(max_examples=600)
@given(st.data())
def test_flipped_bytes_are_rejected_or_match_reference(data: st.DataObject) -> None:
    messages = list(GOOD)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(messages) - 1))
        broken = bytearray(messages[place])
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
        messages[place] = bytes(broken)
    try:
        rows = decode(messages)
    except DefiniteError as error:
        assert error.code == "stream-malformed"  # noqa: PT017 - the other outcome is as good
    else:
        slow = ReferenceDecoder(lambda _table: True, TableName)
        slow.feed(messages)
        # Where the Commit became something else, the last row waits for one to come.
        whole = messages[-1][25:26] == b"C"
        assert rows == (slow.rows if whole else slow.rows[:-1])


def test_an_unknown_message_type_names_its_place() -> None:
    refused([*GOOD[:5], wire.xlog(b"S\0\0\0\1\1", LSN - 85)], "unknown message type b'S'", str(Lsn(LSN - 85)))


def test_error_in_relation_message_names_its_transaction() -> None:
    """A relation message has no LSN, so the error names the transaction."""
    cut = wire.xlog(GOOD[2][25:-1])
    refused([GOOD[0], cut], "'R' message: the message is truncated", str(Lsn(LSN)))


def test_unrequested_binary_values_are_rejected() -> None:
    binary = wire.xlog(b"I" + struct.pack(">IcH", 1, b"N", 2) + b"t\0\0\0\1x" + b"b\0\0\0\1\xff", LSN - 5)
    refused([*GOOD[:4], binary], "binary form", str(Lsn(LSN - 5)))


def test_values_that_are_not_utf8_are_refused() -> None:
    latin1 = wire.insert(1, ["1", "grün"], LSN - 5).replace("ü".encode(), b"\xfc\xfc")
    refused([*GOOD[:4], latin1, GOOD[-1]], "not valid UTF-8", "")


def test_tuple_of_unannounced_width_is_rejected() -> None:
    refused(
        [*GOOD[:4], wire.insert(1, ["1"], LSN - 5)], "1 columns, the server announced 2", str(Lsn(LSN - 5))
    )


def test_old_tuple_with_unsent_value_is_rejected() -> None:
    broken = wire.delete(1, ["1", wire.UNCHANGED], "O", LSN - 5)
    refused([*GOOD[:4], broken], "old tuple contains a value that was not sent", str(Lsn(LSN - 5)))


def test_a_transaction_inside_of_another_is_refused() -> None:
    refused([*GOOD[:5], wire.begin(LSN + 100)], "'B' message inside another transaction", str(Lsn(LSN + 92)))


def test_a_commit_of_another_transaction_is_refused() -> None:
    refused([*GOOD[:5], wire.commit(LSN + 8)], "without a matching Begin", "")


def test_backward_commit_is_rejected_across_batches() -> None:
    """A commit behind its predecessor is refused, also in the next batch."""
    decoder = StreamDecoder(lambda _relation, _lsn: None, lambda _table: True)
    decoder.feed(GOOD)
    decoder.feed([])
    with pytest.raises(DefiniteError, match="comes after a transaction that committed"):
        decoder.feed([wire.begin(LSN), wire.commit(LSN)])


def test_keepalive_is_no_stream_message() -> None:
    refused([b"k" + bytes(40)], "not an XLogData message: the first byte is 0x6b", "unknown position")


BIGGEST = 2**32 - 1
LIES = {
    "columns of a relation": b"R" + struct.pack(">I", 1) + b"public\0a\0d" + struct.pack(">H", 65535),
    "columns of a row": b"I" + struct.pack(">IcH", 1, b"N", 65535) + b"t\0\0\0\1x",
    "bytes of a value": b"I" + struct.pack(">IcHcI", 1, b"N", 2, b"t", BIGGEST) + b"x",
    "bytes of a later value": b"I" + struct.pack(">IcHcIccI", 1, b"N", 2, b"t", 1, b"1", b"t", 2**31 - 1),
    "bytes of an old value": b"U" + struct.pack(">IcHcI", 1, b"O", 2, b"t", 2**31) + bytes(20),
    "relations of a TRUNCATE": b"T" + struct.pack(">IBI", BIGGEST, 0, 1),
    "bytes of a message": b"M" + struct.pack(">BQ", 1, LSN) + b"outbox\0" + struct.pack(">I", BIGGEST) + b"x",
    "a name without an end": b"R" + struct.pack(">I", 1) + b"n" * 100_000,
}


@pytest.mark.parametrize("lie", sorted(LIES))
def test_false_count_is_rejected_without_allocation(lie: str) -> None:
    hostile = [*GOOD[:4], wire.xlog(LIES[lie], LSN - 95), GOOD[-1]]
    decode(GOOD)
    arrow = pa.default_memory_pool()
    before = arrow.max_memory()
    tracemalloc.start()
    try:
        refused(hostile, "the replication stream does not follow", "")
        peak = tracemalloc.get_traced_memory()[1]  # numpy's arrays are in it, Arrow's are not
    finally:
        tracemalloc.stop()
    assert peak < 8 << 20
    assert (arrow.max_memory() or 0) - (before or 0) < 8 << 20


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=80), max_size=6), st.sampled_from(b"BCORYIUDTM"))
def test_random_bytes_raise_known_error_or_are_omitted(bodies: list[bytes], kind: int) -> None:
    hostile = [wire.xlog(bytes([kind]) + body, LSN - 95) for body in bodies]
    try:
        decode([*GOOD[:4], *hostile])
    except DefiniteError as error:
        assert error.code == "stream-malformed"  # noqa: PT017 - being read is as good an outcome
