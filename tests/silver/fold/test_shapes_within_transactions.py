"""A table's shape changes inside a transaction, between its changes: one story for each table.

All tables share one database and one run. Each story's transactions run without a reader. Then the reader and
silver carry all transactions at once, and the test compares every table with the source's rows. A second
window repeats this, and begins with the result of the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.store.gaps import request_snapshots
from tests.bronze.replaying import current_lsn
from tests.bronze.shape_histories import stories
from tests.fix_postgres import drop_database, make_database
from tests.silver.hostile_names import HOSTILE, WINDOWS
from tests.silver.real_source import RealSource

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.postgres, pytest.mark.timeout(1500)]

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


EVERY = [*stories(), HOSTILE, AT_THE_END]


class Run:
    """Every story, run once, and the differences after each window."""

    def __init__(self, world: RealSource) -> None:
        self.world = world
        self.found: list[dict[str, str]] = []
        self.errors: list[dict[str, str]] = []

    def window(self, number: int) -> None:
        for story in stories().values():
            self.world.play(*story[number])
        self.world.play(*WINDOWS[number], *AT_THE_END_WINDOWS[number])
        if number == 1:
            with connect(self.world.source) as connection:
                now = current_lsn(connection)
            changes = f"{self.world.lake.path}/bronze/changes"
            request_snapshots(changes, [TableName("public", TAKEN_AGAIN)], now)
        self.world.read()
        self.world.fold()
        self.errors.append(self.world.errors())
        self.found.append(self.world.differences(EVERY))


@pytest.fixture(scope="module")
def run(spark: SparkSession, server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """Run all stories in one database."""
    dsn = make_database(server_dsn)
    world = RealSource(
        spark,
        dsn,
        str(tmp_path_factory.mktemp("shapes") / "lake"),
        history=["two_added", "unsent_swapped", "truncated_between_shapes"],
        exclude=["public.away_*"],
        keys={"public.not_unique": ["code"]},
    )
    world.play("CREATE SCHEMA elsewhere", NOT_UNIQUE)
    run = Run(world)
    for number in range(3):
        run.window(number)
    yield run
    world.close()
    drop_database(server_dsn, dsn)


@pytest.mark.parametrize("story", EVERY)
def test_silver_is_the_source(run: Run, story: str) -> None:
    assert {at: texts[story] for at, texts in enumerate(run.found) if story in texts} == {}


def test_a_copy_is_read_by_its_own_shape_although_the_stream_tells_of_an_earlier_one_later(run: Run) -> None:
    snapshots = [
        run_made for run_made in run.world.control.runs("silver", TAKEN_AGAIN) if run_made.mode == "snapshot"
    ]
    assert len(snapshots) == 2


def test_no_story_stopped_its_table(run: Run) -> None:
    errors = [{name: text for name, text in error.items() if name != "not_unique"} for error in run.errors]
    assert errors == [{}, {}, {}]


def test_a_key_that_does_not_identify_rows_stops_the_table_at_its_first_copy(run: Run) -> None:
    assert run.errors[0]["not_unique"].startswith("key-not-unique")
    assert run.world.cut is not None
    assert "not_unique" not in run.world.cut.tables
