"""Rows changed or removed in place: the input of the MERGE."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltasmelt.bronze.lake.catalog.amend import differing, merge_text

SCHEMA = pa.schema([("name", pa.string()), ("at", pa.int64())])
ROW = st.fixed_dictionaries(
    {"name": st.one_of(st.none(), st.sampled_from("ab")), "at": st.one_of(st.none(), st.integers(0, 2))}
)


def table(rows: list[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=SCHEMA)


def merged(rows: list[dict[str, Any]], changes: pa.Table) -> list[dict[str, Any]]:
    """Return a table's rows after the MERGE; fail if two source rows match one row, as the MERGE does."""
    statements = []
    for row in rows:
        hits = [
            value for value in changes.to_pylist() if (value["o0"], value["o1"]) == (row["name"], row["at"])
        ]
        assert len(hits) < 2
        if not hits:
            statements.append(row)
        elif not hits[0]["goes"]:
            statements.append({"name": hits[0]["n0"], "at": hits[0]["n1"]})
    return statements


def closed(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "at": 9} if row["name"] == "a" and row["at"] is None else row


@given(st.lists(ROW, max_size=8), st.lists(ROW, max_size=3))
def test_amend_deletes_and_changes_only_rows_read(
    before: list[dict[str, Any]], later: list[dict[str, Any]]
) -> None:
    """Rows that arrive meanwhile are neither deleted nor changed."""
    after = [closed(row) for row in before]
    changes = differing(table(before), table(after))
    later = [row for row in later if row not in before]
    assert merged([*before, *later], changes) == [*after, *later]
    assert merged([*after, *later], changes) == [*after, *later]  # once more, or somebody else was first


@given(st.lists(ROW, max_size=8), st.lists(ROW, max_size=3), ROW)
def test_rows_go_and_none_that_came_meanwhile(
    before: list[dict[str, Any]], later: list[dict[str, Any]], gone: dict[str, Any]
) -> None:
    after = [row for row in before if row != gone]
    later = [row for row in later if row not in before]
    changes = differing(table(before), table(after))
    assert changes.num_rows == (len(before) != len(after))
    assert merged([*before, *later], changes) == [*after, *later]


def test_rows_that_are_added_are_no_change() -> None:
    with pytest.raises(ValueError, match="added"):
        differing(table([]), table([{"name": "a", "at": 1}]))


NESTED = pa.schema(
    [
        ("id", pa.int64()),
        ("share", pa.float64()),
        ("samples", pa.list_(pa.string())),
        ("of", pa.struct([("low", pa.float64()), ("seen", pa.list_(pa.int64()))])),
    ]
)


def nested(*ids: int, share: float = math.nan) -> pa.Table:
    values = [
        {"id": row_id, "share": share, "samples": ["a", None], "of": {"low": math.nan, "seen": [1]}}
        for row_id in ids
    ]
    return pa.Table.from_pylist(values, schema=NESTED)


def test_amend_handles_lists_structs_and_nan() -> None:
    removed = differing(nested(1, 2, 2, 3), nested(1, 3))
    assert (removed["o0"].to_pylist(), removed["goes"].to_pylist()) == ([2], [True])
    assert differing(nested(1, 2), nested(1, 2)).num_rows == 0, "NaN is no change of NaN"
    changed = differing(nested(1, 2), pa.concat_tables([nested(1), nested(2, share=0.5)]))
    assert (changed["o0"].to_pylist(), changed["n1"].to_pylist()) == ([2], [0.5])
    with pytest.raises(ValueError, match="added"):
        differing(nested(1, 2, 3), nested(4))


def test_all_values_name_a_row() -> None:
    text = merge_text("`c`.`control`.`errors`", "s1", ["name", "a`t"])
    assert "ON t.`name` <=> s.o0 AND t.`a``t` <=> s.o1" in text
    assert "UPDATE SET t.`name` = s.n0, t.`a``t` = s.n1" in text
