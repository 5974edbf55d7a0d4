"""Changes without an event are found in PostgreSQL's catalog, and the table is resnapshotted.

Most cases share one database and the runs of a reader, each case in a separate schema. The resnapshotted
tables distinguish the cases. The log of `test_running_reader…` and `test_the_traces_are_there…` contains only
the case's change.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from deltasmelt.bronze.config.timing import Timing
from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.drift.storage import Part, Storage, StoredColumn, why_again
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.shapes import Column, PgType, Relation
from deltasmelt.bronze.store.contract import RELATIONS_SCHEMA
from deltasmelt.bronze.store.relations import ShapeLog, append_relations, read_relations, relations_of
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    assert_each_change_once,
    bronze_rows,
    execute,
    read_all,
    session,
    source_of,
)
from tests.bronze.running import Running
from tests.fix_postgres import drop_database, make_database
from tests.patience import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from deltasmelt.bronze.config.sections import SourceSettings

pytestmark = pytest.mark.postgres

INT = PgType("base", "int4", oid=23)

PLAIN = [
    "CREATE TYPE mood AS ENUM ('low', 'high')",
    "CREATE TABLE t (id int PRIMARY KEY, a int, b varchar(20), m mood, net cidr, hidden int)",
    "INSERT INTO t SELECT i, i, 'x' || i, 'low', '10.0.0.1/32', i FROM generate_series(1, 50) i",
]
COMPOSITE = [
    "CREATE TYPE pair AS (x int, y int)",
    "CREATE TABLE t (id int PRIMARY KEY, p pair)",
    "INSERT INTO t VALUES (1, (2, 3))",
]
PRICED = ["CREATE TABLE t (id int PRIMARY KEY, n numeric(6,2))", "INSERT INTO t VALUES (1, 1.5), (2, 'NaN')"]
PRECISE = ["CREATE TABLE t (id int PRIMARY KEY, n numeric(40,2))", "INSERT INTO t VALUES (1, 'NaN')"]
PRICED_IN_LISTS = [
    "CREATE TABLE t (id int PRIMARY KEY, n numeric(6,2)[])",
    "INSERT INTO t VALUES (1, '{1.5}')",
]
PARTITIONED = [
    "CREATE TABLE t (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)",
    "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)",
    "CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200)",
    "INSERT INTO t SELECT i, i FROM generate_series(1, 150) i",
]
OTHER = "CREATE TABLE other (id int PRIMARY KEY, a int); INSERT INTO other VALUES (250, 1)"
ATTACH = "ALTER TABLE t ATTACH PARTITION other FOR VALUES FROM (200) TO (300)"


@pytest.fixture
def source(database: str) -> SourceSettings:
    return source_of(database, tables=["public.t"])


def case_id(case: tuple[list[str], str]) -> str:
    return case[1][:60]


def copies(lake_path: str) -> int:
    """Return the number of snapshots of the table."""
    return [row["op"] for row in bronze_rows(lake_path)].count("snapshot_end")


COPIED: list[tuple[list[str], str]] = [
    (PLAIN, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000"),
    (PLAIN, "ALTER TABLE t ALTER a TYPE int USING a + 1"),
    (PLAIN, "ALTER TABLE t ALTER net TYPE inet"),
    (PLAIN, "ALTER TABLE t ADD v float8 DEFAULT random()"),
    (PLAIN, "ALTER TABLE t ADD v int DEFAULT 7; VACUUM FULL t"),
    (PLAIN, "ALTER TABLE t ADD v int DEFAULT 7; ALTER TABLE t ADD w int DEFAULT 8"),
    (PLAIN, "ALTER TABLE t RENAME a TO z; ALTER TABLE t ADD a int DEFAULT 7"),
    (PLAIN, "ALTER TABLE t DROP a; ALTER TABLE t ADD a int DEFAULT 7"),
    (PLAIN, "ALTER TABLE t ADD x int; ALTER TABLE t DROP x; ALTER TABLE t ADD x int DEFAULT 7"),
    (PLAIN, "ALTER TABLE t DROP a, ADD v int"),
    (PLAIN, "ALTER TABLE t ADD x int; ALTER TABLE t DROP x; ALTER TABLE t ADD x int"),
    (PLAIN, "ALTER TABLE t ADD v box DEFAULT '(1,2),(3,4)'"),
    (PLAIN, "ALTER TABLE t ADD v bigserial"),
    (PLAIN, "ALTER TYPE mood RENAME VALUE 'low' TO 'poor'"),
    (COMPOSITE, "ALTER TYPE pair ADD ATTRIBUTE z int"),
    (COMPOSITE, "ALTER TYPE pair RENAME ATTRIBUTE y TO z"),
    (PRICED, "ALTER TABLE t ALTER n TYPE numeric(8,3)"),
    (PRECISE, "ALTER TABLE t ALTER n TYPE numeric"),
    (PRICED_IN_LISTS, "ALTER TABLE t ALTER n TYPE numeric[]"),
    (PLAIN, "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (7)"),
    (PLAIN, "ALTER TABLE t RENAME TO t_old; CREATE TABLE t (id int PRIMARY KEY, a text)"),
    (
        PLAIN,
        (
            "ALTER PUBLICATION smelt DROP TABLE t; ALTER TABLE t SET UNLOGGED; "
            "DELETE FROM t WHERE id < 20; "
            "ALTER TABLE t SET LOGGED; ALTER PUBLICATION smelt ADD TABLE t"
        ),
    ),
    (PLAIN, "ALTER PUBLICATION smelt DROP TABLE t; DELETE FROM t WHERE id < 20"),
    (PARTITIONED, f"{OTHER}; {ATTACH}"),
    (PARTITIONED, f"BEGIN; {OTHER}; {ATTACH}; COMMIT"),
    (
        PARTITIONED,
        (
            "CREATE TABLE mid (id int PRIMARY KEY, a int) PARTITION BY RANGE (id); "
            "CREATE TABLE low PARTITION OF mid FOR VALUES FROM (200) TO (250); "
            "INSERT INTO low VALUES (201, 1); "
            "ALTER TABLE t ATTACH PARTITION mid FOR VALUES FROM (200) TO (300)"
        ),
    ),
    (PARTITIONED, "ALTER TABLE t DETACH PARTITION t2"),
    (PARTITIONED, "DROP TABLE t2"),
    (PARTITIONED, "TRUNCATE t2"),
    (
        PARTITIONED,
        (
            "ALTER TABLE t DETACH PARTITION t2; DELETE FROM t2 WHERE id < 120; "
            "ALTER TABLE t ATTACH PARTITION t2 FOR VALUES FROM (100) TO (200)"
        ),
    ),
    (PARTITIONED, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000"),
    (PARTITIONED, "ALTER TABLE t ADD v int DEFAULT 7; TRUNCATE t2"),
]
"""Tables before, and statements that cost a copy."""

FREE: list[tuple[list[str], str]] = [
    (PLAIN, "VACUUM FULL t"),
    (PLAIN, "CLUSTER t USING t_pkey"),
    (PLAIN, "TRUNCATE t"),
    (PLAIN, "ALTER TABLE t ALTER b TYPE varchar(40)"),
    (PLAIN, "ALTER TABLE t ALTER b TYPE text"),
    (PRICED, "ALTER TABLE t ALTER n TYPE numeric(38,2)"),
    (PRICED, "ALTER TABLE t ALTER n TYPE numeric(40,2)"),
    (PRICED, "ALTER TABLE t ALTER n TYPE numeric"),
    (PRECISE, "ALTER TABLE t ALTER n TYPE numeric(45,2)"),
    (PLAIN, "ALTER TABLE t ADD v int"),
    (PLAIN, "ALTER TABLE t ADD v int DEFAULT 7"),
    (PLAIN, "ALTER TABLE t ADD v int DEFAULT 7; INSERT INTO t (id) VALUES (99)"),
    (
        PLAIN,
        (
            "ALTER TABLE t ADD v varchar(9) DEFAULT 'x'; INSERT INTO t (id) VALUES (99); "
            "ALTER TABLE t ALTER v TYPE text"
        ),
    ),
    (PLAIN, "ALTER TABLE t ADD v int DEFAULT 7, ADD w text DEFAULT 'a,\"b'; ALTER TABLE t DROP net"),
    (
        PLAIN,
        "BEGIN; ALTER TABLE t ADD v int NOT NULL DEFAULT 7; ALTER TABLE t ALTER v DROP DEFAULT; COMMIT",
    ),
    (PARTITIONED, "ALTER TABLE t ADD v int DEFAULT 7"),
    (PLAIN, "ALTER TABLE t DROP a"),
    (PLAIN, "ALTER TABLE t DROP net, ADD net int; UPDATE t SET net = 1 WHERE id = 1"),
    (PLAIN, "ALTER TABLE t RENAME a TO z"),
    (PLAIN, "ALTER TABLE t ALTER a SET NOT NULL; GRANT SELECT (a) ON t TO PUBLIC; ANALYZE t"),
    (PLAIN, "ALTER TYPE mood ADD VALUE 'middle' BEFORE 'high'"),
    (PLAIN, "ALTER TABLE t REPLICA IDENTITY FULL; UPDATE t SET a = 5 WHERE id = 3"),
    (
        PARTITIONED,
        ("CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300); INSERT INTO t VALUES (201)"),
    ),
    (
        PARTITIONED,
        (
            "BEGIN; CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300); "
            "INSERT INTO t3 VALUES (201); COMMIT"
        ),
    ),
    (
        PARTITIONED,
        (
            "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id); "
            "CREATE TABLE t31 PARTITION OF t3 FOR VALUES FROM (200) TO (300); INSERT INTO t VALUES (201)"
        ),
    ),
    (PARTITIONED, "VACUUM t; ANALYZE t"),
    (
        PLAIN,
        (
            "ALTER TABLE t ADD v int DEFAULT 7; INSERT INTO t (id, v) VALUES (99, 8); "
            "ALTER TABLE t RENAME v TO w; INSERT INTO t (id) VALUES (100)"
        ),
    ),
]
"""Tables before, and statements that cost no copy."""

GONE: list[tuple[list[str], str]] = [
    (
        PLAIN,
        (
            "ALTER TABLE t ADD v int DEFAULT 7; INSERT INTO t (id, v) VALUES (99, 8); "
            "ALTER TABLE t DROP v; INSERT INTO t (id) VALUES (100)"
        ),
    )
]
"""Columns dropped before their changes were read; the copy may appear in the run after."""

ALL: Final = [*COPIED, *FREE, *GONE]


class Shared:
    """The tables of all cases, after the same runs of the reader.

    Attributes:
        source: settings of the shared database.
        lake_path: location of the lake with bronze.
        taken: number of snapshots of each table after each run.
        rows: rows of bronze after the last run.
    """

    def __init__(self, dsn: str, lake_path: str) -> None:
        self.source = source_of(dsn, tables=[f"{schema_of(case)}.t" for case in ALL])
        self.lake_path = lake_path
        self.taken: list[Counter[str]] = []
        self.rows: list[dict[str, Any]] = []
        for case in ALL:
            execute(self.source, f"CREATE SCHEMA {schema_of(case)}")
            self._play(case, case[0])
        self._read()
        for case in ALL:
            self._play(case, statements(case[1]))
        for _ in range(3):
            self._read()

    def _play(self, case: tuple[list[str], str], script: list[str]) -> None:
        with session(self.source) as connection:
            connection.execute(f"SET search_path TO {schema_of(case)}".encode())
            for statement in script:
                connection.execute(statement.encode())

    def _read(self) -> None:
        read_all(self.source, self.lake_path)
        self.rows = bronze_rows(self.lake_path)
        ends = (row["table_schema"] for row in self.rows if row["op"] == "snapshot_end")
        self.taken.append(Counter(ends))

    def copies(self, case: tuple[list[str], str]) -> list[int]:
        """Return the number of snapshots of the case's table after each run."""
        return [copies_taken[schema_of(case)] for copies_taken in self.taken]

    def assert_equal(self, case: tuple[list[str], str]) -> None:
        table = f"{schema_of(case)}.t"
        assert_bronze_equals_source(self.source, self.lake_path, table, changes=self.rows)


