"""Tables of every type in a real database, silver over their texts, and documents computed by both sides.

The reference is PostgreSQL: the database computes each document by `gold.reference.query`, and no Python code
repeats the computation. The tests count a field that `smelt check` refuses. A field that gold computes and
the server cannot is a fault.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import psycopg
from pyspark.errors import AnalysisException, ParseException

from deltasmelt.bronze.catalog.select import select_tables
from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.identifiers import TableName, quote_literal
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.postgres.connection import connect
from deltasmelt.gold.compile.column_types import objections, schema_of
from deltasmelt.gold.expressions.expressions import parse_expression
from deltasmelt.gold.language.comparing import PREFIX
from deltasmelt.gold.reference.comparable import comparable
from deltasmelt.gold.reference.conditions import UntranslatableError, condition
from deltasmelt.gold.reference.query import documents, root_columns
from deltasmelt.gold.reference.values import at_source, rows_at_source, text, value
from deltasmelt.gold.tree.comparisons import Comparisons
from deltasmelt.gold.tree.nodes import Many, One, Scope
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.gold.verify.against_source import Converter, lost_roots, lost_values, wrong_documents
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE, silver_table
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.verify.source_rows import source_rows
from tests.bronze.replaying import source_of
from tests.gold.shop_documents import document
from tests.silver.histories import BronzeWriter

if TYPE_CHECKING:
    import random
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.config.sections import SourceSettings
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.tree.nodes import Tree
    from deltasmelt.gold.verify.against_source import WrongDocument
    from deltasmelt.silver.schema.catalog import SilverTable
    from tests.gold.shop import Shapes

TYPES: Final = """
CREATE TYPE mood AS ENUM ('sad', 'ok', 'happy', 'Angry');
CREATE TYPE pair AS (a int, b numeric);
CREATE DOMAIN positive AS numeric CHECK (VALUE > 0);
CREATE DOMAIN short AS char(3);
CREATE DOMAIN feeling AS mood;
CREATE DOMAIN any_number AS numeric;
CREATE DOMAIN any_day AS date;
CREATE DOMAIN any_time AS timestamp;
CREATE DOMAIN any_moment AS timestamptz;
"""
_VECTOR: Final = """
CREATE EXTENSION vector;
CREATE TYPE citext;
CREATE FUNCTION citextin(cstring) RETURNS citext AS 'textin' LANGUAGE internal IMMUTABLE STRICT;
CREATE FUNCTION citextout(citext) RETURNS cstring AS 'textout' LANGUAGE internal IMMUTABLE STRICT;
CREATE TYPE citext (INPUT = citextin, OUTPUT = citextout, LIKE = text, CATEGORY = 'S', COLLATABLE = true);
CREATE CAST (citext AS text) WITHOUT FUNCTION AS IMPLICIT;
CREATE CAST (text AS citext) WITHOUT FUNCTION AS ASSIGNMENT;
"""
"""A server with vector lacks the extension citext, so the world creates citext from its definition."""

_LETTERS: Final = """
CREATE EXTENSION citext;
CREATE COLLATION loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
"""
"""For a server with the extension, and ICU."""

_CITEXT: Final = """
CREATE FUNCTION citext_{name}(citext, citext) RETURNS bool LANGUAGE sql IMMUTABLE STRICT
  AS 'SELECT lower($1::text) {sign} lower($2::text)';
CREATE OPERATOR {sign} (LEFTARG = citext, RIGHTARG = citext, FUNCTION = citext_{name}{more});
"""
_SIGNS: Final = {
    "lt": ("<", ""), "le": ("<=", ""), "eq": ("=", ", HASHES, MERGES"), "ge": (">=", ""), "gt": (">", ""),
    "ne": ("<>", ""),
}  # fmt: skip
_CITEXT_ORDER: Final = """
CREATE FUNCTION citext_cmp(citext, citext) RETURNS int LANGUAGE sql IMMUTABLE STRICT
  AS 'SELECT bttextcmp(lower($1::text), lower($2::text))';
CREATE FUNCTION citext_hash(citext) RETURNS int LANGUAGE sql IMMUTABLE STRICT
  AS 'SELECT hashtext(lower($1::text))';
