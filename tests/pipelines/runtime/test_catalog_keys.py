"""Keys as constraints: only valid keys, stated once, and removed before the keys become invalid.

The tests' catalogs have no such constraints, so the tests compare the statements as values.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from deltasmelt.bronze.lake.control import Cut
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.pipelines.runtime.catalog_keys import (
    CatalogKeys,
    KeyStatements,
    held_key,
    read_keys,
    statements,
)
from deltasmelt.silver.schema.catalog import SilverTable, history_of, silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, relation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

KEY, OTHER = ("id", "part"), ("part",)
ADD = "ALTER TABLE `main`.`silver`.`t` ADD CONSTRAINT `t__deltasmelt_key` PRIMARY KEY (`id`, `part`) RELY"
DROP = "ALTER TABLE `main`.`silver`.`t` DROP CONSTRAINT IF EXISTS `t__deltasmelt_key`"


def table(key: Sequence[str] = KEY, *, unique: bool = True, from_lsn: int = 0) -> SilverTable:
    columns = [("id", INT), ("part", INT), ("note", TEXT)]
    shape = relation("t", columns, key, relation_id=7, from_lsn=from_lsn)
    return silver_table(replace(shape, key_unique=unique), SilverSettings())


def keys_of(*stated: str, name: str = "t__deltasmelt_key", not_null: Sequence[str] = KEY) -> KeyStatements:
    rows = [("t", name, column) for column in stated]
    return read_keys("main", rows, [("t", column) for column in not_null])


def cut(lsn: int, *names: str) -> Cut:
    return Cut("silver", Lsn(lsn), None, dict.fromkeys(names, 1), datetime.now(UTC))


def test_statements_replace_former_key_by_new_key() -> None:
    def said(before: tuple[str, ...], wanted: tuple[str, ...]) -> list[str]:
        return statements("c.s.`a``b`", "a`b", old=before, new=wanted)

    drop = "ALTER TABLE c.s.`a``b` DROP CONSTRAINT IF EXISTS `a``b__deltasmelt_key`"
    add = "ALTER TABLE c.s.`a``b` ADD CONSTRAINT `a``b__deltasmelt_key` PRIMARY KEY (`x``y`) RELY"
    assert said((), ()) == []
    assert said(("x`y",), ("x`y",)) == []
    assert said((), ("x`y",)) == [add]
    assert said(("old",), ("x`y",)) == [drop, add]
    assert said(("old",), ()) == [drop]


def test_key_is_stated_if_source_enforces_without_null() -> None:
    assert held_key(table()) == KEY
    assert held_key(table(unique=False)) == ()
    assert held_key(history_of(table())) == ()
    nullable = table()
    columns = tuple(replace(column, not_null=column.name == "id") for column in nullable.columns)
    assert held_key(replace(nullable, columns=columns)) == ()
    assert held_key(replace(table(), key=())) == ()


def test_key_is_stated_once_by_naming_cut() -> None:
    """The first cut that names the table with the key states the key."""
    keys = keys_of()
    assert keys.added(cut(5, "other"), [table()]) == []
    assert keys.added(cut(5, "t"), [table(from_lsn=6)]) == []
    assert keys.added(cut(6, "t"), [table(from_lsn=6)]) == [ADD]
    assert keys.added(cut(7, "t"), [table(from_lsn=6)]) == []


def test_changed_key_is_dropped_before_rows_and_restated() -> None:
    keys = keys_of(*KEY)
    assert keys.released([table()]) == []
    assert keys.added(cut(5, "t"), [table()]) == []
    changed = table(OTHER, from_lsn=9)
    assert keys.released([changed]) == [DROP]
    assert keys.released([changed]) == []
    assert keys.added(cut(8, "t"), [changed]) == []
    assert keys.added(cut(9, "t"), [changed]) == [ADD.replace("`id`, ", "")]
    assert keys.released([table(unique=False)]) == [DROP]


def test_foreign_constraint_stays_and_own_survives_restart() -> None:
    assert keys_of(*OTHER, name="ours").released([table()]) == []
    assert keys_of(*OTHER).released([table()]) == [DROP]


def test_nullable_key_is_reported_once_and_not_stated() -> None:
    keys = keys_of(not_null=("id",))
    assert [keys.added(cut(lsn, "t"), [table()]) for lsn in (1, 2)] == [[], []]
    assert keys.nullable == ["t"]


def test_case_colliding_names_in_catalog_have_no_key() -> None:
    def named(name: str) -> SilverTable:
        shape = relation("t", [("Id", INT), ("note", TEXT)], ["Id"], relation_id=7)
        return replace(silver_table(replace(shape, key_unique=True), SilverSettings()), name=name)

    def stated() -> KeyStatements:
        return read_keys("main", [("orders", "orders__deltasmelt_key", "id")], [("orders", "id")])

    assert stated().released([named("Orders")]) == []
    assert stated().added(cut(5, "Orders"), [named("Orders")]) == []
    fresh = read_keys("main", [], [("orders", "id")])
    twins = [named("Orders"), named("ORDERS")]
    assert fresh.added(cut(5, "Orders", "ORDERS"), twins) == []
    assert len(fresh.added(cut(5, "Orders"), [named("Orders")])) == 1
    assert fresh.added(cut(6, "Orders"), [named("Orders")]) == []
    assert [statement.partition(" CONSTRAINT")[0] for statement in fresh.released(twins)] == [
        "ALTER TABLE `main`.`silver`.`orders` DROP"
    ]


@pytest.mark.spark
def test_catalog_without_constraints_is_reported_once(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """The lack of constraints stops nothing."""
    keys = CatalogKeys(spark, "spark_catalog")
    for lsn in (1, 2):
        keys.release([table()])
        keys.state(cut(lsn, "t"), [table()])
    warnings_logged = [
        record.getMessage()
        for record in caplog.records
        if "keys cannot be declared in spark_catalog: " in record.getMessage()
    ]
    assert len(warnings_logged) == 1
