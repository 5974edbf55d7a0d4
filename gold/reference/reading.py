"""Convert the server's answers (`gold.reference.query`) to the JSON of gold's content hash. Pure.

An answer contains PostgreSQL's texts. Silver's own expressions convert the texts to values. So a difference
between the server's document and gold's is a difference of rows, order or arithmetic, and never of rendering.

The reader walks an answer twice. The first walk records every text with its `Conversion`. Spark then converts
all distinct texts of many answers in one query. The second walk puts the values in their places.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from deltasmelt.gold.reference.query import bare_column
from deltasmelt.gold.reference.values import at_source, sources
from deltasmelt.gold.tree.nodes import (
    Aggregate,
    Collect,
    Flattened,
    Many,
    Nested,
    Node,
    One,
    Pick,
    Tree,
    Value,
)
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.tree.nodes import Scope, TreeField

Texts: TypeAlias = "tuple[str | None, ...]"
Convert: TypeAlias = "Callable[[Conversion, Texts], Any]"
Kind: TypeAlias = Any
"""A type of Spark, in the form of `DataType.jsonValue`."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """A conversion of texts to one value: a Spark SQL expression over an array of the texts, ``texts``."""

    sql: str


def key_conversions(tree: Tree, texts: str = "texts") -> list[str]:
    """Return the root's key as expressions over an array of the key's texts."""
    return [_column_sql(tree.root, name, f"{texts}[{place}]") for place, name in enumerate(tree.key)]


def key_texts(answer: Mapping[str, Any]) -> Texts:
    """Return the texts of an answer's key."""
    return tuple(answer["k"].values())


class Answers:
    """Reader of the answers for one document.

    `schema` has Spark's types of the document's fields, in the form of `StructType.jsonValue`.
    """

    def __init__(self, tree: Tree, schema: Mapping[str, Any]) -> None:
        self._tree = tree
        self._kinds = _members(schema)

    def key(self, answer: Mapping[str, Any], convert: Convert) -> list[Any]:
        """Return the key's values."""
        listed = [Conversion(_column_sql(self._tree.root, name, "texts[0]")) for name in self._tree.key]
        return [
            convert(conversion, (text,)) for conversion, text in zip(listed, key_texts(answer), strict=True)
        ]

    def document(self, answer: Mapping[str, Any], convert: Convert) -> dict[str, Any] | None:
        """Return the document; None if the root has no document."""
        members = answer["d"]
        if members is None:
            return None
        reader = _Reader(convert)
        return reader.members(self._tree.fields, self._tree.root, list(members.values()), self._kinds)


