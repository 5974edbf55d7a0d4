"""Test the first place at which two documents differ."""

from __future__ import annotations

import pytest

from deltasmelt.gold.verify.verify import Difference, first_difference


@pytest.mark.parametrize(
    ("stored", "rebuilt", "path", "shown"),
    [
        ('{"a": 1, "b": 2}', '{"a": 1, "b": 3}', "b", ("2", "3")),
        ('{"a": {"b": [1, {"c": null}]}}', '{"a": {"b": [1, {"c": "x"}]}}', "a.b[1].c", ("null", '"x"')),
        ('{"a": [1, 2]}', '{"a": [1]}', "a[1]", ("2", None)),
        ('{"a": []}', '{"a": [{"b": 1}]}', "a[0]", (None, '{"b": 1}')),
        ('{"a": {"x": 1}}', '{"a": {"x": 1, "y": 2}}', "a.y", (None, "2")),
        ('{"a": {"x": 1, "y": 2}}', '{"a": {"y": 2, "x": 1}}', "a", ('{"x": 1, "y": 2}', '{"y": 2, "x": 1}')),
        ('{"a": [1]}', '{"a": null}', "a", ("[1]", "null")),
        ('{"a": {}}', '{"a": []}', "a", ("{}", "[]")),
        ('{"a": true}', '{"a": 1}', "a", ("true", "1")),
        ('{"a": 0.10000000000000000001}', '{"a": 0.1}', "a", ('"0.10000000000000000001"', '"0.1"')),
    ],
)
def test_the_first_place_is_named_with_both_values(
    stored: str, rebuilt: str, path: str, shown: tuple[str | None, str | None]
) -> None:
    assert first_difference(stored, rebuilt) == Difference(path, *shown)


def test_equal_documents_differ_nowhere() -> None:
    assert first_difference('{"a": [1, {"b": null}]}', '{"a": [1, {"b": null}]}') is None


def test_long_values_are_cut() -> None:
    difference = first_difference('{"a": "' + "x" * 500 + '"}', '{"a": ""}')
    assert difference is not None
    assert difference.stored is not None
    assert len(difference.stored) < 150
