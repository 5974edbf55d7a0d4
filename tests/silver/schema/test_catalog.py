"""Test the derivation of silver tables from relations, without Spark."""

from __future__ import annotations

import subprocess
import sys

import pytest

from deltasmelt.bronze.errors import ConfigurationError, TableError
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.schema import catalog
from deltasmelt.silver.schema.catalog import check_table, silver_catalog, silver_table
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, NUMERIC, TEXT, relation

PLAIN = SilverSettings()


def test_columns_have_spark_types_without_internal_columns() -> None:
    tags = PgType("array", "_text", element=TEXT)
    shape = relation("sales.orders", [("id", INT), ("total", NUMERIC), ("tags", tags)], ["id"], relation_id=1)
    table = silver_table(shape, PLAIN)
    assert table.name == "sales__orders"
    assert [(column.name, column.spark_type) for column in table.columns] == [
        ("id", "INT"),
        ("total", "DECIMAL(10,2)"),
        ("tags", "ARRAY<STRING>"),
    ]


def test_the_newest_version_of_a_shape_counts() -> None:
    old = relation("t", [("id", INT)], ["id"], relation_id=1)
    new = relation("t", [("id", INT), ("note", TEXT)], ["id"], relation_id=1, from_lsn=50)
    catalog = silver_catalog([new, old], PLAIN)
    assert [column.name for column in catalog[TableName("public", "t")].columns] == ["id", "note"]


def test_renamed_table_counts_only_under_new_name() -> None:
    old = relation("before", [("id", INT)], ["id"], relation_id=1)
    new = relation("after", [("id", INT)], ["id"], relation_id=1, from_lsn=50)
    assert list(silver_catalog([old, new], PLAIN)) == [TableName("public", "after")]


def test_newer_relation_of_recreated_table_counts() -> None:
    dropped = relation("t", [("id", INT)], ["id"], relation_id=9)
    recreated = relation("t", [("id", TEXT)], ["id"], relation_id=7, from_lsn=80)
    assert silver_catalog([recreated, dropped], PLAIN)[TableName("public", "t")].relation.relation_id == 7


def test_unchanged_table_is_not_computed_again() -> None:
    """Each cycle needs all tables, and a pipeline may have thousands of tables dropped long ago."""
    settings = SilverSettings()
    dropped = relation("gone", [("id", INT)], ["id"], relation_id=1)
    stays = relation("stays", [("id", INT)], ["id"], relation_id=2)
    before = silver_catalog([dropped, stays], settings)
    second_catalog = silver_catalog([dropped, stays], settings)
    assert all(second_catalog[name] is table for name, table in before.items())
    later = relation("stays", [("id", INT)], [], relation_id=2, from_lsn=50)
    after = silver_catalog([dropped, stays, later], settings)
    assert after[dropped.table] is before[dropped.table]
    assert after[stays.table].key == ()
    assert silver_catalog([stays], settings)[stays.table].key == stays.key
    assert silver_catalog([stays], SilverSettings(deletes="soft"))[stays.table].soft


def test_an_override_replaces_the_mapped_type() -> None:
    settings = SilverSettings(types={"public.t.total": "decimal(38,9)"})
    shape = relation("t", [("id", INT), ("total", PgType("base", "numeric"))], ["id"], relation_id=1)
    assert silver_table(shape, settings).column("total").spark_type == "DECIMAL(38,9)"


def test_an_impossible_override_is_refused() -> None:
    settings = SilverSettings(types={"public.t.id": "geometry"})
    with pytest.raises(ConfigurationError):
        silver_table(relation("t", [("id", INT)], ["id"], relation_id=1), settings)


def test_an_impossible_override_is_its_tables_own_trouble() -> None:
    settings = SilverSettings(types={"public.t.id": "geometry"})
    shapes = [relation(name, [("id", INT)], ["id"], relation_id=at) for at, name in enumerate(("t", "u"), 1)]
    refused, fine = silver_catalog(shapes, settings).values()
    assert fine.problem is None
    assert refused.problem is not None
    assert (refused.problem.code, refused.problem.table) == ("type-override", refused.table)
    assert refused.column("id").spark_type == "INT"


def test_two_tables_of_equal_name_are_both_rejected() -> None:
    settings = SilverSettings(history=["public.t"])
    names = ("t", "t__history", "u")
    shapes = [relation(name, [("id", INT)], ["id"], relation_id=at) for at, name in enumerate(names, 1)]
    t, rival, third = silver_catalog(shapes, settings).values()
    for table, message in (
        (t, ("the history of the table needs")),
        (rival, ("which belongs to the history of public.t")),
    ):
        with pytest.raises(TableError, match=message) as caught:
            check_table(table, [t, rival, third], settings)
        assert caught.value.code == "silver-settings-clash"
        check_table(table, [table, third], settings)
    check_table(third, [t, rival, third], settings)
    check_table(t, [t, rival, third], PLAIN)


@pytest.mark.parametrize(
    ("key", "types", "refused"),
    [
        (PgType("base", "hstore", "public"), {}, True),
        (PgType("array", "_hstore", "public", element=PgType("base", "hstore", "public")), {}, True),
        (PgType("base", "jsonb"), {"public.t.k": "variant"}, True),
        (PgType("base", "hstore", "public"), {"public.t.k": "string"}, False),
        (PgType("composite", "c", "public", fields=(("map", INT),)), {}, False),
    ],
)
def test_a_key_that_spark_cannot_compare_is_refused(
    key: PgType, types: dict[str, str], *, refused: bool
) -> None:
    settings = SilverSettings(types=types)
    (table,) = silver_catalog(
        [relation("t", [("k", key), ("h", key)], ["k"], relation_id=1)], settings
    ).values()
    if not refused:
        check_table(table, [table], settings)
        return
    with pytest.raises(TableError, match=r"silver\.types: \{public\.t\.k: string\}") as caught:
        check_table(table, [table], settings)
    assert caught.value.code == "key-type"


def test_the_catalog_needs_no_spark() -> None:
    program = "import deltasmelt.silver.schema.catalog, sys; sys.exit('pyspark' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_names_of_gone_tables_are_not_remembered() -> None:
    settings = SilverSettings()
    for day in range(450):
        silver_catalog([relation(f"day_{day}", [("id", INT)], ["id"], relation_id=day)], settings)
    assert len(catalog._made) <= 201
