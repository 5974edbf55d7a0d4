"""A table enables a reader feature when first needed, and not before."""

from __future__ import annotations

import pytest

from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.schema.alter import steps
from deltasmelt.silver.schema.catalog import SilverTable, silver_table
from deltasmelt.silver.schema.ddl import adopted, create
from deltasmelt.silver.schema.fields import DeltaColumn, ddl_of, json_of
from deltasmelt.silver.settings import SilverSettings
from tests.silver.histories import INT, TEXT, relation

KEEP, DROP = SilverSettings(), SilverSettings(on_drop_column="drop")
BIGINT, LOCAL = PgType("base", "int8"), PgType("base", "timestamp")
FEATURES = ("delta.columnMapping.mode", "delta.enableTypeWidening", "delta.feature.timestampNtz")
BEFORE = [("id", INT), ("a", TEXT), ("b", INT)]


def shape(columns: list[tuple[str, PgType]], attnums: list[int] | None = None) -> SilverTable:
    return silver_table(relation("t", columns, ["id"], relation_id=1, attnums=attnums), KEEP)


def fields(table: SilverTable) -> list[DeltaColumn]:
    return [DeltaColumn(column.name, column.attnum, column.spark_type) for column in table.columns]


def enabled(statements: list[str]) -> list[str]:
    """Return the features that statements enable; each feature comes before all other statements."""
    features = [next((name for name in FEATURES if name in statement), "") for statement in statements]
    feature_names = [name for name in features if name]
    assert features[: len(feature_names)] == feature_names
    return feature_names


@pytest.mark.parametrize(
    ("after", "attnums", "expected"),
    [
        (BEFORE, [1, 2, 3], []),
        ([*BEFORE, ("c", TEXT)], [1, 2, 3, 4], []),
        ([("id", INT), ("z", TEXT), ("b", INT)], [1, 2, 3], FEATURES[:1]),
        ([("id", INT), ("a", TEXT)], [1, 2], FEATURES[:1]),
        ([("id", INT), ("a", TEXT), ("b", BIGINT)], [1, 2, 3], FEATURES[1:2]),
        ([("id", INT), ("z", TEXT), ("b", BIGINT)], [1, 2, 3], FEATURES[:2]),
        ([*BEFORE, ("of day", TEXT)], [1, 2, 3, 4], FEATURES[:1]),
        ([*BEFORE, ("at", LOCAL)], [1, 2, 3, 4], FEATURES[2:]),
    ],
)
def test_shape_change_requests_needed_features(
    after: list[tuple[str, PgType]], attnums: list[int], expected: list[str]
) -> None:
    assert enabled(steps("t", shape(after, attnums), fields(shape(BEFORE)), DROP, emptied=False)) == list(
        expected
    )


def test_a_column_that_is_kept_needs_nothing() -> None:
    assert steps("t", shape(BEFORE[:2]), fields(shape(BEFORE)), KEEP, emptied=False) == []


@pytest.mark.parametrize(
    ("columns", "mapped"),
    [
        (BEFORE, False),
        ([*BEFORE, ("größe.`x-y`$", TEXT)], False),
        *(([("id", INT), (f"a{odd}b", TEXT)], True) for odd in " ,;{}()\n\t="),
        ([("id", INT), ("pair", PgType("composite", "p", fields=(("a b", INT),)))], True),
    ],
)
def test_names_decide_column_mapping_of_new_table(columns: list[tuple[str, PgType]], *, mapped: bool) -> None:
    statement = create("t", shape(columns))[0]
    assert ("'delta.columnMapping.mode' = 'name'" in statement) is mapped
    assert "idening" not in statement


def test_foreign_relation_with_column_name_requires_mapping() -> None:
    versioned = silver_table(
        relation("t", [("id", INT), ("a", INT)], ["id"], relation_id=2), SilverSettings(deletes="soft")
    )
    statements, _ = adopted("t", versioned, fields(shape(BEFORE)), "1")
    assert any("RENAME" in statement for statement in statements)
    assert enabled(statements) == [FEATURES[0]]


@pytest.mark.parametrize(
    "ddl",
    [
        "BIGINT",
        "DECIMAL(38,18)",
        "ARRAY<ARRAY<DECIMAL(10,2)>>",
        "MAP<STRING, STRUCT<`a``b`: INT, `c: d`: ARRAY<TIMESTAMP_NTZ>>>",
        "STRUCT<`lower`: DATE, `upper`: DATE, `lower_inc`: BOOLEAN>",
    ],
)
def test_a_types_json_has_its_name(ddl: str) -> None:
    assert ddl_of(json_of(ddl)) == ddl


@pytest.mark.parametrize("ddl", ["", "INTEGER", "DECIMAL", "ARRAY<INT", "INT>", "STRUCT<a: INT>", "CHAR(3)"])
def test_text_without_a_type_is_refused(ddl: str) -> None:
    with pytest.raises(ValueError, match="not the name of a"):
        json_of(ddl)
