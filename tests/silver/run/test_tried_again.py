"""Silver retries work that failed for a passing reason, and succeeds: one lake, window by window.

Pauses have no length in this module, so that each cycle is an attempt.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest
from pyspark.sql import SparkSession

from deltasmelt.bronze import backoff
from deltasmelt.bronze.effects import Effect, guarded
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.bronze_window import Source
from deltasmelt.silver.schema.ddl import BY_NAME, MAPPING
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, BronzeWriter, damage, insert, relation
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deltasmelt.bronze.lake.control import Cut

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PLAIN = (("id", INT), ("note", TEXT))
calm = relation("calm", PLAIN, ["id"], relation_id=1)
hand = relation("hand", PLAIN, ["id"], relation_id=2)
hand_then = relation("hand", [*PLAIN, ("more", TEXT)], ["id"], relation_id=2, from_lsn=30)
keyed = relation("keyed", PLAIN, ["id"], relation_id=3)
taken = relation("taken", PLAIN, ["id"], relation_id=4)
taken_then = relation("taken", PLAIN, ["id"], relation_id=5, from_lsn=15)
told = relation("told", PLAIN, ["id"], relation_id=6)


@dataclass
class Window:
    """The result of a cycle.

    Attributes:
        tables: in the newest cut.
        errors: code by table.
        kept: (lowest LSN, relations) of the cached changes.
    """

    tables: set[str]
    errors: dict[str, str]
    kept: list[tuple[int, set[int]]] = field(default_factory=list)


class Tried:
    """The lake, and every window by its name."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.spark, self.lake = spark, Lake(path)
        self.bronze, self.control = BronzeWriter(self.lake), ControlTables(self.lake)
        settings = SilverSettings(history=["public.told"])
        self.silver = Silver(spark, self.lake, settings, self.control)
        self.windows: dict[str, Window] = {}

    def sql(self, text: str) -> None:
        self.spark.sql(text).collect()

    def address(self, name: str) -> str:
        return self.lake.sql("silver", name)

    def rows(self, name: str, columns: str = "id, note") -> list[tuple[Any, ...]]:
        return cells_at(self.spark, self.lake, name, columns)

    def clustered_by(self, name: str) -> list[str]:
        columns: list[str] = self.spark.sql(f"DESCRIBE DETAIL {self.address(name)}").collect()[0][
            "clusteringColumns"
        ]
        return columns

    def window(self, name: str, lsn: int) -> Cut:
        self.bronze.commit(lsn)
        windows: list[tuple[int, set[int]]] = []
        keep = Source.keep

        def spied(source: Source, *args: Any, **named: Any) -> str:
            windows.append((int(named["low"]), set(named["relations"])))
            return keep(source, *args, **named)

        with patch.object(Source, "keep", spied):
            self.silver.cycle()
        cut = self.control.latest_cut("silver")
        assert cut is not None
        errors = {error.name.removeprefix("public."): error.code for error in self.control.open_errors()}
        self.windows[name] = Window(set(cut.tables), errors, windows)
        return cut


