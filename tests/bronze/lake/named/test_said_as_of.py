"""A property that says all marks, beside commits of others that came while it was written."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bronze.lake.location import Lake
from bronze.lake.named import said
from bronze.lake.named.place import layer_of
from bronze.lake.scratch import scratch_of

APPS = st.sampled_from(["a", "b", "c"])
COMMITS = st.lists(st.dictionaries(APPS, st.integers(0, 9), max_size=2), min_size=1, max_size=12)


def entry(version: int, marks: dict[str, int], *, as_of: int | None = None) -> dict[str, Any]:
    if as_of is None:
        return {"version": version, "operation": "WRITE", "userMetadata": said.said(marks)}
    properties = {said.MARKS_PROPERTY: json.dumps({**marks, said.AS_OF: as_of})}
    return {
        "version": version,
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {"properties": json.dumps(properties)},
    }


@given(COMMITS, st.data())
def test_marks_are_those_of_all_commits_wherever_the_property_was_written(
    commits: list[dict[str, int]], data: st.DataObject
) -> None:
    as_of = data.draw(st.integers(0, len(commits) - 1))
    written = data.draw(st.integers(as_of, len(commits) - 1))
    so_far: dict[str, int] = {}
    entries: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    for number, marks in enumerate(commits):
        so_far |= marks
        entries.append(entry(len(entries), marks))
        if number == as_of:
            known = dict(so_far)
        if number == written:
            entries.append(entry(len(entries), known, as_of=as_of))
    told = [said.read(one) for one in reversed(entries)]
    assert said.collected(told, {}) == so_far
    assert said.reaches_back(told)
    for oldest in range(1, len(told)):
        left = [one for one in told if one.version >= oldest]
        there = any(one.complete for one in left)
        if said.joins(as_of, oldest, left[0].version, told=there):
            assert said.collected(left, known) == so_far
    assert said.joins(as_of, as_of + 1, len(told) - 1, told=True)
    after = [one for one in told if one.version > as_of]
    assert said.collected(after, {"old": 1}) == so_far
    assert not said.reaches_back(after)


def test_where_the_property_and_its_own_commit_are_what_went_last_nothing_is_missing() -> None:
    assert said.joins(98, 100, 100, told=False), "99 set it"
    assert not said.joins(98, 100, 100, told=True), "99 may have said more"
    assert said.joins(99, 100, 100, told=True)
    assert not said.joins(97, 100, 100, told=False)
    assert not said.joins(None, 1, 5, told=False)
    assert not said.joins(7, 3, 6, told=False), "of another table, put back"


def test_a_property_of_a_release_that_did_not_say_as_of_when_ends_the_reading() -> None:
    told = [said.read(entry(2, {"a": 3})), said.Said({"a": 1, "b": 2}, complete=True, version=1)]
    assert said.collected([*told, said.read(entry(0, {"c": 9}))], {"c": 7}) == {"a": 3, "b": 2}
    assert said.reaches_back(told)


def test_a_property_of_before_what_is_known_takes_nothing_back() -> None:
    property_set = said.read(entry(52, {"a": 50}, as_of=50))
    assert said.gone_on([property_set], {"a": 51}) == {"a": 51}
    newer = said.read(entry(53, {"b": 1}))
    assert said.gone_on([newer, property_set], {"a": 51}) == {"a": 51, "b": 1}


def test_of_two_properties_the_newer_one_says_all() -> None:
    told = [
        said.read(entry(53, {"a": 51}, as_of=51)),
        said.read(entry(52, {"a": 50}, as_of=50)),
        said.read(entry(51, {"a": 51})),
    ]
    assert said.collected(told, {}) == {"a": 51}
    assert said.collected([told[1], told[2]], {}) == {"a": 51}


def test_a_property_tells_of_which_version_it_is() -> None:
    assert said.as_of({said.MARKS_PROPERTY: json.dumps({"a": 1, said.AS_OF: 7})}) == 7
    assert said.as_of({said.MARKS_PROPERTY: json.dumps({"a": 1})}) is None
    assert said.as_of({}) is None


@pytest.mark.parametrize("name", ["orders", "order_items", "x"])
def test_a_scratch_tables_layer_is_that_of_the_table_it_stands_for(name: str) -> None:
    lake = Lake(catalog="main")
    scratch = scratch_of(lake, "rebuild")
    assert scratch.sql("silver", name) == f"`main`.`deltasmelt_scratch`.`rebuild_silver_{name}`"
    assert layer_of(scratch.uri("silver", name)) == layer_of(lake.uri("silver", name)) == "silver"
