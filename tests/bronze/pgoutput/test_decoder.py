"""Compare the columnar decoder with the reference decoder on recorded and random streams, in any batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import deltasmelt.bronze.pgoutput.decoder
import deltasmelt.bronze.pgoutput.tuples
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.pgoutput.decoder import Decoded, StreamDecoder
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA
from tests.bronze import wire
from tests.bronze.record_messages import FOLDER, load
from tests.bronze.reference_decoder import ReferenceDecoder

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.bronze.shapes import Relation

RECORDINGS = ["pg16.bin", "pg18.bin"]


def keep(table: TableName) -> bool:
    return table.name != "excluded"


def no_catalog(_relation_id: int, _lsn: Lsn) -> Relation | None:
    return None


def decoder() -> StreamDecoder:
    return StreamDecoder(no_catalog, keep)


def reference(messages: Sequence[bytes]) -> ReferenceDecoder:
    slow = ReferenceDecoder(keep, TableName)
    slow.feed(messages)
    return slow


def rows(decoded: Decoded) -> list[dict[str, Any]]:
    decoded.changes.validate(full=True)
    assert decoded.changes.schema == CHANGES_SCHEMA
    assert decoded.changes["ingested_at"].null_count == 0
    listed: list[dict[str, Any]] = decoded.changes.drop_columns(["ingested_at"]).to_pylist()
    return listed


def check(messages: Sequence[bytes], cuts: Sequence[int]) -> None:
    """Feed the messages cut at `cuts`; compare every answer with the reference's state at that point."""
    fast, slow = decoder(), ReferenceDecoder(keep, TableName)
    decoded_rows: list[dict[str, Any]] = []
    complete = 0
    edges = [0, *sorted(cuts), len(messages)]
    for start, end in pairwise(edges):
        commits_before = len(slow.commits)
        slow.feed(messages[start:end])
        decoded = fast.feed(messages[start:end])
        before = len(decoded_rows)
        decoded_rows += rows(decoded)
        open_rows = len(slow.rows) - slow.first_row if slow.transaction else 0
        held_back = 1 if open_rows else 0
        assert decoded_rows[before:] == slow.rows[before : len(slow.rows) - held_back]
        assert decoded.in_transaction == (slow.transaction is not None)
        commit = decoded.last_commit
        assert (commit is None) == (len(slow.commits) == commits_before)
        if commit is not None:
            assert (commit.commit_lsn, commit.end_lsn, commit.commit_ts) == slow.commits[-1]
            complete = before + decoded.complete_rows
            assert complete == len(slow.rows) - open_rows
        else:
            assert decoded.complete_rows == 0


@pytest.mark.parametrize("recording", RECORDINGS)
@pytest.mark.parametrize("size", [3, 500, 10_000])
def test_recorded_stream_matches_reference_at_any_batch_size(recording: str, size: int) -> None:
    messages = load(FOLDER / recording)
    check(messages, range(size, len(messages), size))


@pytest.mark.parametrize("recording", RECORDINGS)
def test_slices_inside_of_a_batch_leave_no_trace(recording: str, monkeypatch: pytest.MonkeyPatch) -> None:
    messages = load(FOLDER / recording)
    whole = rows(decoder().feed(messages))
    for slice_bytes in (500, 20_000):
        monkeypatch.setattr(deltasmelt.bronze.pgoutput.decoder, "_SLICE_BYTES", slice_bytes)
        assert rows(decoder().feed(messages)) == whole


@pytest.mark.parametrize("recording", RECORDINGS)
def test_recorded_rows_are_ordered_with_single_transaction_ends(recording: str) -> None:
    """Rows are in order, and every transaction ends once."""
    decoded = decoder().feed(load(FOLDER / recording))
    order = [(row["commit_lsn"], row["seq"]) for row in rows(decoded)]
    assert order == sorted(set(order))
    assert {row["op"] for row in rows(decoded)} == {"insert", "update", "delete", "truncate", "message"}
    ends = [row["commit_lsn"] for row in rows(decoded) if row["end_of_tx"]]
    assert ends == sorted({row["commit_lsn"] for row in rows(decoded)})


@dataclass
class Stream:
    """A random stream, with the state of a server."""

    messages: list[bytes]
    lsn: int
    widths: dict[int, int]


