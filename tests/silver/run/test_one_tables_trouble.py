"""A statement at the source, or a user's change of the lake, stops one table: all others continue.

Each table has one kind of trouble. Silver folds all tables of a lake together, so each cycle also shows that
no trouble spreads.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze import backoff
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType, Relation
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, BronzeWriter, insert, relation
from tests.silver.stored import cells_at

if TYPE_CHECKING:
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
orders = relation("orders", PLAIN, ["id"], relation_id=10)
rival = relation("orders__history", PLAIN, ["id"], relation_id=11)
CLASHING = {"orders", "orders__history"}
"""A table with a history, and a table with the history's name until the source drops the second table."""

TROUBLES = {
    "calm": Trouble(calm, [["1", "a"]], [], [(41, insert(calm, "2", "b"))]),
    "cased": Trouble(cased, [["1", "a"]], [cased_then], [(40, insert(cased_then, "2", "b"))]),
    "key_dropped": Trouble(
        dropped, [["1", "b", "x"]], [dropped_then], [(40, insert(dropped_then, "2", "y"))]
    ),
    "key_retyped": Trouble(retyped, [["1", "b", "x"]], [retyped_then]),
    "swap": Trouble(swap_old, [["1", "old"]], [], code="table-recreated"),
    "swap_new": Trouble(
        swap_new, [["5", "new"]], [swap_then], [(41, insert(swap_then, "6", "new"))],
        [["5", "new"], ["6", "new"]],
    ),
    "by_hand": Trouble(
        by_hand, [["1", "a"]], [by_hand_then], [(40, insert(by_hand_then, "2", "b", "m"))],
        [["1", "a", None], ["2", "b", "m"]], "table-failed",
    ),
    "overridden": Trouble(
        overridden, [["1", "{a,b}"]], [overridden_then], [(40, insert(overridden_then, "2", "c"))],
        [["1", "{a,b}"], ["2", "{c}"]], "type-override",
    ),
    "guarded": Trouble(guarded, [["1", "a"]], [], [(41, insert(guarded, "500", "b"))], None, "table-failed"),
    "orders": Trouble(orders, [["1", "a"]], []),
    "orders__history": Trouble(rival, [["2", "b"]], []),
}  # fmt: skip
BACK = {"overridden": overridden_back, "swap_new": swap_then, "by_hand": by_hand_then}


