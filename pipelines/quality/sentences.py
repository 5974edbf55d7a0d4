"""The meaning of an expectation as a sentence for the report, beside its name in Great Expectations.

A sentence is a list of parts: plain text, and names or values shown as code. Kinds without a sentence are
worded from their name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, TypeAlias

from deltasmelt.pipelines.quality.anomalies import CHANGING, USUAL
from deltasmelt.pipelines.quality.change_log import CHANGES_ONCE, WHOLE_TRANSACTIONS
from deltasmelt.pipelines.quality.document_rows import EACH_ROOT, ELEMENTS
from deltasmelt.pipelines.quality.expectations import FOREIGN_KEY
from deltasmelt.pipelines.quality.suite_files import OF_QUERY, QUERY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deltasmelt.pipelines.quality.expectations import Expectation

Sentence: TypeAlias = list[tuple[str, bool]]
"""Parts of text, each marked as code or not."""

_SHOWN_VALUES: Final = 8

_OF_COLUMN: Final = {
    "expect_column_values_to_not_be_null": "is never NULL",
    "expect_column_values_to_be_null": "is always NULL",
    "expect_column_values_to_be_unique": "is unique",
    "expect_column_to_exist": "exists",
    "expect_column_values_to_be_increasing": "increases",
    "expect_column_values_to_be_decreasing": "decreases",
    "expect_column_values_to_be_json_parseable": "is JSON",
}

_RANGES: Final = {
    "expect_column_values_to_be_between": "",
    "expect_column_value_lengths_to_be_between": "length of ",
    "expect_column_min_to_be_between": "smallest ",
    "expect_column_max_to_be_between": "largest ",
    "expect_column_mean_to_be_between": "mean of ",
    "expect_column_median_to_be_between": "median of ",
    "expect_column_stdev_to_be_between": "standard deviation of ",
    "expect_column_sum_to_be_between": "sum of ",
    "expect_column_unique_value_count_to_be_between": "distinct values of ",
    "expect_column_proportion_of_unique_values_to_be_between": "share of distinct values of ",
    "expect_column_proportion_of_non_null_values_to_be_between": "share of rows with a value of ",
    "expect_table_row_count_to_be_between": "number of rows",
    "expect_table_column_count_to_be_between": "number of columns",
}

_PATTERNS: Final = {
    "expect_column_values_to_match_regex": ("matches", "regex"),
    "expect_column_values_to_not_match_regex": ("does not match", "regex"),
    "expect_column_values_to_match_like_pattern": ("is like", "like_pattern"),
    "expect_column_values_to_not_match_like_pattern": ("is not like", "like_pattern"),
    "expect_column_values_to_be_of_type": ("is of type", "type_"),
    "expect_column_value_lengths_to_equal": ("has the length", "value"),
    "expect_table_row_count_to_equal": ("number of rows is", "value"),
}

_SETS: Final = {
    "expect_column_values_to_be_in_set": "is one of",
    "expect_column_values_to_not_be_in_set": "is none of",
    "expect_column_distinct_values_to_be_in_set": "has no other value than",
    "expect_column_distinct_values_to_contain_set": "has all of",
    "expect_column_distinct_values_to_equal_set": "has exactly the values",
}

_OWN: Final = {
    CHANGES_ONCE: "no change occurs twice",
    WHOLE_TRANSACTIONS: "every transaction is complete",
    CHANGING: "a table with daily changes still changes",
    USUAL: "the table has about as many changes as on other days",
}


def sentence(expectation: Expectation) -> Sentence:
    """Return the expectation in words, also for wrong arguments."""
    kwargs = expectation.kwargs
    parts = _of_tables(expectation) or _of_kinds(expectation) or _from_name(expectation)
    mostly = kwargs.get("mostly", 1)
    if isinstance(mostly, int | float) and mostly != 1:
        parts.append((f" in at least {100 * mostly:g} % of rows", False))
    if kwargs.get("row_condition"):
        parts += [(" where ", False), (str(kwargs["row_condition"]), True)]
    return parts


def _of_tables(expectation: Expectation) -> Sentence:
    """Return the sentence of kinds with special wording alone."""
    kind, kwargs = expectation.kind, expectation.kwargs
    if kind in _RANGES:
        name: Sentence = [(expectation.column, True)] if expectation.column else []
        return [(_RANGES[kind], False), *name, (" ", False), *_range(kwargs)]
    words: Sentence = []
    if kind in _OF_COLUMN:
        words = [(_OF_COLUMN[kind], False)]
    elif kind in _PATTERNS:
        verb, argument = _PATTERNS[kind]
        words = [(f"{verb} ", False), (str(kwargs.get(argument)), True)]
    elif kind in _SETS:
        words = [(f"{_SETS[kind]} ", False), *_values(kwargs.get("value_set"))]
    return [*_subject(expectation), *words] if words else []


def _of_kinds(expectation: Expectation) -> Sentence:
    kind, kwargs = expectation.kind, expectation.kwargs
    if kind in _OWN:
        return [(_OWN[kind], False)]
    if kind in {EACH_ROOT, ELEMENTS} and expectation.derived:
        return _of_document(kwargs)
    if kind == "expect_compound_columns_to_be_unique":
        return [*_subject(expectation), ("are unique together", False)]
    if kind == FOREIGN_KEY:
        referenced = ", ".join(map(str, kwargs.get("referenced_columns") or ()))
        return [
            *_subject(expectation),
            ("is found in ", False),
            (f"{kwargs.get('references')} ({referenced})", True),
        ]
    if kind == OF_QUERY:
        return [("the query returns no row: ", False), (" ".join(str(kwargs.get(QUERY)).split()), True)]
    return []


def _of_document(kwargs: Mapping[str, Any]) -> Sentence:
    rows = (str(kwargs["references"]), True)
    if "elements" in kwargs:
        return [("each element of ", False), (str(kwargs["elements"]), True), (" is a row of ", False), rows]
    condition = [(" where ", False), (str(kwargs["where"]), True)] if "where" in kwargs else []
    return [("a document exists for each row of ", False), rows, *condition, (", and no other", False)]


def _from_name(expectation: Expectation) -> Sentence:
    words = expectation.kind.removeprefix("expect_").removeprefix("column_").replace("_", " ")
    worded = {
        "column",
        "column_list",
        "column_set",
        "column_A",
        "column_B",
        "mostly",
        "row_condition",
        "condition_parser",
    }
    arguments = {name: value for name, value in expectation.kwargs.items() if name not in worded}
    return [
        *_subject(expectation),
        (words, False),
        *([(": ", False), (str(arguments), True)] if arguments else []),
    ]


def _subject(expectation: Expectation) -> Sentence:
    return [(expectation.column, True), (" ", False)] if expectation.column else []


def _range(kwargs: Mapping[str, Any]) -> Sentence:
    low, high = kwargs.get("min_value"), kwargs.get("max_value")
    strict_low, strict_high = bool(kwargs.get("strict_min")), bool(kwargs.get("strict_max"))
    if low is not None and high is not None and not strict_low and not strict_high:
        return [("is between ", False), (str(low), True), (" and ", False), (str(high), True)]
    bounds: Sentence = []
    if low is not None:
        bounds += [("is above " if strict_low else "is at least ", False), (str(low), True)]
    if high is not None:
        words = "is below " if strict_high else "is at most "
        bounds += [(f" and {words}" if bounds else words, False), (str(high), True)]
    return bounds


def _values(values: object) -> Sentence:
    listed = list(values) if isinstance(values, list | tuple) else [values]
    parts: Sentence = []
    for value in listed[:_SHOWN_VALUES]:
        parts += [(", ", False), (str(value), True)]
    if len(listed) > _SHOWN_VALUES:
        parts.append((f" and {len(listed) - _SHOWN_VALUES} more", False))
    return parts[1:]