CREATE OPERATOR CLASS citext_ops DEFAULT FOR TYPE citext USING btree AS
  OPERATOR 1 <, OPERATOR 2 <=, OPERATOR 3 =, OPERATOR 4 >=, OPERATOR 5 >,
  FUNCTION 1 citext_cmp(citext, citext);
CREATE OPERATOR CLASS citext_hash_ops DEFAULT FOR TYPE citext USING hash AS
  OPERATOR 1 =, FUNCTION 1 citext_hash(citext);
"""

VALUES: Final[Mapping[str, Sequence[str]]] = {
    "int2": ("1", "2", "3", "-4"),
    "int4": ("1", "2", "3", "4", "-4"),
    "int8": ("1", "2", "3", "4", "9000000000"),
    "oid": ("1", "2", "4294967295"),
    "numeric": ("1", "1.0", "1.00", "2.5", "9", "10", "-3", "0.1", "100.000000000000000001"),
    "numeric(8,2)": ("1", "1.5", "9", "10", "-3.25"),
    "numeric(50,2)": ("1", "9", "10", "123456789012345.25"),
    "any_number": ("NaN", "Infinity", "-Infinity", "1", "1.0", "9", "1e30"),
    "float4": ("0.1", "1.5", "0", "-0", "NaN", "Infinity", "-Infinity", "9", "10"),
    "float8": ("0.1", "0.2", "0.7", "1e15", "0", "-0", "NaN", "Infinity", "-Infinity", "9", "10"),
    "money": ("1.00", "9.00", "10.00", "-2.50"),
    "bool": ("t", "f"),
    "text": ("a", "B", "b", "ä", "Z", "", "10", "9", "a b"),
    "varchar(5)": ("a", "B", "b", "Z", "", "a "),
    "char(4)": ("a", "B", "b", "", "ab", "Z"),
    "short": ("a", "B", "ab"),
    "name": ("a", "B", "b"),
    '"char"': ("a", "B"),
    "citext": ("a", "A", "b", "B", "ä", "Ä", "Z"),
    "mood": ("sad", "ok", "happy", "Angry"),
    "feeling": ("sad", "ok", "happy", "Angry"),
    "uuid": ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "00eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    "bytea": ("\\x", "\\x00", "\\x0001", "\\xff"),
    "date": ("2024-02-29", "0001-01-01", "9999-12-31"),
    "timestamp": ("2024-02-29 23:59:59.999999", "0001-01-01 00:00:00", "9999-12-31 23:59:59"),
    "timestamptz": ("2024-02-29 23:59:59.999999+05:30", "1970-01-01 00:00:00+00", "9999-12-31 23:59:59+00"),
    "any_day": ("infinity", "-infinity", "2024-02-29", "0044-03-15 BC", "9999-12-31"),
    "any_time": ("infinity", "-infinity", "2024-02-29 23:59:59.999999", "294276-12-31 23:59:59"),
    "any_moment": ("infinity", "-infinity", "1970-01-01 00:00:00+00", "0044-03-15 12:00:00+00 BC"),
    "time": ("00:00", "09:30:00.5", "10:00", "24:00"),
    "timetz": ("10:00+00", "12:00+02", "11:00-01", "10:00+01"),
    "interval": ("1 day", "24 hours", "30 days", "1 mon", "-1 day", "9 hours", "10 hours"),
    "inet": ("10.0.0.1", "9.0.0.1", "10.0.0.1/8", "::1", "10.0.0.0/8"),
    "cidr": ("10.0.0.0/8", "9.0.0.0/8", "::/0"),
    "macaddr": ("08:00:2b:01:02:03", "0a:00:2b:01:02:03"),
    "bit(3)": ("101", "010", "111"),
    "varbit": ("101", "01", "1", ""),
    "pg_lsn": ("0/1", "0/10", "1/0", "A/0", "10/0"),
    "json": ('{"a": 1}', "null"),
    "jsonb": ('{"a": 1}', "[1, 2]", "10", "9", '"b"', "null"),
    "point": ("(1,2)", "(0,0)"),
    "tsvector": ("a:1 b:2", "b:1"),
    "int4range": ("[1,5)", "[1,3)", "empty", "(,4)", "[10,20)", "[9,20)"),
    "numrange": ("[1.0,5)", "[1,5)", "empty", "(,)"),
    "daterange": ("[2024-01-01,2024-02-01)", "empty"),
    "int4[]": ("{1,2}", "{1,NULL}", "{}", "{10}", "{9}", "{1}"),
    "numeric[]": ("{1.0}", "{1}", "{1,2}", "{}", "{9}", "{10}"),
    "float8[]": ("{0}", "{-0}", "{NaN}", "{1,NULL}", "{1,2}", "{Infinity}"),
    "citext[]": ("{a}", "{A}", "{b,NULL}", "{}"),
    "text[]": ("{a}", "{B}", "{a,b}", "{}", "{NULL}"),
    "mood[]": ("{sad}", "{ok}", "{happy,sad}", "{Angry}"),
    "pair": ("(1,1.0)", "(1,1)", "(,2)", "(9,)", "(10,1)"),
    "positive": ("1", "1.0", "9", "10", "2.5"),
    "vector": ("[1,2]", "[0,5]"),
}
"""The types, each with values, including ties and values that text would order or compare differently.

