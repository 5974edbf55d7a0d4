"""Build a lake for the readers, with the expected rows that Spark reads.

The lake has a table of every type at its extremes, and one table for each feature of silver's tables. `make
readers` runs this module, then `tests/readers/matrix.py` in an environment with the other readers.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.shapes import PgType
from deltasmelt.pipelines.spark.session import spark_session, stop_session
from deltasmelt.silver.schema.alter import steps
from deltasmelt.silver.schema.catalog import SilverTable, silver_table
from deltasmelt.silver.schema.ddl import create
from deltasmelt.silver.schema.fields import DeltaColumn
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.spark.access import access_of
from tests.readers.extremes import MOMENTS, extremes, moments
from tests.readers.values import microseconds, plain_rows
from tests.silver.histories import INT, TEXT, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Layer

SETTINGS: Final = SilverSettings(types={"public.variants.doc": "variant"})
OWN: Final = "7, TIMESTAMP '2026-11-25 12:00:00 UTC', map('note', 'it''s')"
"""Values of the columns that each silver table adds to the source's columns."""


@dataclass(frozen=True, slots=True)
class Case:
    """A table of up to three columns; the first two are equal in all tables.

    Attributes:
        column: name and type of the third column; None: two columns.
        value: value of the third column in all rows, as Spark SQL.
        then: name and type after a change of the third column.
        deleted: condition of the rows that are deleted.
    """

    column: tuple[str, PgType] | None = None
    value: str = "NULL"
    then: tuple[str, PgType] | None = None
    deleted: str | None = None


CASES: Final = {
    "as_born": Case(),
    "rows_deleted": Case(deleted="id % 10 = 3"),
    "local_times": Case(("at", PgType("base", "timestamp")), "TIMESTAMP_NTZ '2026-11-25 12:00:00'"),
    "variants": Case(("doc", PgType("base", "jsonb")), "parse_json('{\"a\": 1}')"),
    "odd_names": Case(("of day", TEXT), "'x'"),
    "renamed": Case(("a", INT), "1", then=("b", INT)),
    "widened": Case(("a", INT), "1", then=("a", PgType("base", "int8"))),
}


def main() -> int:
    """Build the lake in the argument's folder, and write its contents to ``expected.json``."""
    folder = Path(sys.argv[1]).absolute()
    lake = Lake(path=str(folder / "lake"))
    spark = spark_session({"spark.driver.memory": "1g"})
    extremes(spark, lake)
    moments(spark, lake)
    expected = {
        "silver, every type": _expected(spark, lake, "silver", "extremes"),
        "gold, every type": _expected(spark, lake, "gold", "extremes"),
        "a moment in each file": _expected(spark, lake, "silver", "moments"),
        **{name: _made(access_of(spark).child(), lake, name, case) for name, case in CASES.items()},
    }
    (folder / "expected.json").write_text(json.dumps(expected))
    stop_session(spark)
    return 0


def _made(spark: SparkSession, lake: Lake, name: str, case: Case) -> dict[str, object]:
    target, table = lake.sql("silver", name), _shape(name, case.column)
    for statement in create(target, table):
        spark.sql(statement)
    third = "" if case.column is None else f", {case.value}"
    rows = f"SELECT CAST(id AS INT), concat('n', id){third}, {OWN} FROM range(0, 1000, 1, 1)"
    spark.sql(f"INSERT INTO {target} {rows}")
    if case.then is not None:
        actual = [DeltaColumn(column.name, column.attnum, column.spark_type) for column in table.columns]
        for statement in steps(target, _shape(name, case.then), actual, SETTINGS, emptied=False):
            spark.sql(statement)
    if case.deleted is not None:
        spark.sql(f"DELETE FROM {target} WHERE {case.deleted}")
    return _expected(spark, lake, "silver", name)


def _expected(spark: SparkSession, lake: Lake, layer: Layer, name: str) -> dict[str, object]:
    """Return a table's path, all rows as Spark reads them, and the timestamps of the queries.

    Arrow has no type for a variant, so the matrix compares the table's remaining columns.
    """
    frame = spark.sql(f"SELECT * FROM {lake.sql(layer, name)}")
    left_out = [field.name for field in frame.schema if field.dataType.simpleString() == "variant"]
    rows = plain_rows(pa.table(frame.drop(*left_out).toArrow()))
    since = (
        [microseconds(moment) - 1 for moment in MOMENTS]
        if "at" in frame.columns and name not in CASES
        else []
    )
    return {"path": lake.uri(layer, name), "rows": rows, "moments": since, "left_out": left_out}


def _shape(name: str, column: tuple[str, PgType] | None) -> SilverTable:
    columns = [("id", INT), ("note", TEXT), *([] if column is None else [column])]
    return silver_table(relation(name, columns, ["id"], relation_id=1), SETTINGS)


if __name__ == "__main__":
    sys.exit(main())