def schema_of(case: tuple[list[str], str]) -> str:
    return f"case_{ALL.index(case)}"


@pytest.fixture(scope="module")
def shared(server_dsn: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shared]:
    dsn = make_database(server_dsn)
    yield Shared(dsn, str(tmp_path_factory.mktemp("shared") / "lake"))
    drop_database(server_dsn, dsn)


@pytest.mark.parametrize("case", COPIED, ids=case_id)
def test_unlogged_change_is_detected_even_without_running_reader(
    shared: Shared, case: tuple[list[str], str]
) -> None:
    assert shared.copies(case) == [1, 2, 2, 2]
    shared.assert_equal(case)


@pytest.mark.parametrize("case", FREE, ids=case_id)
def test_value_preserving_change_costs_no_copy(shared: Shared, case: tuple[list[str], str]) -> None:
    assert shared.copies(case) == [1, 1, 1, 1]


@pytest.mark.parametrize("case", GONE, ids=case_id)
def test_column_dropped_before_reading_its_changes_costs_copy(
    shared: Shared, case: tuple[list[str], str]
) -> None:
    first, _, *later = shared.copies(case)
    assert (first, later) == (1, [2, 2])
    shared.assert_equal(case)


def test_each_change_of_shared_log_appears_once(shared: Shared) -> None:
    assert_each_change_once(shared.rows)


