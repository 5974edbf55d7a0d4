"""The same content has the same digest on both sides; whatever differs shows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from bronze.identifiers import TableName
from bronze.shapes import PgType
from pipelines.demo.equality import Compared, Content, silver_query, source_query
from silver.schema.catalog import silver_table
from silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.gold.shop import relation

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from silver.schema.catalog import SilverTable

TABLE = "public.things"
TYPES = {
    "id": "int8", "small": "int2", "whole": "int4", "price": "numeric", "ratio": "float8", "yes": "bool",
    "word": "text", "day": "date", "at": "timestamptz", "plain": "timestamp", "words": "text[]",
}  # fmt: skip
ROWS = """
    (1, -1, 0, 0.00, 0.125, true, 'a\\b''"', '2026-01-31', '2026-01-31 12:00:00.000001+00',
     '0001-01-01 00:00:00', '{}'),
    (2, NULL, 7, -12.50, 12.345, false, E'two\\nlines \\u00e9 \\U0001F642', '1969-12-31',
     '1969-12-31 23:59:59.5+00', '2026-11-23 08:00:00', '{a,"b \\"c\\"",NULL}'),
    (3, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""
SPARK_ROWS = r"""
    (1L, -1S, 0, 0.00BD, 0.125D, true, 'a\\b\'"', DATE'2026-01-31', TIMESTAMP'2026-01-31 12:00:00.000001Z',
     TIMESTAMP_NTZ'0001-01-01 00:00:00', array()),
    (2L, NULL, 7, -12.50BD, 12.345D, false, 'two\nlines \u00e9 \U0001F642', DATE'1969-12-31',
     TIMESTAMP'1969-12-31 23:59:59.5Z', TIMESTAMP_NTZ'2026-11-23 08:00:00', array('a', 'b "c"', NULL)),
    (3L, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL)
"""


@pytest.fixture
def things(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to the source, which has the table."""
    columns = ", ".join(
        f"{name} {kind}{'(12, 2)' if kind == 'numeric' else ''}" for name, kind in TYPES.items()
    )
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE things ({columns}, PRIMARY KEY (id))".encode())
        connection.execute(f"INSERT INTO things VALUES {ROWS}".encode())
        yield connection


def known() -> SilverTable:
    shape = relation(TABLE, TYPES, ("id",))
    *plain, words = shape.columns
    texts = PgType("array", "_text", element=PgType("base", "text"))
    return silver_table(replace(shape, columns=(*plain, replace(words, type=texts))), SilverSettings())


def source(connection: psycopg.Connection[Any]) -> Content:
    row = connection.execute(source_query(known()).encode()).fetchone()
    assert row is not None
    return Content(row[0], int(row[1]))


def silver(spark: SparkSession, rows: str = SPARK_ROWS) -> Content:
    names = ", ".join(TYPES)
    spark.sql(f"SELECT * FROM VALUES {rows} AS t({names})").createOrReplaceTempView("compared_things")
    query = silver_query([known()]).replace("`silver`.`things`", "compared_things")
    (row,) = rows_of(spark, query)
    return Content(row["rows"], int(row["digest"]))


@pytest.mark.spark
@pytest.mark.postgres
def test_equal_rows_are_equal_and_every_altered_cell_shows(
    spark: SparkSession, things: psycopg.Connection[Any]
) -> None:
    there = silver(spark)
    assert there.rows == 3
    assert Compared(TableName.parse(TABLE), source(things), there).equal
    for column, value in {
        "small": "0", "whole": "NULL", "price": "0.01", "ratio": "0.126", "yes": "false", "word": "''",
        "day": "'2026-02-01'", "at": "at + interval '1 microsecond'", "plain": "plain + interval '1 day'",
        "words": "'{x}'",
    }.items():  # fmt: skip
        with things.transaction() as undone:
            things.execute(f"UPDATE things SET {column} = {value} WHERE id = 1".encode())
            assert source(things) != there, column
            raise psycopg.Rollback(undone)
    assert source(things) == there
    with things.transaction() as undone:  # what a text without lengths would take for the same
        things.execute("UPDATE things SET word = '-' WHERE id = 3")
        assert source(things) != there
        raise psycopg.Rollback(undone)
    things.execute("SET DateStyle = 'German'")
    assert source(things) == there
    things.execute("INSERT INTO things (id) VALUES (4)")
    assert source(things).rows == 4
    things.execute("TRUNCATE things")
    assert source(things) == Content(0, 0)


def test_a_type_without_a_common_form_is_refused() -> None:
    table = silver_table(relation(TABLE, {"id": "int8", "raw": "bytea"}, ("id",)), SilverSettings())
    with pytest.raises(ValueError, match="BINARY is not compared"):
        source_query(table)
