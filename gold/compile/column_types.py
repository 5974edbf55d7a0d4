"""Find the types of a document's columns with Spark, without any data.

Spark analyses the query over tables with only the columns that the document reads (and keys). If an
expression reads another column, whose changes gold would miss, Spark does not find the column, and gold
refuses the document before a build. Gold also refuses a document in which a text would become a moment of
today (`gold.expressions.coercions`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.types import ArrayType, BinaryType, MapType, StructType

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.gold.compile.clauses import empty_table
from deltasmelt.gold.compile.compiler import compile_tree
from deltasmelt.gold.expressions.coercions import objection
from deltasmelt.gold.expressions.scanner import parts_sql
from deltasmelt.gold.language.types import map_key
from deltasmelt.gold.tree.check import DOCUMENT_REMEDY
from deltasmelt.gold.tree.derived import rows_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.types import DataType

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.expressions.clock_texts import Coercion
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.tree.nodes import Tree


def field_types(spark: SparkSession, tree: Tree) -> dict[str, Any]:
    """Return Spark's description of a document's fields (`StructType.jsonValue`).

    Raises:
        PySparkException: an expression is malformed, or its types do not fit.
        DefiniteError: a map has keys without a text.
    """
    schema, fields = _schema(spark, tree)
    described: dict[str, Any] = StructType([schema[name] for name in fields]).jsonValue()
    return described


def schema_of(spark: SparkSession, tree: Tree) -> StructType:
    """Return the columns of a document's query; raise the errors of `field_types`."""
    return _schema(spark, tree)[0]


def _schema(spark: SparkSession, tree: Tree) -> tuple[StructType, tuple[str, ...]]:
    compiled = compile_tree(tree, lambda name: empty_table(tree, name))
    schema = spark.sql(compiled.sql).schema
    _check_meetings(spark, tree)
    for name in compiled.fields:
        _check_keys(tree, name, schema[name].dataType)
    return schema, compiled.fields


def _check_meetings(spark: SparkSession, tree: Tree) -> None:
    """Check every coercion of values whose result might depend on the clock, or on memory.

    Raises:
        DefiniteError: the result of a coercion does depend on them.
    """
    noted: dict[TableName, list[tuple[Expression, Coercion]]] = {}
    for name, expression in tree.expressions():
        noted.setdefault(name, []).extend((expression, meeting) for meeting in expression.meetings)
    for name, meetings in noted.items():
        rows = rows_of(tree.tables()[name], empty_table(tree, name))
        objections_by_place = objections(spark, rows, [meeting for _, meeting in meetings])
        for (expression, _), (fault, remedy) in (
            (meetings[place], objection_of_place) for place, objection_of_place in objections_by_place.items()
        ):
            raise DefiniteError(
                f"{name}: {str(expression)!r}: {fault}",
                code="document-invalid",
                where=tree.name,
                remedy=remedy,
            )


def objections(spark: SparkSession, rows: str, meetings: Sequence[Coercion]) -> dict[int, tuple[str, str]]:
    """Return the faults of coercions over a relation, by the coercion's index, each with a remedy."""
    kinds = iter(_kinds(spark, rows, meetings))
    answers = (objection(meeting, [next(kinds) for _ in meeting.values]) for meeting in meetings)
    return {place: answer for place, answer in enumerate(answers) if answer is not None}


def _kinds(spark: SparkSession, rows: str, meetings: Sequence[Coercion]) -> list[DataType]:
    """Return the types of all coerced values, in order."""
    values = [parts_sql(value, "t") for meeting in meetings for value in meeting.values]
    if not values:
        return []
    listed = ", ".join(f"{value} AS u{number}" for number, value in enumerate(values))
    return [column.dataType for column in spark.sql(f"SELECT {listed} FROM {rows} AS t").schema]


def _check_keys(tree: Tree, field: str, kind: DataType) -> None:
    """Raise a DefiniteError if Spark's only text for some key of a map is a memory address."""
    if isinstance(kind, StructType):
        for inner in kind:
            _check_keys(tree, field, inner.dataType)
    elif isinstance(kind, ArrayType):
        _check_keys(tree, field, kind.elementType)
    elif isinstance(kind, MapType):
        # Gold compares a document's content as JSON, with texts as keys of a map.
        if not map_key(kind.keyType.simpleString()):
            key_type = kind.keyType.simpleString().upper()
            raise DefiniteError(
                f"the field {field!r} is a map with keys of type {key_type}, which cannot be JSON names",
                code="document-invalid",
                where=tree.name,
                remedy="convert the keys to text, for example by hex(…)"
                if isinstance(kind.keyType, BinaryType)
                else DOCUMENT_REMEDY,
            )
        _check_keys(tree, field, kind.valueType)
