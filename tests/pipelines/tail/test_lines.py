"""A row of bronze as a line: what PostgreSQL did not send is never shown as NULL. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.store.arrivals import COLUMNS, Copied, Gap
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA
from deltasmelt.pipelines.tail.feed import Feed, LineLimit, Selection
from deltasmelt.pipelines.tail.lines import json_of, text_of
from deltasmelt.pipelines.tail.masked import without_masked
from deltasmelt.pipelines.tail.records import Shapes, change_of

TIME = datetime(2026, 11, 27, 12, 30, 1, 250000, UTC)
AT = "2026-11-27 12:30:01.250  "
PEOPLE, ORDERS = TableName("public", "people"), TableName("public", "orders")
TEXT = PgType("base", "text", oid=25)


def shape(*names: str, begin: int = 1, identity: str = "d", after: int = 0, **more: Any) -> Relation:
    """Return a shape whose first column is the key, and whose columns have the numbers of their names."""
    numbers = {"id": 1, "name": 2, "mail": 3, "bio": 4, "email": 3}
    columns = tuple(Column(name, numbers[name], TEXT, "text", in_identity=name == "id") for name in names)
    known = Relation(7, PEOPLE, columns, ("id",), identity, Lsn(begin), Lsn(after))
    return replace(known, **more)


SHAPES = Shapes([shape("id", "name", "bio")])


def row(op: str, new: Any = None, old: Any = None, **more: Any) -> dict[str, Any]:
    """Return a row of bronze for people."""
    known: dict[str, Any] = {
        "commit_lsn": 100, "seq": 0, "lsn": 90, "xid": 5, "commit_ts": TIME, "op": op,
        "table_schema": "public", "table_name": "people", "relation_id": 7,
        "columns": ["id", "name", "bio"], "new": new, "old": old,
        "old_is_key": None if old is None else False, "unchanged": None, "end_of_tx": True,
    }  # fmt: skip
    return {**known, **more}


def line(op: str, *values: Any, shapes: Shapes = SHAPES, **more: Any) -> str:
    """Return a change's line without its time."""
    text = text_of(change_of(row(op, *values, **more), shapes))
    assert text.startswith(AT)
    return text.removeprefix(AT)


def test_values_that_could_be_mistaken_are_quoted() -> None:
    assert line("insert", ["1", None, "NULL"]) == 'insert    public.people  id=1  name=NULL, bio="NULL"'
    assert line("insert", ["1", "a, b", "unchanged"]).endswith('name="a, b", bio="unchanged"')
    assert line("insert", ["1", "", 'say "x"\n']).endswith(r'name="", bio="say \"x\"\n"')
    assert line("snapshot", ["1", "x" * 100, "a@b.c"]).endswith(
        f'name="{"x" * 60}…" (100 characters), bio=a@b.c'
    )
    wide = [f"c{number}" for number in range(30)]
    assert line("insert", ["1"] * 30, columns=wide, relation_id=8).endswith("c19=1, … 10 more columns")


def test_name_with_line_end_makes_no_line() -> None:
    forged = line("insert", ["1", "a", "b"], columns=["id", "x\n2026", "y"], table_name="a\nb")
    assert forged == r"insert    public.a\nb  id=1  x\n2026=a, y=b"


def test_only_full_old_row_shows_what_changed() -> None:
    assert line("update", ["1", "b", "x"], ["1", "a", "x"]) == "update    public.people  id=1  name: a → b"
    assert line("update", ["1", None, "x"], ["1", "a", "x"]).endswith("name: a → NULL")
    assert line("update", ["1", "a", "x"], ["1", "a", "x"]).endswith("no column changed")
    assert line("update", ["2", "b", "x"], ["1", "a", "x"]).endswith("id=1 → 2  name: a → b")
    assert line("update", ["2", "a", "x"], ["1", "a", "x"]).endswith("people  id=1 → 2")
    assert line("update", ["1", "b", "x"]) == "update    public.people  id=1  name=b, bio=x"


