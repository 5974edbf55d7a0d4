"""Test the pure parts of a snapshot: chunks of pages, COPY's text to columns, columns to rows of bronze."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.snapshot.chunks import Chunk, chunks_of
from deltasmelt.bronze.snapshot.copy_out import cells_of
from deltasmelt.bronze.snapshot.rows import SEQ_OF_CHUNK, SnapshotRows
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, ROWS_SCHEMA

ITEMS = TableName("public", "items")
RELATION = Relation(
    relation_id=7,
    table=ITEMS,
    columns=(
        Column("id", 1, PgType("base", "int4"), "integer"),
        Column('a"b', 2, PgType("base", "text"), "text"),
    ),
    key=("id",),
    replica_identity="d",
    from_lsn=Lsn(99),
)


def test_chunks_cover_pages_once_with_open_end() -> None:
    chunks = chunks_of([(ITEMS, 10)], rows=1000, chunk_rows=300)
    assert [(chunk.number, chunk.first, chunk.end) for chunk in chunks] == [
        (0, 0, 3), (1, 3, 6), (2, 6, 9), (3, 9, None),
    ]  # fmt: skip


def test_small_or_empty_table_is_single_unconditional_chunk() -> None:
    for pages in (0, 1):
        (chunk,) = chunks_of([(ITEMS, pages)], rows=0, chunk_rows=1000)
        assert chunk.query(RELATION) == 'SELECT "id", "a""b" FROM ONLY "public"."items"'


def test_a_chunk_reads_its_range_of_pages() -> None:
    assert Chunk(1, ITEMS, 3, 6).query(RELATION) == (
        'SELECT "id", "a""b" FROM ONLY "public"."items" '
        "WHERE ctid >= '(3,0)'::tid AND ctid < '(6,0)'::tid"
    )


def test_chunks_of_partitions_have_numbers_of_their_own() -> None:
    leaves = [(TableName("public", "p1"), 4), (TableName("public", "p2"), 0)]
    chunks = chunks_of(leaves, rows=400, chunk_rows=200)
    assert [(chunk.number, chunk.source.name, chunk.first, chunk.end) for chunk in chunks] == [
        (0, "p1", 0, 2), (1, "p1", 2, None), (2, "p2", 0, None),
    ]  # fmt: skip


_ESCAPES = {"\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t", "\v": "v", "\\": "\\"}


def copied(rows: list[list[str | None]]) -> bytearray:
    """Return COPY's output, as written by the server's CopyAttributeOutText."""
    lines = ["\t".join(map(_value, row)) + "\n" for row in rows]
    return bytearray("".join(lines).encode())


def _value(value: str | None) -> str:
    if value is None:
        return "\\N"
    return "".join(f"\\{_ESCAPES[sign]}" if sign in _ESCAPES else sign for sign in value)


values = st.none() | st.text(
    st.sampled_from('\\\\\\\\Nnt\t\n\r,"ä') | st.characters(codec="utf-8", exclude_characters="\0")
)


@given(
    st.integers(1, 4).flatmap(
        lambda width: st.lists(st.lists(values, min_size=width, max_size=width), min_size=1)
    ),
    st.integers(1, 9),
)
def test_texts_nulls_and_empty_strings_round_trip(rows: list[list[str | None]], slice_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deltasmelt.bronze.snapshot.copy_out._SLICE_BYTES", slice_bytes)
        cells = cells_of(copied(rows))
    cells.validate(full=True)
    assert cells.to_pylist() == [value for row in rows for value in row]


def test_text_resembling_null_or_end_is_text() -> None:
    rows: list[list[str | None]] = [["\\N", None], ["\\.", "N"], ["", "\\"]]
    assert copied(rows) == b"\\\\N\t\\N\n\\\\.\tN\n\t\\\\\n"
    assert cells_of(copied(rows)).to_pylist() == ["\\N", None, "\\.", "N", "", "\\"]


def test_rows_without_columns_are_rows() -> None:
    relation = replace(RELATION, columns=(), key=())
    table = SnapshotRows(relation, Lsn(99), datetime(2026, 11, 21, tzinfo=UTC)).rows(
        cells_of(bytearray(b"\n\n")), 0
    )
    assert table["new"].to_pylist() == [[], []]


def test_values_not_filling_rows_are_rejected() -> None:
    rows = SnapshotRows(RELATION, Lsn(99), datetime(2026, 11, 21, tzinfo=UTC))
    with pytest.raises(ValueError, match="3 values do not fill rows of 2 columns"):
        rows.rows(pa.array(["1", "2", "3"]), 0)


def test_rows_carry_snapshot_lsn_and_chunk_numbers() -> None:
    taken_at = datetime(2026, 11, 21, tzinfo=UTC)
    table = SnapshotRows(RELATION, Lsn(99), taken_at).rows(pa.array(["1", None, "2", ""]), 3 * SEQ_OF_CHUNK)
    assert table.schema == ROWS_SCHEMA
    assert table.cast(CHANGES_SCHEMA).to_pylist() == table.to_pylist()
    first, second = table.to_pylist()
    assert (first["commit_lsn"], first["seq"], first["op"]) == (99, 3 * 2**32, "snapshot")
    assert second["seq"] == 3 * 2**32 + 1
    assert (first["columns"], first["new"], first["old"]) == (["id", 'a"b'], ["1", None], None)
    assert second["new"] == ["2", ""]
    assert (first["xid"], first["commit_ts"], first["relation_id"]) == (None, taken_at, 7)
    end = SnapshotRows(RELATION, Lsn(99), taken_at).end(4 * SEQ_OF_CHUNK).to_pylist()
    assert [(row["op"], row["new"], row["end_of_tx"]) for row in end] == [("snapshot_end", None, True)]


@settings(max_examples=300)
@given(st.lists(st.sampled_from([b"\\", b"\t", b"\n", b"N", b"x", b"\0", b"\xff", b"\xc3", b"\xa4"])))
def test_invalid_bytes_are_rejected_or_valid_text(pieces: list[bytes]) -> None:
    block = bytearray(b"".join(pieces))
    try:
        cells = cells_of(block)
    except (pa.ArrowInvalid, IndexError):
        return
    cells.validate(full=True)
    assert len(cells) == pieces.count(b"\t") + pieces.count(b"\n")