TEXTS = st.one_of(
    st.none(), st.text(max_size=8), st.sampled_from(["", "null", "t\0\0\0\1", "é" * 40, "x" * 300])
)
MAYBE_UNCHANGED = st.one_of(TEXTS, st.just(wire.UNCHANGED))
NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=5)


@st.composite
def streams(draw: st.DrawFn) -> list[bytes]:
    stream = Stream([], 1000, {})
    for _ in range(draw(st.integers(0, 8))):
        stream.lsn += draw(st.integers(40, 60))
        if draw(st.integers(0, 4)) == 0:
            prefix = draw(st.sampled_from(["outside", "deltasmelt", ""]))
            content = draw(st.binary(max_size=5))
            stream.messages.append(wire.message(prefix, content, transactional=False, lsn=stream.lsn))
            continue
        stream.messages.append(
            wire.begin(stream.lsn, ts=draw(st.integers(-(2**50), 2**50)), xid=draw(st.integers(0, 2**32 - 1)))
        )
        for _ in range(draw(st.integers(0, 6))):
            draw_message(draw, stream)
        stream.messages.append(wire.commit(stream.lsn, end_lsn=stream.lsn + 30))
    open_end = draw(st.integers(0, 3))
    return stream.messages[: len(stream.messages) - open_end] if open_end else stream.messages


def draw_message(draw: st.DrawFn, stream: Stream) -> None:
    kind = draw(st.sampled_from("RIIIIUUUDDTMOY")) if stream.widths else "R"
    relation_id = draw(st.sampled_from(sorted(stream.widths))) if stream.widths else 0
    width = stream.widths.get(relation_id, 0)
    lsn = stream.lsn - 30 + len(stream.messages) % 20
    row = st.lists(TEXTS, min_size=width, max_size=width)
    partial = st.lists(MAYBE_UNCHANGED, min_size=width, max_size=width)
    tag = draw(st.sampled_from("KO"))
    if kind == "R":
        relation_id = draw(st.sampled_from([1, 2, 3, 2**32 - 1]))
        names = draw(st.lists(NAMES, max_size=6, unique=True))
        stream.widths[relation_id] = len(names)
        table = draw(st.sampled_from(["a", "b", "excluded", 'ä "ß"']))
        stream.messages.append(
            wire.plain_relation(relation_id, table, names, draw(st.sampled_from(["", "public"])))
        )
    elif kind == "I":
        stream.messages.append(wire.insert(relation_id, draw(row), lsn))
    elif kind == "U":
        old = draw(st.none() | row)
        stream.messages.append(wire.update(relation_id, draw(partial), old, tag, lsn))
    elif kind == "D":
        stream.messages.append(wire.delete(relation_id, draw(row), tag, lsn))
    elif kind == "T":
        some = draw(st.lists(st.sampled_from(sorted(stream.widths)), max_size=4))
        stream.messages.append(wire.truncate(some, draw(st.integers(0, 3)), lsn))
    elif kind == "M":
        prefix = draw(st.sampled_from(["outbox", "deltasmelt"]))
        stream.messages.append(wire.message(prefix, draw(st.binary(max_size=5)), lsn=lsn))
    elif kind == "O":
        stream.messages.append(wire.origin("elsewhere"))
    else:
        stream.messages.append(wire.named_type(70000, "public", "mood"))


@settings(max_examples=300)
@given(st.data())
def test_random_streams_match_reference_at_any_slicing(data: st.DataObject) -> None:
    messages = data.draw(streams())
    cuts = data.draw(st.lists(st.integers(0, len(messages)), max_size=6))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            deltasmelt.bronze.pgoutput.tuples, "_FEW_ROWS", data.draw(st.sampled_from([0, 1, 8]))
        )  # both ways to walk
        check(messages, cuts)


def transaction(*messages: bytes, lsn: int = 1000) -> list[bytes]:
    return [wire.begin(lsn), *messages, wire.commit(lsn)]


