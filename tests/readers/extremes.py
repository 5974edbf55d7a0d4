"""A silver table and a gold table with every type at its extremes, written by the product itself.

The values are PostgreSQL's own texts; each column repeats its list. `MOMENTS` contains the years 1 and 9999,
the days of calendar changes, and the limits of 64-bit nanoseconds. `MOMENTS` also contains microseconds that
Delta's statistics omit, because statistics have milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.shapes import PgType
from deltasmelt.gold.cycle import Gold
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.spark.access import access_of
from tests.gold.shop_documents import document
from tests.silver.histories import INT, TEXT, BronzeWriter, relation

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake

MOMENTS: Final = (
    "0001-01-01 00:00:00", "0001-01-01 00:00:00.000001", "1582-10-04 23:59:59.999999", "1582-10-15 00:00:00",
    "1677-09-21 00:12:43.145224", "1677-09-21 00:12:43.145225", "1883-11-18 12:03:57.999999",
    "1899-12-31 23:59:59.999999", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00.000001",
    "2200-01-01 00:00:00", "2262-04-11 23:47:16.854775", "2262-04-11 23:47:16.854776",
    "9999-12-31 23:59:59.999", "9999-12-31 23:59:59.999999",
)  # fmt: skip
ZONED: Final = tuple(f"{moment}+00" for moment in MOMENTS)
DAYS: Final = tuple(dict.fromkeys(moment[:10] for moment in MOMENTS))


def _base(name: str, typmod: int = -1) -> PgType:
    return PgType("base", name, typmod=typmod)


def _array(element: PgType) -> PgType:
    return PgType("array", f"_{element.name}", element=element)


def _range(name: str, element: PgType) -> PgType:
    return PgType("range", name, element=element)


def _numeric(precision: int, scale: int) -> PgType:
    return _base("numeric", (precision << 16 | scale) + 4)


def _quoted(values: tuple[str, ...]) -> str:
    return "{" + ",".join(f'"{value}"' for value in values) + ",NULL}"


_PAIR: Final = PgType("composite", "pair", fields=(("a", INT), ("at", _base("timestamptz")), ("b", TEXT)))

TYPES: Final[dict[str, tuple[PgType, tuple[str | None, ...]]]] = {
    "truth": (_base("bool"), ("t", "f")),
    "small": (_base("int2"), ("-32768", "32767", "0")),
    "whole": (_base("int4"), ("-2147483648", "2147483647", "0")),
    "large": (_base("int8"), ("-9223372036854775808", "9223372036854775807", "0")),
    "number": (_base("oid"), ("0", "4294967295")),
    "single": (_base("float4"), ("3.4028235e+38", "1e-45", "NaN", "Infinity", "-Infinity", "-0", "0.1")),
    "double": (
        _base("float8"),
        ("1.7976931348623157e+308", "5e-324", "NaN", "Infinity", "-Infinity", "-0", "0.30000000000000004"),
    ),
    "digits": (_numeric(38, 0), ("9" * 38, "-" + "9" * 38, "0")),
    "fraction": (_numeric(38, 38), ("0." + "9" * 38, "-0." + "0" * 37 + "1", "0." + "0" * 38)),
    "money": (_numeric(12, 2), ("9999999999.99", "-9999999999.99", "0.00")),
    "cents": (_numeric(4, 2), ("99.99", "-99.99", "0.01")),
    "at": (_base("timestamptz"), ZONED),
    "local": (_base("timestamp"), MOMENTS),
    "day": (_base("date"), DAYS),
    "hour": (_base("time"), ("00:00:00", "24:00:00", "23:59:59.999999")),
    "span": (_base("interval"), ("P-178000000Y", "PT0S", "P1Y2M3DT4H5M6.000007S")),
    "note": (TEXT, ("", "NULL", "null", "\U0001f600 é \t\n\\ ' \"", " x ", "\x01\x7f\u2028")),
    "id2": (_base("uuid"), ("00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff")),
    "raw": (_base("bytea"), ("\\x", "\\x00", "\\x00ff80")),
    "doc": (_base("jsonb"), ('{"a": [1, null, {"b": 1e400}]}', "null", '""')),
    "pairs": (_base("hstore"), ('"a"=>"1", "b"=>NULL, ""=>""', "")),
    "vector": (_base("vector"), ("[1,2.5,-3e-05]", "[0]")),
    "wholes": (_array(INT), ("{-2147483648,NULL,2147483647}", "{}")),
    "notes": (_array(TEXT), ('{"a,b",NULL,"NULL","","q\\"\\\\"}', "{}")),
    "times": (_array(_base("timestamptz")), (_quoted(ZONED), "{}")),
    "locals": (_array(_base("timestamp")), (_quoted(MOMENTS), "{}")),
    "days": (_array(_base("date")), (_quoted(DAYS), "{}")),
    "raws": (_array(_base("bytea")), ('{"\\\\x00ff",NULL,"\\\\x"}', "{}")),
    "pair": (_PAIR, (f'(1,"{ZONED[-1]}",x)', f'(,"{ZONED[0]}","")', "(,,)")),
    "during": (_range("tstzrange", _base("timestamptz")), (f'["{ZONED[0]}","{ZONED[-1]}")', "(,)", "empty")),
    "season": (_range("daterange", _base("date")), (f"[{DAYS[0]},{DAYS[-1]})", "(,)", "empty")),
    "span4": (_range("int4range", INT), ("[1,5)", "empty", "(,)")),
    "nothing": (TEXT, (None,)),
}
"""Type of each column, with PostgreSQL's texts of its least, greatest and oddest values."""

