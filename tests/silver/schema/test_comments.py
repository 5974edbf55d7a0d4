"""Silver recognises its own comments, whatever the source's comment; without a change, no statement."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from typing import Any

import pytest

from deltasmelt.bronze.comments import LONGEST, Comments, bounded
from deltasmelt.bronze.errors import TableError
from deltasmelt.silver.schema.alter import steps
from deltasmelt.silver.schema.catalog import SilverTable, history_of, silver_table
from deltasmelt.silver.schema.comments import described, description_of
from deltasmelt.silver.schema.ddl import create
from deltasmelt.silver.schema.fields import DeltaColumn, comment_of, fields_of, is_of_source
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, relation

KEEP = SilverSettings()
ODD = [
    "in cents",
    "it's \"quoted\" \\ and\nbroken\r\n, ${HOME} -- '; DROP TABLE t",
    "x" * 2000,
    "größer 😀 than \u2028 all",
    "attribute 9",
    "attribute 9; rows before it: 7",
    "rows before it: 7",
    "see (attribute 9)",
    '"quoted"',
    "\n",
    " ",
]


def table(comments: Comments | None, **names: int) -> SilverTable:
    attnums = names or {"id": 1, "total": 2}
    columns = [(name, INT if attnum == 1 else TEXT) for name, attnum in attnums.items()]
    shape = relation("t", columns, ["id"], relation_id=7, attnums=list(attnums.values()))
    return silver_table(replace(shape, comments=comments), KEEP)


def stored(shape: SilverTable) -> list[DeltaColumn]:
    """Return the columns as in Delta after a CREATE TABLE."""
    types = {"INT": "integer", "STRING": "string"}
    fields = [
        {
            "name": column.name,
            "type": types[column.spark_type],
            "metadata": {"comment": comment_of(column, filled=True)},
        }
        for column in shape.columns
    ]
    return fields_of({"fields": fields})


def alters(*columns: str) -> str:
    return "ALTER TABLE t ALTER COLUMN\n  " + ",\n  ".join(columns)


@pytest.mark.parametrize("comment", ODD)
def test_column_is_recognized_despite_any_source_comment(comment: str) -> None:
    shape = table(Comments(7, None, {2: comment}))
    fields = stored(shape)
    assert [(column.attnum, column.missing) for column in fields] == [(1, None), (2, None)]
    assert comment in fields[1].comment
    assert is_of_source(fields[1].comment)
    assert described("t", shape, fields, description_of(shape)) == []
    waiting = replace(shape.columns[1], missing=comment)
    schema: dict[str, Any] = {
        "fields": [
            {"name": "a", "type": "string", "metadata": {"comment": comment_of(waiting, filled=False)}}
        ]
    }
    assert [(column.attnum, column.missing) for column in fields_of(schema)] == [(2, comment)]


def test_comments_of_reserved_words_are_no_metadata() -> None:
    chosen = random.Random(7)
    words = ["attribute 3", "; rows before it: ", "rows before it: ", "; ", " (attribute 4)", '"', "\n", "x"]
    for _ in range(2000):
        comment = "".join(chosen.choices(words, k=chosen.randint(1, 5)))
        shape = table(Comments(7, None, {2: comment}))
        assert [(column.attnum, column.missing) for column in stored(shape)] == [(1, None), (2, None)], (
            comment
        )


def test_columns_change_in_single_statement_apart_from_table() -> None:
    before = table(None)
    after = table(Comments(7, "Orders", {1: "key", 2: "in 'cents'"}))
    assert described("t", after, stored(before), description_of(before)) == [
        alters("`id` COMMENT 'key (attribute 1)'", "`total` COMMENT 'in \\'cents\\' (attribute 2)'"),
        "COMMENT ON TABLE t IS 'Orders'",
    ]
    assert described("t", after, stored(after), "Orders") == []
    commented = table(Comments(7, "Orders", {1: "key"}))
    assert described("t", commented, stored(after), "Orders") == [alters("`total` COMMENT 'attribute 2'")]


def test_unpolled_table_gets_no_comment() -> None:
    commented = table(Comments(7, "Orders", {2: "in cents"}))
    assert described("t", table(None), stored(commented), "Orders") == []


def test_own_description_follows_source_comment_unlike_foreign() -> None:
    uncommented = table(Comments(7, None, {}, former=frozenset({"Orders", "older"})))
    assert described("t", uncommented, stored(uncommented), "Orders") == [
        "COMMENT ON TABLE t IS 'Rows of public.t'"
    ]
    assert described("t", uncommented, stored(uncommented), "older") == [
        "COMMENT ON TABLE t IS 'Rows of public.t'"
    ]
    assert described("t", uncommented, stored(uncommented), "of team A") == []
    history = history_of(uncommented)
    assert described("h", history, stored(uncommented), "Orders (versions of rows of public.t)") == [
        "COMMENT ON TABLE h IS 'Versions of rows of public.t'"
    ]


def test_comment_reaches_column_under_current_silver_name() -> None:
    swapped = table(Comments(7, None, {1: "one", 2: "two"}), total=1, id=2)
    behind = stored(table(None))
    assert described("t", swapped, behind, "") == [
        alters("`id` COMMENT 'one (attribute 1)'", "`total` COMMENT 'two (attribute 2)'")
    ]
    with_more = table(Comments(7, None, {3: "not there yet"}), id=1, total=2, more=3)
    assert described("t", with_more, behind, "") == []
    assert steps("t", with_more, behind, KEEP, emptied=False) == [
        "ALTER TABLE t ADD COLUMNS (`more` STRING COMMENT 'not there yet (attribute 3)' AFTER `total`)"
    ]


@pytest.mark.parametrize("theirs", ["see (attribute 2)", "attribute 2"])
@pytest.mark.parametrize("ours", [None, "in cents"])
@pytest.mark.parametrize("order", [1, -1], ids=["ours first", "theirs first"])
def test_foreign_column_is_never_treated_as_source_column(order: int, ours: str | None, theirs: str) -> None:
    shape = table(Comments(7, None, {} if ours is None else {2: ours}))
    own_column = DeltaColumn("note", 2, "STRING", None, theirs)
    fields = [*stored(shape), own_column][::order]
    for settings in (KEEP, SilverSettings(on_drop_column="drop")):
        assert steps("t", shape, fields, settings, emptied=False) == []
        assert described("t", shape, fields, description_of(shape)) == []
        narrowed = replace(shape, columns=shape.columns[:1])
        dropped = steps("t", narrowed, fields, settings, emptied=False)
        assert not any("`note`" in statement for statement in dropped)
    renamed = table(shape.relation.comments, id=1, amount=2)
    with pytest.raises(TableError, match=r"columns (total and note|note and total) of silver.t both"):
        steps("t", renamed, fields, KEEP, emptied=False)


def test_column_awaiting_default_keeps_marker_until_filled() -> None:
    shape = table(Comments(7, None, {2: "in cents"}))
    column = replace(shape.columns[1], missing="0")
    waiting = [
        stored(shape)[0],
        DeltaColumn("total", 2, "STRING", "0", comment_of(column, filled=False)),
    ]
    assert described("t", shape, waiting, "") == []
    late = replace(shape, columns=(shape.columns[0], column))
    last = steps("t", late, waiting, KEEP, emptied=False)[-1]
    assert last == "ALTER TABLE t ALTER COLUMN `total` COMMENT 'in cents (attribute 2)'"


def test_new_table_has_comments_and_separate_clustering() -> None:
    """A comment with a supplementary character needs a separate CLUSTER BY statement."""
    statements = create("t", table(Comments(7, "The 'orders' 😀", {2: "in\ncents"})))
    assert "`total` STRING COMMENT 'in\\ncents (attribute 2)'" in statements[0]
    assert "\nCOMMENT 'The \\'orders\\' 😀'" in statements[0]
    assert "CLUSTER BY" not in statements[0]
    assert statements[1:] == ["ALTER TABLE t CLUSTER BY (`id`)"]


def test_a_very_long_comment_is_cut() -> None:
    assert bounded("x" * LONGEST) == "x" * LONGEST
    assert re.fullmatch("x{3999}…", bounded("x" * (LONGEST + 1)))