Types that begin with ``any`` have values that silver cannot hold; other columns of the base type have none.
"""

_LOOSE: Final = {
    "text COLLATE loose": ("a", "A", "b", "B", "ä", "Ä", "Z", ""),
    "varchar(5) COLLATE loose": ("a", "A", "b "),
}
"""Types that only a server with ICU has."""

KEYS: Final = (
    "int4", "int8", "int4", "text", "uuid", "numeric", "mood", "char(4)", "date", "citext", "float8",
)  # fmt: skip


def values_of(dsn: str) -> Mapping[str, Sequence[str]]:
    """Return the types that a server has, each with values."""
    if _has_letters(dsn):
        return {kind: texts for kind, texts in VALUES.items() if kind != "vector"} | _LOOSE
    return VALUES


def _has_letters(dsn: str) -> bool:
    with psycopg.connect(dsn) as connection:
        row = connection.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'citext'").fetchone()
    return row is not None


def every_type(
    source: random.Random, values: Mapping[str, Sequence[str]], tables: int = 4, columns: int = 9
) -> Shapes:
    """Return tables with every type among them, each with two whole numbers for joins and a row number."""
    kinds = list(values)
    source.shuffle(kinds)
    shapes: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {}
    for number in range(tables):
        key = ("k",) if source.random() < 0.7 else ("k", "l")
        columns_by_name = {name: source.choice(KEYS) for name in key} | {
            "j1": "int4",
            "j2": "int8",
            "r": "int4",
        }
        share = kinds[number::tables] + source.sample(kinds, max(0, columns - len(kinds) // tables))
        columns_by_name |= {f"v{place}": kind for place, kind in enumerate(share)}
        shapes[f"{'public' if number else 'other'}.t{number}"] = (columns_by_name, key)
    return shapes


@dataclass(slots=True)
class Tally:
    """The results of all tried fields.

    Attributes:
        compared: documents built by both sides.
        conditions: conditions that both sides computed for each row.
        lost: differences of roots that read values which silver cannot hold: gold has NULL, and reports it.
        refused: messages of `smelt check`, each with its number.
        left_out: fields that the reference does not translate.
        unanswered: fields that gold accepts and the server cannot compute.
        wrong: all further differences between both sides.
    """

    compared: int = 0
    conditions: int = 0
    lost: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    left_out: Counter[str] = field(default_factory=Counter)
    unanswered: dict[str, str] = field(default_factory=dict)
    wrong: list[tuple[WrongDocument | str, str]] = field(default_factory=list)


class PostgresWorld:
    """A database with tables and rows, and silver's catalog of the tables."""

    def __init__(self, dsn: str, shapes: Shapes, source: random.Random, *, rows: int = 12) -> None:
        self.shapes = shapes
        self.converter = Converter()
        self.settings: SourceSettings = source_of(dsn, tables=["public.*", "other.*"])
        self.values = values_of(dsn)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute(TYPES.encode())
            if _has_letters(dsn):
                connection.execute(_LETTERS.encode())
            else:
                connection.execute(_VECTOR.encode())
                for name, (sign, suffix) in _SIGNS.items():
                    connection.execute(_CITEXT.format(name=name, sign=sign, more=suffix).encode())
                connection.execute(_CITEXT_ORDER.encode())
            connection.execute("CREATE SCHEMA other")
            for name, shape in shapes.items():
                _create(connection, name, *shape)
                _fill(connection, name, shape, self.values, source, rows=rows)
            connection.execute("ANALYZE")
        with connect(self.settings) as pinned:
            relations = [table.relation for table in select_tables(pinned, self.settings)]
        assert len(relations) == len(shapes)
        self.catalog = {relation.table: silver_table(relation, SilverSettings()) for relation in relations}
        self.views: dict[TableName, str] = {}

    def load(self, spark: SparkSession, folder: Path) -> None:
        """Carry the rows' texts, in the server's form, through silver's own reading of a snapshot."""
        lake = Lake(path=str(folder / "lake"))
        bronze = BronzeWriter(lake)
        bronze.relations([table.relation for table in self.catalog.values()])
        with connect(self.settings) as connection:
            for table in self.catalog.values():
                listed = ", ".join(text(value(column.name, "t")) for column in table.columns)
                query = f"SELECT {listed} FROM {table.table.quoted} AS t"
                bronze.snapshot(table.relation, 1000, connection.execute(query.encode()).fetchall())
        bronze.commit(1000)
        for number, (name, table) in enumerate(self.catalog.items()):
            view, place = f"pg_world_{number}", str(folder / f"rows_{number}")
            rows = source_rows(spark, lake, table, Lsn(1000))
            rows.coalesce(1).write.parquet(place)
            spark.read.schema(rows.schema).parquet(place).createOrReplaceTempView(view)
            self.views[name] = view

    def accepted(self, texts: Iterable[str], tally: Tally) -> list[tuple[str, Tree]]:
        """Return the documents that gold accepts, and count the reasons against all others."""
        trees = []
        for definition in texts:
            tree, problems = resolve(document(definition), self.catalog)
            if tree is None:
                tally.refused.update({problem.message for problem in problems})
            else:
                trees.append((definition, tree))
        return trees

    def answered(self, texts: Iterable[str], tally: Tally) -> list[tuple[Tree, list[str]]]:
        """Return the documents that both sides can build, each with the server's answers."""
        pairs = []
        with connect(self.settings) as connection:
            for definition, tree in self.accepted(texts, tally):
                comparable_part = comparable(tree)
                tally.left_out.update(comparable_part.left_out)
                if comparable_part.tree is None:
                    continue
                query = documents(comparable_part.tree, self._roots(comparable_part.tree))
                try:
                    rows = connection.execute(query.encode()).fetchall()
                except psycopg.Error as error:
                    tally.unanswered[definition] = str(error).splitlines()[0]
                    continue
                pairs.append((comparable_part.tree, [row[0] for row in rows]))
        return pairs

    def compare(self, spark: SparkSession, texts: Sequence[str], tally: Tally, *, restricted: bool) -> None:
        """Compute documents by both sides, all of them in one statement of Spark."""
        definitions = {json.loads(definition)["document"]: definition for definition in texts}
        pairs = []
        for tree, answers in self.answered(texts, tally):
            try:
                schema_of(spark, tree)
            except (AnalysisException, ParseException) as error:
                tally.refused[f"Spark: {error.getCondition()}; as `smelt check` says"] += 1
            except DefiniteError as error:
                tally.refused[f"{error.message}; {error.remedy}"] += 1
            else:
                pairs.append((tree, answers))
        tally.compared += len(pairs)
        view = self.views.__getitem__
        wrong = wrong_documents(spark, pairs, view, restricted=restricted, converter=self.converter)
        of = {tree.name: (tree, answers) for tree, answers in pairs}
        lost = {
            name: lost_roots(spark, *of[name], view) if lost_values(spark, of[name][0], view) else set()
            for name in {difference.document for difference in wrong}
        }
        excused = [
            difference
            for difference in wrong
            if difference.key in lost[difference.document] or _joins_lost(of[difference.document][0])
        ]
        tally.lost += len(excused)
        tally.wrong += [
            (difference, definitions[difference.document])
            for difference in wrong
            if difference not in excused
        ]

    def compare_conditions(
        self, spark: SparkSession, texts: Mapping[str, Iterable[str]], tally: Tally
    ) -> None:
        """Compute conditions over each row by both sides, with one statement of Spark per table."""
        with connect(self.settings) as connection:
            for name, listed in texts.items():
                table = self.catalog[TableName.parse(name)]
                conditions = self._both_read(spark, table, listed, tally)
                sql = "".join(
                    f", {parsed.sql('t')} AS c{place}" for place, (parsed, _) in enumerate(conditions)
                )
                rows = spark.sql(
                    f"SELECT r, {UNREPRESENTABLE} AS lost{sql} FROM {self.views[table.table]} AS t"
                )
                by_row = {row["r"]: row for row in rows.collect()}
                for place, (expression, postgres_sql) in enumerate(conditions):
                    query = f"SELECT r, {postgres_sql} FROM {table.table.quoted} AS t"
                    try:
                        answers = connection.execute(query.encode()).fetchall()
                    except psycopg.Error as error:
                        tally.unanswered[str(expression)] = str(error).splitlines()[0]
                        continue
                    tally.conditions += 1
                    for key, answer in answers:
                        lost = expression.columns & (by_row[key]["lost"] or {}).keys()
                        if not lost and by_row[key][f"c{place}"] != answer:
                            fault = f"row {key} of {name}: {by_row[key][f'c{place}']}, PostgreSQL: {answer}"
                            tally.wrong.append((fault, str(expression)))

    def _both_read(
        self, spark: SparkSession, table: SilverTable, texts: Iterable[str], tally: Tally
    ) -> list[tuple[Expression, str]]:
        """Return the conditions that gold accepts and the reference translates, each with its translation."""
        scope_columns, read = Comparisons().columns(Scope("", table)), []
        for condition_text in texts:
            try:
                expression = parse_expression(condition_text, scope_columns, str(table.table))
                postgres_sql = condition(expression, table, "t")
            except UntranslatableError as error:
                tally.left_out[str(error)] += 1
            except ValueError as error:
                tally.refused[str(error)] += 1
            else:
                if not any(name.startswith(PREFIX) for name in expression.columns):
                    read.append((expression, postgres_sql))
        meetings = [(place, meeting) for place, (pair, _) in enumerate(read) for meeting in pair.meetings]
        refusals = objections(spark, self.views[table.table], [meeting for _, meeting in meetings])
        tally.refused.update("; ".join(objection) for objection in refusals.values())
        refused = {meetings[place][0] for place in refusals}
        return [pair for place, pair in enumerate(read) if place not in refused]

    def _roots(self, tree: Tree) -> str:
        return f"(SELECT {root_columns(tree)} FROM {rows_at_source(tree.root.table)})"


