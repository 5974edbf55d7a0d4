"""Names of tables in words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deltasmelt.bronze.identifiers import TableName, folded

PARTS = st.text(st.sampled_from('a.b" '), min_size=1, max_size=4)


def test_a_plain_name_is_said_plainly() -> None:
    assert str(TableName("public", "orders")) == "public.orders"
    assert str(TableName("public", "a.b")) == "public.a.b"
    assert str(TableName("a.b", "c")) == '"a.b".c'


@given(PARTS, PARTS, PARTS, PARTS)
def test_two_tables_are_never_said_alike(schema: str, name: str, other_schema: str, other_name: str) -> None:
    first, second = TableName(schema, name), TableName(other_schema, other_name)
    assert (str(first) == str(second)) == (first == second)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Total", "tOTAL"), ("\u017ftate", "State"), ("\u0131d", "ID"), ("\u0130d", "id"),
        ("\u0130d", "i\u0307d"), ("stra\u00dfe", "STRA\u1e9eE"),
        ("\u212a", "k"), ("\u00b5", "\u03bc"), ("\u039f\u0394\u039f\u03a3", "\u03bf\u03b4\u03bf\u03c3"),
        ("\u03bf\u03b4\u03bf\u03c2", "\u03bf\u03b4\u03bf\u03c3"), ("\u01c5", "\u01c6"),
        ("\u1fb3", "\u1fbc"), ("\u10d0", "\u1c90"),
    ],
)  # fmt: skip
def test_names_equal_in_spark_fold_alike(one: str, other: str) -> None:
    assert folded(one) == folded(other)
    assert folded(folded(one)) == folded(one)


def test_other_names_are_not() -> None:
    names = ["stra\u00dfe", "strasse", "\u00e4", "a", "total_", "i\u0301", "\ufb01", "fi"]
    assert len({folded(name) for name in names}) == len(names)
