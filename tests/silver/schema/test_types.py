"""PostgreSQL renders values and Spark reads them: both sides must hold the same value, or Spark none."""

from __future__ import annotations

import datetime as dt
import math
from dataclasses import dataclass
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import psycopg
import pytest
from psycopg.types.range import Range

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.shapes import PgType
from deltasmelt.silver.schema.types import reading

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOST = object()
"""Spark's type cannot hold the value: NULL, with the text in `_unrepresentable`."""
SAME = object()
"""The value that psycopg reads."""

PINNED = (
    "-c TimeZone=UTC -c DateStyle=ISO -c IntervalStyle=iso_8601 -c extra_float_digits=3 -c bytea_output=hex"
    " -c lc_monetary=C"
)


def base(name: str, typmod: int = -1) -> PgType:
    return PgType("base", name, typmod=typmod)


def numeric(precision: int, scale: int) -> PgType:
    return base("numeric", (precision << 16 | scale & 0x7FF) + 4)


def array(element: PgType, typmod: int = -1, delimiter: str = ",") -> PgType:
    return PgType("array", f"_{element.name}", element=element, typmod=typmod, delimiter=delimiter)


def domain(name: str, inner: PgType, typmod: int = -1) -> PgType:
    return PgType("domain", name, "public", element=inner, typmod=typmod)


def range_of(name: str, bound: PgType) -> PgType:
    return PgType("range", name, element=bound)


TEXT = base("text")
INT4 = base("int4")
POINT2 = PgType("composite", "point2", "public", fields=(("x", INT4), ("label", TEXT)))
SHAPE = PgType(
    "composite",
    "shape",
    "public",
    fields=(
        ("id", base("int8")),
        ("corners", array(POINT2)),
        ("Size Of", numeric(6, 2)),
        ("during", range_of("daterange", base("date"))),
    ),
)
TWINS = PgType("composite", "twins", "public", fields=(("a", INT4), ("A", INT4)))
POSITIVE = domain("positive", numeric(8, 3), (8 << 16 | 3) + 4)
TAGS = domain("tags", array(TEXT))
SMALLEST = domain("smallest", domain("smaller", POSITIVE, POSITIVE.typmod), POSITIVE.typmod)
MOOD = PgType("enum", "mood", "public", labels=("sad", "ok"))
MULTIRANGE = PgType("multirange", "int4multirange", element=INT4)
SINGLE = PgType("composite", "single", "public", fields=(("solo", TEXT),))
DEEP = PgType(
    "composite",
    "deep",
    "public",
    fields=(
        ("inside", SHAPE),
        ('in"side', POINT2),
        ("how", array(MOOD)),
        ("many", MULTIRANGE),
        ("price", SMALLEST),
    ),
)

