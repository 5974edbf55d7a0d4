"""Documents compare and order like PostgreSQL, or gold refuses: one database with its own answers.

The server has the types and answers each field's question by a query. Gold builds the documents from the
texts that the server prints, first in full and then by changes.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import psycopg
import pytest
from psycopg.rows import tuple_row

from deltasmelt.bronze.catalog.collations import other_orders
from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.config.sections import SourceSettings
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.gold.builder.lost_values import LOST
from deltasmelt.gold.cycle import Gold
from deltasmelt.gold.incremental.affected import affected_roots
from deltasmelt.gold.language.comparing import comparison
from deltasmelt.gold.tree.check import checked_tree
from deltasmelt.gold.tree.text_order import text_orders
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.schema.catalog import silver_catalog
from deltasmelt.silver.settings import SilverSettings
from tests.fix_postgres import drop_database, make_database
from tests.fix_spark import rows_of
from tests.gold.shop_documents import document
from tests.silver.histories import BronzeWriter, change

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.schema.catalog import SilverTable

_SCHEMA: Final = r"""
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy');
CREATE TYPE weather AS ENUM ('ok', 'rain');
CREATE TYPE pair AS (a int, b text);
-- The extension's type, which the server of the tests lacks, with what its operators do.
CREATE TYPE citext;
CREATE FUNCTION citextin(cstring) RETURNS citext AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION citextout(citext) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE citext (INPUT = citextin, OUTPUT = citextout, LIKE = text, CATEGORY = 'S');
CREATE CAST (citext AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE FUNCTION citext_eq(citext, citext) RETURNS bool IMMUTABLE LANGUAGE sql
  AS 'SELECT lower($1::text) = lower($2::text)';
CREATE OPERATOR = (LEFTARG = citext, RIGHTARG = citext, FUNCTION = citext_eq);

CREATE COLLATION odd (provider = libc, locale = 'C');
CREATE COLLATION german (provider = libc, locale = 'C');

CREATE TABLE thing (id int PRIMARY KEY, e citext, code varchar(3), note text, amount numeric, u uuid,
  b bytea, f float8, m mood, tags text[], span int4range, c char(3),
  wei numeric(38,0), o oid, i4 int4);
CREATE TABLE item (id int PRIMARY KEY, thing int, e citext, c char(3), kind char(8), amount numeric,
  whole int8, u uuid, b bytea, f float8, m mood, tm time, bits varbit, mac macaddr, lsn pg_lsn, ai int[],
  p pair, txt text, vc varchar(3), until timestamptz, day date, tags text[], span int4range, ok bool,
  iv interval, ip inet, net cidr, mny money, tz timetz, j jsonb, pt point, w weather, mr int4multirange,
  odd text COLLATE odd, de text COLLATE german, xm xml, ch "char", as_text numeric(12,3),
  number text, big int8, wei numeric(38,0), o oid,
  vcs varchar(3)[], vodd varchar(3) COLLATE odd, nm name);
CREATE TABLE by_mood (m mood PRIMARY KEY, thing int, e citext);
CREATE TABLE host (ip inet PRIMARY KEY, thing int, at date);
CREATE TABLE coded (v varchar(3) PRIMARY KEY);

INSERT INTO thing (id, e, code, note, amount, u, b, f, m, tags, span) VALUES
  (1, 'Anna@X.de', 'ab ', 'Anna@X.de', 1.50, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '\x00ff', 'NaN', 'ok',
   '{a,NULL}', '[1,5)'),
  (2, 'ΟΔΟΣ', 'abc', 'οδος', 10.0, NULL, '\x', '-0', 'happy', '{}', 'empty'),
  (3, 'none', NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);
INSERT INTO item (id, thing, e, c, kind, amount, whole, u, b, f, m, tm, bits, mac, lsn, ai, p, txt, vc, until,
  day, tags, span, ok) VALUES
  (1, 1, 'anna@x.DE', 'ab', 'big', 1.5, 9, 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '\x00ff', 'NaN', 'happy',
   '09:00', B'01', '08:00:2b:01:02:03', '16/B374D848', '{1,NULL}', '(1,)', 'Zoe', 'ab', 'infinity',
   '2024-01-01', '{a,NULL}', '[1,5)', true),
  (2, 1, 'ANNA@x.de', 'abc', 'bigger', 10, 10, NULL, '\x7f', 'Infinity', 'sad', '09:00:00.5', B'0', NULL,
   '2/0', '{1,2}', '(1,b)', 'adam', 'abc', NULL, 'infinity', '{}', 'empty', false),
  (3, 1, 'bob', '', 'BIG', 9, 100, 'ffffffff-ffff-ffff-ffff-ffffffffffff', '\xff00', '-0', 'ok', '10:00',
   B'010', 'ff:00:00:00:00:00', '16/0', '{1,2,0}', '(,b)', 'Äpfel', NULL, '2024-01-01', NULL, NULL, '[1,6)',
   NULL),
  (4, 2, 'οδοσ', NULL, NULL, -3, -5, NULL, NULL, '-Infinity', NULL, '24:00', B'', NULL, NULL, '{}',
   NULL, NULL, NULL, '-infinity', '0044-03-15 BC', NULL, NULL, true),
  (5, 2, 'Οδος', 'b', 'big', 'NaN', 0, NULL, '\x', '0', 'ok', NULL, NULL, NULL, 'FFFFFFFF/1', '{NULL}',
   '(2,a)', 'b', 'b', '2024-06-01', '2024-06-01', '{a,b}', '[1,5)', true);
UPDATE thing SET wei = 2 WHERE id = 1;
UPDATE thing SET wei = 12345678901234567890123456789 WHERE id = 2;
UPDATE item SET wei = 1.5 * id + 8.5 WHERE id < 4;
UPDATE thing SET o = 9, i4 = -4 WHERE id = 1;
UPDATE item SET o = CASE id WHEN 5 THEN '4294967292'::oid ELSE id::oid END;
INSERT INTO coded VALUES ('a ');
INSERT INTO by_mood VALUES ('happy', 1, 'x'), ('sad', 1, 'X'), ('ok', 1, 'y');
-- As collations of ICU and of a language would be, which this server does not have.
UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'odd';
UPDATE pg_collation SET collcollate = 'de_DE.utf8' WHERE collname = 'german';
"""

_FIRST_TWO: Final = "ORDER BY lower(e::text), m LIMIT 2"
_MINE: Final = "FROM item i WHERE i.thing = t.id"
_BY_C: Final = 'COLLATE "C"'
_FIELDS: Final[dict[str, tuple[str, str]]] = {
    # Equality.
    "by_email": ("{many: public.item, on: {e: e}, values: id}",
                 "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.e = t.e"),
    "by_note": ("{many: public.item, on: {e: note}, values: id}",
                "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.e = t.note"),
    "by_code": ("{many: public.item, on: {c: code}, values: id}",
                "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.c = t.code"),
    "by_amount": ("{many: public.item, on: {amount: amount}, values: id}",
                  "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.amount = t.amount"),
    "by_whole": ("{many: public.item, on: {whole: amount}, values: id}",
                 "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.whole = t.amount"),
    "by_wei": ("{many: public.item, on: {amount: wei}, values: id}",
               "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.amount = t.wei"),
    "of_wei": ("{many: public.item, on: {wei: amount}, values: id}",
               "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.wei = t.amount"),
    "by_oid": ("{many: public.item, on: {whole: o}, values: id}",
               "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.whole = t.o::int8"),
    "of_oid": ("{many: public.item, on: {o: i4}, values: id}",
               "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.o = t.i4"),
    "by_uuid": ("{many: public.item, on: {u: u}, values: id}",
                "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.u = t.u"),
    "by_bytes": ("{many: public.item, on: {b: b}, values: id}",
                 "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.b = t.b"),
    "by_float": ("{many: public.item, on: {f: f}, values: id}",
                 "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.f = t.f"),
    "by_mood": ("{many: public.item, on: {m: m}, values: id}",
                "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.m = t.m"),
    "by_tags": ("{many: public.item, on: {tags: tags}, values: id}",
                "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.tags = t.tags"),
    "by_span": ("{many: public.item, on: {span: span}, values: id}",
                "SELECT json_agg(i.id ORDER BY i.id) FROM item i WHERE i.span = t.span"),
    "emails": ("{count_distinct: public.item.e, on: {thing: id}}",
               f"SELECT count(DISTINCT lower(i.e::text)) {_MINE}"),
    "amounts": ('{count_distinct: public.item.amount, on: {thing: id}, where: "id <> 5"}',
                f"SELECT count(DISTINCT i.amount) {_MINE} AND id <> 5"),
    "floats": ("{count_distinct: public.item.f, on: {thing: id}}", f"SELECT count(DISTINCT i.f) {_MINE}"),
    "big": ("{many: public.item, on: {thing: id}, values: id, where: \"kind = 'big'\"}",
            f"SELECT json_agg(i.id ORDER BY i.id) {_MINE} AND kind = 'big'"),
    "content": ("{many: public.item, on: {thing: id}, values: id, where: \"m in ('ok', 'happy')\"}",
                f"SELECT json_agg(i.id ORDER BY i.id) {_MINE} AND m IN ('ok', 'happy')"),
    # Order.
    "best": ("{max: public.item.m, on: {thing: id}}", f"SELECT max(i.m) {_MINE}"),
    "worst": ("{min: public.item.m, on: {thing: id}}", f"SELECT min(i.m) {_MINE}"),
    "moods": ("{many: public.item, on: {thing: id}, order_by: [m desc], values: id}",
              f"SELECT json_agg(i.id ORDER BY i.m DESC, i.id) {_MINE}"),
    "happiest": ("{one: public.item, on: {thing: id}, order_by: [m desc nulls last], fields: [id]}",
                 f"SELECT json_build_object('id', i.id) {_MINE} ORDER BY i.m DESC NULLS LAST, i.id LIMIT 1"),
    "keys": ("{many: public.by_mood, on: {thing: id}, values: m}",
             "SELECT json_agg(m.m ORDER BY m.m) FROM by_mood m WHERE m.thing = t.id"),
    "two": ("{many: public.by_mood, on: {thing: id}, values: m, order_by: [e], limit: 2}",
            f"SELECT json_agg(m) FROM (SELECT m FROM by_mood WHERE thing = t.id {_FIRST_TWO}) x"),
    "emails_in_order": ("{many: public.item, on: {thing: id}, order_by: [e], values: id}",
                        f"SELECT json_agg(i.id ORDER BY lower(i.e::text) {_BY_C}, i.id) {_MINE}"),
    "last_text": ("{max: public.item.txt, on: {thing: id}}", f"SELECT max(i.txt {_BY_C}) {_MINE}"),
    "first_txt": ("{first: public.item.txt, on: {thing: id}, order_by: [txt]}",
                  f"SELECT i.txt {_MINE} ORDER BY i.txt {_BY_C}, i.id LIMIT 1"),
    **{
        f"in_order_of_{name}": (
            f"{{collect: public.item.id, on: {{thing: id}}, order_by: [{name}]}}",
            f"SELECT json_agg(i.id ORDER BY i.{name}, i.id) {_MINE}",
        )
        for name in ("u", "b", "f", "tm", "bits", "mac", "lsn", "ai", "p", "ok")
    },
    "most": ('{max: public.item.amount, on: {thing: id}, where: "id <> 5"}',
             f"SELECT max(i.amount) {_MINE} AND i.id <> 5"),
    "by_most": ('{collect: public.item.id, on: {thing: id}, order_by: [amount desc], where: "id <> 5"}',
                f"SELECT json_agg(i.id ORDER BY i.amount DESC, i.id) {_MINE} AND i.id <> 5"),
    "most_lsn": ("{max: public.item.lsn, on: {thing: id}}", f"SELECT max(i.lsn) {_MINE}"),
    "most_array": ("{max: public.item.ai, on: {thing: id}}", f"SELECT to_json(max(i.ai)) {_MINE}"),
    "minus_zero": ("{sum: public.item.f, on: {thing: id}, where: id = 3}",
                   f"SELECT sum(i.f)::text {_MINE} AND i.id = 3"),
    "most_float": ("{max: public.item.f, on: {thing: id}}", f"SELECT max(i.f)::text {_MINE}"),
    # Values that silver cannot hold are not NULL.
    "open": ("{many: public.item, on: {thing: id}, values: id, where: until is null}",
             f"SELECT json_agg(i.id ORDER BY i.id) {_MINE} AND until IS NULL"),
    "ends": ("{many: public.item, on: {thing: id}, values: id, where: isnotnull(until) and ! until is null}",
             f"SELECT json_agg(i.id ORDER BY i.id) {_MINE} AND NOT (until IS NULL)"),
    "dated": ("{count: public.item.day, on: {thing: id}}", f"SELECT count(i.day) {_MINE}"),
    "each": ("{many: public.item, on: {thing: id}, fields: [id, {has: {sql: amount is not null}}]}",
             f"SELECT json_agg(json_build_object('id', id, 'has', amount IS NOT NULL) ORDER BY id) {_MINE}"),
}  # fmt: skip

_TEXT: Final = "document: thing\nroot: public.thing\nfields:\n  - id\n" + "".join(
    f"  - {name}: {field}\n" for name, (field, _) in _FIELDS.items()
)
_TYPES: Final = {
    "public.item.as_text": "string",
    "public.item.number": "decimal(10,2)",
    "public.item.big": "string",
}
_SETTINGS: Final = SilverSettings.model_validate({"types": _TYPES})


@pytest.fixture(scope="module")
def source(server_dsn: str) -> Iterator[psycopg.Connection[Any]]:
    """Return the database as seen by the reader's sessions."""
    dsn = make_database(server_dsn)
    settings = "-c IntervalStyle=iso_8601 -c TimeZone=UTC -c extra_float_digits=1"
    with psycopg.connect(dsn, autocommit=True, options=settings, row_factory=tuple_row) as connection:
        connection.execute(_SCHEMA.encode())
        yield connection
    drop_database(server_dsn, dsn)


@pytest.fixture(scope="module")
def relations(source: psycopg.Connection[Any]) -> dict[str, Relation]:
    """Return the shapes of the database's tables."""
    selected = select_tables(source, SourceSettings(slot="s", publication="p"))
    return {table.table.name: table.relation for table in selected}


@pytest.fixture(scope="module")
def catalog(relations: dict[str, Relation]) -> dict[TableName, SilverTable]:
    """Return silver's tables."""
    return silver_catalog(list(relations.values()), _SETTINGS)


def _answers(source: psycopg.Connection[Any]) -> dict[int, dict[str, Any]]:
    listed = ", ".join(f"'{name}', ({query})" for name, (_, query) in _FIELDS.items())
    rows = source.execute(f"SELECT t.id, json_build_object({listed}) FROM thing t".encode()).fetchall()
    return {key: {"id": key, **answer} for key, answer in rows}


def _rows(source: psycopg.Connection[Any], shape: Relation, only: str = "true") -> list[list[str | None]]:
    listed = ", ".join(
        f"CASE WHEN num_nulls({column.name}) = 0 THEN format('%s', {column.name}) END"
        for column in shape.columns
    )
    rows = source.execute(f"SELECT {listed} FROM {shape.table.name} WHERE {only} ORDER BY 1".encode())
    return [list(row) for row in rows]


def _documents(spark: SparkSession, lake: Lake) -> dict[int, dict[str, Any]]:
    rows = rows_of(spark, f"SELECT id, to_json(struct(*)) AS j FROM {lake.sql('gold', 'thing')}")
    by_name = {}
    for row in rows:
        fields = {name: value for name, value in json.loads(row["j"]).items() if not name.startswith("_")}
        by_name[row["id"]] = {name: fields.get(name) for name in ("id", *_FIELDS)}
    return by_name


_FLOATS: Final = ("minus_zero", "most_float")


def _plain(documents: Mapping[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return a value without mere differences of form: no elements, and floats as text."""
    return {
        key: {
            name: repr(float(value)) if name in _FLOATS and value is not None else value or None
            for name, value in fields.items()
        }
        for key, fields in documents.items()
    }


def _differences(
    documents: Mapping[int, dict[str, Any]], answers: Mapping[int, dict[str, Any]]
) -> dict[tuple[int, str], tuple[Any, Any]]:
    """Return the different fields: by document and name, gold's value and the server's answer."""
    assert documents.keys() == answers.keys()
    return {
        (key, name): (documents[key][name], value)
        for key, fields in answers.items()
        for name, value in fields.items()
        if documents[key][name] != value
    }


@pytest.mark.usefixtures("interpreted")
def test_documents_compare_and_order_as_postgresql_does(
    source: psycopg.Connection[Any],
    relations: dict[str, Relation],
    catalog: dict[TableName, SilverTable],
    spark: SparkSession,
    tmp_path: Path,
) -> None:
    assert checked_tree(document(_TEXT), catalog)[1] == []
    lake = Lake(path=str(tmp_path))
    control, bronze = ControlTables(lake), BronzeWriter(lake)
    silver = Silver(spark, lake, _SETTINGS, control)
    gold = Gold(spark, lake, [document(_TEXT)], lambda: catalog, control)
    bronze.relations(list(relations.values()))
    for name, shape in relations.items():
        bronze.snapshot(shape, 100, _rows(source, shape))
        assert name in {"thing", "item", "by_mood", "coded", "host"}
    bronze.commit(100)
    silver.cycle()
    gold.cycle()
    assert control.open_errors() == []
    assert _differences(_plain(_documents(spark, lake)), _plain(_answers(source))) == {}
    # A change of a compared column, on either side of a join, reaches its documents.
    source.execute("UPDATE item SET e = 'NONE', m = 'sad', until = 'infinity', day = NULL WHERE id = 2")
    source.execute("UPDATE item SET until = NULL, lsn = '0/1', kind = 'big' WHERE id = 1")
    source.execute("UPDATE thing SET e = 'BOB', code = '' WHERE id = 2")
    item, thing = relations["item"], relations["thing"]
    changed = [change(item, "update", new=row) for row in _rows(source, item, "id < 3")]
    bronze.add(200, [*changed, *(change(thing, "update", new=row) for row in _rows(source, thing, "id = 2"))])
    bronze.commit(200)
    silver.cycle()
    gold.cycle()
    changes, full = control.runs("gold")
    assert (changes.mode, full.mode) == ("incremental", "full")
    # First all rows, then the changed rows.
    assert full.details[LOST] == {"public.item.amount": 1, "public.item.day": 2, "public.item.until": 2}
    assert changes.details[LOST] == {"public.item.until": 1}
    assert _differences(_plain(_documents(spark, lake)), _plain(_answers(source))) == {}


_ON: Final = "on: {thing: id}"
_ORDER: Final = "silver stores the value as text, whose order differs from PostgreSQL's"


@pytest.mark.parametrize(
    ("field", "message"),
    [
        (
            (f"{{max: public.item.as_text, {_ON}}}"),
            ("10 comes before 9; set the type of a number in silver.types"),
        ),
        (f"{{many: public.item, {_ON}, order_by: [as_text], values: id}}", "1 and 1.0 differ"),
        (
            "{many: public.item, on: {as_text: amount}, values: id}",
            "is DECIMAL(38,18): these types cannot be equal",
        ),
        (f"{{count_distinct: public.item.iv, {_ON}}}", "P30D and P1M differ"),
        (f"{{min: public.item.ip, {_ON}}}", _ORDER),
        (f"{{collect: public.item.id, {_ON}, order_by: [mny desc]}}", _ORDER),
        (f"{{first: public.item.id, {_ON}, order_by: [tz]}}", _ORDER),
        (f"{{max: public.item.net, {_ON}}}", _ORDER),
        (f"{{max: public.item.ch, {_ON}}}", _ORDER),
        (f"{{max: public.item.big, {_ON}}}", "remove the override in silver.types"),
        (f"{{count_distinct: public.item.j, {_ON}}}", "Spark's equality and order of this type differ"),
        (
            (f"{{one: public.item, {_ON}, order_by: [pt], fields: [id]}}"),
            ("Spark's equality and order of this type differ"),
        ),
        (f"{{many: public.item, {_ON}, order_by: [span], values: id}}", "order ranges differently"),
        (f"{{max: public.item.mr, {_ON}}}", "Spark's equality and order of this type differ"),
        (f"{{max: public.item.odd, {_ON}}}", "its collation odd is not deterministic"),
        ("{many: public.item, on: {odd: note}, values: id}", "its collation odd is not deterministic"),
        ("{many: public.item, on: {vodd: c}, values: id}", "its collation odd is not deterministic"),
        ("{many: public.item, on: {odd: e}, values: id}", "its collation odd is not deterministic"),
        ("{many: public.item, on: {w: m}, values: id}", "no equality of weather and mood"),
        ("{many: public.item, on: {o: amount}, values: id}", "no equality of oid and numeric"),
        ("{many: public.item, on: {o: f}, values: id}", "no equality of oid and float8"),
        ("{many: public.item, on: {vcs: tags}, values: id}", "no equality of varchar[] and text[]"),
        (f"{{sum: public.item.o, {_ON}}}", "cannot add values of this type; set silver.types to"),
        *(
            (
                field,
                f"the key decides which rows are selected, and 'ip' is inet: {_ORDER}; use another column",
            )
            for field in (
                f"{{many: public.host, {_ON}, values: ip, limit: 2}}",
                f"{{collect: public.host.at, {_ON}, cap: 2, order_by: [at]}}",
                f"{{one: public.host, {_ON}, fields: [ip], order_by: [at]}}",
                f"{{many: public.host, {_ON}, values: ip, key_by: at}}",
                f"{{first: public.host.at, {_ON}, order_by: [at]}}",
            )
        ),
        ("{many: public.item, on: {txt: u}, values: id}", "no equality of text and uuid"),
        ("{many: public.item, on: {txt: m}, values: id}", "no equality of text and mood"),
        *(
            (f'{{many: public.item, {_ON}, values: id, where: "{condition}"}}', message)
            for condition, message in (
                ("e = 'x'", "compare lower(…)"),
                ("e like 'x%'", "matches without regard to case"),
                ("array_contains(array(e), 'x')", "compare lower(…)"),
                ("odd in ('x')", "its collation odd is not deterministic"),
                ("m > 'ok'", "compare the column by = or in"),
                ("m = 'glad'", "silver never stores such a value as 'glad'"),
                ("greatest(m, 'ok') = 'ok'", "compare the column by = or in"),
                ("m = txt", "does not compare this type with text; write cast(m as string)"),
                ("kind = 'big '", "without trailing blanks"),
                ("decode(m, 'glad', 'g') = 'g'", "silver never stores such a value as 'glad'"),
                ("decode(id, 1, m, 'ok') > 'ok'", "compare the column by = or in"),
                ("decode(id, 1, 'ok', m) > 'ok'", "compare the column by = or in"),
                ("nvl2(u, m, 'ok') > 'ok'", "compare the column by = or in"),
                ("concat(ai, ai) > array(1)", "Spark and PostgreSQL compare this type differently"),
                ("wei > 0.5", "Spark would round the numbers before comparing them; cast both to one type"),
                ("wei in (1, amount)", "is DECIMAL(38,18): Spark would round"),
                ("coalesce(wei, 0.5) > 0", "Spark would round"),
                ("decode(wei, 1.5, 'x') = 'x'", "Spark would round"),
                ("-wei <= cast(amount as decimal(38, 2))", "Spark would round"),
                ("o = amount", "compares this type only with whole numbers; cast both as bigint"),
                ("o in (1.5, 2)", "compares this type only with whole numbers"),
                ("f < o", "compares this type only with whole numbers"),
                ("id = o", "compares this type only with whole numbers"),
                ("vc = c", "do not count in a comparison with char(n); cast both as string"),
                ("coalesce(kind, 'x') in (vc, 'x')", "do not count in a comparison with char(n)"),
                ("coalesce(c, vc) = 'a'", "may ignore or count trailing blanks; cast each as string"),
                ("case when ok then vc else c end > 'a'", "may ignore or count trailing blanks"),
                ("coalesce(vc, txt) = c", "trailing blanks do not count in a comparison with char(n)"),
                ("case when ok then txt else vc end = kind", "do not count in a comparison with char(n)"),
                ("coalesce(c, txt) = txt", "may ignore or count trailing blanks; cast each as string"),
                (
                    ("case when ok then lower(vc) else c end in (txt, 'x')"),
                    ("may ignore or count trailing blanks"),
                ),
                ("coalesce(nm, txt) = 'a'", "may cut each text to the length of a name; cast each as string"),
                ("case when ok then nm else c end = vc", "cut each text to the length of a name"),
                ("coalesce('ab ', c) = kind", "silver never stores such a value as 'ab '; write"),
                ("case when ok then m else 'glad' end = 'ok'", "silver never stores such a value as 'glad'"),
                ("nvl(u, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11') = u", "silver never stores such a value as"),
                ("wei + 1 > 0.5", "Spark would round the numbers before comparing them"),
                ("2 * wei - id in (0.5, 1)", "Spark would round"),
                ("wei > 1e3", "write the number without an exponent, or cast both as double"),
                ("amount * 1e-1 > 0", "without an exponent"),
                ("amount * amount > 1", "cast both to the digits that the values need"),
                ("whole / 2 > 1", "write div for whole numbers, or cast one of both as double"),
                ("amount / 3 > 1", "rounds to other digits than PostgreSQL; cast one of both as double"),
                ("wei div 7 = 1", "a number with more digits becomes a wrong number"),
                ("cast(amount as int) = 2", "PostgreSQL rounds; write cast(floor(…))"),
                ("int(f) = 2", "PostgreSQL rounds"),
                ("amount = '1.5'", "write the number without quotes"),
                ("coalesce(whole, '0') > 1", "write the number without quotes"),
                (
                    "cast(f as float) in (0.1, 1)",
                    "converts the exact number to float4; cast the float4 as double",
                ),
                ("cast(f as decimal(16, 2)) = 2", "15 digits of a float8"),
                ("decimal(cast(f as float)) = 2", "in Spark none; write decimal(p,s)"),
                ("cast(cast(f as float) as decimal(9, 2)) = 2", "keeps 6 digits of a float4"),
                ("cast(txt as varchar(3)) = 'abc'", "write left(cast(… as string), n)"),
                ("cast(tags as array<char(3)>)[0] = 'abc'", "Spark keeps the whole text"),
                ("smallint(amount * 0.5) = 2", "PostgreSQL rounds"),
                ("coalesce(cast(f as float), 0) = 1", "converts the exact number to float4"),
                ("cast(f as float) in (0, 16777217)", "converts the exact number to float4"),
                ("cast(id as smallint) << 2 = 4", "cast the smallint as int"),
                ("~id + 1 = 4", "in different orders; write parentheses"),
                ("1 - -~id * 2 = 4", "compute '~' and the operator before or after it in different orders"),
                ("kind like 'big%'", "write cast(kind as string) for the text without them"),
                ("coalesce(c, 'x') not ilike 'x%'", "counts trailing blanks"),
                ("ip || '' = '10.0.0.1'", "write cast(ip as string)"),
                ("'x' || iv = 'xP1D'", "PostgreSQL may use another text"),
                ("mny || j = ''", "'mny' is money"),
                ("coalesce(number, 1e3) > 2", "1e3 is a floating-point number in Spark"),
                ("amount * (1e3 + 1) > 2", "write the number without an exponent"),
                ("case when ok then -1e3 else 2e3 end * amount > 2", "write the number without an exponent"),
                ("array(amount, 1e3)[0] > 2", "1e3 is a floating-point number in Spark"),
                ("struct(1e3 as x).x > amount", "write the number without an exponent"),
                ("abs(-1e3) * amount > 2", "write the number without an exponent"),
                ("o > -1", "compares this type only with whole numbers"),
                ("o in (1, 1 - 2)", "compares this type only with whole numbers"),
                ("id ^ 2 = 4", "write power(a, b)"),
                ("id | 2 & id = 1", "write parentheses around the operation that must be computed first"),
                ("ok = id in (1, 2)", "write parentheses"),
                ("u = 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11'", "silver never stores such a value as"),
                ("tm < '9:00'", "silver never stores such a value as"),
                ("iv = 'P30D'", "P30D and P1M differ"),
                ("ip < '10.0.0.1'", _ORDER),
                ("as_text > 9", "10 comes before 9"),
                ("coalesce(as_text, '0') = '1'", "10 comes before 9"),
                ("lsn < '2/0'", "compare it only by ="),
                ("ai > array(1)", "Spark and PostgreSQL compare this type differently"),
            )
        ),
    ],
)
def test_comparison_differing_in_spark_is_rejected_with_line(
    catalog: dict[TableName, SilverTable], field: str, message: str
) -> None:
    text = f"document: d\nroot: public.thing\nfields:\n  - id\n  - x: {field}\n"
    errors = checked_tree(document(text), catalog)[1]
    assert [error.where for error in errors] == ["document.yml:5"], errors
    assert message in errors[0].message


@pytest.mark.parametrize(
    "where",
    [
        "lower(e) = 'x'", "cast(as_text as decimal(12,3)) > 9", "number > 1",
        "u = 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11'",
        "cast(m as string) = txt", "tm >= '09:00:00'", "array_contains(tags, 'a')", "array_max(tags) > 'a'",
        "e = txt", "kind = 'big'", "mac < 'ff:00:00:00:00:00'", "ip = '10.0.0.1'", "m is distinct from 'ok'",
        "case m when 'ok' then true end", "b = X'00ff'", "day > '2024-01-01'", "ok", "p.a > 1", "p.b = 'x'",
        "span.lower < 3", "ai[0] > 2", "element_at(tags, 1) < 'b'", "coalesce(m, 'ok') = 'ok'",
        "vc = txt or vc > 'a' or c = txt", "c = cast(vc as string)", "decode(b, 'UTF-8') = 'x'",
        "amount > 0.5 and id < 2.5", "o = 1 or o < whole or o in (1, 2)",
        "amount > id or wei = 1 or whole <= amount", "wei > 1000 or wei = f or f > 1e3 or id > 1e3",
        "cast(wei as double) > 0.5",
        "decode(m, 'ok', 'O', 'sad', 'S', 'none') = 'O'", "concat(m, '-', kind) = 'ok-big'",
        "coalesce(vc, txt) = txt", "case when ok then txt else vc end > nm", "coalesce(e, txt) = 'x'",
        "coalesce(nm, 'x') = c or coalesce(nm, nm) = vc or c = nm or coalesce(c, c, 'x') = txt",
        "amount + 1 > 0.5 and amount * 2 = 3 and amount * 1.19 > 1", "whole div 2 = id % 3", "f / 2 > 1",
        "cast(floor(amount) as int) = 2", "id | 2 = 3 and (id | 2) & 1 = 1", "(ok = ok) in (true)",
        "cast(round(f) as int) = cast(-(round(amount, 0)) as bigint)", "cast(f as decimal(15, 2)) = 2",
        "nullif(cast(f as float), 0) = 1", "cast(f as float) in (0, 1, 9999999)", "cast(o as decimal(9)) = 1",
        "(~id) + 1 = ~(id + 1) or ~id | 1 = 2", "id << 2 = 4 or cast(id as smallint) >> 1 = 2",
        "cast(kind as string) like 'big%' or txt like c", "nullif(number, 1e3) > 1e3",
        "f * 1e3 + 1 > f * -1e3", "array(f, 1e3)[0] > 2", "power(f, 1e0) > 2",
        "txt || vc || c || e || u || tm || m || id || o || ok = 'x'", "cast(ip as string) || '' = 'x'",
        "reverse(c) < 'b'", "nvl2(u, 'a', 'b') = 'a'", "if(iv is null, 'a', 'b') > 'a'",
    ],
)  # fmt: skip
def test_what_spark_compares_as_postgresql_is_left_alone(
    catalog: dict[TableName, SilverTable], where: str
) -> None:
    field = f'{{many: public.item, {_ON}, values: id, where: "{where}"}}'
    text = f"document: d\nroot: public.thing\nfields:\n  - id\n  - x: {field}\n"
    assert checked_tree(document(text), catalog)[1] == []


def test_key_equal_to_several_join_values_is_resolved(
    catalog: dict[TableName, SilverTable],
) -> None:
    field = "{many: public.item, on: {%s: id}, values: id}"
    text = "document: d\nroot: public.thing\nfields:\n  - id\n  - x: "
    for name, walked in (("f", True), ("amount", True), ("whole", False)):
        tree = checked_tree(document(text + field % name), catalog)[0]
        assert tree is not None
        query = affected_roots(tree, [TableName("public", "item")], str, str)
        assert query is not None
        assert ("LEFT SEMI JOIN" in query.query) is walked, name


@pytest.mark.parametrize(
    "field",
    [
        f"{{many: public.host, {_ON}, values: ip, order_by: [at]}}",
        f"{{collect: public.host.at, {_ON}}}",
        f"{{many: public.host, {_ON}, values: at, key_by: ip}}",
        "{one: public.host, on: {ip: ip}, fields: [at]}",
    ],
)
def test_unordered_key_breaks_ties_if_all_rows_stay(
    catalog: dict[TableName, SilverTable], field: str
) -> None:
    text = f"document: d\nroot: public.item\nfields:\n  - id\n  - x: {field}\n"
    assert checked_tree(document(text), catalog)[1] == []


def test_trailing_blanks_of_varchar_differ_except_against_char(
    source: psycopg.Connection[Any], catalog: dict[TableName, SilverTable]
) -> None:
    """Blanks at the end of a varchar do not count in a comparison with a char."""
    row = source.execute("SELECT 'a '::varchar(3) = 'a'::char(3), 'a '::text = 'a'::char(3)").fetchone()
    assert row == (True, False)
    text = (
        "document: d\nroot: public.thing\nfields:\n  - id\n"
        "  - one: {one: public.coded, on: {v: c}, fields: [v]}\n"
        "  - t: {one: public.coded, on: {v: note}, fields: [v]}\n"
    )
    tree = checked_tree(document(text), catalog)[0]
    assert tree is not None
    first_child, second_child = tree.children
    # Several varchar have one key, so gold takes the first, and counts the event.
    assert [(node.on, getattr(node, "unique", None)) for node in (first_child, second_child)] == [
        ((("_deltasmelt_equal_unpadded_v", "c"),), False),
        ((("v", "note"),), True),
    ]


def test_special_letters_and_collations_are_recognized_everywhere(server_dsn: str) -> None:
    dsn = make_database(server_dsn, "LC_CTYPE 'C' TEMPLATE template0")
    with psycopg.connect(dsn, autocommit=True, row_factory=tuple_row) as connection:
        connection.execute(
            """
            CREATE TYPE citext;
            CREATE FUNCTION citextin(cstring) RETURNS citext AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
            CREATE FUNCTION citextout(citext) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
            CREATE TYPE citext (INPUT = citextin, OUTPUT = citextout, LIKE = text, COLLATABLE = true);
            CREATE COLLATION odd (provider = libc, locale = 'C');
            UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'odd';
            CREATE DOMAIN email AS citext;
            CREATE DOMAIN title AS text COLLATE odd;
            CREATE TYPE person AS (mail email, name text COLLATE odd, plain text);
            CREATE TABLE t (a citext, b email, c citext[], d email[], e person, f text COLLATE odd, g title,
              h text[] COLLATE odd, i text, j text[], k title[]);
            """
        )
        (source_table,) = select_tables(connection, SourceSettings(slot="s", publication="p"))
    drop_database(server_dsn, dsn)
    (table,) = silver_catalog([source_table.relation], SilverSettings()).values()
    ways = {column.name: comparison(column) for column in table.columns}
    assert {name: way.equality.tag for name, way in ways.items() if way.equality.tag} == dict.fromkeys(
        "abcd", "ascii"
    )
    refused = [name for name, way in ways.items() if "collation odd" in way.equality.refused]
    assert refused == ["f", "g", "h", "k"]
    fields = {name: way.equality for name, way in ways["e"].fields}
    assert fields["mail"].tag == "ascii"
    assert ("odd" in fields["name"].refused, fields["plain"].native) == (True, True)


def test_text_orders_differing_from_source_are_recognized(
    source: psycopg.Connection[Any], relations: dict[str, Relation], catalog: dict[TableName, SilverTable]
) -> None:
    oids = [shape.relation_id for shape in relations.values()]
    assert {(table.name, name): by for (table, name), by in other_orders(source, oids).items()} == {
        ("item", "de"): "german"
    }
    fields = (
        f"  - a: {{max: public.item.de, {_ON}}}\n"
        f"  - b: {{many: public.item, {_ON}, order_by: [de], values: id}}\n"
        f"  - c: {{collect: public.item.de, {_ON}}}\n  - d: {{first: public.item.id, {_ON}, order_by: [e]}}\n"
        f"  - e: {{max: public.item.u, {_ON}}}\n"
    )
    tree = checked_tree(document(f"document: d\nroot: public.thing\nfields:\n  - id\n{fields}"), catalog)[0]
    assert tree is not None
    places = [(label, name) for label, _, name in text_orders(tree)]
    assert places == [("a", "de"), ("b", "de"), ("d", "e")]