def _joins_lost(tree: Tree) -> bool:
    """Check whether a column with lost values joins rows: gold then finds fewer rows."""
    pairs = [(node.scope, pair[0]) for node in tree.nodes() for pair in node.on]
    pairs += [(node.parent if not node.links else node.links[-1].scope, pair[1]) for node in tree.nodes()
              for pair in node.on]  # fmt: skip
    for node in tree.nodes():
        before = node.parent
        for link in node.links:
            pairs += [end for left, right in link.on for end in ((link.scope, left), (before, right))]
            before = link.scope
        if isinstance(node, One | Many) and node.recursion is not None:
            pairs += [(node.scope, name) for pair in node.recursion.on for name in pair]
    types = [scope.table.relation.column(at_source(scope.table, name)).type.name for scope, name in pairs]
    return any(name.startswith("any_") for name in types)


def _create(
    connection: psycopg.Connection[Any], name: str, columns: Mapping[str, str], key: Sequence[str]
) -> None:
    listed = ", ".join(f"{column} {kind}" for column, kind in columns.items())
    connection.execute(f"CREATE TABLE {name} ({listed}, PRIMARY KEY ({', '.join(key)}))".encode())


def _fill(
    connection: psycopg.Connection[Any],
    name: str,
    shape: tuple[Mapping[str, str], Sequence[str]],
    values: Mapping[str, Sequence[str]],
    source: random.Random,
    *,
    rows: int,
) -> None:
    columns, key = shape
    for number in range(rows):
        listed = []
        for column, kind in columns.items():
            if column == "r":
                listed.append(str(number))
                continue
            empty = column not in key and source.random() < 0.15
            listed.append("NULL" if empty else f"{quote_literal(source.choice(values[kind]))}::{kind}")
        connection.execute(f"INSERT INTO {name} VALUES ({', '.join(listed)}) ON CONFLICT DO NOTHING".encode())