def test_running_reader_copies_quiet_table_again(source: SourceSettings, lake_path: str) -> None:
    source = source.with_timing(Timing(catalog_poll=0.2))
    execute(source, *PLAIN)
    with Running(source, lake_path):
        wait_for(lambda: copies(lake_path) == 1)
        execute(source, "ALTER TABLE t ALTER a TYPE bigint USING a * 1000")
        wait_for(lambda: copies(lake_path) == 2)
        execute(source, "INSERT INTO t (id, a) VALUES (1000, 1)")
    read_all(source, lake_path)
    assert copies(lake_path) == 2
    assert_bronze_equals_source(source, lake_path, "public.t")


def test_the_traces_are_there_on_version_18(database18: str, lake_path: str) -> None:
    source = source_of(database18, tables=["public.t"])
    execute(source, *PARTITIONED)
    read_all(source, lake_path)
    execute(source, "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (300) TO (400)", "VACUUM t")
    read_all(source, lake_path)
    assert copies(lake_path) == 1
    execute(source, *statements(f"BEGIN; {OTHER}; {ATTACH}; COMMIT"))
    read_all(source, lake_path)
    assert copies(lake_path) == 2
    assert_bronze_equals_source(source, lake_path, "public.t")


def test_observed_storage_round_trips_through_json() -> None:
    storage = Storage(
        5, {1: StoredColumn("ä", None, 7, missing=True)}, {5: Part("t", 0), 9: Part("p", 1, 2, born=False)}
    )
    for observed in (ObservedStorage(storage), ObservedStorage(storage, Lsn(9), replace(storage, attnums=4))):
        assert ObservedStorage.from_json(observed.to_json()) == observed
    assert why_again(storage, storage) is None