def test_last_row_waits_for_commit_after_excluded_changes() -> None:
    """The last row waits for the commit even if only excluded tables change after it."""
    fast = decoder()
    first_batch = fast.feed(
        [wire.begin(1000), wire.plain_relation(1, "a", ["id"]), wire.insert(1, ["1"]), wire.insert(1, ["2"])]
    )
    assert [row["new"] for row in rows(first_batch)] == [["1"]]
    assert (first_batch.complete_rows, first_batch.in_transaction) == (0, True)
    two = fast.feed([wire.plain_relation(2, "excluded", ["id"]), wire.insert(2, ["1"]), wire.truncate([2])])
    assert two.changes.num_rows == 0
    three = fast.feed([wire.commit(1000)])
    assert [(row["new"], row["seq"], row["end_of_tx"]) for row in rows(three)] == [(["2"], 1, True)]
    assert three.complete_rows == 1


def test_heartbeat_leaves_no_row_but_commit_counts() -> None:
    """A heartbeat takes no sequence number."""
    decoded = decoder().feed(transaction(wire.message("deltasmelt", b""), lsn=5000))
    assert decoded.changes.num_rows == 0
    assert decoded.last_commit is not None
    assert decoded.last_commit.commit_lsn == 5000


def test_nontransactional_message_has_lsn_before_next_commit() -> None:
    # Its LSN is the end of its record, where the commit record of the next transaction may begin.
    messages = [wire.message("outside", b"x", transactional=False, lsn=2000), *transaction(
        wire.plain_relation(1, "a", ["id"]), wire.insert(1, ["1"]), lsn=2000)]  # fmt: skip
    listed = rows(decoder().feed(messages))
    assert [(row["commit_lsn"], row["seq"], row["op"], row["end_of_tx"]) for row in listed] == [
        (1999, 0, "message", True),
        (2000, 0, "insert", True),
    ]


def test_truncate_numbers_row_for_each_included_table() -> None:
    relations = [wire.plain_relation(i, name, ["id"]) for i, name in enumerate(["a", "excluded", "c"])]
    listed = rows(decoder().feed(transaction(*relations, wire.truncate([2, 1, 0]), wire.insert(0, ["1"]))))
    assert [(row["op"], row["table_name"], row["seq"]) for row in listed] == [
        ("truncate", "c", 0),
        ("truncate", "a", 1),
        ("insert", "a", 2),
    ]


def test_table_of_1600_columns_precedes_table_without_columns() -> None:
    names = [f"column_{i}" for i in range(1600)]
    cells = [None if i % 3 else "v" * (i % 50) for i in range(1600)]
    messages = transaction(
        wire.plain_relation(1, "wide", names),
        wire.plain_relation(2, "empty", []),
        *[wire.insert(1, cells), wire.insert(2, []), wire.update(1, [wire.UNCHANGED] * 1600, cells, "O")]
        * 20,
    )
    check(messages, [4, 15])


def test_a_cell_of_100_mb_passes_whole() -> None:
    text = "0123456789" * 10_000_000
    messages = transaction(
        wire.plain_relation(1, "a", ["id", "big"]), wire.insert(1, ["1", text]), wire.insert(1, ["2", ""])
    )
    decoded = decoder().feed(messages)
    new = decoded.changes["new"].combine_chunks()
    assert pa.compute.binary_length(new.values).to_pylist() == [1, 100_000_000, 1, 0]
    assert new.values[1].as_py() == text
    assert decoded.complete_rows == 2


def test_no_messages_give_no_rows() -> None:
    decoded = decoder().feed([])
    assert (decoded.changes.num_rows, decoded.complete_rows, decoded.last_commit) == (0, 0, None)


def test_memoryviews_are_read_like_bytes() -> None:
    messages = transaction(wire.plain_relation(1, "a", ["id"]), wire.insert(1, ["1"]))
    assert rows(decoder().feed([memoryview(message) for message in messages])) == rows(
        decoder().feed(messages)
    )


@pytest.mark.parametrize("recording", RECORDINGS)
def test_server_sends_messages_at_lsn_of_next_commit(recording: str) -> None:
    # Why a message outside of transactions stands one byte before its LSN.
    messages = load(FOLDER / recording)
    commits = {message[26:34] for message in messages if message[25:26] == b"B"}
    outside = [message for message in messages if message[25:26] == b"M" and not message[26]]
    assert any(message[27:35] in commits for message in outside)
    listed = rows(decoder().feed(outside))
    assert [row["commit_lsn"] + 1 for row in listed] == [row["lsn"] for row in listed]
