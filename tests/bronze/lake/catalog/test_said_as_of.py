"""A property that restates all marks, with concurrent commits by other writers."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.catalog import commit_marks
from deltasmelt.bronze.lake.catalog.sql import session_for
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lake.place import Catalog, layer_of

APPS = st.sampled_from(["a", "b", "c"])
COMMITS = st.lists(st.dictionaries(APPS, st.integers(0, 9), max_size=2), min_size=1, max_size=12)


def entry(version: int, marks: dict[str, int], *, as_of: int | None = None) -> dict[str, Any]:
    if as_of is None:
        return {"version": version, "operation": "WRITE", "userMetadata": commit_marks.said(marks)}
    properties = {commit_marks.MARKS_PROPERTY: json.dumps({**marks, commit_marks.AS_OF: as_of})}
    return {
        "version": version,
        "operation": "SET TBLPROPERTIES",
        "operationParameters": {"properties": json.dumps(properties)},
    }


@given(COMMITS, st.data())
def test_marks_include_all_commits_at_any_property_position(
    commits: list[dict[str, int]], data: st.DataObject
) -> None:
    """Also for a reader behind the newest version, and with an older property among the remaining commits."""
    places = st.integers(0, len(commits) - 1)
    first_of, second_of = sorted((data.draw(places), data.draw(places)))
    versions = {data.draw(st.integers(of, len(commits) - 1)): of for of in (first_of, second_of)}
    expected: list[dict[str, int]] = []
    entries: list[dict[str, Any]] = []
    marks_at: list[dict[str, int]] = []
    properties: list[dict[str, str]] = []
    for number, marks in enumerate(commits):
        expected.append({**(expected[-1] if expected else {}), **marks})
        entries.append(entry(len(entries), marks))
        marks_at.append(expected[number])
        if number in versions:
            of = next(
                at for at, marks_then in enumerate(marks_at) if marks_then is expected[versions[number]]
            )
            entries.append(entry(len(entries), expected[versions[number]], as_of=of))
            marks_at.append(expected[number])
            properties.append(
                {
                    commit_marks.MARKS_PROPERTY: json.dumps(
                        {**expected[versions[number]], commit_marks.AS_OF: of}
                    )
                }
            )
    commits_read = [commit_marks.read(record) for record in reversed(entries)]
    assert commit_marks.collected(commits_read) == expected[-1]
    assert commit_marks.reaches_back(commits_read)
    for version in range(len(entries)):
        for oldest in range(1, version + 2):
            visible = [commit for commit in commits_read if oldest <= commit.version <= version]
            newest = version == len(entries) - 1
            if commit_marks.reaches_back(visible) if visible else False:
                assert commit_marks.collected(visible) == marks_at[version]
            result = commit_marks.gone_on_from_property(visible, properties[-1], version, newest=newest)
            assert result is None or result == marks_at[version], (version, oldest)


def whole(as_of: int | None, oldest: int, version: int, *, told: bool, newest: bool = True) -> bool:
    """Check whether all marks are found when only commits from ``oldest`` on remain."""
    visible = [
        commit_marks.Said(version=at, complete=told and at == version)
        for at in range(version, oldest - 1, -1)
    ]
    properties = (
        {} if as_of is None else {commit_marks.MARKS_PROPERTY: json.dumps({commit_marks.AS_OF: as_of})}
    )
    return commit_marks.gone_on_from_property(visible, properties, version, newest=newest) is not None


def test_nothing_is_missing_if_property_commit_is_last() -> None:
    """The cached marks are whole if the last missing entry is the commit that set the property."""
    assert whole(98, 100, 100, told=False), "99 set it"
    assert not whole(98, 100, 100, told=False, newest=False), "a later commit may have set it"
    assert not whole(98, 100, 100, told=True), "99 may have said more"
    assert whole(99, 100, 100, told=True)
    assert not whole(97, 100, 100, told=False)
    assert not whole(None, 1, 5, told=False)
    assert not whole(7, 3, 6, told=False), "of another table, put back"


def test_property_without_version_ends_mark_collection() -> None:
    """A property of an older release, which records no version, ends the collection."""
    commits = [
        commit_marks.read(entry(2, {"a": 3})),
        commit_marks.Said({"a": 1, "b": 2}, complete=True, version=1),
    ]
    assert commit_marks.collected([*commits, commit_marks.read(entry(0, {"c": 9}))]) == {"a": 3, "b": 2}
    assert commit_marks.reaches_back(commits)


def test_older_property_does_not_lower_known_marks() -> None:
    property_set = commit_marks.read(entry(52, {"a": 50}, as_of=50))
    assert commit_marks.gone_on([property_set], {"a": 51}) == {"a": 51}
    newer = commit_marks.read(entry(53, {"b": 1}))
    assert commit_marks.gone_on([newer, property_set], {"a": 51}) == {"a": 51, "b": 1}


def test_of_two_properties_the_newer_one_says_all() -> None:
    commits = [
        commit_marks.read(entry(53, {"a": 51}, as_of=51)),
        commit_marks.read(entry(52, {"a": 50}, as_of=50)),
        commit_marks.read(entry(51, {"a": 51})),
    ]
    assert commit_marks.collected(commits) == {"a": 51}
    assert commit_marks.collected([commits[1], commits[2]]) == {"a": 51}


@pytest.mark.parametrize("name", ["orders", "order_items", "x"])
def test_scratch_table_has_layer_of_original(name: str) -> None:
    lake = Lake(catalog="main")
    scratch = lake.scratch_for("rebuild")
    assert scratch.sql("silver", name) == f"`main`.`deltasmelt_scratch`.`rebuild_silver_{name}`"
    assert layer_of(scratch.uri("silver", name)) == layer_of(lake.uri("silver", name)) == "silver"


def test_two_lakes_in_catalog_use_their_own_sessions() -> None:
    lakes, sessions = [Lake(catalog="main"), Lake(catalog="main")], [object(), object()]
    for lake, session in zip(lakes, sessions, strict=True):
        assert isinstance(lake.place, Catalog)
        lake.place.serve(lambda session=session: session)  # type: ignore[misc]
    for lake, session in zip(lakes, sessions, strict=True):
        for uri in (lake.uri("gold", "a b"), lake.scratch_for("verify").uri("silver", "x"), lake.root):
            assert session_for(uri) is session
    with pytest.raises(ConfigurationError) as raised:
        session_for(Lake(catalog="main").uri("gold", "x"))
    assert raised.value.code == "catalog-session"