def statements(script: str) -> list[str]:
    """Return a script's statements; statements between BEGIN and COMMIT count as one."""
    if script.startswith("BEGIN; "):
        return [script]
    return script.split("; ")


VALUES = {
    "n": ("numeric", "'NaN'", "NaN"),
    "d": ("date", "'infinity'", "infinity"),
    "t": ("text", "E'a\\n,\"b\\\\'", 'a\n,"b\\'),
    "e": ("text", "''", ""),
    "u": ("text", "'NULL'", "NULL"),
    "i": ("int[]", "'{1,2}'", "{1,2}"),
    "c": ("char(4)", "'x'", "x   "),
    "b": ("bytea", "'\\xff00'", "\\xff00"),
    "s": ("timestamptz", "'2024-01-01 12:00+02'", "2024-01-01 10:00:00+00"),
    "j": ("jsonb", """'{"a": [1, null]}'""", '{"a": [1, null]}'),
}


def missing(lake_path: str) -> dict[str, str | None]:
    """Return the newest version's values for rows from before the table's columns."""
    newest = max(read_relations(Lake(lake_path)), key=lambda version: version.from_lsn)
    return {column.name: column.missing for column in newest.columns if column.name in VALUES}


@pytest.mark.parametrize("written", [True, False], ids=["announced by a change", "found by a look"])
def test_default_is_recorded_as_text_of_older_rows(
    source: SourceSettings, lake_path: str, *, written: bool
) -> None:
    execute(source, "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    read_all(source, lake_path)
    columns = [f"ADD {name} {type_} DEFAULT {value}" for name, (type_, value, _) in VALUES.items()]
    execute(source, f"ALTER TABLE t {', '.join(columns)}")
    if written:
        execute(source, "INSERT INTO t VALUES (2)")
    read_all(source, lake_path)
    assert missing(lake_path) == {name: text for name, (_, _, text) in VALUES.items()}
    assert_bronze_equals_source(source, lake_path, "public.t")
    execute(source, "ALTER TABLE t ALTER n SET DEFAULT 5", "VACUUM t", "INSERT INTO t VALUES (3)")
    read_all(source, lake_path)
    assert missing(lake_path) == {name: text for name, (_, _, text) in VALUES.items()}
    assert copies(lake_path) == 1


def test_late_version_inherits_default_of_complete_version() -> None:
    early = Relation(5, TableName("public", "t"), (Column("id", 1, INT, "int4"),), ("id",), "d", Lsn(10))
    complete = Column("v", 2, INT, "int4", missing="7")
    recorded: list[Relation] = []
    shapes = ShapeLog([early], recorded.extend)
    shapes.record([replace(early, columns=(*early.columns, complete), from_lsn=Lsn(90))])
    assert shapes.missing(5) == {1: None, 2: "7"}
    shapes.record(
        [
            replace(
                early, columns=(*early.columns, replace(complete, name="w", missing=None)), from_lsn=Lsn(50)
            )
        ]
    )
    assert [column.missing for column in recorded[-1].columns] == [None, "7"]
    assert shapes.missing(5) == {1: None, 2: "7"}


def test_older_lake_accepts_shapes_with_defaults(tmp_path: Path) -> None:
    columns = RELATIONS_SCHEMA.field("columns").type.value_type
    plain = [columns.field(i) for i in range(columns.num_fields) if columns.field(i).name != "missing"]
    at = RELATIONS_SCHEMA.get_field_index("columns")
    older = RELATIONS_SCHEMA.set(at, pa.field("columns", pa.list_(pa.field("element", pa.struct(plain)))))
    table = delta.open_or_create(str(tmp_path / "relations"), older, description="")
    first = Relation(5, TableName("public", "t"), (Column("id", 1, INT, "int4"),), ("id",), "d", Lsn(10))
    row = {
        "relation_id": 5, "from_lsn": 10, "table_schema": "public", "table_name": "t",
        "replica_identity": "d", "key": ["id"], "recorded_at": datetime.now(UTC),
        "columns": [
            {"name": "id", "attnum": 1, "type_oid": 23, "typmod": -1, "type": "int4",
             "type_tree": INT.to_json(), "not_null": False, "in_identity": False}
        ],
    }  # fmt: skip
    table.append(pa.Table.from_pylist([row], schema=older))
    second = replace(
        first, columns=(*first.columns, Column("v", 2, INT, "int4", missing="7")), from_lsn=Lsn(20)
    )
    append_relations(table, [second])
    relations = relations_of(delta.open_existing(str(tmp_path / "relations")))
    assert relations == [first, second]
    assert [column.missing for column in relations[1].columns] == [None, "7"]