SCHEMA = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'it''s "fine"');
CREATE TYPE point2 AS (x int, label text);
CREATE TYPE shape AS (id bigint, corners point2[], "Size Of" numeric(6,2), during daterange);
CREATE TYPE twins AS (a int, "A" int);
CREATE DOMAIN positive AS numeric(8,3) CHECK (value > 0);
CREATE DOMAIN tags AS text[];
CREATE DOMAIN smaller AS positive CHECK (value < 100);
CREATE DOMAIN smallest AS smaller;
CREATE DOMAIN place AS point2;
CREATE DOMAIN spans AS int4range[];
CREATE DOMAIN feeling AS mood;
CREATE TYPE textrange AS RANGE (subtype = text);
CREATE TYPE floatrange AS RANGE (subtype = float8);
CREATE TYPE pricerange AS RANGE (subtype = numeric);
CREATE TYPE single AS (solo text);
CREATE TYPE quantity AS (n numeric);
CREATE TYPE coded AS (c char(4));
CREATE TYPE charrange AS RANGE (subtype = bpchar);
CREATE TYPE nobody AS ();
CREATE TYPE deep AS (inside shape, "in""side" point2, how mood[], many int4multirange, price smallest, gone bytea);
ALTER TYPE deep DROP ATTRIBUTE gone;
"""

# 100 kB of quotes, backslashes and line ends: a regular expression that recurses would overflow the stack.
LONG = """repeat(E'"\\\\ ,{}()\\n\\'é', 10000)"""
LONG_VALUE = '"\\ ,{}()\n' + "'é"
LONG_VALUE *= 10000


@dataclass(frozen=True)
class Case:
    """A value as SQL, its type, and the value that Spark must hold."""

    sql: str
    type: PgType
    expected: Any = SAME
    override: str | None = None


def span(lower: object, upper: object, bounds: str = "[)", *, empty: bool = False) -> tuple[object, ...]:
    return (lower, upper, bounds[0] == "[", bounds[1] == "]", empty)


# ruff: noqa: E501 - one case a line
CASES = [
    Case("true", base("bool")),
    Case("false", base("bool")),
    Case("null::bool", base("bool"), None),
    Case("(-32768)::int2", base("int2")),
    Case("2147483647", INT4),
    Case("(-9223372036854775808)::int8", base("int8")),
    Case("4294967295::oid", base("oid")),
    # Floating point: Spark holds NaN and infinity; the shortest text reads back to the same bits.
    Case("0.1::float8", base("float8")),
    Case("'NaN'::float8", base("float8")),
    Case("'-Infinity'::float8", base("float8")),
    Case("'Infinity'::float4", base("float4")),
    Case("1.7976931348623157e308::float8", base("float8")),
    Case("5e-324::float8", base("float8")),
    Case("1.1754944e-38::float4", base("float4"), 1.1754943508222875e-38),
    Case("'-0'::float8", base("float8"), -0.0),
    # numeric
    Case("12.30::numeric(12,2)", numeric(12, 2)),
    Case("(-99999999999999999999999999999999999999)::numeric(38,0)", numeric(38, 0)),
    Case("'NaN'::numeric(12,2)", numeric(12, 2), LOST),
    # A numeric without a precision is a number; silver holds 20 digits before the point and 18 after.
    Case("'Infinity'::numeric", base("numeric"), LOST),
    Case("'NaN'::numeric", base("numeric"), LOST),
    Case("1.10::numeric", base("numeric")),
    Case("(-0.0)::numeric", base("numeric")),
    Case("99999999999999999999.999999999999999999::numeric", base("numeric")),
    Case("(-99999999999999999999.999999999999999999)::numeric", base("numeric")),
    Case("1e20::numeric", base("numeric"), LOST),
    Case("1e-18::numeric", base("numeric")),
    Case("1.5e-18::numeric", base("numeric"), LOST),
    Case("1e-19::numeric", base("numeric"), LOST),
    Case("('1.5' || repeat('0', 400))::numeric", base("numeric"), Decimal("1.5")),
    Case("1e400::numeric", base("numeric"), LOST),
    Case("1::numeric(39,1)", numeric(39, 1), Decimal(1)),
    Case("1e38::numeric(39,0)", numeric(39, 0), LOST),
    Case("(1e38 - 1)::numeric(39,0)", numeric(39, 0), Decimal("9" * 38)),
    Case("1e36::numeric(39,1)", numeric(39, 1), Decimal(10) ** 36),
    Case("1.123456789012345678::numeric(50,30)", numeric(50, 30), Decimal("1.123456789012345678")),
    Case("1.1234567890123456789::numeric(50,30)", numeric(50, 30), LOST),
    Case("0::numeric(2,40)", numeric(2, 40), Decimal(0)),
    Case("1.1::numeric", domain("amount", base("numeric"))),
    Case("ROW(1.10)::quantity", PgType("composite", "quantity", "public", fields=(("n", base("numeric")),)), (Decimal("1.1"),)),
    Case("ROW('NaN')::quantity", PgType("composite", "quantity", "public", fields=(("n", base("numeric")),)), LOST),
    Case("12345::numeric(3,-2)", numeric(3, -2), Decimal(12300)),
    Case("(-1e37)::numeric(36,-2)", numeric(36, -2), Decimal(-10) ** 37),
    Case("1e38::numeric(37,-2)", numeric(37, -2), LOST),
    Case("(-1e37)::numeric(37,-2)", numeric(37, -2), Decimal(-10) ** 37),
    Case("'NaN'::numeric(5,-2)", numeric(5, -2), LOST),
    Case("ARRAY[149, NULL]::numeric(5,-2)[]", array(numeric(5, -2)), [Decimal(100), None]),
    Case("0.00123::numeric(3,5)", numeric(3, 5), Decimal("0.00123")),
    Case("1.10::numeric", base("numeric"), Decimal("1.10"), "decimal(38,9)"),
    Case("1.1234567890::numeric", base("numeric"), Decimal("1.123456789"), "decimal(38,9)"),
    Case("1.1234567891::numeric", base("numeric"), LOST, "decimal(38,9)"),
    Case("1234::numeric", base("numeric"), LOST, "decimal(5,2)"),
    Case("'NaN'::numeric", base("numeric"), LOST, "DECIMAL(5, 2)"),
    Case("1e-20::numeric", base("numeric"), 1e-20, "double"),
    Case("0.1::numeric", base("numeric"), 0.1, "double"),
    Case("-1200.50::numeric", base("numeric"), -1200.5, "double"),
    Case("1234567890.1234567::numeric", base("numeric"), LOST, "double"),
    Case("'NaN'::numeric", base("numeric"), math.nan, "double"),
    Case("12::numeric", base("numeric"), 12, "int"),
    Case("12.5::numeric", base("numeric"), LOST, "int"),
    Case("99999999999::int8", base("int8"), LOST, "int"),
    Case("1.0::numeric", base("numeric"), "1.0", "string"),
    # Silver keeps text of every kind unchanged.
    Case("''::text", TEXT),
    Case("'null'::text", TEXT),
    # Trailing blanks of char(n) are not part of the value.
    Case("'ab'::char(5)", base("bpchar"), "ab"),
    Case("''::char(5)", base("bpchar"), ""),
    Case("E' a\\t \\n'::char(9)", base("bpchar"), " a\t \n"),
    Case("'ab '::bpchar", base("bpchar"), "ab"),
    Case("'ab '::varchar(5)", base("varchar"), "ab "),
    Case("'ab'::char(5)", domain("code", base("bpchar")), "ab"),
    Case("ARRAY['ab', '', NULL, 'a\"b']::char(5)[]", array(base("bpchar")), ["ab", "", None, 'a"b']),
    Case("ARRAY['{}']::char(5)[]", domain("codes", array(base("bpchar"))), ["{}"]),
    Case("ROW('ab')::coded", PgType("composite", "coded", "public", fields=(("c", base("bpchar")),)), ("ab",)),
    Case("charrange('a', 'b')", range_of("charrange", base("bpchar")), span("a", "b")),
    Case("'ab'::char(5)", base("bpchar"), "ab", "string"),
    Case("'1.5'::char(9)", base("bpchar"), Decimal("1.50"), "decimal(9,2)"),
    Case("ARRAY['12']::char(5)[]", array(base("bpchar")), [12], "array<int>"),
    Case("E'tab\\t quote\\' \"double\" back\\\\slash \\n é 🦀'::varchar", base("varchar")),
    Case(LONG, TEXT, LONG_VALUE),
    Case("'it''s \"fine\"'::mood", PgType("enum", "mood", "public", labels=("sad", "ok")), 'it\'s "fine"'),
    Case("'0b5e5b0c-2f3e-4b0a-9c5d-9d3f7f3f7f3f'::uuid", base("uuid"), "0b5e5b0c-2f3e-4b0a-9c5d-9d3f7f3f7f3f"),
    Case("'<a>1</a>'::text", base("xml"), "<a>1</a>"),
    Case("'10.0.0.1/8'::inet", base("inet"), "10.0.0.1/8"),
    Case("'null'::jsonb", base("jsonb"), "null"),
    Case("""'{"a": [1, 2.50]}'::json""", base("json"), '{"a": [1, 2.50]}'),
    Case("B'101'::varbit", base("varbit"), "101"),
    Case("'$1,234.50'::money", base("money"), "$1,234.50"),
    Case("'(1,2)'::point", base("point"), "(1,2)"),
    Case("'{[1,3),[5,7)}'::int4multirange", PgType("multirange", "int4multirange", element=INT4), "{[1,3),[5,7)}"),
    Case("'1 2 3'::int2vector", base("int2vector"), "1 2 3"),
    Case("'\\x00ff10'::bytea", base("bytea")),
    Case("''::bytea", base("bytea")),
    # Time
    Case("'2024-02-29'::date", base("date")),
    Case("'0001-01-01'::date", base("date")),
    Case("'9999-12-31'::date", base("date")),
    Case("'0044-03-15 BC'::date", base("date"), LOST),
    Case("'10000-01-01'::date", base("date"), LOST),
    Case("'infinity'::date", base("date"), LOST),
    Case("'-infinity'::date", base("date"), LOST),
    Case("'1582-10-10'::date", base("date")),
    Case("'2024-03-10 02:30:00.123456'::timestamp", base("timestamp")),
    Case("'0001-01-01 00:00'::timestamp", base("timestamp")),
    Case("'9999-12-31 23:59:59.999999'::timestamp", base("timestamp")),
    Case("'0044-03-15 12:00 BC'::timestamp", base("timestamp"), LOST),
    Case("'10000-01-01'::timestamp", base("timestamp"), LOST),
    Case("'infinity'::timestamp", base("timestamp"), LOST),
    Case("'2024-03-10 02:30:00.5+05:30'::timestamptz", base("timestamptz")),
    Case("'0001-01-01 00:00+00'::timestamptz", base("timestamptz")),
    Case("'9999-12-31 23:59:59.999999+00'::timestamptz", base("timestamptz")),
    Case("'1890-01-01 00:00+00'::timestamptz", base("timestamptz")),
    Case("'-infinity'::timestamptz", base("timestamptz"), LOST),
    Case("'0044-03-15 12:00+00 BC'::timestamptz", base("timestamptz"), LOST),
    Case("'24:00'::time", base("time"), "24:00:00"),
    Case("'12:00:00.5+02'::timetz", base("timetz"), "12:00:00.5+02"),
    Case("'1 year -2 days 3:04:05.6'::interval", base("interval"), "P1Y-2DT3H4M5.6S"),
    Case("'2024-01-02'::text", TEXT, dt.date(2024, 1, 2), "date"),
    Case("'2024-1-2'::text", TEXT, LOST, "date"),
    # Arrays
    Case("ARRAY[1,NULL,3]", array(INT4)),
    Case("'{}'::int[]", array(INT4)),
    Case("'{NULL}'::int[]", array(INT4)),
    Case("""ARRAY['', 'NULL', NULL, 'null', 'a"b', E'a\\\\b', 'a,b', '{}', ' x ', E'l1\\nl2', 'é', '"']""", array(TEXT)),
    Case(f"ARRAY['a', {LONG}, 'b', {LONG}]", array(TEXT), ["a", LONG_VALUE, "b", LONG_VALUE]),
    Case("array(SELECT i FROM generate_series(1, 20000) i)", array(INT4)),
    Case("'{{1,2},{3,4}}'::int[]", array(INT4), LOST),
    Case("'{{a}}'::text[]", array(TEXT), LOST),
    Case("'[0:1]={1,2}'::int[]", array(INT4), LOST),
    Case("'[5:5]={x}'::text[]", array(TEXT), LOST),
    Case("ARRAY[1.50, 2.25]::numeric(6,2)[]", array(base("numeric"), (6 << 16 | 2) + 4)),
    Case("ARRAY[1.5, 'NaN']::numeric(6,2)[]", array(base("numeric"), (6 << 16 | 2) + 4), LOST),
    Case("ARRAY[1.5, 2]::numeric[]", array(base("numeric")), [Decimal("1.5"), Decimal(2)]),
    Case("ARRAY[1.5, 1e-19]::numeric[]", array(base("numeric")), LOST),
    Case("ARRAY[1.5, NULL]::numeric[]", array(base("numeric")), ["1.5", None], "array<string>"),
    Case("ARRAY[1.5, 2]::numeric[]", array(base("numeric")), [Decimal("1.50"), Decimal("2.00")], "array<decimal(9,2)>"),
    Case("ARRAY[1.5, 2.001]::numeric[]", array(base("numeric")), LOST, "array<decimal(9,2)>"),
    Case("ARRAY['2024-01-01'::date, 'infinity']", array(base("date")), LOST),
    Case("ARRAY['2024-01-01 10:00'::timestamp, NULL]", array(base("timestamp"))),
    Case("ARRAY[true, false, NULL]", array(base("bool"))),
    Case("ARRAY['\\x00ff'::bytea, '\\x', NULL]", array(base("bytea"))),
    Case("ARRAY['(1,2),(0,0)'::box, '(3,4),(1,1)']", array(base("box"), delimiter=";"), ["(1,2),(0,0)", "(3,4),(1,1)"]),
    Case("ARRAY[1e300, 'NaN', '-Infinity']::float8[]", array(base("float8"))),
    Case("ARRAY['{\"a\": 1}'::jsonb, 'null', NULL]", array(base("jsonb")), ['{"a": 1}', "null", None]),
    # Composites
    Case("ROW(1, 'a')::point2", POINT2, (1, "a")),
    Case("ROW(NULL, NULL)::point2", POINT2, (None, None)),
    Case("ROW(NULL, '')::point2", POINT2, (None, "")),
    Case("""ROW(7, E'q" b\\\\ c, (d) \\n')::point2""", POINT2, (7, 'q" b\\ c, (d) \n')),
    Case("ROW(7, '\"')::point2", POINT2, (7, '"')),
    Case(f"ROW(1, {LONG})::point2", POINT2, (1, LONG_VALUE)),
    Case(
        "ROW(9, ARRAY[ROW(1, 'a,\"b\"')::point2, NULL, ROW(NULL, '')::point2], 12.5, '[2024-01-01,2024-02-01)')::shape",
        SHAPE,
        (9, [(1, 'a,"b"'), None, (None, "")], Decimal("12.50"), span(dt.date(2024, 1, 1), dt.date(2024, 2, 1))),
    ),
    Case("ROW(9, NULL, NULL, 'empty')::shape", SHAPE, (9, None, None, span(None, None, "()", empty=True))),
    Case("ROW(9, NULL, 'NaN', NULL)::shape", SHAPE, LOST),
    Case("ROW(9, '{{\"(1,a)\"}}', 1, NULL)::shape", SHAPE, LOST),
    Case("ROW(9, NULL, NULL, '[2024-01-01,infinity)')::shape", SHAPE, LOST),
    Case("ROW(1, 2)::twins", TWINS, "(1,2)"),
    Case("ARRAY[ROW(1, 'x')::point2, ROW(2, '{\"}')::point2]", array(POINT2), [(1, "x"), (2, '{"}')]),
    # Domains
    Case("1.5::positive", POSITIVE, Decimal("1.500")),
    Case("ARRAY['a b', NULL]::tags", TAGS, ["a b", None]),
    Case("1.5::positive", POSITIVE, Decimal("1.5"), "decimal(4,1)"),
    # Ranges
    Case("int4range(1, 10)", range_of("int4range", INT4)),
    Case("int4range(1, NULL)", range_of("int4range", INT4)),
    Case("'(,)'::int4range", range_of("int4range", INT4)),
    Case("'empty'::int4range", range_of("int4range", INT4), span(None, None, "()", empty=True)),
    Case("numrange(1.5, 2.5, '[]')", range_of("numrange", base("numeric"))),
    Case("numrange(1.5, 1e20)", range_of("numrange", base("numeric")), LOST),
    Case("tsrange('2024-01-01 10:00', '2024-01-02', '(]')", range_of("tsrange", base("timestamp"))),
    Case("daterange('2024-01-01', 'infinity')", range_of("daterange", base("date")), LOST),
    Case("tstzrange('2024-01-01 10:00+00', NULL)", range_of("tstzrange", base("timestamptz"))),
    Case("ARRAY[int4range(1,3), 'empty', NULL]", array(range_of("int4range", INT4)),
         [span(1, 3), span(None, None, "()", empty=True), None]),
    Case("int4range(1, 3)", domain("d", domain("e", range_of("int4range", INT4))), span(1, 3)),
    Case("""textrange('a b', E'q" \\\\ ,)]', '(]')""", range_of("textrange", TEXT), span("a b", 'q" \\ ,)]', "(]")),
    Case("textrange('', NULL, '[]')", range_of("textrange", TEXT), span("", None, "[)")),
    Case("textrange('empty', 'null')", range_of("textrange", TEXT), span("empty", "null")),
    Case("floatrange('-Infinity', 'NaN')", range_of("floatrange", base("float8")), span(-math.inf, math.nan)),
    Case("int8range(-9223372036854775808, 9223372036854775807)", range_of("int8range", base("int8"))),
    Case("tstzrange('-infinity', NULL)", range_of("tstzrange", base("timestamptz")), LOST),
    Case("tsrange('0044-03-15 BC', '2024-01-01')", range_of("tsrange", base("timestamp")), LOST),
    Case("ARRAY[daterange('2024-01-01', 'infinity'), NULL]", array(range_of("daterange", base("date"))), LOST),
    Case("'{}'::int4multirange", MULTIRANGE, "{}"),
    Case("ARRAY['{[1,3),[5,7)}'::int4multirange, NULL]", array(MULTIRANGE), ["{[1,3),[5,7)}", None]),
    # Domains over domains, and over types with parts
    Case("1.5::smallest", SMALLEST, Decimal("1.500")),
    Case("ARRAY[1.5, NULL]::smallest[]", array(SMALLEST), [Decimal("1.500"), None]),
    Case("ROW(1, 'a')::place", domain("place", POINT2), (1, "a")),
    Case("ARRAY[ROW(1, 'a'), ROW(2, NULL)]::place[]", array(domain("place", POINT2)), [(1, "a"), (2, None)]),
    Case("ARRAY[int4range(1, 3), NULL]::spans", domain("spans", array(range_of("int4range", INT4))), [span(1, 3), None]),
    Case("'[2:3]={1,2}'::int[]::text", domain("ints", array(INT4)), LOST),
    Case("'ok'::feeling", domain("feeling", MOOD), "ok"),
    Case("ARRAY['ok', 'it''s \"fine\"', NULL]::mood[]", array(MOOD), ["ok", 'it\'s "fine"', None]),
    # Composites of composites; of one field, of none
    Case("ROW(NULL)::single", SINGLE, (None,)),
    Case("ROW('')::single", SINGLE, ("",)),
    Case("ROW('()')::single", SINGLE, ("()",)),
    Case("ARRAY[ROW('a')::single, ROW(NULL)::single, NULL]", array(SINGLE), [("a",), (None,), None]),
    Case("ROW()::nobody", PgType("composite", "nobody", "public"), "()"),
    Case(
        """ROW(ROW(9, ARRAY[ROW(1, 'a,"b"')::point2], 12.5, NULL)::shape, ROW(2, '(")'), '{ok,NULL}', '{[1,3)}', 1.5)::deep""",
        DEEP,
        ((9, [(1, 'a,"b"')], Decimal("12.50"), None), (2, '(")'), ["ok", None], "{[1,3)}", Decimal("1.500")),
    ),
    Case("ROW(ROW(9, NULL, 'NaN', NULL)::shape, NULL, NULL, NULL, NULL)::deep", DEEP, LOST),
    Case("ROW(NULL, NULL, NULL, NULL, NULL)::deep", DEEP, (None, None, None, None, None)),
    # Extremes in containers
    Case("ARRAY['0044-03-15 BC'::timestamp]", array(base("timestamp")), LOST),
    Case("ARRAY['9999-12-31 23:59:59.999999'::timestamp]", array(base("timestamp"))),
    Case("ARRAY['Infinity'::numeric]", array(base("numeric")), LOST),
    Case("'[0:0]={x}'::text[]", array(TEXT), LOST),
    Case("ARRAY['24:00'::time, NULL]", array(base("time")), ["24:00:00", None]),
    Case("'290000-12-31'::timestamp", base("timestamp"), LOST),
    Case("'4713-01-01 BC'::date", base("date"), LOST),
    Case("'a'::\"char\"", base("char"), "a"),
    Case("'0/16B3748'::pg_lsn", base("pg_lsn"), "0/16B3748"),
    Case("32767::int2", base("int2")),
    Case("'3.4028235e38'::float4", base("float4"), pytest.approx(3.4028234663852886e38)),
    Case("9223372036854775807::int8", base("int8")),
    Case("0::oid", base("oid")),
    Case("'-99999.99'::numeric(7,2)", numeric(7, 2)),
    # Overrides are checked for loss
    Case("9007199254740993::int8", base("int8"), LOST, "double"),
    Case("(-1200)::int8", base("int8"), -1200.0, "double"),
    Case("16777217", INT4, LOST, "float"),
    Case("65536", INT4, 65536.0, "float"),
    Case("0.1::float8", base("float8"), LOST, "float"),
    Case("0.5::float8", base("float8"), 0.5, "float"),
    Case("1e300::float8", base("float8"), LOST, "float"),
    Case("'NaN'::float8", base("float8"), math.nan, "float"),
    Case("'-Infinity'::float8", base("float8"), -math.inf, "float"),
    Case("0.1::float4", base("float4"), 0.10000000149011612, "double"),
    Case("'1e400'::text", TEXT, LOST, "double"),
    Case("'0.1234567890123456789'::text", TEXT, LOST, "double"),
    Case("'12.5'::text", TEXT, 12.5, "double"),
    Case("'12d'::text", TEXT, LOST, "double"),
    Case("0.1::float8", base("float8"), Decimal("0.10"), "decimal(9,2)"),
    Case("0.125::float8", base("float8"), LOST, "decimal(9,2)"),
    Case("1.5::float8", base("float8"), LOST, "bigint"),
    Case("'2024-01-01 10:00:00.1234567'::text", TEXT, LOST, "timestamp_ntz"),
    Case("'2024-01-01 10:00:00.1234560'::text", TEXT, dt.datetime(2024, 1, 1, 10, 0, 0, 123456), "timestamp_ntz"),  # noqa: DTZ001
    Case("'2024-01-01 10:00'::timestamp", base("timestamp"), LOST, "date"),
    Case("ARRAY[1, 16777217]", array(INT4), LOST, "array<float>"),
    Case("ARRAY[1, NULL]", array(INT4), ["1", None], "array<string>"),
    Case("ARRAY[1, 99999]", domain("ints", array(INT4)), LOST, "array<smallint>"),
    # Texts of an extension; the embedded server has no extensions.
    Case('$$"a"=>"1", "b"=>NULL, "c=>d, "=>"x\\"y\\\\z", ""=>""$$::text', base("hstore"),
         {"a": "1", "b": None, "c=>d, ": 'x"y\\z', "": ""}),
    Case("''::text", base("hstore"), {}),
    Case("'garbage'::text", base("hstore"), LOST),
    Case("'[1,2.5,-3e-05]'::text", base("vector"), [1.0, 2.5, pytest.approx(-3e-05)]),
    Case("'[1,x]'::text", base("vector"), LOST),
]  # fmt: skip


def plain(value: Any) -> Any:
    """Return both sides' values in one form: rows and ranges as tuples, NaN as a word, timestamps in UTC."""
    if isinstance(value, Range):
        value = span(value.lower, value.upper, value.bounds or "()", empty=value.isempty)
    if isinstance(value, tuple | list):
        parts = [plain(part) for part in value]
        return parts if isinstance(value, list) else tuple(parts)
    if isinstance(value, float) and math.isnan(value):
        return "a NaN"
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone(dt.UTC).replace(tzinfo=None)
    return value


def comparable(sql: str, ddl: str) -> str:
    """Return SQL of a value that Python can read: the machine's time zone would shift a TIMESTAMP."""
    if ddl == "TIMESTAMP":
        return f"CAST({sql} AS TIMESTAMP_NTZ)"
    if ddl.startswith("STRUCT<`lower`: TIMESTAMP,"):
        return f"CAST({sql} AS {ddl.replace('TIMESTAMP', 'TIMESTAMP_NTZ')})"
    return sql


@pytest.mark.spark
@pytest.mark.postgres
def test_spark_holds_what_postgresql_wrote_or_nothing(spark: SparkSession, database: str) -> None:
    with psycopg.connect(database, options=PINNED, autocommit=True) as connection:
        connection.execute(SCHEMA)
        texts, values = [], []
        for case in CASES:
            cursor = connection.execute(f"SELECT {case.sql}".encode())
            assert cursor.pgresult is not None
            raw = cursor.pgresult.get_value(0, 0)
            texts.append(None if raw is None else raw.decode())
            values.append(cursor.fetchall()[0][0] if case.expected is SAME else case.expected)
    frame = spark.createDataFrame(
        [tuple(texts)], ", ".join(f"t{position} STRING" for position in range(len(texts)))
    )
    readings = [reading(case.type, case.override) for case in CASES]
    row = frame.selectExpr(
        *(comparable(how.value(f"t{position}", 0), how.ddl) for position, how in enumerate(readings))
    ).collect()[0]
    types = frame.selectExpr(*(how.value(f"t{position}", 0) for position, how in enumerate(readings))).schema

    problems = []
    for position, (case, text, expected, stored) in enumerate(zip(CASES, texts, values, row, strict=True)):
        expected_value = None if expected is LOST else plain(expected)
        if plain(stored) != expected_value or (stored is None) != (expected is LOST or text is None):
            problems.append(
                f"{case.sql[:80]} ({case.override}): {str(text)[:60]} read as {plain(stored)!r:.200}"
            )
        declared = spark.createDataFrame([], f"v {readings[position].ddl}").schema[0].dataType
        if types[position].dataType.simpleString() != declared.simpleString():
            problems.append(
                f"{case.sql[:80]}: {types[position].dataType.simpleString()} is not {readings[position].ddl}"
            )
    assert problems == []


JSON = {
    '{"a": [1, null, "x"], "b": {"c": 0.1}}': True,
    "null": True,
    "12345678901234567890123456789012345678": True,
    "123456789012345678901234567890123456789": False,
    "0.1234567890123456789012345678901234567890": False,
    "1.5e3": True,
    "1.23456789012345678e3": False,
    "1e400": False,
}
"""Texts, and whether Spark's VARIANT holds all of their digits."""


@pytest.mark.spark
def test_json_becomes_variant_without_losing_digits(spark: SparkSession) -> None:
    frame = spark.createDataFrame([(text,) for text in JSON], "text STRING")
    value = reading(base("jsonb"), "variant").value("text", 0)
    rows = frame.selectExpr("text", f"to_json({value}) AS json").collect()
    assert {row["text"]: row["json"] is not None for row in rows} == JSON
    unchanged = [row for row in rows if row["json"] is not None and "e" not in row["text"]]
    assert [row["json"] for row in unchanged] == [row["text"].replace(" ", "") for row in unchanged]


def test_unknown_override_names_possible_types() -> None:
    with pytest.raises(
        ConfigurationError, match="a column of type numeric cannot be read as 'strnig'"
    ) as caught:
        reading(base("numeric"), "strnig")
    assert "decimal(p,s)" in str(caught.value)


def test_a_decimal_wider_than_spark_holds_is_refused() -> None:
    with pytest.raises(ConfigurationError):
        reading(base("numeric"), "decimal(39,2)")
