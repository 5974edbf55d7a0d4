"""Compare documents computed by PostgreSQL with documents that gold's own compiler builds from silver's rows.

`gold.verify.verify` compares a gold table with a full build. A full build and an increment share a compiler,
so a fault of the compiler (an order by text, a join unlike the source's) escapes that comparison. Here the
second side is the server's answer to `gold.reference.query` in a snapshot, and silver's rows are as of the
snapshot's LSN. The documents are a bounded sample, compared in the calling process by the JSON of gold's
content hash.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.gold.builder.spark_settings import SORTED
from deltasmelt.gold.compile.clauses import numbered, with_steps
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.incremental.affected import SIDE, affected_roots
from deltasmelt.gold.reference.reading import Answers, Conversion, key_conversions, key_texts
from deltasmelt.gold.reference.values import at_source
from deltasmelt.gold.tree.derived import with_derived
from deltasmelt.gold.verify.verify import Difference, first_difference
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE
from deltasmelt.silver.spark.tuning import settings
from deltasmelt.silver.sql import as_json, literal, quote

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.compile.query import TableSql
    from deltasmelt.gold.reference.reading import Texts
    from deltasmelt.gold.tree.nodes import Tree

KINDS: Final = {
    "missing": "is missing",
    "surplus": "should not exist",
    "differs": "differs",
}
"""Kinds of difference between gold's document and the server's."""

_PENDING: Final = "smelt_texts"


@dataclass(frozen=True, slots=True)
class WrongDocument:
    """A document of gold that differs from PostgreSQL's.

    `key` is the root's key, as JSON; `kind` is a key of `KINDS`. The first `difference` has gold's value as
    `stored`, and the server's as `rebuilt`.
    """

    document: str
    key: str
    kind: str
    difference: Difference | None = None


@dataclass(slots=True)
class Converter:
    """Converter of the server's texts into JSON values by Spark; converts each text of each kind once."""

    values: dict[tuple[Conversion, Texts], Any] = field(default_factory=dict)
    _pending: dict[tuple[Conversion, Texts], None] = field(default_factory=dict)

    def note(self, conversion: Conversion, texts: Texts) -> Any:
        """Record a text for the next conversion."""
        if (conversion, texts) not in self.values:
            self._pending[conversion, texts] = None

    def convert(self, conversion: Conversion, texts: Texts) -> Any:
        """Return the value of a text recorded before the conversion."""
        return self.values[conversion, texts]

    def convert_all(self, spark: SparkSession) -> None:
        """Convert all recorded texts with Spark."""
        if not self._pending:
            return
        conversions = list(self._pending)
        places = {how: place for place, how in enumerate(dict.fromkeys(how for how, _ in conversions))}
        rows = [(number, places[how], list(texts)) for number, (how, texts) in enumerate(conversions)]
        frame = spark.createDataFrame(rows, "number INT, place INT, texts ARRAY<STRING>")
        frame.createOrReplaceTempView(_PENDING)
        cases = "\n".join(
            f"WHEN {place} THEN {as_json([f'{conversion.sql} AS v'])}" for conversion, place in places.items()
        )
        for row in spark.sql(f"SELECT number, CASE place {cases} END AS value FROM {_PENDING}").collect():
            self.values[conversions[row["number"]]] = json.loads(row["value"], parse_float=str)["v"]
        self._pending.clear()


def wrong_documents(
    spark: SparkSession,
    answered: Sequence[tuple[Tree, Sequence[str]]],
    relation: TableSql,
    *,
    restricted: bool = True,
    converter: Converter | None = None,
) -> list[WrongDocument]:
    """Return the documents that gold and the server build differently, of each type by key.

    Args:
        spark: a session that only this caller uses, because the function creates views.
        answered: documents without untranslatable fields, each with the server's answers.
        relation: silver's rows at the LSN of the answers.
        restricted: build only the answered roots, as an incremental run does; else build all.
        converter: keeps converted texts from one call to the next.
    """
    converter = converter or Converter()
    with settings(spark, SORTED):
        answers = [[json.loads(text) for text in texts] for _, texts in answered]
        documents, readers = _made(spark, answered, answers, relation, restricted=restricted)
        for reader, answers_of_document in zip(readers, answers, strict=True):
            for answer in answers_of_document:
                reader.key(answer, converter.note)
                reader.document(answer, converter.note)
        converter.convert_all(spark)
    differences: list[WrongDocument] = []
    for place, (reader, answers_of_document) in enumerate(zip(readers, answers, strict=True)):
        expected = {}
        for answer in answers_of_document:
            document = reader.document(answer, converter.convert)
            if document is not None:
                expected[json.dumps(reader.key(answer, converter.convert))] = json.dumps(document)
        differences += _differences(answered[place][0].name, documents[place], expected)
    return differences


