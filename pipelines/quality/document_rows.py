"""Documents compared with silver at the same cut: a document for each root row, and a row for each element.

* **A document for each root row**: the check counts, by the root's key, live rows of the root's table with a
  true `where` and without a document, and documents without such a row.
* **Elements have their rows**: the check searches silver for an element of a `many` with its row's key. The
  element is an orphan if no live row has this key, whatever other conditions the row must fulfil. Not
  checked: elements without the key, elements of one plain value, elements with `cap`, and deeper recursions.

`smelt verify` checks whether a document is complete, and each of its values.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from deltasmelt.gold.expressions.expressions import column
from deltasmelt.gold.tree.derived import computed
from deltasmelt.gold.tree.nodes import Child, Many, Nested, One, Value
from deltasmelt.pipelines.quality.expectations import DOCUMENT_SUITE, Expectation, Result
from deltasmelt.silver.schema.live_rows import live_rows
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from pyspark.sql import DataFrame

    from deltasmelt.gold.tree.nodes import Scope, Tree, TreeField

EACH_ROOT: Final = "expect_a_document_for_each_root_row"
ELEMENTS: Final = "expect_elements_to_have_their_rows"


@dataclass(frozen=True, slots=True)
class Step:
    """One field on the path to elements; `kind` is ``object``, ``array`` or ``map``."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class Elements:
    """A `many` with its row's key in each element.

    Attributes:
        path: the fields on the path to the elements, ending with their own field.
        table: silver's name of the table.
        key: key columns, each with the element's field of its value.
    """

    path: tuple[Step, ...]
    table: str
    key: tuple[tuple[str, str], ...]

    @property
    def label(self) -> str:
        """Label such as ``orders.items``."""
        return ".".join(step.name for step in self.path)


def of_tree(tree: Tree, where: str, tables: Collection[str]) -> list[Expectation]:
    """Return the expectations of a resolved document over a cut's tables, with their origin (`where`)."""

    def expect(kind: str, note: str, **kwargs: Any) -> Expectation:
        return Expectation("gold", tree.name, DOCUMENT_SUITE, kind, kwargs, note=note, where=where)

    expectations: list[Expectation] = []
    root = f"silver.{tree.root.table.name}"
    if root in tables:
        condition = {} if tree.root.where is None else {"where": str(tree.root.where)}
        expectations.append(expect(EACH_ROOT, "its root rows", references=root, **condition))
    for elements in elements_of(tree):
        table = f"silver.{elements.table}"
        if table in tables:
            expectations.append(expect(ELEMENTS, "its elements", elements=elements.label, references=table))
    return expectations


def elements_of(tree: Tree) -> list[Elements]:
    """Return every `many` of a document with searchable elements."""
    return list(_elements(tree.fields, ()))


def _elements(fields: Sequence[TreeField], path: tuple[Step, ...]) -> Iterator[Elements]:
    for field in fields:
        if isinstance(field, Nested):
            yield from _elements(field.fields, (*path, Step(field.name, "object")))
        elif isinstance(field, Child) and isinstance(field.node, One):
            yield from _elements(field.node.fields, (*path, Step(field.name, "object")))
        elif isinstance(field, Child) and isinstance(field.node, Many):
            node = field.node
            if node.cap is not None or node.plain:
                continue
            place = (*path, Step(field.name, "array" if node.map_by is None else "map"))
            key = _key(node.fields, node.scope)
            if key is not None:
                yield Elements(place, node.scope.table.name, key)
            yield from _elements(node.fields, place)


def _key(fields: Sequence[TreeField], scope: Scope) -> tuple[tuple[str, str], ...] | None:
    """Return each key column with the field of its value; None for an incomplete or missing key."""
    holders = {field.expression.parts: field.name for field in reversed(fields) if isinstance(field, Value)}
    pairs = [(name, holders.get(column(name).parts)) for name in scope.table.key]
    if not pairs or any(holder is None for _, holder in pairs):
        return None
    return tuple((name, holder) for name, holder in pairs if holder is not None)


def check_document(
    expectation: Expectation, tree: Tree, frame: Callable[[str], DataFrame], limit: int
) -> Result:
    """Return the result of one expectation of `of_tree`, with at most `limit` examples.

    `tree` is the document behind the expectation; `frame` returns a table at the cut, by its name.
    """
    documents = frame(expectation.qualified)
    if expectation.kind == ELEMENTS:
        (elements,) = [
            candidate for candidate in elements_of(tree) if candidate.label == expectation.kwargs["elements"]
        ]
        return _orphans(
            expectation, elements, documents, live_rows(frame(expectation.kwargs["references"])), limit
        )
    return _each_root(expectation, tree, documents, live_rows(frame(expectation.kwargs["references"])), limit)


