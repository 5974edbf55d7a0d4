"""A table that silver creates by a pattern has the log that Delta's own CREATE TABLE writes."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.run import empty_tables
from deltasmelt.silver.run.writer import Writer
from deltasmelt.silver.schema import ddl
from deltasmelt.silver.schema.catalog import SilverTable, histories, silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, NUMERIC, TEXT, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

LOCAL, CHAR = PgType("base", "timestamp", oid=1114), PgType("base", "bpchar", oid=1042, typmod=9)
TEXTS = PgType("array", "_text", element=TEXT)
PAIR = PgType("composite", "pair", fields=(("left", INT), ('a"b', TEXTS)), numbers=(1, 2))
SETTINGS = SilverSettings(history=["public.kept"])


def table(name: str, *columns: tuple[str, PgType], key: tuple[str, ...] = ("id",)) -> SilverTable:
    shape = relation(name, [("id", INT), *columns], key, relation_id=len(columns) + 1)
    return silver_table(shape, SETTINGS)


def commented(plain: SilverTable, text: str) -> SilverTable:
    comments = Comments(plain.relation.relation_id, text, {1: text, 2: text})
    return silver_table(replace(plain.relation, comments=comments), SETTINGS)


(KEPT_HISTORY,) = histories([table("kept", ("a", TEXT))], SETTINGS)
WIDE = [(f"c{number}", INT) for number in range(40)]
KINDS: dict[str, tuple[SilverTable, SilverTable]] = {
    "plain": (table("p1", ("a", TEXT)), table("p2", ("total", NUMERIC), ("tags", TEXTS), ("pair", PAIR))),
    "comments": (table("c1"), commented(table("c2", ("a", TEXT)), 'it\'s "so" \\ {[ \n ü 9')),
    "two keys": (table("k1"), table("k2", ("a", TEXT), key=("a", "id"))),
    "no key": (table("n1", key=()), table("n2", ("a", NUMERIC), key=())),
    "local times": (table("l1", ("a", LOCAL)), table("l2", ("b", TEXT), ("c", LOCAL))),
    "padding": (table("h1", ("a", CHAR)), table("h2", ("b", CHAR), ("a", CHAR))),
    "history": (table("kept", ("a", TEXT)), KEPT_HISTORY),
    "wide": (table("w1", *WIDE, ("k", INT), key=("k",)), table("w2", *WIDE, ("i", INT), key=("i",))),
    "no feed": (table("f1", ("a`b", TEXT)), table("f2", ("c`d", TEXT))),
    "a name of 255 bytes": (table("m1"), table("я" * 60 + "." + "ж" * 60)),
}
"""Two tables of each kind: Delta creates the first, the pattern the second."""


def log_of(lake: Lake, name: str) -> tuple[list[Any], Any]:
    """Return the parsed first entry and checksum of a table, without what differs between any two tables."""
    log = Path(lake.uri("silver", name)) / "_delta_log"
    entry = [json.loads(line) for line in (log / f"{0:020}.json").read_text().splitlines()]
    return parsed(entry), parsed(json.loads((log / f"{0:020}.crc").read_text()))


def parsed(value: Any) -> Any:
    if isinstance(value, list):
        return [parsed(item) for item in value]
    if isinstance(value, dict):
        own = {"id", "createdTime", "txnId", "timestamp", "engineInfo"}
        return {name: parsed(item) for name, item in value.items() if name not in own}
    try:
        return json.loads(value)
    except (TypeError, ValueError):
        return value


def author(lake: Lake, name: str) -> str:
    first = (Path(lake.uri("silver", name)) / "_delta_log" / f"{0:020}.json").read_text()
    return str(json.loads(first.splitlines()[0])["commitInfo"]["engineInfo"])


@pytest.fixture(autouse=True)
def no_patterns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(empty_tables, "_patterns", {})


@pytest.mark.parametrize(("first", "second"), KINDS.values(), ids=KINDS)
def test_pattern_writes_what_delta_writes(
    spark: SparkSession, tmp_path: Path, first: SilverTable, second: SilverTable
) -> None:
    ours, deltas = Lake(path=str(tmp_path / "ours")), Lake(path=str(tmp_path / "deltas"))
    writer = Writer(ours, "silver")
    assert writer.create(spark, first) == []
    assert author(ours, first.name).startswith("Apache-Spark")
    assert writer.create(spark, second) == []
    spark.sql(ddl.create(deltas.sql("silver", second.name), second, checkpoints=50)[0])
    assert author(ours, second.name) == "deltasmelt"
    assert log_of(ours, second.name) == log_of(deltas, second.name)
    assert not list(Path(ours.uri("silver", second.name)).parent.glob("_*")), "no staging folder"


def test_rows_merge_into_such_a_table(spark: SparkSession, lake_path: str) -> None:
    lake = Lake(path=lake_path)
    for created in KINDS["plain"]:
        Writer(lake, "silver").create(spark, created)
    target = lake.sql("silver", "p2")
    spark.sql(f"INSERT INTO {target} (id) VALUES (1), (2)")
    spark.sql(f"MERGE INTO {target} t USING (SELECT 2 AS id) s ON t.id = s.id WHEN MATCHED THEN DELETE")
    assert [row.id for row in spark.sql(f"SELECT id FROM {target}").collect()] == [1]
    changes = spark.sql(f"SELECT id, _change_type FROM table_changes('{target}', 0)").collect()
    assert sorted(map(tuple, changes)) == [(1, "insert"), (2, "delete"), (2, "insert")]


def test_delta_creates_what_a_pattern_may_not(spark: SparkSession, lake_path: str) -> None:
    lake = Lake(path=lake_path)
    writer = Writer(lake, "silver")
    for name in ("odd_1", "odd_2"):
        writer.create(spark, table(name, ("of day", TEXT)))
        assert author(lake, name).startswith("Apache-Spark")
    writer.create(spark, table("plain_1"))
    Path(lake.uri("silver", "plain_2")).mkdir()
    writer.create(spark, table("plain_2"))
    assert author(lake, "plain_2").startswith("Apache-Spark")
    writer.create(spark, table("plain_2", ("a", TEXT)))  # it exists: it stays as it is
    assert spark.table(lake.sql("silver", "plain_2")).columns[1] == "_commit_lsn"
    for columns in ([("_change_type", TEXT)], [("a", TEXT), ("A", TEXT)]):
        with pytest.raises(Exception, match=r"DELTA_|ALREADY_EXISTS"):
            writer.create(spark, table("refused", *columns))


def test_default_properties_of_the_session_stay(spark: SparkSession, lake_path: str) -> None:
    lake, name = Lake(path=lake_path), "spark.databricks.delta.properties.defaults.logRetentionDuration"
    writer = Writer(lake, "silver")
    try:
        for days in (3, 4):
            spark.conf.set(name, f"interval {days} days")
            for number in (1, 2):
                writer.create(spark, table(f"d{days}{number}"))
                assert f"interval {days} days" in str(log_of(lake, f"d{days}{number}")[0])
    finally:
        spark.conf.unset(name)
    writer.create(spark, table("d5"))
    assert "logRetentionDuration" not in str(log_of(lake, "d5")[0])
    assert [author(lake, name) == "deltasmelt" for name in ("d31", "d32", "d41", "d42", "d5")] == [
        False, True, False, True, False,
    ]  # fmt: skip


def test_a_removed_table_may_be_created_again(spark: SparkSession, lake_path: str) -> None:
    lake = Lake(path=lake_path)
    writer = Writer(lake, "silver")
    writer.create(spark, table("first"))
    for rows in (3, 1):
        writer.create(spark, table("again", ("a", TEXT)))
        target = lake.sql("silver", "again")
        for number in range(rows):
            spark.sql(f"INSERT INTO {target} (id) VALUES ({number})")
        assert spark.table(target).count() == rows
        shutil.rmtree(lake.uri("silver", "again"))
