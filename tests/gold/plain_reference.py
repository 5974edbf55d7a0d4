"""Documents assembled row by row in plain Python: slow, obvious, written from the contract."""

from __future__ import annotations

from decimal import ROUND_HALF_UP, Decimal
from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

from deltasmelt.gold.language.model import (
    AggregateField,
    ColumnField,
    Definition,
    ManyField,
    ObjectField,
    OneField,
    SqlField,
)
from deltasmelt.gold.language.notation import parse_ordering

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

Row = dict[str, Any]

MEAN = Decimal("0.000001")
"""The mean of numbers with two decimals has four more."""


class Reference:
    """Assembler of documents from rows in memory.

    `snippets` has for each SQL text of the definition a Python function with the same meaning.
    """

    def __init__(
        self,
        definition: Definition,
        rows: Mapping[str, Mapping[tuple[Any, ...], Row]],
        keys: Mapping[str, Sequence[str]],
        snippets: Mapping[str, Callable[[Row], Any]],
    ) -> None:
        self._definition = definition
        self._rows = rows
        self._keys = keys
        self._snippets = snippets
        self._tables = {id(row): table for table, table_rows in rows.items() for row in table_rows.values()}
        self.several: set[tuple[Any, ...]] = set()
        self.cut: set[tuple[Any, ...]] = set()
        self._root: tuple[Any, ...] = ()

    def documents(self) -> dict[tuple[Any, ...], Row]:
        """Return every document by its root's key."""
        built = {}
        for key, row in self._rows[self._definition.root].items():
            if self._passes(self._definition.where, row):
                self._root = key
                built[key] = self._object(self._definition.fields, row)
        return built

    def _passes(self, snippet: str | None, row: Row) -> bool:
        return snippet is None or bool(self._snippets[snippet](row))

    def _object(self, entries: Sequence[Any], row: Row) -> Row:
        result = {}
        for entry in entries:
            if isinstance(entry, str):
                result[entry] = row[entry]
                continue
            ((name, spec),) = entry.items()
            if isinstance(spec, OneField) and spec.flatten:
                nested = self._one(spec, row)
                nested = nothing_of(spec.fields) if nested is None else nested
                result.update({spec.prefix + inner: value for inner, value in nested.items()})
            else:
                result[name] = self._value(spec, row)
        return result

    def _value(self, spec: Any, row: Row) -> Any:
        if isinstance(spec, ColumnField):
            return spec.default if row[spec.column] is None else row[spec.column]
        if isinstance(spec, SqlField):
            return self._snippets[spec.sql](row)
        if isinstance(spec, ObjectField):
            return self._object(spec.object, row)
        if isinstance(spec, AggregateField):
            return self._aggregate(spec, row)
        if isinstance(spec, ManyField):
            return self._many(spec, row)
        return self._one(spec, row)

    def _many(self, spec: ManyField, row: Row) -> Any:
        if spec.recurse is not None:
            return self._level(spec, spec.many, row, self._matches(spec, spec.many, row), 1)
        pairs = self._matches(spec, spec.many, row)[: spec.limit]
        elements: list[Any] = []
        for far, way in pairs:
            if spec.values is not None:
                elements.append(far[spec.values])
                continue
            element = self._object(spec.fields or [], far)
            for step, link in zip(spec.join_path, way, strict=True):
                element |= self._object(step.fields or [], link)
            elements.append(element)
        return self._gathered(spec, [far for far, _ in pairs], elements)

    def _gathered(self, spec: ManyField, rows: Sequence[Row], found: list[Any]) -> Any:
        if spec.key_by is not None:
            names = [far[spec.key_by] for far in rows]
            firsts = reversed(list(zip(names, found, strict=True)))
            return {name: element for name, element in firsts if name is not None}
        return capped(found, spec.cap)

    def _one(self, spec: OneField, row: Row) -> Row | None:
        pairs = self._matches(spec, spec.one, row)
        if spec.recurse is not None:
            return self._level(spec, spec.one, row, pairs, 1)  # type: ignore[no-any-return]
        if len(pairs) > 1:
            self.several.add(self._root)
        return self._object(spec.fields, pairs[0][0]) if pairs else None

    def _level(self, spec: Any, table: str, above: Row, pairs: list[Any], depth: int, *way: Any) -> Any:
        """Return rows of one level of a recursion with the rows below, without rows already on the path."""
        name = self._name_of(spec)
        if not way and self._tables[id(above)] == table:
            way = (self._key(table, above),)
        rows = [far for far, _ in pairs if self._key(table, far) not in way]
        if len(rows) < len(pairs):
            self.cut.add(self._root)
        elements = []
        for far in rows[:1] if isinstance(spec, OneField) else rows[: spec.limit]:
            element = self._object(spec.fields, far)
            if depth < spec.recurse.max_depth:
                below = self._matches(spec, table, far, spec.recurse.on)
                element[name] = self._level(spec, table, far, below, depth + 1, *way, self._key(table, far))
            elements.append(element)
        if isinstance(spec, OneField):
            if len(rows) > 1:
                self.several.add(self._root)
            return elements[0] if elements else None
        return self._gathered(spec, rows, elements)

    def _name_of(self, spec: Any) -> str:
        """Return the field's own name, under which a recursion continues."""
        return next(name for name, candidate in _specs(self._definition.fields) if candidate is spec)

    def _key(self, table: str, row: Row) -> tuple[Any, ...]:
        return tuple(row[column] for column in self._keys[table])

    def _matches(
        self, spec: Any, table: str, row: Row, on: Mapping[str, str] | None = None
    ) -> list[tuple[Row, list[Row]]]:
        """Return (far row, rows on the way) in the wanted order."""
        pairs: list[tuple[Row, list[Row]]] = [(row, [])]
        on, steps = on or getattr(spec, "on", None), getattr(spec, "join_path", [])
        for step in steps:
            pairs = [
                (link, [*way, link])
                for before, way in pairs
                for link in self._joined(step.table, step.on, before)
                if self._passes(step.where, link)
            ]
            on = None if step.to is None else {far: mine for mine, far in step.to.items()}
        pairs = [(far, way) for before, way in pairs for far in self._joined(table, on or {}, before)]
        pairs = [pair for pair in pairs if self._passes(spec.where, pair[0])]
        for place, step in enumerate(steps):
            for column in reversed(self._keys[step.table]):
                pairs.sort(key=lambda pair, column=column, place=place: pair[1][place][column])  # type: ignore[misc]
        for column in reversed(self._keys[table]):
            pairs.sort(key=lambda pair, column=column: pair[0][column])  # type: ignore[misc]
        for text in reversed(getattr(spec, "order_by", None) or ()):
            wanted = parse_ordering(text)

            def compare(
                one: tuple[Row, list[Row]], other: tuple[Row, list[Row]], wanted: Any = wanted
            ) -> int:
                left, right = one[0][wanted.column], other[0][wanted.column]
                if left is None or right is None:
                    before = int(left is None) - int(right is None)
                    return -before if wanted.nulls_first else before
                less = int(left > right) - int(left < right)
                return -less if wanted.descending else less

            pairs.sort(key=cmp_to_key(compare))
        return pairs

    def _joined(self, table: str, on: Mapping[str, str], row: Row) -> list[Row]:
        return [
            candidate
            for candidate in self._rows[table].values()
            if all(row[theirs] is not None and candidate[mine] == row[theirs] for mine, theirs in on.items())
        ]

    def _aggregate(self, spec: AggregateField, row: Row) -> Any:  # noqa: PLR0911 - one per kind
        table, column = spec.target
        rows = [far for far, _ in self._matches(spec, str(table), row)]
        if column is None:
            return len(rows)
        if spec.function in {"first", "last"}:
            return rows[0 if spec.function == "first" else -1][column] if rows else None
        values = [far[column] for far in rows if far[column] is not None]
        function = spec.function
        if function == "collect":
            return capped(values[: spec.limit], spec.cap)
        if function == "count":
            return len(values)
        if function == "count_distinct":
            return len(set(values))
        if not values:
            return None
        if function == "avg":
            mean = sum(sorted(values)) / len(values)
            return mean.quantize(MEAN, ROUND_HALF_UP) if isinstance(mean, Decimal) else mean
        return {"sum": lambda: sum(sorted(values)), "min": lambda: min(values), "max": lambda: max(values)}[
            function
        ]()


