"""Rows that partitions and unlogged tables gain or lose without an event: bronze still equals the source.

All cases share a database and its reader's runs, each in a separate schema. The scripts run without a reader,
and in parallel with a reader. Cases whose schema begins with ``whole`` are published with their schema; the
publication names the tables of all further cases.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.bronze.store.gaps import is_open
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.replaying import (
    assert_bronze_equals_source,
    bronze_rows,
    execute,
    read_all,
    session,
    source_of,
)
from tests.bronze.running import Running
from tests.fix_postgres import drop_database, make_database

if TYPE_CHECKING:
    from typing import Any

    import psycopg

    from deltasmelt.pipelines.demo.embedded_postgres import EmbeddedServer

pytestmark = [pytest.mark.postgres, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Case:
    """The script of a table ``t`` in a separate schema.

    Attributes:
        script: transactions, each in a line.
        before: the statements that create the table.
        whole: whether the publication carries the schema and does not name the table.
        copies: number of copies of the table because of the script, if no reader ran meanwhile.
    """

    script: str
    before: str
    whole: bool = False
    copies: int = 1


PARTED: Final = """
    CREATE TABLE t (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)
    CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (100)
    CREATE TABLE t2 PARTITION OF t FOR VALUES FROM (100) TO (200)
    INSERT INTO t SELECT i, i FROM generate_series(1, 150) i
"""
ROOT: Final = "CREATE TABLE t (id int PRIMARY KEY, a int) PARTITION BY RANGE (id)"
WIDE: Final = """
    CREATE TABLE t (id int PRIMARY KEY, a text)
    INSERT INTO t SELECT i, i FROM generate_series(1, 50) i
"""
NARROW: Final = WIDE.replace("text", "int")
NEW: Final = "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300)"
FILL: Final = "INSERT INTO t SELECT i, i FROM generate_series(200, 229) i"
MORE: Final = "INSERT INTO t SELECT i, i FROM generate_series(230, 249) i"
OFF_AND_ON: Final = """
    ALTER TABLE t SET UNLOGGED
    INSERT INTO t VALUES (1000, 1)
    DELETE FROM t WHERE id < 20
    ALTER TABLE t SET LOGGED
