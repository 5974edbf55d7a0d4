"""A table's shape changes inside a transaction, between its changes: one story for each table.

All tables share one database and one run. Each story's transactions run without a reader. Then the reader and
silver carry all transactions at once, and the test compares every table with the source's rows. A second
window repeats this, and begins with the result of the first. A run plays the stories of its tests alone.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.store.gaps import request_snapshots
from tests.bronze.replaying import current_lsn
from tests.bronze.shape_histories import AWAY, History, stories
from tests.fix_postgres import drop_database, make_database
from tests.marks import selected
from tests.silver.hostile_names import HOSTILE, WINDOWS
from tests.silver.real_source import RealSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(1200)]

NOT_UNIQUE = """\
CREATE TABLE not_unique (id int, code int NOT NULL);
ALTER TABLE not_unique REPLICA IDENTITY FULL;
INSERT INTO not_unique VALUES (1, 1), (2, 1), (3, 2)"""


AT_THE_END = "another_type_at_the_end"
AT_THE_END_WINDOWS = [
    [
        f"CREATE TABLE {AT_THE_END} (id int PRIMARY KEY, n int, code text)",
        f"INSERT INTO {AT_THE_END} SELECT i, i, i::text FROM generate_series(1, 4) i",
    ],
    [
        f"""BEGIN; UPDATE {AT_THE_END} SET code = '5' WHERE id = 1;
        ALTER TABLE {AT_THE_END} DROP code, ADD code int; UPDATE {AT_THE_END} SET n = 8 WHERE id = 2;
        UPDATE {AT_THE_END} SET code = 7 WHERE id = 3; COMMIT""",
    ],
    [f"UPDATE {AT_THE_END} SET n = 9 WHERE id = 1"],
]
"""Before and after the change of the last column, names and order are equal."""

TAKEN_AGAIN = "shape_before_a_copy"
"""A story with a second copy of the table, made before the stream announces a column that came and went."""

RANDOM = {f"random_{number}": 20261122 + number for number in range(2)}
"""Tables with random histories of rows and shapes, by name, and their seeds."""

ALIKE = {
    "unsent_renamed",
    "unsent_renamed_full",
    "added_and_dropped",
    "dropped_and_added_of_the_same_type",
    "renamed_away_and_back",
    "renamed_out_of_the_patterns_and_back",
    "key_changed_first",
    AT_THE_END,
}
"""Stories that silver folds by the statements of another story: torture.

Bronze distinguishes these stories, and `tests/bronze/reader/test_shapes_within_transactions.py` folds each.
"""


def all_windows() -> dict[str, list[list[str]]]:
    """Return the three windows of each table, each a list of transactions."""
    windows = {**stories(), HOSTILE: WINDOWS, AT_THE_END: AT_THE_END_WINDOWS}
    for name, seed in RANDOM.items():
        history = History(name, random.Random(seed))
        windows[name] = [history.begin(), history.transactions(), history.transactions()]
    return windows


EVERY = [*stories(), HOSTILE, AT_THE_END, *RANDOM]
HISTORY = {"two_added", "truncated_between_shapes"}


class Run:
    """The stories, run once, and the differences after each window."""

    def __init__(self, world: RealSource, names: set[str]) -> None:
        self.world = world
        self.windows = {name: windows for name, windows in all_windows().items() if name in names}
        self.found: list[dict[str, str]] = []
        self.errors: list[dict[str, str]] = []

    def window(self, number: int) -> None:
        for windows in self.windows.values():
            self.world.play(*windows[number])
        if number == 1 and TAKEN_AGAIN in self.windows:
            with connect(self.world.source) as connection:
                now = current_lsn(connection)
            changes = f"{self.world.lake.path}/bronze/changes"
            request_snapshots(changes, [TableName("public", TAKEN_AGAIN)], now)
        self.world.read()
        self.world.fold()
        self.errors.append(self.world.errors())
        self.found.append(self.world.differences(self.windows))


@pytest.fixture(scope="module")
def run(
    spark: SparkSession,
    server_dsn: str,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[Run]:
    """Run the selected stories in one database."""
    names = selected(request, "story") or {*EVERY}
    dsn = make_database(server_dsn)
    world = RealSource(
        spark,
        dsn,
        str(tmp_path_factory.mktemp("shapes") / "lake"),
        history=sorted(HISTORY & names),
        exclude=[f"public.{AWAY}*"],
        keys={"public.not_unique": ["code"]},
    )
    world.play("CREATE SCHEMA elsewhere", NOT_UNIQUE)
    run = Run(world, names)
    for number in range(3):
        run.window(number)
    yield run
    world.close()
    drop_database(server_dsn, dsn)


@pytest.mark.parametrize(
    "story", [pytest.param(name, marks=[pytest.mark.torture] if name in ALIKE else []) for name in EVERY]
)
def test_silver_is_the_source(run: Run, story: str) -> None:
    wrong = {number: texts[story] for number, texts in enumerate(run.found) if story in texts}
    assert wrong == {}, "\n".join(text for window in run.windows[story] for text in window)


def test_copy_is_read_by_its_own_shape(run: Run) -> None:
    """The stream announces an earlier shape only after the copy."""
    snapshots = [
        run_made for run_made in run.world.control.runs("silver", TAKEN_AGAIN) if run_made.mode == "snapshot"
    ]
    assert len(snapshots) == 2


def test_no_story_stopped_its_table(run: Run) -> None:
    errors = [{name: text for name, text in error.items() if name != "not_unique"} for error in run.errors]
    assert errors == [{}, {}, {}]


def test_table_with_equal_keys_stops_at_once(run: Run) -> None:
    assert run.errors[0]["not_unique"].startswith("key-not-unique")
    assert run.world.cut is not None
    assert "not_unique" not in run.world.cut.tables