def test_unsent_values_are_unchanged_and_never_null() -> None:
    toast = row("update", ["1", "b", None], unchanged=["bio"])
    assert text_of(change_of(toast, SHAPES)).endswith("id=1  name=b, bio unchanged")
    plain = json_of(change_of(toast, SHAPES))
    assert (plain["new"], plain["unchanged"]) == ({"id": "1", "name": "b"}, ["bio"])
    moved = row("update", ["2", "b", None], ["1", None, None], old_is_key=True, unchanged=["bio"])
    assert text_of(change_of(moved, SHAPES)).endswith("id=1 → 2  name=b, bio unchanged")
    plain = json_of(change_of(moved, SHAPES))
    assert (plain["key"], plain["old_key"], plain["old"]) == ({"id": "2"}, {"id": "1"}, {"id": "1"})
    full = row("update", ["1", "b", None], ["1", "a", "long"], unchanged=["bio"])
    assert text_of(change_of(full, SHAPES)).endswith("id=1  name: a → b")
    key = row("update", [None, "b", "x"], ["1", None, None], old_is_key=True, unchanged=["id"])
    assert text_of(change_of(key, SHAPES)).endswith("people  id=1  name=b, bio=x")
    unknown = row("update", [None, "b", "x"], unchanged=["id"])
    assert text_of(change_of(unknown, SHAPES)).endswith("people    name=b, bio=x, id unchanged")


def test_deleted_rows_show_what_postgresql_sent() -> None:
    assert line("delete", None, ["1", None, None], old_is_key=True) == "delete    public.people  id=1"
    assert line("delete", None, ["1", "a", None]) == "delete    public.people  id=1  name=a, bio=NULL"
    by_key = Shapes([shape("id", "name", "bio", identity="k")])
    assert line("delete", None, ["1", None, None], old_is_key=True, shapes=by_key).endswith("people  id=1")
    other = shape("id", "name", "bio", identity="i")
    by_index = replace(other, columns=tuple(replace(c, in_identity=c.name == "name") for c in other.columns))
    shapes = Shapes([by_index])
    assert line("delete", None, [None, "a", None], old_is_key=True, shapes=shapes).endswith("people  name=a")
    assert line("delete", None, ["1", None, None], old_is_key=True, shapes=Shapes(())).endswith("  id=1")
    assert line("truncate", columns=None) == "truncate  public.people"


def test_partition_that_logs_less_shows_no_null() -> None:
    # The root has REPLICA IDENTITY FULL, so the stream calls an old tuple full that has the leaf's key alone.
    partitioned: Any = {"shapes": Shapes([shape("id", "name", "bio", identity="k")])}
    old = ["1", None, None]
    assert line("update", ["1", "b", "x"], old, **partitioned).endswith("people  id=1  name=b, bio=x")
    assert line("update", ["2", "b", "x"], old, **partitioned).endswith("people  id=1 → 2  name=b, bio=x")
    assert line("delete", None, old, **partitioned).endswith("people  id=1")
    assert json_of(change_of(row("delete", None, old), partitioned["shapes"]))["old"] == {"id": "1"}


def test_rows_have_the_shape_of_their_place() -> None:
    renamed = shape("name", "id", begin=100, after=90, key=("name",))
    shapes = Shapes([renamed, shape("id", "name", "bio")])
    assert line("insert", ["1", "a", "x"], shapes=shapes).startswith("insert    public.people  id=1  ")
    assert line("insert", ["1", "a", "x"], lsn=91, shapes=shapes).startswith(
        "insert    public.people  name=a  "
    )
    assert shapes.at(7, 1, 0) is None
    assert line("insert", ["1", "a", "x"], lsn=0, commit_lsn=0, shapes=shapes).endswith("id=1, name=a, bio=x")


def test_messages_copies_and_gaps_have_lines() -> None:
    message: Any = {
        "table_schema": None,
        "table_name": None,
        "relation_id": None,
        "columns": ["app", "deploy 17"],
    }
    assert line("message", **message).split() == ["message", "prefix=app,", 'content="deploy', '17"']
    copied = Copied(PEOPLE, Lsn(80), 12_000, TIME)
    assert text_of(copied) == f"{AT}snapshot  public.people  copied, 12,000 rows"
    assert text_of(replace(copied, rows=1)).endswith("copied, 1 row")
    assert text_of(replace(copied, rows=None)).endswith("copied")
    assert json_of(copied) == {
        "time": "2026-11-27T12:30:01.250000+00:00", "op": "snapshot_end", "table": "public.people",
        "commit_lsn": "0/50", "rows": 12_000,
    }  # fmt: skip
    gap = Gap(PEOPLE, Lsn(80))
    assert "gap       public.people  changes up to 0/50 may be missing in bronze" in text_of(gap)
    assert json_of(gap) == {"op": "gap", "table": "public.people", "commit_lsn": "0/50"}