def capped(rows: list[Any], cap: int | None) -> Any:
    """Return the first elements with the total number, if the field has a cap."""
    if cap is None:
        return rows
    return {"items": rows[:cap], "count": len(rows), "truncated": len(rows) > cap}


def nothing_of(entries: Sequence[Any]) -> Row:
    """Return flattened fields of a missing row."""
    result: Row = {}
    for entry in entries:
        name, spec = (entry, None) if isinstance(entry, str) else next(iter(entry.items()))
        if isinstance(spec, OneField) and spec.flatten:
            result.update({spec.prefix + inner: value for inner, value in nothing_of(spec.fields).items()})
        elif isinstance(spec, ManyField):
            result[name] = {} if spec.key_by is not None else capped([], spec.cap)
        elif isinstance(spec, AggregateField) and spec.function in {"count", "count_distinct"}:
            result[name] = 0
        elif isinstance(spec, AggregateField) and spec.function == "collect":
            result[name] = capped([], spec.cap)
        else:
            result[name] = None
    return result


def _specs(entries: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    """Yield every field of a definition, also nested fields."""
    for entry in entries:
        if isinstance(entry, str):
            continue
        ((name, spec),) = entry.items()
        yield name, spec
        yield from _specs(getattr(spec, "fields", None) or getattr(spec, "object", None) or [])
