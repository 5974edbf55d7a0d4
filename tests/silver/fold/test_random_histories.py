"""Random histories in many key spaces, cut at random points: after every cut silver equals the source.

Each key space has a separate history: keys of two spaces never meet. So one run of Spark compares the fold
with the row machine over as many histories as all tables have spaces, at every cut. The test compares the
history table also at every commit in between.
"""

from __future__ import annotations

import random
from collections import defaultdict
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.silver.run import key_ranges, step_runner
from tests.silver.histories import random_tables
from tests.silver.lakes import Lakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake
    from tests.silver.histories import BronzeWriter, RandomTable

LONG = (20241122, 500)
"""The seed of a long run, and the number of key spaces of each table."""

TORTURE = pytest.param(*LONG, marks=pytest.mark.torture)


@pytest.fixture(autouse=True)
def ranged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each MERGE into a small table its key ranges as literals, as a MERGE into a large table has."""
    monkeypatch.setattr(step_runner, "_RANGED_ABOVE", -1)
    monkeypatch.setattr(key_ranges, "_RANGES_ABOVE", 1)
    monkeypatch.setattr(key_ranges, "_RANGE_HOLDS", 2.0)


def check(lakes: Lakes, tables: list[RandomTable], seed: int) -> None:
    """Compare rows, soft-deleted rows and versions of every table with the row machine."""

    def read(lake: Lake, name: str, *more: str) -> list[tuple[Any, ...]]:
        """Return the table's own columns and further columns, sorted."""
        stored = lakes.held(lake, name)
        return sorted(((*table.cells(row), *(row[column] for column in more)) for row in stored), key=repr)

    for table in tables:
        name = table.shape.table.silver_name
        label = f"{name} at {table.lsn}, seed {seed}"
        if lakes.silvers[0] is not None:
            assert read(lakes.plain, name) == table.expected(), label
        if lakes.silvers[1] is None:
            continue
        assert read(lakes.kept, name, "_deleted") == table.expected_soft(), label
        check_past(table, read(lakes.kept, f"{name}__history", "_valid_from_lsn", "_valid_to_lsn"), label)


def check_past(table: RandomTable, versions: list[tuple[Any, ...]], message: str) -> None:
    """Check that the versions valid at every commit equal the rows at the commit."""
    begins: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    ends: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for version in versions:
        row, valid_from, valid_to = version[:-2], version[-2], version[-1]
        assert valid_to is None or valid_from < valid_to, message
        begins[valid_from].append(row)
        if valid_to is not None:
            ends[valid_to].append(row)
    holding: dict[tuple[Any, ...], int] = defaultdict(int)
    rows: list[tuple[Any, ...]] = []
    for lsn in sorted({*begins, *ends, *table.past}):
        for row in ends[lsn]:
            holding[row] -= 1
        for row in begins[lsn]:
            holding[row] += 1
        rows = table.past.get(lsn, rows)
        assert dict.fromkeys(rows, 1) == {row: n for row, n in holding.items() if n}, (
            f"{message}, as of {lsn}"
        )


class Source:
    """All tables of a source, whose transactions go into bronze."""

    def __init__(self, tables: list[RandomTable], bronze: BronzeWriter) -> None:
        self.tables, self.bronze, self.lsn = tables, bronze, 10
        bronze.relations([table.shape for table in tables])
        for table in tables:
            bronze.snapshot(table.shape, 10, [])

    def transaction(self, *, truncated: Sequence[RandomTable] = ()) -> None:
        """Write one transaction over all tables; a TRUNCATE is in the middle of the transaction."""
        self.lsn += 10
        changes = [change for table in self.tables for change in table.transaction(self.lsn)]
        for table in truncated:
            table.lsn, table.changes = self.lsn, changes
            table.truncate()
            for space in range(0, table.spaces, 2):
                table._insert(space)
        self.bronze.add(self.lsn, changes)
        for table in self.tables:
            table.note(self.lsn)

    def taken_again(self, table: RandomTable) -> None:
        """Write a snapshot at the source's present LSN."""
        self.bronze.snapshot(table.shape, self.lsn, table.tuples())


def cycles(
    lakes: Lakes,
    tables: list[RandomTable],
    run: tuple[int, int],
    *,
    emptied: Sequence[Sequence[RandomTable]],
    again: Sequence[RandomTable],
) -> None:
    """Run windows of random length, the later ones with TRUNCATEs; in the last, some tables have a snapshot.

    The last window contains every kind of step, and `fresh` reads it before the cycle. In a long run `fresh`
    reads all windows.

    Args:
        lakes: the lakes to carry.
        tables: the tables of the source.
        run: the seed, and the number of key spaces.
        emptied: the emptied tables by window; the second window empties its tables three times.
        again: the tables with a snapshot in the middle of the last window.
    """
    source = Source(tables, lakes.bronze)
    rng = random.Random(run[0])
    for number, truncated in enumerate(emptied):
        last = number == len(emptied) - 1
        for transaction in range(7 if number == 1 else rng.randint(2, 6)):
            source.transaction(truncated=truncated if transaction % 2 else ())
        if last:
            for table in again:
                source.taken_again(table)
            source.transaction()
            source.transaction()
        lakes.bronze.commit(source.lsn)
        lakes.cycle(source.lsn, look=last or run == LONG)
        check(lakes, tables, run[0])
    assert {silver.cycle() for silver in lakes.silvers if silver is not None} == {None}


@pytest.mark.spark
@pytest.mark.parametrize(("seed", "spaces"), [TORTURE])
def test_histories_and_soft_deletes_are_the_source(
    spark: SparkSession, lake_path: str, seed: int, spaces: int
) -> None:
    """`test_versions` folds a story of each kind; `test_versions_killed` kills the cycles."""
    tables = random_tables(seed, spaces)[:3]
    lakes = Lakes(spark, lake_path, [table.shape for table in tables], plain=False, looked=True)
    cycles(lakes, tables, (seed, spaces), emptied=[[], tables[:1], tables[1:2]], again=tables[-1:])
    plans = [run.details["plan"] for run in lakes.controls[1].runs("silver") if run.to_lsn is not None]
    assert ["versions"] in plans, "TRUNCATEs in a window do not part it"
    assert ["versions", "versions"] in plans, "a snapshot in a window parts it"


@pytest.mark.spark
@pytest.mark.parametrize(("seed", "spaces"), [(20241121, 150), TORTURE])
def test_rows_of_all_identities_are_the_source(
    spark: SparkSession, lake_path: str, seed: int, spaces: int
) -> None:
    tables = random_tables(seed, spaces)
    lakes = Lakes(spark, lake_path, [table.shape for table in tables], kept=False, looked=True)
    emptied = [[], tables[::3], tables[1:2]] if spaces == LONG[1] else [[], tables[::3]]
    cycles(lakes, tables, (seed, spaces), emptied=emptied, again=tables[2::2])
    plans = {str(run.details["plan"]) for run in lakes.controls[0].runs("silver")}
    assert plans == {"['load']", "['merge']"}