def without_clustering(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return Spark's `sql` without the statement that clusters `keyed`."""

    def sql(self: SparkSession, text: str, *args: Any, **named: Any) -> Any:
        if "CLUSTER BY" in text and "keyed" in text and "ALTER" in text:
            raise RuntimeError("no clustering today")
        return original(self, text, *args, **named)

    return sql


def out_of_reach(door: Effect, where: str, effect: Callable[[], Any]) -> Any:
    """Fail to open the lake's changes."""
    if door is Effect.OPEN_TABLE and where.endswith("bronze/changes"):
        raise OSError("Generic S3 error: connection reset by peer")
    return effect()


@pytest.fixture(scope="module")
def tried(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tried]:
    with pytest.MonkeyPatch.context() as monkey:
        monkey.setattr(backoff, "FIRST_SECONDS", 0.0)
        built = Tried(spark, str(tmp_path_factory.mktemp("tried")))
        play(built)
        yield built
        built.silver.close()


def play(tried: Tried) -> None:
    """Run all windows."""
    bronze = tried.bronze
    bronze.relations([calm, hand, keyed, taken, taken_then, told])
    for shape in (calm, hand, keyed, taken, told):
        bronze.snapshot(shape, 10, [["1", "a"]])
    bronze.add(16, [insert(taken_then, "2", "of another table")])
    tried.window("first", 20)

    tried.sql(f"ALTER TABLE {tried.address('hand')} ADD COLUMNS (more STRING)")
    bronze.relations([hand_then])
    bronze.add(31, [insert(calm, "2", "b"), insert(hand_then, "2", "b", "m"), insert(keyed, "2", "b")])
    bronze.snapshot(taken_then, 32, [["1", "c"], ["2", "of another table"]])
    bronze.snapshot(keyed, 33, [["1", "a"], ["2", "b"], ["3", "c"]])
    with patch.object(SparkSession, "sql", without_clustering(SparkSession.sql)):
        tried.window("by hand", 40)
        assert tried.clustered_by("keyed") == []

    bronze.add(45, [insert(calm, "3", "c")])
    with patch(
        "deltasmelt.silver.run.bronze_window._ROWS", 3
    ):  # what came since the last cut is little, since `hand` stopped not
        tried.window("lagging", 50)

    tried.sql(f"ALTER TABLE {tried.address('hand')} SET TBLPROPERTIES ('{MAPPING}' = '{BY_NAME}')")
    tried.sql(f"ALTER TABLE {tried.address('hand')} DROP COLUMN more")
    bronze.add(55, [insert(calm, "4", "d")])
    tried.window("undone", 60)

    tried.sql(f"ALTER TABLE {tried.address('told__history')} ADD CONSTRAINT small CHECK (id < 100)")
    bronze.add(61, [insert(told, "500", "e")])
    bronze.snapshot(told, 65, [["1", "a"], ["3", "f"]])
    with guarded(out_of_reach), pytest.raises(TransientError, match="connection reset"):
        tried.window("lake away", 70)
    assert tried.control.open_errors() == [], "no table's trouble"
    tried.window("constrained", 71)
    tried.window("left out", 72)

    bronze.add(75, [insert(calm, "5", "e"), insert(keyed, "4", "d")])
    bronze.commit(75)
    files = Path(tried.lake.uri("bronze", CHANGES)).glob("*.parquet")
    path = max(files, key=lambda file: file.stat().st_mtime_ns)
    content = path.read_bytes()
    damage(path, "new.list.element")
    tried.window("damaged", 76)
    path.write_bytes(content)
    tried.window("restored", 77)


def test_table_changed_by_hand_resumes_when_undone(tried: Tried) -> None:
    assert tried.windows["by hand"].errors == {"hand": "table-failed"}
    assert "hand" not in tried.windows["by hand"].tables
    assert tried.windows["undone"].errors == {}
    assert tried.rows("hand", "id, note, more") == [(1, "a", None), (2, "b", "m")]


def test_table_is_clustered_later(tried: Tried) -> None:
    assert "keyed" in tried.windows["by hand"].tables
    assert tried.rows("keyed")[:3] == [(1, "a"), (2, "b"), (3, "c")]
    assert tried.clustered_by("keyed") == ["id"]


def test_table_begins_with_its_own_copy(tried: Tried) -> None:
    assert tried.windows["first"].tables == {"calm", "hand", "keyed", "told", "told__history"}
    assert "taken" in tried.windows["by hand"].tables
    assert tried.rows("taken") == [(1, "c"), (2, "of another table")]


def test_lagging_table_is_read_alone(tried: Tried) -> None:
    """The window of all other tables stays small, and a single read serves all."""
    ((low, relations),) = tried.windows["lagging"].kept
    assert low == 40
    assert 2 not in relations
    assert 1 in relations
    assert tried.rows("calm")[:4] == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


def test_silent_lake_is_no_tables_trouble(tried: Tried) -> None:
    assert tried.windows["constrained"].errors == {"told": "table-failed"}
    assert tried.windows["constrained"].tables == {"calm", "hand", "keyed", "taken"}


def test_damaged_values_fail_tables_with_changes(tried: Tried) -> None:
    """Counting reads no value, so each table's own statement fails; the cut has all other tables."""
    assert tried.windows["damaged"].errors == dict.fromkeys(("calm", "keyed"), "table-failed")
    assert tried.windows["damaged"].tables == {"hand", "taken", "told", "told__history"}
    assert tried.windows["restored"].errors == {}
    assert tried.rows("calm")[4:] == [(5, "e")]
    assert tried.rows("keyed")[3:] == [(4, "d")]


def test_failing_changes_before_copy_are_left_out(tried: Tried) -> None:
    assert tried.windows["left out"].errors == {}
    assert {"told", "told__history"} <= tried.windows["left out"].tables
    assert tried.rows("told") == [(1, "a"), (3, "f")]
    versions = tried.rows("told__history", "id, note, _valid_to_lsn")
    assert [cells for *cells, ended in versions if ended is None] == [[1, "a"], [3, "f"]]
    run = tried.control.runs("silver", "told__history", limit=1)[0]
    assert "DELTA_VIOLATE_CONSTRAINT" in str(run.details)
