"""The parser and Spark read every expression alike: Spark's analysed plans are compared with the parser."""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException

from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.explain import explain
from deltasmelt.gold.expressions.expressions import parse_expression
from deltasmelt.gold.expressions.functions import FUNCTIONS
from deltasmelt.gold.language.types import calculated
from deltasmelt.gold.tree.resolve import resolve
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE
from deltasmelt.silver.spark.semantics import PINNED
from deltasmelt.silver.spark.tuning import settings
from deltasmelt.silver.sql import quote
from tests.gold.random_documents import Writer, random_shapes
from tests.gold.random_expressions import COLUMNS, SPECIAL, Expressions
from tests.gold.shop import catalog
from tests.gold.shop_documents import document

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.tree.nodes import Tree
    from tests.gold.shop import Shapes

pytestmark = pytest.mark.spark

EXACT = "spark.sql.decimalOperations.allowPrecisionLoss"
_COLUMN = re.compile(r"#(\d+)")
_LAMBDA = re.compile(r"(lambda \w+)#\d+")
"""Variables of lambdas, Spark's own too; each has a separate number."""


def analysed(spark: SparkSession, texts: list[str]) -> tuple[list[str], dict[str, str]]:
    """Return each expression as analysed by Spark, and the number of each column in the plan."""
    listed = ", ".join(f"{text} AS u{number}" for number, text in enumerate(texts))
    columns = ", ".join(f"CAST(NULL AS {ddl}) AS {quote(name)}" for name, ddl in COLUMNS.items())
    with settings(spark, {"spark.sql.debug.maxToStringFields": "100000"}):
        # EXPLAIN would also plan, and fails without a result if a value cannot be computed.
        frame: Any = spark.sql(f"SELECT {listed} FROM (SELECT {columns}) AS t")
        plan = str(frame._jdf.queryExecution().analyzed().toString())
    upper, _, lower = plan.partition("Project [")[2].partition("+- SubqueryAlias t")
    plans = []
    for number in range(len(texts)):
        text, _, upper = upper.partition(f" AS u{number}#")
        plans.append(_LAMBDA.sub(r"\1", text))
        upper = upper.partition(", ")[2]
    numbers = {}
    for name in COLUMNS:
        found_number = _COLUMN.match("#" + lower.partition(f" AS {name}#")[2])
        assert found_number is not None, plan[:2000]
        numbers[name] = found_number[1]
    return plans, numbers


@pytest.mark.usefixtures("active")  # the plan's text is cut by the active session's setting
def test_spark_reads_same_columns_and_agrees_on_meaning(spark: SparkSession) -> None:
    expressions = Expressions(random.Random(16), COLUMNS)
    texts = [text for text, _ in SPECIAL]
    while len(texts) < 400:
        texts.append(expressions.any())
    read = [parse_expression(text, COLUMNS, "public.t") for text in texts]
    pairs_of_sql = [
        sql for text, expression in zip(texts, read, strict=True) for sql in (text, expression.sql("t"))
    ]
    plans, numbers = analysed(spark, pairs_of_sql)
    names = {number: name for name, number in numbers.items()}
    for place, (text, expression) in enumerate(zip(texts, read, strict=True)):
        of_user, of_reader = plans[2 * place : 2 * place + 2]
        assert of_user.lower() == of_reader.lower(), text
        assert {names[number] for number in _COLUMN.findall(of_user)} == expression.columns, text


def test_derived_types_match_types_of_spark(spark: SparkSession) -> None:
    """The types are the types of gold's sessions, which round nothing."""
    kinds = ("SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(38,18)", "DECIMAL(38,0)",
             "DECIMAL(12,2)", "DECIMAL(5,5)", "DECIMAL(38,37)", "DECIMAL(20,0)")  # fmt: skip
    cases = [(how, left_kind, right_kind) for how in "+-*%" for left_kind in kinds for right_kind in kinds]
    listed = ", ".join(f"CAST(1 AS {a}) {how} CAST(1 AS {b}) AS u{n}" for n, (how, a, b) in enumerate(cases))
    with settings(spark, {EXACT: PINNED[EXACT]}):
        types = [field.dataType.simpleString() for field in spark.sql(f"SELECT {listed}").schema]
    names = {"smallint": "SMALLINT", "bigint": "BIGINT", "int": "INT", "float": "FLOAT", "double": "DOUBLE"}
    wrong = {
        call: (kind, calculated(*call))
        for call, kind in zip(cases, types, strict=True)
        if names.get(kind, kind.upper()) != calculated(*call)
    }
    assert wrong == {}


def test_every_allowed_function_exists_in_spark(spark: SparkSession) -> None:
    names = {row[0] for row in spark.sql("SHOW SYSTEM FUNCTIONS").collect()}
    of_the_grammar = {"cast", "try_cast", "extract", "overlay", "timestampadd", "timestampdiff", "dateadd"}
    assert FUNCTIONS - names <= of_the_grammar


WORDS = ("to", "end", "from", "not", "all", "year", "interval", "case", "order", "as")
"""Names for columns of documents that are words of SQL."""


def worded_shapes(source: random.Random) -> Shapes:
    """Return random tables, some with columns named like words of SQL."""
    shapes = {}
    for table, (columns, key) in random_shapes(source).items():
        names = dict(zip((name for name in columns if name[0] == "v"), source.sample(WORDS, 3), strict=True))
        kinds = {names.get(name, name): kind for name, kind in columns.items()}
        shapes[table] = ({**kinds, "name": "text", "placed_at": "timestamptz", "active": "bool"}, key)
    return shapes


def test_explained_reads_match_reads_of_spark(spark: SparkSession) -> None:
    """Spark can analyse every document over the read columns alone, and cannot without any one of them."""
    for seed in range(6):
        source = random.Random(seed)
        shapes = worded_shapes(source)
        silver = catalog(shapes)
        types = {
            str(table.table): {column.name: column.spark_type for column in table.columns}
            for table in silver.values()
        }
        expressions = {name: Expressions(source, types[name]) for name in shapes}
        text = Writer(source, shapes, {}, expressions).document(f"d{seed}")
        tree, problems = resolve(document(text), silver)
        assert tree is not None, (text, problems)
        columns_read: dict[str, set[str]] = {}
        for place in explain(tree):
            columns_read.setdefault(place.table, set()).update(place.columns)
        assert_analysed(spark, tree, types, columns_read)
        for table in sorted(columns_read):
            not_key = sorted(columns_read[table] - set(shapes[table][1]))
            if not not_key:
                continue
            left_out = source.choice(not_key)
            with pytest.raises(AnalysisException, match=re.escape(left_out)):
                assert_analysed(spark, tree, types, {**columns_read, table: columns_read[table] - {left_out}})


def assert_analysed(
    spark: SparkSession, tree: Tree, types: dict[str, dict[str, str]], read: dict[str, set[str]]
) -> None:
    def empty(name: TableName) -> str:
        read_columns = sorted(read[str(name)])
        columns = ", ".join(
            f"CAST(NULL AS {types[str(name)][column]}) AS {quote(column)}" for column in read_columns
        )
        return f"(SELECT {columns or '1 AS nothing'}, CAST(NULL AS MAP<STRING, STRING>) AS {UNREPRESENTABLE})"

    assert spark.sql(compile_tree(tree, empty).sql).columns
