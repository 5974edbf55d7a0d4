"""Marks in the commit info."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lake.location import address_of
from deltasmelt.bronze.lake.place import Catalog, is_named, parts_of

APPS = st.text(min_size=1, max_size=20).filter(lambda name: name != commit_marks.AS_OF)
MARKS = st.dictionaries(APPS, st.integers(0, 2**63 - 1), max_size=4)


def written(marks: dict[str, int], **more: object) -> dict[str, Any]:
    return {"operation": "WRITE", "operationParameters": {}, "userMetadata": commit_marks.said(marks, **more)}


def property_set(marks: dict[str, int], **others: str) -> dict[str, Any]:
    properties = {commit_marks.MARKS_PROPERTY: json.dumps(marks), **others}
    return {
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {"properties": json.dumps(properties)},
        "userMetadata": None,
    }


@given(MARKS)
def test_what_a_commit_says_is_read_again(marks: dict[str, int]) -> None:
    commit = commit_marks.read(written(marks, commit="c1"))
    assert (commit.marks, commit.complete, commit.more) == (marks, False, {"commit": "c1"})


@given(MARKS)
def test_setting_the_property_says_all(marks: dict[str, int]) -> None:
    commit = commit_marks.read(property_set(marks, other="7"))
    assert (commit.marks, commit.complete) == (marks, True)
    assert commit_marks.marks_of({commit_marks.MARKS_PROPERTY: json.dumps(marks)}) == marks


@pytest.mark.parametrize(
    "theirs",
    ["", "a note", "[1]", '{"deltasmelt": 3}', '{"deltasmelt": {"marks": {"a": "x"}}}', "{", "null", None],
)
def test_what_others_say_is_no_mark(theirs: str | None) -> None:
    assert not commit_marks.read({"operation": "WRITE", "userMetadata": theirs}).marks


@pytest.mark.parametrize("theirs", ["", "a note", "[1]", '{"a": "x"}', "{", "null"])
def test_a_property_of_another_form_holds_no_mark(theirs: str) -> None:
    assert not commit_marks.marks_of({commit_marks.MARKS_PROPERTY: theirs})


@given(st.integers(0, 2**63 - 1))
def test_a_merge_tells_its_mark_in_its_condition(lsn: int) -> None:
    condition = commit_marks.condition("t.`_commit_lsn`", lsn)
    shown_condition = condition.replace("t.`_commit_lsn`", "_commit_lsn#12L").replace("L)", ")")
    entry: dict[str, Any] = {
        "operation": "MERGE",
        "operationParameters": {"predicate": json.dumps([f"(({shown_condition}) AND (id#1L = id#2L))"])},
    }
    assert commit_marks.read(entry, app="deltasmelt.silver").marks == {"deltasmelt.silver": lsn}
    assert not commit_marks.read(entry).marks
    assert not commit_marks.read({**entry, "operation": "UPDATE"}, app="deltasmelt.silver").marks


@pytest.mark.parametrize(
    "predicate",
    [
        "((name#1 = NOT (_commit_lsn#12L <=> -9)) AND (id#1L = id#2L))",
        "(name#1 = (NOT (_commit_lsn#12L <=> -9)))",
        "((NOT (n#12L <=> -9)) AND (id#1L = id#2L))",
        "(n#12L <=> -9)",
    ],
)
def test_a_value_in_a_condition_is_no_mark(predicate: str) -> None:
    entry = {"operation": "MERGE", "operationParameters": {"predicate": json.dumps([predicate])}}
    assert not commit_marks.read(entry, app="deltasmelt.silver").marks


def test_newest_mark_counts_back_to_complete_entry() -> None:
    """Marks are collected back to the entry that restates all marks; the newest value of each counts."""
    entries: list[dict[str, Any]] = [
        written({"a": 9}),
        {"operation": "OPTIMIZE", "operationParameters": {"predicate": "[]"}, "userMetadata": None},
        written({"a": 8, "b": 4}),
        property_set({"a": 7, "b": 3, "c": 1}),
        written({"d": 1}),  # older than all
    ]
    commits = [commit_marks.read(entry) for entry in entries]
    assert commit_marks.collected(commits) == {"a": 9, "b": 4, "c": 1}
    assert commit_marks.gone_on(commits[:3], {"b": 1, "e": 5}) == {"a": 9, "b": 4, "e": 5}


@given(st.lists(st.text(min_size=1, max_size=12), min_size=3, max_size=3))
def test_location_maps_to_table_name_exactly(parts: list[str]) -> None:
    location = Catalog(parts[0]).table(*parts[1:])
    assert is_named(location)
    assert parts_of(location) == tuple(parts)
    assert address_of(location).count("`") == 6 + 2 * sum(part.count("`") for part in parts)
    assert not is_named("/lake/silver/orders")
    assert not is_named("s3://bucket/silver/orders")