class Stage:
    """A lake with all tables, carried through three windows."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.lake = spark, Lake(path=path)
        self.bronze, self.control = BronzeWriter(self.lake), ControlTables(self.lake)
        settings = SilverSettings(
            on_drop_column="drop",
            types={"public.overridden.tags": "array<string>"},
            history=["public.orders"],
        )
        self.silver = Silver(spark, self.lake, settings, self.control)

    def sql(self, statement: str) -> list[Any]:
        return self.spark.sql(statement).collect()

    def address(self, name: str) -> str:
        return self.lake.sql("silver", name)

    def first(self) -> Cut | None:
        self.bronze.relations([trouble.first for trouble in TROUBLES.values()])
        for trouble in TROUBLES.values():
            self.bronze.snapshot(trouble.first, 10, trouble.rows)
        self.bronze.commit(20)
        cut = self.silver.cycle()
        self.sql(f"ALTER TABLE {self.address('by_hand')} ADD COLUMNS (more STRING)")
        self.sql(f"ALTER TABLE {self.address('guarded')} ADD CONSTRAINT small CHECK (id < 100)")
        return cut

    def second(self) -> Cut | None:
        self.bronze.left_out(rival)
        for trouble in TROUBLES.values():
            self.bronze.relations(trouble.then)
        for lsn in sorted({lsn for trouble in TROUBLES.values() for lsn, _ in trouble.changes}):
            self.bronze.add(
                lsn, [row for trouble in TROUBLES.values() for at, row in trouble.changes if at == lsn]
            )
        self.bronze.snapshot(retyped_then, 45, [["1", "7", "x"], ["2", "8", "y"]])
        self.bronze.commit(50)
        return self.silver.cycle()

    def third(self) -> Cut | None:
        for name, trouble in TROUBLES.items():
            if trouble.healed is not None:
                self.bronze.relations([BACK[name]])
                self.bronze.snapshot(BACK[name], 60, trouble.healed)
        self.sql(f"ALTER TABLE {self.address('guarded')} DROP CONSTRAINT small")
        self.bronze.commit(70)
        return self.silver.cycle()


@dataclass
class Outcome:
    """The cuts of the windows, and the open errors after each window, by table."""

    stage: Stage
    cuts: list[Cut]
    errors: list[dict[str, tuple[str, str]]]

    def rows(self, name: str, columns: str, window: int = -1) -> list[tuple[Any, ...]]:
        return self.at(name, columns, self.cuts[window].tables[name])

    def at(self, name: str, columns: str, version: int) -> list[tuple[Any, ...]]:
        return cells_at(self.stage.spark, self.stage.lake, name, columns, version)


@pytest.fixture(scope="module")
def outcome(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    result = Outcome(Stage(spark, str(tmp_path_factory.mktemp("lake"))), [], [])
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
        set(TROUBLES) - CLASHING, set(TROUBLES) - set(codes) - renamed, set(TROUBLES) - renamed,
    ]  # fmt: skip
    assert outcome.rows("calm", "id, note", 1) == [(1, "a"), (2, "b")]


def test_clash_with_a_history_stops_both(outcome: Outcome) -> None:
    codes = {name: code for name, (code, _) in outcome.errors[0].items()}
    assert codes == dict.fromkeys(CLASHING, "silver-settings-clash")
    assert outcome.rows("orders", "id, note") == [(1, "a")]
    assert outcome.rows("orders__history", "id, note, _valid_from_lsn, _valid_to_lsn") == [(1, "a", 10, None)]


def test_all_of_them_heal(outcome: Outcome) -> None:
    assert outcome.errors[2] == {}
    assert outcome.rows("guarded", "id, note") == [(1, "a"), (500, "b")]
    assert outcome.rows("overridden", "id, tags") == [(1, ["a", "b"]), (2, ["c"])]


def test_unknown_failure_keeps_its_own_words(outcome: Outcome) -> None:
    message = outcome.errors[1]["guarded"][1]
    assert "CHECK constraint small (id < 100) violated" in message
    assert message.startswith("the table could not be updated: [DELTA_")


def test_names_that_change_their_case_alone(outcome: Outcome) -> None:
    assert outcome.rows("cased", "id, userid", 1) == [(1, "a"), (2, "b")]
    assert outcome.stage.spark.table(outcome.stage.address("cased")).columns[:2] == ["id", "userid"]


def test_former_key_columns_change_or_go(outcome: Outcome) -> None:
    assert outcome.rows("key_dropped", "a, note") == [(1, "x"), (2, "y")]
    assert "b" not in outcome.stage.spark.table(outcome.stage.address("key_dropped")).columns
    assert outcome.rows("key_retyped", "a, b, note") == [(1, 7, "x"), (2, 8, "y")]
    for name in ("key_dropped", "key_retyped"):
        row = outcome.stage.sql(f"DESCRIBE DETAIL {outcome.stage.address(name)}")[0]
        assert row["clusteringColumns"] == ["a"]


def test_tables_that_swap_names_mix_nothing(outcome: Outcome) -> None:
    assert outcome.at("swap", "id, note", 1) == [(1, "old")]
    assert "another table now has this name" in outcome.errors[1]["swap"][1]
    assert outcome.rows("swap", "id, note") == [(5, "new"), (6, "new")]


def test_column_added_by_hand_is_kept_aside(outcome: Outcome) -> None:
    assert "silver.by_hand has its own column more" in outcome.errors[1]["by_hand"][1]
    assert outcome.rows("by_hand", "id, note, more, more__former") == [
        (1, "a", None, None),
        (2, "b", "m", None),
    ]