def lost_values(spark: SparkSession, tree: Tree, relation: TableSql) -> dict[str, int]:
    """Return the number of values that a document reads and silver's types cannot hold, by column; no zeros.

    Gold reads NULL and the server reads the value, so orders and aggregates differ.
    """
    lost: dict[str, int] = {}
    for name, columns in _read(tree).items():
        listed = ", ".join(
            f"count_if(map_contains_key({UNREPRESENTABLE}, {literal(column)}))" for column in columns
        )
        rows = f"{relation(name)} WHERE {UNREPRESENTABLE} IS NOT NULL"
        (counts,) = spark.sql(f"SELECT {listed} FROM {rows}").collect()
        lost |= {
            f"{name}.{column}": int(times) for column, times in zip(columns, counts, strict=True) if times
        }
    return lost


def lost_roots(spark: SparkSession, tree: Tree, answers: Sequence[str], relation: TableSql) -> set[str]:
    """Return the keys, as JSON, of the answered roots whose documents read a lost value.

    If a join depends on the lost value, the walk finds no root, and the documents of this row stay different.
    """
    complete = with_derived(tree, relation)

    def images(name: TableName) -> str:
        read = _read(tree)[name]
        lost = " OR ".join(f"map_contains_key({UNREPRESENTABLE}, {literal(column)})" for column in read)
        rows = f"{complete(name)} WHERE {UNREPRESENTABLE} IS NOT NULL AND ({lost})"
        return f"(SELECT *, 'new' AS {SIDE} FROM {rows})"

    # Rows with lost values are walked up to their roots like changed rows, without filters: the server
    # filters by the value that gold lacks.
    walked = affected_roots(tree, _read(tree), images, relation, filtered=False)
    if walked is None:
        return set()
    roots = _roots_of(spark, tree, [json.loads(answer) for answer in answers], f"{_PENDING}_lost")
    key = [f"k{place}" for place in range(len(tree.key))]
    condition = " AND ".join(f"r.{column} = c.{column}" for column in key)
    final = (
        f"SELECT {as_json(f'r.{column} AS {column}' for column in key)} AS key\n"
        f"FROM {roots} AS r LEFT SEMI JOIN (\n{walked.query}\n) AS c ON {condition}"
    )
    with settings(spark, SORTED):
        return {_key(row["key"]) for row in spark.sql(with_steps(walked.steps, final)).collect()}


def _read(tree: Tree) -> dict[TableName, list[str]]:
    """Return the source's columns that a document reads, by table."""
    columns = {
        name: sorted({at_source(table, column) for column in tree.reads(name)})
        for name, table in tree.tables().items()
    }
    return {name: read for name, read in columns.items() if read}


def _roots_of(spark: SparkSession, tree: Tree, answers: Sequence[Any], view: str) -> str:
    """Return the relation of the answered roots' keys, ``k0, k1 …``."""
    keys = [(list(key_texts(answer)),) for answer in answers]
    spark.createDataFrame(keys, "texts ARRAY<STRING>").createOrReplaceTempView(view)
    return f"(SELECT {', '.join(numbered(key_conversions(tree)))} FROM {view})"


def _made(
    spark: SparkSession,
    answered: Sequence[tuple[Tree, Sequence[str]]],
    answers: Sequence[Sequence[Any]],
    relation: TableSql,
    *,
    restricted: bool,
) -> tuple[list[dict[str, str]], list[Answers]]:
    """Return gold's documents of each type by key, both as JSON, and the readers of the answers."""
    documents: list[dict[str, str]] = [{} for _ in answered]
    readers, queries = [], []
    for place, (tree, _) in enumerate(answered):
        roots = None
        if restricted:
            roots = _roots_of(spark, tree, answers[place], f"{_PENDING}_{place}")
        compiled = compile_tree(tree, relation, roots=roots)
        key = as_json(f"{column} AS k{i}" for i, column in enumerate(compiled.key))
        document = as_json(map(quote, compiled.fields))
        rows = spark.sql(compiled.sql)
        readers.append(Answers(tree, rows.schema.jsonValue()))
        queries.append(f"SELECT {place} AS place, {key} AS key, {document} AS made FROM (\n{compiled.sql}\n)")
    if queries:
        for row in spark.sql("\nUNION ALL\n".join(queries)).collect():
            document = json.loads(row["made"], parse_float=str)
            documents[row["place"]][_key(row["key"])] = json.dumps(document)
    return documents, readers


def _key(text: str) -> str:
    """Return a key as JSON of its values alone, from the JSON of Spark."""
    return json.dumps(list(json.loads(text, parse_float=str).values()))


def _differences(name: str, made: dict[str, str], expected: dict[str, str]) -> Iterable[WrongDocument]:
    for key in sorted(made.keys() | expected.keys()):
        if key not in made:
            yield WrongDocument(name, key, "missing")
        elif key not in expected:
            yield WrongDocument(name, key, "surplus")
        elif made[key] != expected[key]:
            yield WrongDocument(name, key, "differs", first_difference(made[key], expected[key]))
