"""Waits are passed with the source's settings, and no pipeline file sets a wait."""

from __future__ import annotations

import copy
import pickle
from dataclasses import fields

import pytest
from pydantic import ValidationError

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.config.timing import Timing

HASTY = Timing(line_silence=1.0)


def source(**values: object) -> SourceSettings:
    return SourceSettings.model_validate({"slot": "smelt", "publication": "smelt", **values})


@pytest.mark.parametrize("key", ["timing", "_timing", "line_silence"])
def test_no_key_of_a_file_sets_it(key: str) -> None:
    with pytest.raises(ValidationError) as caught:
        source(**{key: {"line_silence": 1.0}})
    assert [error["type"] for error in caught.value.errors()] == ["extra_forbidden"]


def test_it_is_in_no_dump_and_no_schema() -> None:
    hasty = source().with_timing(HASTY)
    assert hasty.model_dump() == source().model_dump()
    assert "timing" not in repr(hasty)
    assert not [key for key in SourceSettings.model_json_schema()["properties"] if "timing" in key]


def test_timing_survives_copies_and_counts_in_comparison() -> None:
    hasty = source().with_timing(HASTY)
    assert source().timing == Timing()
    assert hasty.timing is HASTY
    assert hasty != source()
    assert hasty == source().with_timing(Timing(line_silence=1.0))
    copies = (
        hasty.model_copy(update={"slot": "other"}),
        hasty.model_copy(deep=True),
        copy.copy(hasty),
        copy.deepcopy(hasty),
        pickle.loads(pickle.dumps(hasty)),  # noqa: S301 - our own
    )
    assert {settings.timing for settings in copies} == {HASTY}


def test_each_time_has_purpose_in_field_order() -> None:
    documented = [line.strip().partition(":")[0] for line in str(Timing.__doc__).splitlines()]
    names = [field.name for field in fields(Timing)]
    assert [name for name in documented if name in names] == names


def test_waiting_side_has_longer_limit_than_awaited_side() -> None:
    now = Timing()
    for shorter, longer in (
        (now.feedback * 10, now.reader_silence),
        (now.feedback * 10, now.line_silence),
        (now.reader_silence, now.line_silence),
        (now.retry_first, now.retry_longest),
        (now.retry_longest, now.refused),
        (now.retry_longest, now.failing),
        (now.poll_news, now.poll_marks),
        (now.poll_marks, now.catalog_poll),
        (now.catalog_poll, now.longest_pause),
        (now.members_lock + now.members_in_parts, now.poll_answer),
        (now.group_locks + now.partition_lock, now.copy_plan),
        (now.brief_lock, now.group_locks),
        (now.watch, now.watch_slot),
        (now.watch_slot, now.watch_answer),
        (now.slot_poll, now.slot_release),
        (now.wait_notice, now.slot_transactions),
    ):
        assert 0 < shorter <= longer