def test_masked_columns_are_hidden_under_every_name() -> None:
    before, after = shape("id", "email", "bio"), shape("id", "mail", "name", begin=200)
    shapes = Shapes([before, after])
    change = change_of(
        row("update", ["1", "new@x", None], ["1", "old@x", "b"], columns=["id", "email", "bio"]), shapes
    )
    for name in ("mail", "EMAIL"):
        hidden = text_of(without_masked(change, {PEOPLE: {name}}, shapes))
        assert hidden.endswith("id=1  email: *** → ***, bio: *** → NULL"), "bio no longer exists"
    message = change_of(row("message", relation_id=None, table_name=None, columns=["a", "b"]), shapes)
    assert without_masked(message, {}, shapes).new == {"prefix": "***", "content": "***"}
    assert without_masked(change, {ORDERS: {"mail"}}, shapes) == change
    hidden_key = without_masked(change, {PEOPLE: {"id"}}, shapes)
    assert hidden_key.key == {"id": "***"}
    foreign = without_masked(replace(change, relation_id=9), {ORDERS: {"mail"}}, shapes)
    assert foreign.new == {"id": "***", "email": "***", "bio": None}, "a table without a known shape"
    lost = Shapes([replace(before, columns=tuple(replace(c, attnum=None) for c in before.columns))])
    assert without_masked(change, {PEOPLE: {"email"}}, lost).key == {"id": "***"}


def batch(*rows: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        list(rows), schema=pa.schema([CHANGES_SCHEMA.field(name) for name in COLUMNS])
    )


def shown(feed: Selection, *rows: dict[str, Any]) -> list[str]:
    """Return the operation and table of each line for rows under a selection."""
    lines: list[str] = []
    writer = Feed(feed, lines.append)
    writer.learn([shape("id", "name", "bio"), shape("id", begin=300, table=ORDERS)])
    writer.take(batch(*rows), 0.0)
    writer.take(Copied(PEOPLE, Lsn(80), 2, TIME), 0.0)
    return [" ".join(text.removeprefix(AT).split()[:2]) for each in lines for text in each.splitlines()]


def test_operations_and_tables_select_lines() -> None:
    message = row("message", table_schema=None, table_name=None, relation_id=None, columns=["a", "b"])
    values = ["1", "a", "b"]
    rows = [
        row("insert", values),
        row("delete", None, values),
        row("snapshot", values),
        row("insert", values, table_name="others", relation_id=9),
        message,
        row("snapshot_end"),
    ]
    assert shown(Selection(), *rows) == [
        "insert public.people", "delete public.people", "insert public.others", "message prefix=a,",
        "snapshot public.people",
    ]  # fmt: skip
    assert shown(Selection(operations={"delete"}), *rows) == ["delete public.people"]
    assert shown(Selection(operations={"snapshot"}), *rows) == ["snapshot public.people"] * 2
    assert shown(Selection(("public.oth*",)), *rows) == ["insert public.others"]
    # A relation is selected by each of its names, so also by a new name.
    assert shown(Selection(("public.orders",)), *rows)[:2] == ["insert public.people", "delete public.people"]


def test_limit_counts_what_it_leaves_out() -> None:
    limit = LineLimit(3)
    assert limit.admit([PEOPLE] * 2, 0.0) == [0, 1]
    assert limit.admit([PEOPLE] * 20 + [ORDERS], 0.1) == [*range(8), 20], "ten of each table in any case"
    assert limit.admit([None] * 11, 0.2) == list(range(10))
    assert limit.ended(0.9) is None
    assert limit.ended(1.0) == "… 13 more changes of 2 tables left out"
    assert limit.ended(1.0) is None
    assert limit.admit([PEOPLE], 1.0) == [0]
    assert limit.admit([ORDERS] * 12, 1.0) == list(range(10))
    assert limit.ended(2.0) == "… 2 more changes of 1 table left out"
    assert len(LineLimit(None).admit([PEOPLE] * 9_999, 0.0)) == 9_999
