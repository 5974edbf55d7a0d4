"""If a shape changes inside a transaction, every value stays in its column, by the row's place.

`tests.silver` carries these histories to silver.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.errors import TransientError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.store.gaps import is_open
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.bronze.store.table_marks import TableMarks
from tests.bronze.attnums import Fold
from tests.bronze.replaying import bronze_rows, execute, read_all, source_of, source_rows
from tests.bronze.running import Running
from tests.bronze.shape_histories import AWAY, History, stories
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lsn import Lsn

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(600)]

SEED = 7


@pytest.fixture
def source(database: str) -> SourceSettings:
    return source_of(database, tables=["public.*"], exclude=[f"public.{AWAY}*"])


def assert_folds(source: SourceSettings, lake_path: str, played: dict[str, list[str]]) -> None:
    changes, versions = bronze_rows(lake_path), read_relations(Lake(lake_path))
    bronze = delta.open_existing(f"{lake_path}/bronze/changes")
    with connect(source) as connection:
        tables = select_tables(connection, source)
    wrong = []
    for table in tables:
        assert not is_open(bronze, table.table), f"{table.table} waits for a copy"
        report = "\n  ".join([str(table.table), *played.get(table.table.name, [])])
        try:
            folded = sorted(Fold(table.relation, versions, changes).rows(), key=repr)
        except Exception as error:
            error.add_note(report)
            raise
        expected = sorted(source_rows(source, table.table), key=repr)
        if folded != expected:
            differences = [
                [row for row in rows if row not in second_rows]
                for rows, second_rows in ((folded, expected), (expected, folded))
            ]
            wrong.append(f"{report}\n{differences}")
    assert not wrong, "\n\n".join(wrong)


def test_stories_fold_to_the_source(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE SCHEMA elsewhere")
    for number in range(3):
        for story in stories().values():
            execute(source, *story[number])
        read_all(source, lake_path)
        assert_folds(source, lake_path, {name: story[number] for name, story in stories().items()})


def test_unmarked_gap_is_marked_by_next_session(
    source: SourceSettings, lake_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY, v int)", "INSERT INTO t VALUES (1, 1)")
    marked: list[list[TableName]] = []
    open_gaps = TableMarks.open_gaps

    def fails_once(marks: TableMarks, tables: Sequence[TableName], lsn: Lsn, *, beyond: bool = False) -> None:
        if beyond:
            marked.append(list(tables))
        if beyond and len(marked) == 1:
            raise TransientError("no space left", code="lake-unwritable", where="the lake", remedy="wait")
        open_gaps(marks, tables, lsn, beyond=beyond)

    read_all(source, lake_path)
    monkeypatch.setattr(TableMarks, "open_gaps", fails_once)
    with Running(source, lake_path) as running:
        execute(source, "BEGIN; ALTER TABLE t ALTER v TYPE bigint USING v + 1; UPDATE t SET v = 5; COMMIT")
        wait_for(lambda: len(marked) > 1)
        assert running.error is None
    read_all(source, lake_path)
    assert_folds(source, lake_path, {})


@pytest.mark.parametrize(
    ("seed", "tables", "rounds"),
    [
        (SEED, 8, 2),
        pytest.param(SEED, 20, 2, marks=pytest.mark.torture),
        *(pytest.param(SEED + offset, 50, 4, marks=pytest.mark.torture) for offset in range(1, 6)),
    ],
)
def test_any_shapes_in_any_transactions(
    source: SourceSettings, lake_path: str, seed: int, tables: int, rounds: int
) -> None:
    rng = random.Random(seed)
    histories = [History(f"t{number}", random.Random(rng.random())) for number in range(tables)]
    for history in histories:
        execute(source, *history.begin())
    read_all(source, lake_path)
    for round_ in range(rounds):
        played = {history.name: history.transactions() for history in histories}
        if round_ % 2:
            with Running(source, lake_path) as running:
                for transactions in played.values():
                    execute(source, *transactions)
                assert running.error is None
        else:
            for transactions in played.values():
                execute(source, *transactions)
        read_all(source, lake_path)
        assert_folds(source, lake_path, played)
