"""An error stops tables, tables change their shape, tables arrive late: one lake, four windows.

The fixture folds the windows once; each test checks one table's result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.fresh import FreshTables
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, NUMERIC, TEXT, BronzeWriter, change, insert, relation, time_of, update
from tests.silver.lakes import check_ahead
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut, OpenError
    from deltasmelt.silver.fresh import Head

BIGINT = PgType("base", "int8")
PLAIN = (("id", INT), ("note", TEXT))

healthy = relation("healthy", PLAIN, ["id"], relation_id=1)
numeric_key = relation("numeric_key", [("id", NUMERIC), ("note", TEXT)], ["id"], relation_id=2)
unresolvable = relation("unresolvable", PLAIN, ["id"], relation_id=3)
without_identity = relation(
    "without_identity", PLAIN, ["id"], relation_id=4, identity="n", identity_columns=["-"]
)
twice = relation("twice", PLAIN, ["id"], relation_id=6, identity="f")
nulled = relation("nulled", PLAIN, ["note"], relation_id=20, identity="f")
late = relation("late", PLAIN, ["id"], relation_id=7, from_lsn=25)
dropped = relation("dropped", [("id", INT), ("a", TEXT), ("b", TEXT)], ["id"], relation_id=10)
dropped_after = relation(
    "dropped", [("id", INT), ("a", TEXT)], ["id"], relation_id=10, from_lsn=40, after_lsn=1, attnums=[1, 3]
)
widened = relation("widened", PLAIN, ["id"], relation_id=11)
widened_after = relation(
    "widened", [("id", BIGINT), ("note", TEXT)], ["id"], relation_id=11, from_lsn=40, after_lsn=3
)
retyped = relation("retyped", PLAIN, ["id"], relation_id=12)
retyped_after = relation(
    "retyped", [("id", INT), ("note", INT)], ["id"], relation_id=12, from_lsn=40, after_lsn=5
)
rekeyed = relation("rekeyed", PLAIN, ["id"], relation_id=13)
rekeyed_after = relation("rekeyed", [("id", TEXT), ("note", TEXT)], ["id"], relation_id=13, from_lsn=70)
old_name = relation("old_name", PLAIN, ["id"], relation_id=14)
new_name = relation("new_name", PLAIN, ["id"], relation_id=14, from_lsn=55)
lacking = relation("lacking", PLAIN, ["id"], relation_id=17)
first_made = relation("made_again", PLAIN, ["id"], relation_id=15)
made_again = relation("made_again", PLAIN, ["id"], relation_id=16, from_lsn=55)
lean = relation("lean", [("id", INT), ("a", TEXT), ("b", TEXT)], ["id"], relation_id=18)
lean_after = relation("lean", [("id", INT), ("a", TEXT)], ["id"], relation_id=18, from_lsn=24)
young = relation("young", PLAIN, ["id"], relation_id=19, from_lsn=33)
young_after = relation(
    "young", [("id", INT), ("more", TEXT)], ["id"], relation_id=19, from_lsn=45, attnums=[1, 3]
)
AT_START = [
    healthy, numeric_key, unresolvable, without_identity, twice, dropped, widened, retyped, rekeyed,
    old_name, first_made, lacking, lean, nulled,
]  # fmt: skip
NULLED = change(nulled, "update", old=["1", "5"], old_is_key=False, new=["1", None])
LATER = [
    lean_after, young, young_after, late, dropped_after, widened_after, retyped_after, new_name, made_again,
]  # fmt: skip


@dataclass
class Outcome:
    """The results of the windows; `ahead` has the tables read before the second and the third window."""

    spark: SparkSession
    lake: Lake
    cuts: list[Cut]
    errors: list[list[OpenError]]
    ahead: dict[int, Head]

    def rows(self, name: str, columns: str, version: int | None = None) -> list[tuple[object, ...]]:
        return cells_at(self.spark, self.lake, name, columns, version)

    def codes(self, window: int) -> dict[str, str]:
        return {error.name: error.code for error in self.errors[window]}


def begin(bronze: BronzeWriter) -> None:
    """Write the first snapshot of each table, and some rows of a snapshot that never ends."""
    bronze.relations(AT_START)
    for shape in AT_START:
        wide = len(shape.columns) == 3
        bronze.snapshot(shape, 10, [["1", "x", "y"], ["2", "p", "q"]] if wide else [["1", "5"], ["2", "6"]])
    bronze.add(12, [change(healthy, "snapshot", new=["9", "unfinished"])])
    bronze.commit(20)


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    lake = Lake(path=str(tmp_path_factory.mktemp("lake")))
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    silver = Silver(spark, lake, SilverSettings(), control)
    fresh = FreshTables(spark, lake, SilverSettings(), control)
    final_outcome = Outcome(spark, lake, [], [], {})

    def fold(*, look: bool = False) -> None:
        head = fresh.read(fresh.names()) if look else None
        cut = silver.cycle()
        assert cut is not None
        if head is not None:
            check_ahead(spark, head, cut, lake)  # before its views are those of the next look
            final_outcome.ahead[len(final_outcome.cuts)] = head
        final_outcome.cuts.append(cut)
        final_outcome.errors.append(control.open_errors())

    begin(bronze)
    fold()

    bronze.relations(LATER)
    bronze.snapshot(late, 35, [["1", "a"], ["2", "b"]])  # ahead of the stream: the frontier is 30
    bronze.add(22, [insert(healthy, "3", "new")])
    bronze.add(23, [insert(numeric_key, "NaN", "x")])
    bronze.add(24, [update(unresolvable, "77", None, toast="note")])
    bronze.add(25, [update(without_identity, "1", "x")])
    bronze.add(26, [insert(twice, "5", "x"), insert(twice, "5", "y"), NULLED])
    bronze.add(27, [insert(late, "1", "before the snapshot")])
    bronze.add(28, [insert(lacking, "3", "arrived")])
    bronze.add(29, [insert(lean_after, "3", "x")])
    bronze.commit(30)
    bronze.gap(lacking, 29)  # something between was not published
    fold(look=True)

    bronze.snapshot(numeric_key, 36, [["3", "healed"]])
    bronze.add(38, [insert(late, "3", "c")])
    bronze.add(
        40,
        [
            update(dropped, "1", "a before", "b before"), update(dropped_after, "2", "new a"),
            update(widened, "1", "before"), insert(widened_after, "5000000000", "after"),
            update(retyped, "1", "7"), update(retyped_after, "2", "8"),
        ],
    )  # fmt: skip
    bronze.snapshot(young, 36, [["1", "a"], ["2", "b"]])
    bronze.add(45, [update(young_after, "1", "m"), update(lean_after, "1", "A")])
    bronze.add(50, [insert(healthy, "4", "late"), insert(lacking, "4", "behind the gap")])
    bronze.add(55, [insert(new_name, "3", "x"), insert(made_again, "1", "x")])
    bronze.commit(60)
    fold(look=True)

    bronze.relations([rekeyed_after])
    bronze.snapshot(retyped_after, 70, [["1", "7"], ["2", "8"]])
    bronze.snapshot(rekeyed_after, 70, [["one", "x"]])
    bronze.snapshot(new_name, 70, [["1", "5"], ["3", "x"]])
    bronze.snapshot(made_again, 70, [["1", "x"]])
    bronze.snapshot(lacking, 70, [["2", "taken again"], ["4", "behind the gap"]])
    bronze.add(75, [update(retyped_after, "2", "9")])
    bronze.commit(80)
    fold()
    return final_outcome


@pytest.mark.spark
class TestErrors:
    def test_a_tables_own_error_stops_it_alone(self, outcome: Outcome) -> None:
        assert outcome.codes(1) == {
            "public.numeric_key": "key-unrepresentable",
            "public.unresolvable": "value-missing",
            "public.without_identity": "identity-missing",
            "public.twice": "key-not-unique",
            "public.nulled": "key-missing",  # the old value must not stand in for NULL
        }
        assert set(outcome.cuts[1].tables) == {
            "healthy",
            "dropped",
            "widened",
            "retyped",
            "rekeyed",
            "old_name",
            "made_again",
            "lean",
        }
        assert outcome.rows("healthy", "id, note", outcome.cuts[1].tables["healthy"])[-1] == (3, "new")

    def test_a_stopped_table_keeps_its_last_version(self, outcome: Outcome) -> None:
        assert outcome.rows("unresolvable", "id, note") == [(1, "5"), (2, "6")]
        assert outcome.rows("twice", "id, note") == [(1, "5"), (2, "6")]

    def test_message_names_value_and_remedy(self, outcome: Outcome) -> None:
        errors = {error.name: error for error in outcome.errors[1]}
        assert (
            errors["public.numeric_key"].message
            == "a key value does not fit its Spark type (column id, value NaN)"
        )
        assert "silver.types: {public.numeric_key.<column>: string}" in str(
            errors["public.numeric_key"].remedy
        )
        assert "column note, row 77" in errors["public.unresolvable"].message
        assert (
            errors["public.unresolvable"].remedy
            == "resnapshot the table: smelt snapshot FILE public.unresolvable"
        )

    def test_table_taken_again_goes_on(self, outcome: Outcome) -> None:
        assert "public.numeric_key" not in outcome.codes(2)
        assert outcome.rows("numeric_key", "note") == [("healed",)]
        assert "numeric_key" in outcome.cuts[2].tables

    def test_a_stopped_table_is_not_tried_again_before(self, outcome: Outcome) -> None:
        assert "twice" not in outcome.cuts[2].tables
        assert outcome.codes(2)["public.twice"] == "key-not-unique"

    def test_table_with_gap_waits_for_snapshot(self, outcome: Outcome) -> None:
        assert ["lacking" in cut.tables for cut in outcome.cuts] == [True, False, False, True]
        assert "public.lacking" not in outcome.codes(1) | outcome.codes(2)
        rows = outcome.rows("lacking", "id, note", outcome.cuts[3].tables["lacking"])
        assert rows == [(2, "taken again"), (4, "behind the gap")]

    def test_a_row_says_the_commit_that_made_it(self, outcome: Outcome) -> None:
        assert outcome.rows("healthy", "id, _commit_lsn, _commit_ts") == [
            (key, lsn, time_of(lsn).replace(tzinfo=None)) for key, lsn in ((1, 10), (2, 10), (3, 22), (4, 50))
        ]

    def test_rows_of_unfinished_snapshot_do_not_count(self, outcome: Outcome) -> None:
        assert "unfinished" not in [note for _, note in outcome.rows("healthy", "id, note")]


@pytest.mark.spark
class TestAhead:
    """Tests of reads before a cycle (`silver.fresh`); the fixture compares the rows by `check_ahead`."""

    def test_tables_of_the_cut_alone_are_read(self, outcome: Outcome) -> None:
        assert [*outcome.ahead] == [1, 2]
        for number, head in outcome.ahead.items():
            cut = outcome.cuts[number]
            assert head.lsn == cut.commit_lsn
            assert set(head.views) == {*cut.tables} & {*head.views, *head.out}
            assert not {*head.out} & {*cut.tables}

    def test_a_table_that_cannot_be_read_says_why(self, outcome: Outcome) -> None:
        out = outcome.ahead[1].out
        assert out["numeric_key"] == "a key value does not fit its Spark type (column id, value NaN)"
        assert "column note, row 77" in out["unresolvable"]
        assert "replica identity" in out["without_identity"]
        assert out["lacking"] == "bronze lacks changes of the table until its next snapshot is complete"
        assert out["late"] == "the first snapshot of the table is not complete"
        out = outcome.ahead[2].out
        assert "was renamed from public.old_name" in out["new_name"]
        assert "changed its type" in out["retyped"]
        with pytest.raises(DefiniteError, match=r"silver\.twice cannot be read at the log's head"):
            outcome.ahead[1].view("twice")

    def test_what_is_read_ahead_is_recorded_nowhere(self, outcome: Outcome) -> None:
        assert len(outcome.cuts) == len(ControlTables(outcome.lake).cuts("silver"))


@pytest.mark.spark
class TestShapes:
    def test_table_joins_cuts_at_its_snapshot(self, outcome: Outcome) -> None:
        assert "late" not in outcome.cuts[1].tables
        assert outcome.rows("late", "id, note") == [(1, "a"), (2, "b"), (3, "c")]

    def test_dropped_column_is_kept_beside_its_heir(self, outcome: Outcome) -> None:
        assert outcome.rows("dropped", "id, a, a__2") == [(1, "b before", "x"), (2, "new a", "p")]

    def test_update_leaves_dropped_column_alone(self, outcome: Outcome) -> None:
        assert outcome.rows("lean", "id, a, b") == [(1, "A", "y"), (2, "p", "q"), (3, "x", None)]

    def test_shape_changed_before_first_fold(self, outcome: Outcome) -> None:
        assert outcome.rows("young", "id, more") == [(1, "m"), (2, None)]

    def test_a_widened_key(self, outcome: Outcome) -> None:
        assert outcome.rows("widened", "id, note") == [(1, "before"), (2, "6"), (5_000_000_000, "after")]

    def test_renamed_table_stops_until_taken_again(self, outcome: Outcome) -> None:
        assert outcome.codes(2)["public.new_name"] == "table-renamed"
        assert not {"old_name", "new_name"} & set(outcome.cuts[2].tables)
        assert outcome.rows("new_name", "id, note") == [(1, "5"), (3, "x")]
        assert "public.new_name" not in outcome.codes(3)

    def test_recreated_table_stops_until_taken_again(self, outcome: Outcome) -> None:
        assert outcome.codes(2)["public.made_again"] == "table-recreated"
        assert "made_again" not in outcome.cuts[2].tables
        assert outcome.rows("made_again", "id, note") == [(1, "x")]
        assert "made_again" in outcome.cuts[3].tables

    def test_type_that_cannot_widen_stops(self, outcome: Outcome) -> None:
        assert outcome.codes(2)["public.retyped"] == "column-retyped"
        assert "retyped" not in outcome.cuts[2].tables
        assert "retyped" in outcome.cuts[1].tables

    def test_a_table_taken_again_has_its_new_types(self, outcome: Outcome) -> None:
        assert outcome.codes(3).get("public.retyped") is None
        assert outcome.rows("retyped", "id, note") == [(1, 7), (2, 9)]
        assert outcome.rows("rekeyed", "id, note") == [("one", "x")]
        version = outcome.cuts[2].tables["rekeyed"]
        assert outcome.rows("rekeyed", "id, note", version) == [(1, "5"), (2, "6")]