class _Reader:
    def __init__(self, convert: Convert) -> None:
        self._convert = convert

    def members(
        self, fields: Sequence[TreeField], scope: Scope, values: Sequence[Any], kinds: Mapping[str, Kind]
    ) -> dict[str, Any]:
        return {
            field.name: self._field(field, scope, value, kinds[field.name])
            for field, value in zip(fields, values, strict=False)
        }

    def _field(self, field: TreeField, scope: Scope, value: Any, kind: Kind) -> Any:
        if value is None:
            return None
        if isinstance(field, Value):
            return self._value(field.expression, scope, value)
        if isinstance(field, Nested):
            return self.members(field.fields, scope, list(value.values()), _members(kind))
        if isinstance(field, Flattened):
            return self._field(field.field, field.node.scope, value, kind)
        node = field.node
        if isinstance(node, Aggregate):
            return self._measured(node, field.measure, value, kind)
        levels = node.recursion.depth if isinstance(node, One | Many) and node.recursion is not None else 0
        return self._gathered(node, value, kind, levels)

    def _value(self, expression: Expression, scope: Scope, value: Any) -> Any:
        if (name := bare_column(expression)) is not None:
            return self._convert(Conversion(_column_sql(scope, name, "texts[0]")), (value,))
        row = []
        for place, name in enumerate(sources(expression, scope.table)):
            at = f"texts[{place}]"
            stored = _column_sql(scope, name, at)
            row.append(f"{literal(name)}, {stored}")
            # A derived column in an expression only flags that silver could not hold the value.
            derived = [
                column
                for column in expression.columns
                if column != name and at_source(scope.table, column) == name
            ]
            row += [f"{literal(column)}, {at} IS NOT NULL AND {stored} IS NULL" for column in sorted(derived)]
        # A field with `sql` is a conversion of several columns' texts: Spark defines its meaning.
        # Spark SQL has no other way to name a value within an expression.
        bound = f"named_struct({', '.join(row)})" if row else "named_struct('f0', 1)"
        sql = f"transform(array({bound}), v -> {expression.sql('v')})[0]"
        return self._convert(Conversion(sql), tuple(value.values()))

    def _measured(self, node: Aggregate, place: int, value: str, kind: Kind) -> Any:
        measure = node.measures[place]
        if measure.function in {"min", "max"} and measure.column is not None:
            return self._convert(Conversion(_column_sql(node.scope, measure.column, "texts[0]")), (value,))
        return self._convert(Conversion(f"try_cast(texts[0] AS {_ddl(kind)})"), (value,))

    def _gathered(self, node: Node, value: Any, kind: Kind, levels: int) -> Any:
        """Return an object, a value, an array, a map, or the first elements with the total number."""
        if not isinstance(node, Many | Collect):
            return self._item(node, value, kind, levels)
        if node.cap is not None:
            items, times, cut = value.values()
            listed = self._elements(node, items, _members(kind)["items"], levels)
            return {"items": listed, "count": int(times), "truncated": cut == "t"}
        return self._elements(node, value, kind, levels)

    def _elements(self, node: Many | Collect, value: Sequence[Any], kind: Kind, levels: int) -> Any:
        if isinstance(node, Many) and node.map_by is not None:
            conversion = Conversion(_name_sql(_column_sql(node.scope, node.map_by, "texts[0]")))
            return {
                self._convert(conversion, (entry["k"],)): self._item(
                    node, entry["v"], kind["valueType"], levels
                )
                for entry in value
            }
        return [self._item(node, item, kind["elementType"], levels) for item in value]

    def _item(self, node: Node, value: Any, kind: Kind, levels: int) -> Any:
        if value is None:
            return None
        if isinstance(node, Collect | Pick) or (isinstance(node, Many) and node.plain):
            return self._field(node.fields[0], node.scope, value, kind)
        values, kinds, place = list(value.values()), _members(kind), len(node.fields)
        members = self.members(node.fields, node.scope, values, kinds)
        for link in node.links:
            members |= self.members(link.fields, link.scope, values[place:], kinds)
            place += len(link.fields)
        if levels > 1 and isinstance(node, One | Many) and node.recursion is not None:
            name = node.recursion.name
            below = values[place]
            members[name] = None if below is None else self._gathered(node, below, kinds[name], levels - 1)
        return members


def _members(kind: Kind) -> dict[str, Kind]:
    return {member["name"]: member["type"] for member in kind["fields"]}


def _ddl(kind: Kind) -> str:
    """Return the DDL of a number's type: JSON's long is BIGINT."""
    return {"long": "bigint", "integer": "int", "short": "smallint"}.get(kind, str(kind))


def _name_sql(value: str) -> str:
    """Return SQL of the name of a map's key in Spark's JSON: for a moment the name is not the key's text."""
    # Spark SQL has no other way to name a value within an expression.
    name = "CASE WHEN e IS NOT NULL THEN json_object_keys(to_json(map(e, 1)))[0] END"
    return f"transform(array({value}), e -> {name})[0]"


def _column_sql(scope: Scope, name: str, at: str) -> str:
    reading = scope.table.column(name).reading
    return f"CAST({reading.value(at, 0)} AS {reading.ddl})"
