"""Names of tables in words."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bronze.identifiers import TableName

PARTS = st.text(st.sampled_from('a.b" '), min_size=1, max_size=4)


def test_a_plain_name_is_said_plainly() -> None:
    assert str(TableName("public", "orders")) == "public.orders"
    assert str(TableName("public", "a.b")) == "public.a.b"
    assert str(TableName("a.b", "c")) == '"a.b".c'


@given(PARTS, PARTS, PARTS, PARTS)
def test_two_tables_are_never_said_alike(schema: str, name: str, other_schema: str, other_name: str) -> None:
    one, other = TableName(schema, name), TableName(other_schema, other_name)
    assert (str(one) == str(other)) == (one == other)