def _each_root(
    expectation: Expectation, tree: Tree, documents: DataFrame, rows: DataFrame, limit: int
) -> Result:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415 - Spark is loaded by who needs it

    roots = rows.selectExpr("*", *computed(tree.root.table)).alias("r")
    if tree.root.where is not None:
        roots = roots.where(tree.root.where.sql("r"))
    # Documents without their root's key: only the two numbers can be compared.
    if not tree.key_fields:
        document_count, root_count = documents.count(), roots.count()
        return Result(
            expectation,
            success=document_count == root_count,
            element_count=root_count,
            unexpected_count=abs(document_count - root_count),
            observed=document_count,
            counted="root rows",
        )
    names = [f"k{n}" for n in range(len(tree.key))]
    document_keys = documents.select(
        *(F.col(quote(field)).alias(n) for field, n in zip(tree.key_fields, names, strict=True))
    )
    root_keys = roots.select(
        *(F.col(f"r.{quote(field)}").alias(n) for field, n in zip(tree.key, names, strict=True))
    )
    # Gold's and silver's keys have one type, so values are compared directly.
    sides = document_keys.withColumn("d", F.lit(1)).unionAll(root_keys.withColumn("d", F.lit(0)))
    keys = sides.groupBy(*names).agg(F.max("d").alias("document"), F.min("d").alias("only"))
    # `only` is 1 where no root row has the key; `document` is 0 where no document has it.
    wrong_keys = keys.where("document = 0 OR only = 1")
    (line,) = keys.agg(
        F.count_if(F.expr("only = 0")).alias("roots"),
        F.count_if(F.expr("document = 0 OR only = 1")).alias("wrong"),
    ).collect()
    values: list[dict[str, Any]] = []
    if line.wrong:
        for row in wrong_keys.orderBy(*names).limit(limit).collect():
            key = {field: row[n] for field, n in zip(tree.key_fields, names, strict=True)}
            values.append({**key, "document": "missing" if row.document == 0 else "without a root row"})
    return Result(
        expectation,
        success=line.wrong == 0,
        element_count=line.roots,
        unexpected_count=line.wrong,
        unexpected_percent=100 * line.wrong / line.roots if line.roots else None,
        values=tuple(values),
        counted="root rows",
    )


def _orphans(
    expectation: Expectation, elements: Elements, documents: DataFrame, rows: DataFrame, limit: int
) -> Result:
    from pyspark.sql import functions as F  # noqa: N812, PLC0415

    at = documents.select(F.struct("*").alias("at"))
    for step in elements.path:
        value = F.col("at").getField(step.name)
        if step.kind == "array":
            at = at.select(F.explode(value).alias("at"))
        elif step.kind == "map":
            at = at.select(F.explode(F.map_values(value)).alias("at"))
        else:
            at = at.select(value.alias("at"))
    keys = at.where("at IS NOT NULL").select(
        *(F.col("at").getField(field).alias(f"k{n}") for n, (_, field) in enumerate(elements.key))
    )
    names = keys.columns
    parents = rows.select(
        *(F.col(quote(name)).alias(n) for (name, _), n in zip(elements.key, names, strict=True))
    )
    tagged = keys.groupBy(*names).count().join(parents.withColumn("known", F.lit(1)), names, "left")
    (line,) = tagged.agg(
        F.coalesce(F.sum("count"), F.lit(0)).alias("elements"),
        F.coalesce(F.sum(F.when(F.col("known").isNull(), F.col("count"))), F.lit(0)).alias("orphans"),
    ).collect()
    values: list[dict[str, Any]] = []
    if line.orphans:
        orphans = tagged.where("known IS NULL").orderBy(*names).limit(limit).collect()
        values = [{name: row[n] for (name, _), n in zip(elements.key, names, strict=True)} for row in orphans]
    return Result(
        expectation,
        success=line.orphans == 0,
        element_count=line.elements,
        unexpected_count=line.orphans,
        unexpected_percent=100 * line.orphans / line.elements if line.elements else 0.0,
        values=tuple(values),
        counted="elements",
    )