OWN_ROWS: Final = max(len(texts) for _, texts in TYPES.values()) + 1
"""Number of rows: each value of each column at least once, and one row of NULLs."""

_FIELDS: Final = "\n".join(f"  - {name}" for name in TYPES)
_INNER: Final = ", ".join(["id", *TYPES])
DOCUMENT: Final = f"""\
document: extremes
root: public.extremes
fields:
  - id
{_FIELDS}
  - all_of: {{many: public.extremes, on: {{id: id}}, fields: [{_INNER}]}}
"""


def moments(spark: SparkSession, lake: Lake) -> None:
    """Write a table with one timestamp per file: Delta's statistics decide which files a filter reads."""
    session, target = access_of(spark).child(), lake.sql("silver", "moments")
    rows = ", ".join(f"({number}, TIMESTAMP '{moment} UTC')" for number, moment in enumerate(MOMENTS))
    apart = f"SELECT /*+ REPARTITION_BY_RANGE({len(MOMENTS)}, id) */ * FROM VALUES {rows} AS t(id, at)"
    plain = "TBLPROPERTIES ('delta.enableDeletionVectors' = 'false')"  # delta-rs gives pyarrow no others
    session.sql(f"CREATE TABLE {target} (id INT, at TIMESTAMP) USING DELTA {plain}")
    session.sql(f"INSERT INTO {target} {apart}")


def extremes(spark: SparkSession, lake: Lake) -> None:
    """Fold the table into silver, and build the document from silver."""
    columns = [("id", INT), *((name, type_) for name, (type_, _) in TYPES.items())]
    shape = relation("extremes", columns, ["id"], relation_id=1)
    bronze, control, settings = BronzeWriter(lake), ControlTables(lake), SilverSettings()
    bronze.relations([shape])
    bronze.snapshot(shape, 10, [_row(number) for number in range(OWN_ROWS)])
    bronze.commit(10)
    silver = Silver(spark, lake, settings, control)
    silver.cycle()
    Gold(spark, lake, [document(DOCUMENT)], lambda: silver_catalog([shape], settings), control).cycle()
    silver.close()
    assert control.open_errors() == []


def _row(number: int) -> list[str | None]:
    if number == OWN_ROWS - 1:
        return [str(number), *(None for _ in TYPES)]
    return [str(number), *(texts[number % len(texts)] for _, texts in TYPES.values())]
