"""Partitions that log less than their root while the reader runs: detected in the stream, and by polls."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_existing
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_left_out, is_open
from deltasmelt.bronze.store.marks import gap_app
from deltasmelt.bronze.store.relations import read_relations
from tests.bronze.running import Running
from tests.patience import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from deltasmelt.bronze.lake.table import Table

pytestmark = pytest.mark.postgres

OPEN, GUARDED = TableName("public", "open"), TableName("public", "guarded")
SCHEMA = [
    "CREATE TABLE open (id int NOT NULL, part int, v text) PARTITION BY LIST (part)",
    "CREATE TABLE guarded (id int, part int, v text, PRIMARY KEY (id, part)) PARTITION BY LIST (part)",
    *(
        f"CREATE TABLE {root}{part} PARTITION OF {root} FOR VALUES IN ({part})"
        for root in ("open", "guarded")
        for part in (1, 2)
    ),
    *(f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in ("open", "open1", "open2", "guarded")),
    "INSERT INTO open SELECT i, 1 + i % 2, 'v' FROM generate_series(1, 9) i",
    "INSERT INTO guarded SELECT * FROM open",
]


def test_partition_logging_less_stops_table_until_repaired(database: str, tmp_path: Path) -> None:
    source = SourceSettings.model_validate(
        {
            "dsn": database, "slot": "mixed_" + database.rsplit("=", 1)[-1][-10:], "publication": "mixed",
            "tables": ["public.open", "public.guarded"], "keys": {"public.open": ["id"]},
        }
    )  # fmt: skip
    lake = Lake(path=str(tmp_path))
    control = ControlTables(lake)

    def changes() -> Table:
        return open_existing(lake.uri("bronze", CHANGES))

    def codes() -> dict[str, str]:
        return {error.name: error.code for error in control.open_errors() if error.scope == "table"}

    def taken() -> list[str]:
        rows = (row for batch in changes().batches(["op", "table_name"]) for row in batch.to_pylist())
        return sorted(row["table_name"] for row in rows if row["op"] == "snapshot_end")

    def play(*statements: str) -> None:
        for statement in statements:
            connection.execute(statement.encode())

    with psycopg.connect(database, autocommit=True) as connection:
        play(*SCHEMA)
        with Running(source, str(tmp_path)):
            wait_for(lambda: taken() == ["guarded", "open"])
            play("UPDATE guarded SET v = 'w'", "UPDATE open SET v = 'w'")
            # there and back before anybody looks: the stream alone tells
            play(
                "ALTER TABLE open2 ADD PRIMARY KEY (id), REPLICA IDENTITY DEFAULT",
                "INSERT INTO open VALUES (10, 2, 'v')",
                "DELETE FROM open WHERE id = 10",
                "ALTER TABLE open2 REPLICA IDENTITY FULL",
            )
            wait_for(lambda: changes().transaction_version(gap_app(OPEN)) is not None)
            wait_for(lambda: taken() == ["guarded", "open", "open"] and not is_open(changes(), OPEN), 60)
            assert codes() == {}
            play(
                "CREATE TABLE open3 PARTITION OF open FOR VALUES IN (3)",
                "ALTER TABLE open3 ADD PRIMARY KEY (id)",
            )
            play("CREATE TABLE guarded3 PARTITION OF guarded FOR VALUES IN (3)")
            wait_for(lambda: codes() == {"public.open": "partition-identity"}, 60)
            assert is_left_out(changes(), OPEN)
            assert not is_left_out(changes(), GUARDED)
    identities = {(relation.table.name, relation.replica_identity) for relation in read_relations(lake)}
    assert identities == {("open", "f"), ("guarded", "k")}