"""
CASES: Final = {
    "truncated": Case(f"{NEW}\n{FILL}\nTRUNCATE t3\n{MORE}", PARTED),
    "truncated_last": Case(f"{NEW}\n{FILL}\nTRUNCATE t3", PARTED),
    "truncated_in_place": Case(f"BEGIN; {NEW}; {FILL}; TRUNCATE t3; {MORE}; COMMIT", PARTED),
    "truncated_in_subtransaction": Case(
        f"BEGIN; SAVEPOINT a; {NEW}; RELEASE a; {FILL}; TRUNCATE t3; {MORE}; COMMIT", PARTED
    ),
    "truncated_under_a_new_middle": Case(
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id)\n"
        f"BEGIN; CREATE TABLE t4 PARTITION OF t3 FOR VALUES FROM (200) TO (300); {FILL}; TRUNCATE t3; COMMIT",
        PARTED,
    ),
    "dropped": Case(f"{NEW}\n{FILL}\nDROP TABLE t3", PARTED),
    "dropped_with_its_middle": Case(
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id)\n"
        f"CREATE TABLE t4 PARTITION OF t3 FOR VALUES FROM (200) TO (300)\n{FILL}\nDROP TABLE t3",
        PARTED,
    ),
    "detached": Case(f"{NEW}\n{FILL}\nALTER TABLE t DETACH PARTITION t3", PARTED),
    "gone_in_one_transaction": Case(f"BEGIN; {NEW}; {FILL}; DROP TABLE t3; COMMIT", PARTED),
    "replaced_in_one_transaction": Case(
        f"BEGIN; {NEW}; {FILL}; DROP TABLE t3; {NEW}; {MORE}; COMMIT", PARTED
    ),
    "moved_and_dropped": Case(
        f"{NEW}\n{FILL}\nUPDATE t SET id = id - 40 WHERE id IN (200, 201)\nDROP TABLE t3", PARTED
    ),
    "attached_moved_and_detached": Case(
        "CREATE TABLE t3 (id int PRIMARY KEY, a int)\nINSERT INTO t3 VALUES (201, 1), (202, 2)\n"
        "ALTER TABLE t ATTACH PARTITION t3 FOR VALUES FROM (200) TO (300)\n"
        "UPDATE t SET id = 160 WHERE id = 201\nUPDATE t SET a = 9 WHERE id = 202\n"
        "ALTER TABLE t DETACH PARTITION t3",
        PARTED,
    ),
    "born_unlogged": Case(
        f"{NEW.replace('TABLE', 'UNLOGGED TABLE')}\n{FILL}\nALTER TABLE t3 SET LOGGED\n{MORE}", PARTED
    ),
    "unlogged_later": Case(
        f"{NEW}\n{FILL}\nALTER TABLE t3 SET UNLOGGED\n{MORE}\nALTER TABLE t3 SET LOGGED", PARTED
    ),
    "known_unlogged": Case(
        "ALTER TABLE t2 SET UNLOGGED\nDELETE FROM t2 WHERE id < 120\nALTER TABLE t2 SET LOGGED", PARTED
    ),
    "retyped": Case(f"{NEW}\n{FILL}\nALTER TABLE t ALTER a TYPE int USING a + 1", ROOT),
    "volatile_default": Case(f"{NEW}\n{FILL}\nALTER TABLE t ADD v float8 DEFAULT random()", ROOT),
    "whole_unlogged": Case(OFF_AND_ON, WIDE, whole=True),
    "whole_unlogged_narrow": Case(OFF_AND_ON, NARROW, whole=True),
    "whole_unlogged_at_once": Case(
        f"BEGIN; {'; '.join(OFF_AND_ON.strip().splitlines())}; COMMIT", WIDE, whole=True
    ),
    "whole_truncated_first": Case(f"TRUNCATE t\n{OFF_AND_ON}", WIDE, whole=True),
    "whole_vacuumed_then_unlogged": Case(f"VACUUM FULL t\n{OFF_AND_ON}\nVACUUM FULL t", WIDE, whole=True),
    "whole_partition_unlogged": Case(
        "ALTER TABLE t2 SET UNLOGGED\nDELETE FROM t2 WHERE id < 120\nALTER TABLE t2 SET LOGGED",
        PARTED,
        whole=True,
    ),
    "whole_elsewhere": Case(
        "ALTER TABLE t SET SCHEMA elsewhere\nUPDATE elsewhere.t SET a = '7' WHERE id < 9\n"
        "ALTER TABLE elsewhere.t SET SCHEMA {schema}",
        WIDE,
        whole=True,
    ),
    "whole_narrow_vacuumed": Case("VACUUM FULL t", NARROW, whole=True),
    "root_truncated": Case(f"{NEW}\n{FILL}\nTRUNCATE t\n{MORE}", PARTED),
    "filled": Case(f"{NEW}\n{FILL}\n{MORE}", PARTED, copies=0),
    "filled_at_once": Case(f"{NEW}; {FILL}\n{MORE}", PARTED, copies=0),
    "filled_at_once_in_subtransaction": Case(
        f"BEGIN; SAVEPOINT a; {NEW}; RELEASE a; {FILL}; COMMIT\n{MORE}", PARTED, copies=0
    ),
    "filled_at_once_and_altered": Case(f"{NEW}; {FILL}; UPDATE t SET a = 1 WHERE id = 200", PARTED),
    "filled_at_once_here_and_there": Case(f"{NEW}; {FILL}; INSERT INTO t VALUES (151, 1)", PARTED),
    "filled_at_once_and_deleted": Case(f"{NEW}; {FILL}\nDELETE FROM t WHERE id = 200", PARTED),
    "filled_below": Case(
        "CREATE TABLE t3 PARTITION OF t FOR VALUES FROM (200) TO (300) PARTITION BY RANGE (id)\n"
        f"CREATE TABLE t4 PARTITION OF t3 FOR VALUES FROM (200) TO (300)\n{FILL}",
        PARTED,
        copies=0,
    ),
    "empty": Case(f"{NEW}\nDROP TABLE t3\n{NEW}", PARTED, copies=0),
    "whole_filled": Case(f"{NEW}\n{FILL}\n{MORE}", PARTED, whole=True, copies=0),
    "whole_vacuumed": Case("VACUUM FULL t\nCLUSTER t USING t_pkey", WIDE, whole=True, copies=0),
    "whole_truncated": Case("TRUNCATE t\nINSERT INTO t VALUES (1, 2)", WIDE, whole=True, copies=0),
    "whole_altered": Case(
        "ALTER TABLE t ADD v text DEFAULT 'x'\nGRANT SELECT ON t TO PUBLIC", NARROW, whole=True, copies=0
    ),
    "named_vacuumed": Case("VACUUM FULL t", NARROW, copies=0),
}  # fmt: skip


class Played:
    """All cases, after the scripts and the reader's runs.

    Attributes:
        beside: whether the scripts ran in parallel with a reader.
    """

    def __init__(self, dsn: str, lake_path: str, *, beside: bool) -> None:
        self.beside, self._lake_path = beside, lake_path
        self._source = source_of(dsn, tables=[f"{name}.t" for name in CASES], manage=False)
        self._session = session(self._source)
        slot = f"SELECT pg_create_logical_replication_slot('{self._source.slot}', 'pgoutput')"
        execute(self._source, "CREATE SCHEMA elsewhere")
        for name, case in CASES.items():
            self._session.execute(f"CREATE SCHEMA {name}".encode())
            self._play(name, case.before)
        table_list = ", ".join(f"{name}.t" for name, case in CASES.items() if not case.whole)
        schemas = ", ".join(name for name, case in CASES.items() if case.whole)
        publication = f"CREATE PUBLICATION smelt FOR TABLE {table_list}, TABLES IN SCHEMA {schemas}"
        execute(self._source, f"{publication} WITH (publish_via_partition_root)", slot)
        read_all(self._source, lake_path)
        first = self._copies()
        if beside:
            with Running(self._source, lake_path) as running:
                self._play_all()
                time.sleep(1)
                assert running.error is None
        else:
            self._play_all()
        read_all(self._source, lake_path)
        self._session.close()
        self.rows = bronze_rows(lake_path)
        self._shapes = read_relations(Lake(lake_path))
        self.copies = self._copies()
        self.copies.subtract(first)
        self._bronze = delta.open_existing(f"{lake_path}/bronze/changes")

    def _play_all(self) -> None:
        """Run the scripts line by line in turn, so that the reader meets each state of some case."""
        scripts = {name: case.script.format(schema=name).strip().splitlines() for name, case in CASES.items()}
        for turn in range(max(map(len, scripts.values()))):
            for name, lines in scripts.items():
                self._play(name, "\n".join(lines[turn : turn + 1]))

    def _play(self, schema: str, script: str) -> None:
        if script.strip():
            self._session.execute(f"SET search_path TO {schema}".encode())
        for transaction in script.strip().splitlines():
            self._session.execute(transaction.strip().encode())

    def _copies(self) -> Counter[str]:
        rows: list[dict[str, Any]] = bronze_rows(self._lake_path)
        return Counter(row["table_schema"] for row in rows if row["op"] == "snapshot_end")

    def differences(self) -> dict[str, str]:
        """Return the differences between bronze and the source, by case."""
        with connect(self._source) as connection:
            return {name: difference for name in CASES if (difference := self._differs(name, connection))}

    def _differs(self, name: str, connection: psycopg.Connection[Any]) -> str | None:
        if is_open(self._bronze, TableName(name, "t")):
            return "waits for a copy"
        try:
            assert_bronze_equals_source(
                self._source,
                self._lake_path,
                f"{name}.t",
                changes=self.rows,
                shapes=self._shapes,
                session=connection,
            )
        except (AssertionError, KeyError) as error:  # a change of a row that bronze does not have
            return repr(error)
        return None


@pytest.mark.parametrize("how", ["16", pytest.param("beside a reader", marks=pytest.mark.torture)])
def test_bronze_equals_source_without_needless_copies(
    server_dsn: str, server18: EmbeddedServer, lake_path: str, how: str
) -> None:
    server = server_dsn if how == "16" else server18.dsn()
    dsn = make_database(server)
    try:
        played = Played(dsn, lake_path, beside=how == "beside a reader")
        assert played.differences() == {}
        if not played.beside:
            expected = {name: case.copies for name, case in CASES.items()}
            assert {name: played.copies[name] for name in CASES} == expected
    finally:
        drop_database(server, dsn)


def test_dropped_partition_seen_only_by_copy_is_noticed(database: str, lake_path: str) -> None:
    """Only the copy has seen the new partition when a session drops it."""
    source = source_of(database, tables=["public.t"])
    execute(source, *PARTED.strip().splitlines())
    dropping = threading.Thread(target=execute, args=(source, "DROP TABLE t3"))

    def reached(point: str) -> None:
        if point == "stream-starting" and not dropping.ident:  # after the look, before the locks
            execute(source, NEW, FILL)
        if point == "snapshot-exported" and not dropping.ident:
            dropping.start()

    read_all(source, lake_path, reached=reached)
    dropping.join()
    read_all(source, lake_path)
    assert_bronze_equals_source(source, lake_path, "public.t")
