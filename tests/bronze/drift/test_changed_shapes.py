"""Tables whose shape changes while the stream lags: every value stays in the right column at any time.

The stream names columns without attnum, and the catalog may be ahead of the stream by any number of
statements. `tests.pipelines.whole.test_end_to_end` runs some of these histories with silver.
"""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.shapes import same_shape
from deltasmelt.bronze.store.gaps import is_open
from deltasmelt.bronze.store.position import position_of
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.attnums import Fold
from tests.bronze.replaying import bronze_rows, execute, read_all, session, source_of, source_rows
from tests.bronze.running import Running
from tests.bronze.shape_histories import AWAY, ELSEWHERE, KINDS, UNLOGGED_KINDS, History
from tests.patience import wait_for

if TYPE_CHECKING:
    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]

STORIES = Path(__file__).parents[1] / "changed_shapes.sql"


@pytest.fixture
def source(database: str) -> SourceSettings:
    return source_of(database, tables=["*.*"])


def stories() -> tuple[str, list[list[str]]]:
    schema, *steps = STORIES.read_text().split("--- step\n")
    return schema, [[statement for statement in step.split("\n\n") if statement.strip()] for step in steps]


def differences(source: SourceSettings, lake_path: str) -> dict[str, str]:
    """Return by table the differences between bronze and the source: in rows, or in the present shape."""
    changes, versions = bronze_rows(lake_path), read_relations(Lake(lake_path))
    bronze = delta.open_existing(f"{lake_path}/bronze/changes")
    with connect(source) as connection:
        tables = select_tables(connection, source)
    position = position_of(bronze)
    assert position is not None
    versions = [version for version in versions if version.from_lsn <= position.frontier]
    wrong = {}
    for table in tables:
        name = str(table.table)
        if is_open(bronze, table.table):
            wrong[name] = f"it waits for a copy: {table.problem}"
            continue
        newest = [version for version in versions if version.relation_id == table.relation.relation_id][-1]
        if not same_shape(newest, table.relation):
            wrong[name] = f"its shape is {newest}, not {table.relation}"
            continue
        folded = sorted(Fold(table.relation, versions, changes).rows(), key=repr)
        expected = sorted(source_rows(source, table.table), key=repr)
        if folded != expected:
            wrong[name] = f"bronze {_short(folded)}\nsource {_short(expected)}"
    return wrong


def _short(rows: list[dict[str, str | None]]) -> list[dict[str, str | None]]:
    return [{name: text and text[:12] for name, text in row.items()} for row in rows]


def assert_values_are_in_their_columns(source: SourceSettings, lake_path: str) -> None:
    assert differences(source, lake_path) == {}


def test_no_reader_ran_meanwhile(source: SourceSettings, lake_path: str) -> None:
    schema, steps = stories()
    execute(source, schema)
    read_all(source, lake_path)
    for step in steps:
        execute(source, *step)
        read_all(source, lake_path)
        assert_values_are_in_their_columns(source, lake_path)


def test_a_reader_runs_meanwhile(source: SourceSettings, lake_path: str) -> None:
    schema, steps = stories()
    execute(source, schema)
    for step in steps:
        with Running(source, lake_path) as running, session(source) as connection:
            for transaction in step:
                connection.execute(transaction.encode())
                time.sleep(0.05)
            assert running.error is None
        read_all(source, lake_path)
        assert_values_are_in_their_columns(source, lake_path)


def test_a_changed_shape_is_recorded_within_seconds(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY, a text)", "INSERT INTO t VALUES (1, 'one')")
    read_all(source, lake_path)

    def names() -> list[str]:
        position = position_of(delta.open_existing(f"{lake_path}/bronze/changes"))
        assert position is not None
        versions = [
            relation for relation in read_relations(Lake(lake_path)) if relation.from_lsn <= position.frontier
        ]
        return [column.name for column in versions[-1].columns]

    with Running(source, lake_path) as running:
        time.sleep(1.5)  # the watch knows the catalog, and the heartbeat is far
        execute(source, "ALTER TABLE t RENAME a TO b")
        wait_for(lambda: names() == ["id", "b"], 15)
        execute(source, "ALTER TABLE t ADD c int")
        wait_for(lambda: names() == ["id", "b", "c"], 15)
        assert running.error is None


def test_a_locked_shape_waits_for_another_look(source: SourceSettings, lake_path: str) -> None:
    source = source.with_timing(Timing(member_lock=0.1, members_lock=0.15))
    names = ["t", "u", "v"]
    for name in names:
        execute(source, f"CREATE TABLE {name} (id int PRIMARY KEY, a text)", f"INSERT INTO {name} VALUES (1)")
    read_all(source, lake_path)
    execute(source, *(f"ALTER TABLE {name} RENAME a TO b" for name in names))
    with session(source) as connection, connection.transaction():
        connection.execute("LOCK TABLE t, u")
        read_all(source, lake_path)
        assert set(differences(source, lake_path)) == {"public.t", "public.u"}
    read_all(source, lake_path)
    assert_values_are_in_their_columns(source, lake_path)


