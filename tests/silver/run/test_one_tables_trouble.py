"""A statement at the source, or a user's change of the lake, stops one table: all others continue.

Each table has one kind of trouble. Silver folds all tables of a lake together, so each cycle also shows that
no trouble spreads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from deltalake import Transaction

from deltasmelt.bronze import backoff
from deltasmelt.bronze.drift.membership import NOT_CARRIED
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType, Relation
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.marks import fingerprint_app
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

TAGS = PgType("array", "_text", element=TEXT)
PLAIN = (("id", INT), ("note", TEXT))
PAIR = (("a", INT), ("b", TEXT), ("note", TEXT))


@dataclass
class Trouble:
    """One table's part: at LSN 10 a copy, from 40 on another shape, at 60 the copy that repairs the table.

    Attributes:
        first: the shape before.
        rows: of the first copy.
        then: the shapes that the changes bring.
        changes: (LSN, row) of the second window.
        healed: rows of the copy at 60; None without a copy.
        code: of the table's error after the second window; None without an error.
    """

    first: Relation
    rows: list[list[str | None]]
    then: list[Relation]
    changes: list[tuple[int, dict[str, Any]]] = field(default_factory=list)
    healed: list[list[str | None]] | None = None
    code: str | None = None


def ins(shape: Relation, *cells: str | None) -> dict[str, Any]:
    return change(shape, "insert", new=list(cells))


calm = relation("calm", PLAIN, ["id"], relation_id=1)
cased = relation("cased", [("Id", INT), ("userId", TEXT)], ["Id"], relation_id=2)
cased_then = relation("cased", [("id", INT), ("userid", TEXT)], ["id"], relation_id=2, from_lsn=40)
dropped = relation("key_dropped", PAIR, ["a", "b"], relation_id=3)
dropped_then = relation(
    "key_dropped", [("a", INT), ("note", TEXT)], ["a"], relation_id=3, from_lsn=40, attnums=[1, 3]
)
retyped = relation("key_retyped", PAIR, ["a", "b"], relation_id=4)
retyped_then = relation(
    "key_retyped", [("a", INT), ("b", INT), ("note", TEXT)], ["a"], relation_id=4, from_lsn=40
)
swap_old = relation("swap", PLAIN, ["id"], relation_id=5)
swap_new = relation("swap_new", PLAIN, ["id"], relation_id=6)
swap_then = relation("swap", PLAIN, ["id"], relation_id=6, from_lsn=40)
by_hand = relation("by_hand", PLAIN, ["id"], relation_id=7)
by_hand_then = relation("by_hand", [*PLAIN, ("more", TEXT)], ["id"], relation_id=7, from_lsn=40)
overridden = relation("overridden", [("id", INT), ("tags", TAGS)], ["id"], relation_id=8)
overridden_then = relation("overridden", [("id", INT), ("tags", TEXT)], ["id"], relation_id=8, from_lsn=40)
overridden_back = relation("overridden", [("id", INT), ("tags", TAGS)], ["id"], relation_id=8, from_lsn=60)
guarded = relation("guarded", PLAIN, ["id"], relation_id=9)

TROUBLES = {
    "calm": Trouble(calm, [["1", "a"]], [], [(41, ins(calm, "2", "b"))]),
    "cased": Trouble(cased, [["1", "a"]], [cased_then], [(40, ins(cased_then, "2", "b"))]),
    "key_dropped": Trouble(
        dropped, [["1", "b", "x"]], [dropped_then], [(40, ins(dropped_then, "2", "y"))]
    ),
    "key_retyped": Trouble(retyped, [["1", "b", "x"]], [retyped_then]),
    "swap": Trouble(swap_old, [["1", "old"]], [], code="table-recreated"),
    "swap_new": Trouble(
        swap_new, [["5", "new"]], [swap_then], [(41, ins(swap_then, "6", "new"))],
        [["5", "new"], ["6", "new"]],
    ),
    "by_hand": Trouble(
        by_hand, [["1", "a"]], [by_hand_then], [(40, ins(by_hand_then, "2", "b", "m"))],
        [["1", "a", None], ["2", "b", "m"]], "table-failed",
    ),
    "overridden": Trouble(
        overridden, [["1", "{a,b}"]], [overridden_then], [(40, ins(overridden_then, "2", "c"))],
        [["1", "{a,b}"], ["2", "{c}"]], "type-override",
    ),
    "guarded": Trouble(guarded, [["1", "a"]], [], [(41, ins(guarded, "500", "b"))], None, "table-failed"),
}  # fmt: skip
BACK = {"overridden": overridden_back, "swap_new": swap_then, "by_hand": by_hand_then}


class Stage:
    """A lake with some of the tables, carried through three windows."""

    def __init__(self, spark: SparkSession, path: str, names: Sequence[str]) -> None:
        self.spark, self.lake = spark, Lake(path=path)
        self.troubles = {name: TROUBLES[name] for name in names}
        self.bronze, self.control = BronzeWriter(self.lake), ControlTables(self.lake)
        settings = SilverSettings(on_drop_column="drop", types={"public.overridden.tags": "array<string>"})
        self.silver = Silver(spark, self.lake, settings, self.control)

    def sql(self, statement: str) -> list[Any]:
        return self.spark.sql(statement).collect()

    def address(self, name: str) -> str:
        return self.lake.sql("silver", name)

    def first(self) -> Cut | None:
        self.bronze.relations([trouble.first for trouble in self.troubles.values()])
        for trouble in self.troubles.values():
            self.bronze.snapshot(trouble.first, 10, trouble.rows)
        self.bronze.commit(20)
        cut = self.silver.cycle()
        if "by_hand" in self.troubles:
            self.sql(f"ALTER TABLE {self.address('by_hand')} ADD COLUMNS (more STRING)")
        if "guarded" in self.troubles:
            self.sql(f"ALTER TABLE {self.address('guarded')} ADD CONSTRAINT small CHECK (id < 100)")
        return cut

    def second(self) -> Cut | None:
        for trouble in self.troubles.values():
            self.bronze.relations(trouble.then)
        for lsn in sorted({lsn for trouble in self.troubles.values() for lsn, _ in trouble.changes}):
            self.bronze.add(
                lsn, [row for trouble in self.troubles.values() for at, row in trouble.changes if at == lsn]
            )
        if "key_retyped" in self.troubles:
            self.bronze.snapshot(retyped_then, 45, [["1", "7", "x"], ["2", "8", "y"]])
        self.bronze.commit(50)
        return self.silver.cycle()

    def third(self) -> Cut | None:
        for name, trouble in self.troubles.items():
            if trouble.healed is not None:
                self.bronze.relations([BACK[name]])
                self.bronze.snapshot(BACK[name], 60, trouble.healed)
        if "guarded" in self.troubles:
            self.sql(f"ALTER TABLE {self.address('guarded')} DROP CONSTRAINT small")
        self.bronze.commit(70)
        return self.silver.cycle()

    def rows(self, name: str, columns: str, cut: Cut) -> list[tuple[Any, ...]]:
        at = f"{self.address(name)} VERSION AS OF {cut.tables[name]}"
        return sorted(tuple(row) for row in self.sql(f"SELECT {columns} FROM {at}"))


@dataclass
class Outcome:
    """The cuts of the windows, and the open errors after each window, by table."""

    stage: Stage
    cuts: list[Cut]
    errors: list[dict[str, tuple[str, str]]]

    def rows(self, name: str, columns: str = "*", window: int = -1) -> list[tuple[Any, ...]]:
        return self.stage.rows(name, columns, self.cuts[window])


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    result = Outcome(Stage(spark, str(tmp_path_factory.mktemp("lake")), list(TROUBLES)), [], [])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backoff, "FIRST_SECONDS", 0.0)
        for window in (result.stage.first, result.stage.second, result.stage.third):
            cut = window()
            assert cut is not None
            result.cuts.append(cut)
            errors = result.stage.control.open_errors()
            result.errors.append(
                {error.name.removeprefix("public."): (error.code, error.message) for error in errors}
            )
    return result


def test_each_trouble_is_its_tables_own(outcome: Outcome) -> None:
    codes = {name: code for name, (code, _) in outcome.errors[1].items()}
    assert codes == {name: trouble.code for name, trouble in TROUBLES.items() if trouble.code is not None}
    renamed = {"swap_new"}  # the name is no table's any more
    assert [set(cut.tables) for cut in outcome.cuts] == [
        set(TROUBLES), set(TROUBLES) - set(codes) - renamed, set(TROUBLES) - renamed,
    ]  # fmt: skip
    assert outcome.rows("calm", "id, note", 1) == [(1, "a"), (2, "b")]


def test_all_of_them_heal(outcome: Outcome) -> None:
    assert outcome.errors[2] == {}
    assert outcome.rows("guarded", "id, note") == [(1, "a"), (500, "b")]
    assert outcome.rows("overridden", "id, tags") == [(1, ["a", "b"]), (2, ["c"])]


def test_what_no_rule_knows_is_told_in_the_causes_own_words(outcome: Outcome) -> None:
    message = outcome.errors[1]["guarded"][1]
    assert "CHECK constraint small (id < 100) violated" in message
    assert message.startswith("the table could not be updated: [DELTA_")


def test_names_that_change_their_case_alone(outcome: Outcome) -> None:
    assert outcome.rows("cased", "*", 1)[1][:2] == (2, "b")
    assert outcome.stage.spark.table(outcome.stage.address("cased")).columns[:2] == ["id", "userid"]


def test_former_key_columns_that_are_dropped_or_get_another_type(outcome: Outcome) -> None:
    assert outcome.rows("key_dropped", "a, note") == [(1, "x"), (2, "y")]
    assert "b" not in outcome.stage.spark.table(outcome.stage.address("key_dropped")).columns
    assert outcome.rows("key_retyped", "a, b, note") == [(1, 7, "x"), (2, 8, "y")]
    for name in ("key_dropped", "key_retyped"):
        row = outcome.stage.sql(f"DESCRIBE DETAIL {outcome.stage.address(name)}")[0]
        assert row["clusteringColumns"] == ["a"]


def test_two_tables_that_swap_their_names_never_mix_their_rows(outcome: Outcome) -> None:
    at_first = outcome.stage.sql(f"SELECT id, note FROM {outcome.stage.address('swap')} VERSION AS OF 1")
    assert [tuple(row) for row in at_first] == [(1, "old")]
    assert "another table has this name now" in outcome.errors[1]["swap"][1]
    assert outcome.rows("swap", "id, note") == [(5, "new"), (6, "new")]


def test_a_column_that_somebody_added_is_kept_beside_the_sources_own(outcome: Outcome) -> None:
    assert (
        "silver.by_hand has a column more that does not come from the source"
        in outcome.errors[1]["by_hand"][1]
    )
    assert outcome.rows("by_hand", "id, note, more, more__former") == [
        (1, "a", None, None),
        (2, "b", "m", None),
    ]


back_and_forth = [
    relation("back_and_forth", [("id", INT), ("note", type_)], ["id"], relation_id=21, from_lsn=lsn)
    for lsn, type_ in ((0, TEXT), (30, INT), (50, TEXT), (70, INT))
]
orders = relation("orders", PLAIN, ["id"], relation_id=22)
rival = relation("orders__history", PLAIN, ["id"], relation_id=23)


def test_former_columns_are_numbered_and_a_clash_with_a_history_heals(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> None:
    lake = Lake(path=str(tmp_path_factory.mktemp("kept")))
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    settings = SilverSettings(deletes="soft", history=["public.back_and_forth", "public.orders"])
    silver = Silver(spark, lake, settings, control)

    def fold(lsn: int) -> set[str]:
        bronze.commit(lsn)
        cut = silver.cycle()
        assert cut is not None
        return set(cut.tables)

    def codes() -> dict[str, str]:
        return {error.name: error.code for error in control.open_errors()}

    clashing = {"back_and_forth", "back_and_forth__history"}
    bronze.relations([*back_and_forth, orders, rival])
    for shape in (back_and_forth[0], orders, rival):
        bronze.snapshot(shape, 10, [["1", "7"], ["2", "8"]])
    assert fold(20) == clashing
    assert codes() == dict.fromkeys(("public.orders", "public.orders__history"), "silver-settings-clash")
    uri = lake.uri("bronze", CHANGES)
    commit_marks(delta.open_existing(uri), [Transaction(fingerprint_app(rival.table), NOT_CARRIED)])
    for lsn, shape in zip((30, 50, 70), back_and_forth[1:], strict=True):
        bronze.snapshot(shape, lsn, [["1", str(lsn)]])
        assert fold(lsn + 10) == clashing | {"orders", "orders__history"}
        assert codes() == {}
    former = ["note__2_string", "note__2_int", "note__2_string_2"]
    for name in clashing:
        columns = spark.table(lake.sql("silver", name)).columns
        assert [column for column in former if column in columns] == former
    query = (
        f"SELECT id, note, note__2_string, _deleted FROM {lake.sql('silver', 'back_and_forth')} ORDER BY id"
    )
    # Former values of a column stay, like values of a dropped column, even in a live row.
    assert [tuple(row) for row in rows_of(spark, query)] == [(1, 70, "7", False), (2, None, "8", True)]
