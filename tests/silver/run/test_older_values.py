"""Test the next cycle over a lake of an older version, with numeric as text and char(n) with padding."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.schema.decimals import UNREPRESENTABLE_ROWS
from deltasmelt.silver.schema.padding import PADDING_PROPERTY
from deltasmelt.silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.silver.histories import CHAR, FREE_NUMERIC, INT, TEXT, BronzeWriter, change, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CODES = PgType("array", "_bpchar", element=CHAR)
priced = relation("priced", [("id", INT), ("total", FREE_NUMERIC)], ["id"], relation_id=1)
numbered = relation("numbered", [("id", FREE_NUMERIC), ("note", TEXT)], ["id"], relation_id=2)
coded = relation("coded", [("code", CHAR), ("other", CHAR)], ["code"], relation_id=3)
quiet = relation("quiet", [("code", CHAR), ("note", TEXT)], ["code"], relation_id=4)
listed = relation("listed", [("id", INT), ("codes", CODES)], ["id"], relation_id=5)
SHAPES = [priced, numbered, coded, quiet, listed]
AS_TEXT = {"public.priced.total": "string", "public.numbered.id": "string"}


@pytest.mark.spark
def test_a_lake_of_an_older_version(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    lake = Lake(path=str(tmp_path_factory.mktemp("lake")))
    bronze, control = BronzeWriter(lake), ControlTables(lake)

    def rows(name: str, columns: str) -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM {lake.sql('silver', name)} ORDER BY 1, 2"
        return [tuple(row) for row in rows_of(spark, query)]

    bronze.relations(SHAPES)
    bronze.snapshot(priced, 10, [["1", "1.10"], ["2", "99"], ["3", "150.0"]])
    bronze.snapshot(numbered, 10, [["1", "a"], ["2.50", "b"]])
    for shape in (coded, quiet):
        bronze.snapshot(shape, 10, [["a    ", "x    "], ["b    ", None], ["c    ", "     "]])
    bronze.snapshot(listed, 10, [["1", '{"ab   "}']])
    bronze.commit(20)
    settings = SilverSettings(types=AS_TEXT, history=["public.coded"])
    cut = Silver(spark, lake, settings, control).cycle()
    assert cut is not None
    control.record_cut(replace(cut, marks={}, recorded_at=None))  # an older version's, which stated no marks
    assert rows("priced", "max(total), 0") == [("99", 0)]
    padded = {"coded": ["code", "other"], "coded__history": ["code", "other"], "quiet": ["code"]}
    for name, columns in padded.items():  # as an older version wrote them, unsigned; no cut names them
        sets = ", ".join(f"{column} = rpad({column}, 5, ' ')" for column in columns)
        spark.sql(f"UPDATE {lake.sql('silver', name)} SET {sets}")
    for name in ("coded", "quiet", "coded__history", "listed"):
        spark.sql(f"ALTER TABLE {lake.sql('silver', name)} UNSET TBLPROPERTIES ('{PADDING_PROPERTY}')")
    assert rows("quiet", "code, note")[0] == ("a    ", "x    ")

    bronze.add(
        30,
        [
            change(coded, "update", new=["a    ", "y    "]),
            change(coded, "delete", old=["b    ", None], old_is_key=True),
            change(coded, "insert", new=["d    ", "z    "]),
        ],
    )
    bronze.commit(40)
    silver = Silver(spark, lake, SilverSettings(history=["public.coded"]), control)
    cut = silver.cycle()

    # Silver removes blanks in place, even in a table without changes.
    assert cut is not None
    assert set(cut.tables) == set(cut.marks) == {"coded", "coded__history", "quiet"}
    assert rows("coded", "code, other") == [("a", "y"), ("c", ""), ("d", "z")]
    assert rows("quiet", "code, note") == [("a", "x    "), ("b", None), ("c", "     ")]
    assert rows("coded__history", "code, _valid_from_lsn, _valid_to_lsn, other") == [
        ("a", 10, 30, "x"), ("a", 30, None, "y"), ("b", 10, 30, None), ("c", 10, None, ""),
        ("d", 30, None, "z"),
    ]  # fmt: skip
    # If no conversion in place is possible, the error names the command, before silver reads a number as
    # text.
    errors = {error.name: error for error in control.open_errors()}
    assert {name: error.code for name, error in errors.items()} == {
        "public.priced": "column-retyped",
        "public.numbered": "column-retyped",
        "public.listed": "column-retyped",
    }
    assert "column total changed its type from STRING to DECIMAL(38,18)" in errors["public.priced"].message
    assert errors["public.priced"].remedy == "resnapshot the table: smelt snapshot FILE public.priced"
    assert "trailing blanks" in errors["public.listed"].message

    bronze.snapshot(priced, 50, [["1", "1.10"], ["2", "99"], ["3", "150.0"], ["4", "NaN"], ["5", None]])
    bronze.snapshot(numbered, 50, [["1", "a"], ["2.50", "b"]])
    bronze.snapshot(listed, 50, [["1", '{"ab   "}']])
    bronze.add(55, [change(numbered, "update", old=["1", None], old_is_key=True, new=["1.0", "A"])])
    bronze.commit(60)
    cut = silver.cycle()
    assert cut is not None
    assert set(cut.tables) == {"priced", "numbered", "listed", "coded", "coded__history", "quiet"}
    assert control.open_errors() == []
    assert rows("priced", "CAST(max(total) AS STRING), 0") == [("150.000000000000000000", 0)]
    assert [run.details[UNREPRESENTABLE_ROWS] for run in control.runs("silver", "priced", limit=1)] == [1]
    assert rows("numbered", "CAST(id AS DOUBLE), note") == [(1.0, "A"), (2.5, "b")]
    assert rows("listed", "id, codes") == [(1, ["ab"])]
    assert silver.cycle() is None
