"""Keys of records, refused keys, and the records that an erasure leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.shapes import PgType, Relation
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA
from deltasmelt.bronze.store.erasure import Shapes, without
from tests.silver.histories import INT, TEXT, change, insert, relation, update

NUMERIC = PgType("base", "numeric")
PRICE = PgType("base", "numeric", typmod=655366)


def placed(row: dict[str, Any]) -> dict[str, Any]:
    return dict.fromkeys(CHANGES_SCHEMA.names) | {"commit_lsn": 10, "lsn": 10} | row


def test_key_outside_of_row_is_in_old() -> None:
    shape = relation("pairs", (("a", TEXT), ("b", INT), ("n", TEXT)), ["a", "b"], relation_id=7)
    shapes = Shapes([shape])
    old = ["long", "1", None]
    moved = change(shape, "update", new=[None, "2", "x"], old=old, old_is_key=True, unchanged=["a"])
    assert shapes.keys_of(placed(moved)) == (("long", "2"), ("long", "1"))
    deleted = change(shape, "delete", old=old, old_is_key=True)
    assert shapes.keys_of(placed(deleted)) == (None, ("long", "1"))
    assert shapes.keys_of(placed(update(shape, "s", "3", None, toast="n"))) == (("s", "3"), None)


def test_key_has_its_name_of_the_time() -> None:
    before = relation("people", (("no", INT), ("note", TEXT)), ["no"], relation_id=1)
    after = relation("people", (("id", INT), ("no", TEXT)), ["id"], relation_id=1, from_lsn=20)
    shapes = Shapes([before, after])
    assert shapes.keys_of(placed(insert(before, "1", "n"))) == (("1",), None)
    assert shapes.keys_of(placed(insert(after, "2", "n")) | {"commit_lsn": 30}) == (("2",), None)
    # `no` was a number once and is a text now, so its values are texts
    assert shapes.texts_of(placed(insert(after, "2", "n"))) == {"n"}
    assert shapes.texts_of(placed(insert(before, "1", None))) == {"1"}


def of_type(kind: PgType, text: str, *, relation_id: int = 1, from_lsn: int = 0) -> Relation:
    shape = relation("people", (("id", kind),), ["id"], relation_id=relation_id, from_lsn=from_lsn)
    return replace(shape, columns=(replace(shape.columns[0], type_text=text),))


def moods(*labels: str) -> PgType:
    return PgType("enum", "mood", schema="public", labels=labels, numbers=tuple(range(7, 7 + len(labels))))


@pytest.mark.parametrize(
    ("shapes", "refused"),
    [
        ([of_type(INT, "integer"), of_type(PgType("base", "int8"), "bigint", from_lsn=5)], False),
        (
            [of_type(TEXT, "text"), of_type(PgType("base", "varchar"), "character varying(9)", from_lsn=5)],
            False,
        ),
        ([of_type(PRICE, "numeric(10,2)")], False),
        ([of_type(PgType("domain", "price", element=PRICE), "price")], False),
        ([of_type(moods("sad", "glad"), "mood"), of_type(moods("sad", "glad", "new"), "mood")], False),
        ([of_type(moods("sad", "glad"), "mood"), of_type(moods("low", "glad"), "mood", from_lsn=5)], True),
        ([of_type(PgType("enum", "mood", schema="public", labels=("sad",)), "mood")], True),
        ([of_type(PgType("base", "bpchar"), "bpchar")], True),
        ([of_type(PgType("base", "bpchar", typmod=8), "character(4)")], False),
        ([of_type(PgType("base", "bpchar", typmod=8, collation="folded"), "character(4)")], True),
        ([of_type(NUMERIC, "numeric")], True),
        ([of_type(PgType("base", "interval"), "interval")], True),
        ([of_type(PgType("base", "citext", schema="public"), "citext")], True),
        ([of_type(PgType("base", "text", collation="folded"), "text")], True),
        # equal values of before have other texts
        ([of_type(PRICE, "numeric(10,2)"), of_type(INT, "integer", from_lsn=5)], True),
        ([of_type(TEXT, "text"), of_type(INT, "integer", relation_id=2)], True),
    ],
)
def test_keys_of_several_texts_are_refused(shapes: list[Any], *, refused: bool) -> None:
    if not refused:
        assert Shapes(shapes).relation_ids == [1]
        return
    with pytest.raises(DefiniteError) as raised:
        Shapes(shapes)
    assert raised.value.code == "erasure-key-type"


def test_erased_records_keep_place_and_end() -> None:
    row = dict.fromkeys(CHANGES_SCHEMA.names) | {
        "commit_lsn": 7, "relation_id": 1, "table_schema": "public", "table_name": "t", "xid": 5,
        "columns": ["id"], "new": ["1"], "unchanged": ["bio"], "old_is_key": False,
    }  # fmt: skip
    rows = [
        {**row, "seq": 0, "op": "insert", "end_of_tx": False},
        {**row, "seq": 1, "op": "delete", "old": ["1"], "new": None, "end_of_tx": True},
        {**row, "seq": 2, "op": "snapshot"},
        {**row, "seq": 3, "op": "snapshot"},
        {**row, "seq": 1, "relation_id": 2, "op": "snapshot"},
    ]
    erased = {(1, 7, 0), (1, 7, 1), (1, 7, 2)}
    left = without(pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA), erased)
    assert left.schema == CHANGES_SCHEMA
    empty = dict.fromkeys(("columns", "new", "old", "old_is_key", "unchanged"))
    whole = pa.Table.from_pylist(rows, schema=CHANGES_SCHEMA).to_pylist()
    assert left.to_pylist() == [
        {**whole[0], **empty, "op": "erased"},
        {**whole[1], **empty, "op": "erased"},
        whole[3],
        whole[4],
    ]
