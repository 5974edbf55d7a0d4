"""Soft deletes of a table that gets another key, by which deleted rows and live rows are equal."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import silver_table
from deltasmelt.silver.schema.deleted_keys import KEY_PROPERTY, merged
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.verify.rows import doubled_query
from tests.fix_spark import rows_of
from tests.silver.histories import INT, TEXT, BronzeWriter, change, relation
from tests.silver.stored import cells_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = [("id", INT), ("email", TEXT)]
by_id = relation("people", COLUMNS, ["id"], relation_id=1)
by_email = relation("people", COLUMNS, ["email"], relation_id=1, from_lsn=40)
quiet = relation("quiet", COLUMNS, ["id"], relation_id=2)
quiet_by_email = relation("quiet", COLUMNS, ["email"], relation_id=2, from_lsn=40)
DEAD = [("1", "a"), ("4", "d"), ("5", "d"), ("6", None), ("7", None)]


@pytest.mark.spark
def test_each_new_key_has_one_row(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    lake = Lake(path=str(tmp_path_factory.mktemp("lake")))
    bronze, control = BronzeWriter(lake), ControlTables(lake)
    silver, log = Silver(spark, lake, SilverSettings(deletes="soft"), control), SilverLog(lake)

    def rows(name: str) -> list[tuple[Any, ...]]:
        return cells_at(spark, lake, name, "id, email, _deleted")

    bronze.relations([by_id, quiet])
    for shape in (by_id, quiet):
        bronze.snapshot(shape, 10, [*DEAD, ("2", "b")])
        for at, (key, _) in enumerate(DEAD):
            bronze.add(20 + at, [change(shape, "delete", old=[key, None], old_is_key=True)])
        bronze.add(30, [change(shape, "insert", new=["3", "a"])])
    bronze.commit(32)
    assert silver.cycle() is not None
    dead = [(int(key), email, True) for key, email in DEAD]
    before = sorted([*dead, (2, "b", False), (3, "a", False)])
    assert rows("people") == rows("quiet") == before

    # The live row of a new key stays, else the row deleted last; rows without a value match no row.
    bronze.relations([by_email, quiet_by_email])
    bronze.add(45, [change(by_email, "update", new=["30", "a"])])
    bronze.commit(50)
    assert silver.cycle() is not None
    after = [(2, "b", False), (3, "a", False), (5, "d", True), (6, None, True), (7, None, True)]
    assert rows("quiet") == after
    assert rows("people") == sorted([*after[:1], *after[2:], (30, "a", False)])

    bronze.add(55, [change(by_email, "delete", old=[None, "a"], old_is_key=True)])
    bronze.add(56, [change(by_email, "insert", new=["8", "d"])])
    bronze.commit(60)
    assert silver.cycle() is not None
    assert rows("people") == sorted([*after[:1], *after[3:], (8, "d", False), (30, "a", True)])
    doubled = doubled_query(silver_table(by_email, SilverSettings()), lake.sql("silver", "people"))
    assert rows_of(spark, doubled) == []
    properties = rows_of(spark, f"SHOW TBLPROPERTIES {lake.sql('silver', 'people')} ('{KEY_PROPERTY}')")
    assert properties[0]["value"] == "2"

    # A table of an earlier version has no property, and its keys are unique: no comparison as JSON is needed.
    target = lake.sql("silver", "people")
    stored, before = log.read("people"), rows("people")
    assert stored is not None
    merges: list[str] = []
    table = silver_table(by_email, SilverSettings(deletes="soft"))

    def finds(query: str) -> bool:
        merges.append(query)
        return bool(rows_of(spark, query))

    assert merged(target, table, stored.fields, {}, finds=finds) == [
        f"ALTER TABLE {target} SET TBLPROPERTIES ('{KEY_PROPERTY}' = '2')"
    ]
    assert len(merges) == 1
    spark.sql(f"ALTER TABLE {target} UNSET TBLPROPERTIES ('{KEY_PROPERTY}')")
    bronze.add(65, [change(by_email, "insert", new=["9", "e"])])
    bronze.commit(70)
    assert silver.cycle() is not None
    assert rows("people") == sorted([*before, (9, "e", False)])
    newest = [row["operation"] for row in rows_of(spark, f"DESCRIBE HISTORY {target} LIMIT 2")]
    assert newest == ["MERGE", "SET TBLPROPERTIES"]