def test_a_look_ahead_hides_no_column(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1), (2), (3)")
    read_all(source, lake_path)
    execute(
        source, "ALTER TABLE t ADD a text", "UPDATE t SET a = 'gone' WHERE id < 3", "ALTER TABLE t DROP a"
    )
    stop = threading.Event()

    def end_after_the_look(point: str) -> None:
        if point == "stream-starting":
            stop.set()

    read_all(source, lake_path, reached=end_after_the_look, stop=stop)
    assert stop.is_set()
    execute(source, "ALTER TABLE t ADD a text", "UPDATE t SET a = 'stays' WHERE id = 3")
    read_all(source, lake_path)
    assert_values_are_in_their_columns(source, lake_path)


def test_a_schema_renamed_before_a_copy_is_followed(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE SCHEMA former", "CREATE TABLE former.t (id int PRIMARY KEY)")
    execute(source, "INSERT INTO former.t VALUES (1)")
    renamed: list[str] = []

    def rename(point: str) -> None:
        if point == "snapshot-exported" and not renamed:
            renamed.append("later")
            execute(source, "ALTER SCHEMA former RENAME TO later")

    read_all(source, lake_path, reached=rename)
    assert renamed
    assert_values_are_in_their_columns(source, lake_path)


def test_rows_in_doubt_come_with_a_gap(source: SourceSettings, lake_path: str) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)")
    read_all(source, lake_path)
    # Nobody knows any more which column was called v when the row was written.
    execute(source, "ALTER TABLE t ADD v int", "INSERT INTO t VALUES (1, 8)", "ALTER TABLE t DROP v")
    verdicts: list[bool] = []

    def look(point: str) -> None:
        ops = [row["op"] for row in bronze_rows(lake_path)] if point == "committed" else []
        if "insert" in ops:
            bronze = delta.open_existing(f"{lake_path}/bronze/changes")
            verdicts.append(is_open(bronze, TableName("public", "t")) or ops.count("snapshot_end") == 2)

    read_all(source, lake_path, reached=look)
    assert verdicts
    assert all(verdicts)
    assert_values_are_in_their_columns(source, lake_path)


def play_histories(source: SourceSettings, lake_path: str, seed: int, *, tables: int, rounds: int) -> None:
    """Run histories of many tables in many rounds; in every second round a reader runs in parallel.

    The seed also decides the kind of the publication: tables by name, all tables, or the schema.
    """
    chance, kinds = random.Random(seed), (*KINDS, *UNLOGGED_KINDS)
    everywhere = ("", "FOR ALL TABLES", "FOR TABLES IN SCHEMA public")[seed % 3]
    histories = [
        History(f"t{number}", random.Random(chance.random()), kinds, everywhere=bool(everywhere))
        for number in range(tables)
    ]
    execute(source, f"CREATE SCHEMA {ELSEWHERE}")
    if everywhere:
        options = "WITH (publish_via_partition_root = true)"
        execute(source, f"CREATE PUBLICATION {source.publication} {everywhere} {options}")
    for history in histories:
        execute(source, *history.begin())
    read_all(source, lake_path)
    for round_ in range(rounds):
        played = {f"public.{history.name}": history.transactions() for history in histories}
        if round_ % 2:
            with Running(source, lake_path) as running:
                for transactions in played.values():
                    execute(source, *transactions)
                assert running.error is None
        else:
            for transactions in played.values():
                execute(source, *transactions)
        read_all(source, lake_path)
        wrong = differences(source, lake_path)
        report = "\n\n".join(
            f"{name}: {wrong[name]}\n  " + "\n  ".join(played[name]) for name in sorted(wrong)
        )
        assert not wrong, f"seed {seed}, round {round_}, {len(wrong)} of {tables} tables\n{report}"
    names = {history.name for history in histories}
    versions = [relation for relation in read_relations(Lake(lake_path)) if relation.table.name in names]
    execute(source, *(f"UPDATE {name} SET code = code" for name in names))
    read_all(source, lake_path)
    recorded = [relation for relation in read_relations(Lake(lake_path)) if relation.table.name in names]
    assert recorded == versions, "the stream announces the shapes that looks recorded"


@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    ("seed", "tables", "rounds"),
    [
        (2, 4, 2),
        *(pytest.param(seed, 4, 2, marks=pytest.mark.torture) for seed in range(2)),
        *(pytest.param(seed, 25, 8, marks=pytest.mark.torture) for seed in range(1, 6)),
    ],
)
def test_any_statements_in_any_transactions(
    database: str, lake_path: str, seed: int, tables: int, rounds: int
) -> None:
    source = source_of(database, tables=["public.*"], exclude=[f"public.{AWAY}*", "public.*_old"])
    play_histories(source, lake_path, seed, tables=tables, rounds=rounds)
