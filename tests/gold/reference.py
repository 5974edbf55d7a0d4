"""Documents assembled row by row in plain Python: slow, obvious, written from the contract."""

from __future__ import annotations

from functools import cmp_to_key
from typing import TYPE_CHECKING, Any

from gold.documents import (
    AggregateField,
    ColumnField,
    Definition,
    ManyField,
    ObjectField,
    SqlField,
    parse_ordering,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from gold.documents import OneField

Row = dict[str, Any]


class Reference:
    """Assembles documents from rows in memory.

    `snippets` gives for each SQL text of the definition the Python function that means the same.
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
        self.several: set[tuple[Any, ...]] = set()
        self._root: tuple[Any, ...] = ()

    def documents(self) -> dict[tuple[Any, ...], Row]:
        """Every document by its root's key."""
        found = {}
        for key, row in self._rows[self._definition.root].items():
            if self._passes(self._definition.where, row):
                self._root = key
                found[key] = self._object(self._definition.fields, row)
        return found

    def _passes(self, snippet: str | None, row: Row) -> bool:
        return snippet is None or bool(self._snippets[snippet](row))

    def _object(self, entries: Sequence[Any], row: Row) -> Row:
        result = {}
        for entry in entries:
            if isinstance(entry, str):
                result[entry] = row[entry]
            else:
                ((name, spec),) = entry.items()
                result[name] = self._value(spec, row)
        return result

    def _value(self, spec: Any, row: Row) -> Any:  # noqa: PLR0911 - one per kind
        if isinstance(spec, ColumnField):
            return spec.default if row[spec.column] is None else row[spec.column]
        if isinstance(spec, SqlField):
            return self._snippets[spec.sql](row)
        if isinstance(spec, ObjectField):
            return self._object(spec.object, row)
        if isinstance(spec, AggregateField):
            return self._aggregate(spec, row)
        if isinstance(spec, ManyField):
            pairs = self._matches(spec, spec.many, row)[: spec.limit]
            if spec.values is not None:
                return [far[spec.values] for far, _ in pairs]
            link_fields = spec.through.fields or [] if spec.through is not None else []
            return [
                {**self._object(spec.fields or [], far), **self._object(link_fields, link)}
                for far, link in pairs
            ]
        return self._one(spec, row)

    def _one(self, spec: OneField, row: Row) -> Row | None:
        pairs = self._matches(spec, spec.one, row)
        if len(pairs) > 1:
            self.several.add(self._root)
        return self._object(spec.fields, pairs[0][0]) if pairs else None

    def _matches(self, spec: Any, table: str, row: Row) -> list[tuple[Row, Row]]:
        """(far row, link row) in the wanted order; the link row is empty without a link."""
        through = getattr(spec, "through", None)
        pairs: list[tuple[Row, Row]]
        if through is None:
            pairs = [(far, {}) for far in self._joined(table, spec.on, row)]
        else:
            pairs = [
                (far, link)
                for link in self._joined(through.table, through.on, row)
                if self._passes(through.where, link)
                for far in self._joined(table, {far: mine for mine, far in through.to.items()}, link)
            ]
        pairs = [pair for pair in pairs if self._passes(spec.where, pair[0])]
        for column in reversed(self._keys[through.table] if through is not None else ()):
            pairs.sort(key=lambda pair, column=column: pair[1][column])  # type: ignore[misc]
        for column in reversed(self._keys[table]):
            pairs.sort(key=lambda pair, column=column: pair[0][column])  # type: ignore[misc]
        for text in reversed(getattr(spec, "order_by", None) or ()):
            wanted = parse_ordering(text)

            def compare(one: tuple[Row, Row], other: tuple[Row, Row], wanted: Any = wanted) -> int:
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
            other
            for other in self._rows[table].values()
            if all(row[theirs] is not None and other[mine] == row[theirs] for mine, theirs in on.items())
        ]

    def _aggregate(self, spec: AggregateField, row: Row) -> Any:  # noqa: PLR0911 - one per kind
        table, column = spec.target
        rows = [far for far, _ in self._matches(spec, str(table), row)]
        if column is None:
            return len(rows)
        values = [far[column] for far in rows if far[column] is not None]
        function = spec.function
        if function == "collect":
            return values[: spec.limit]
        if function == "count":
            return len(values)
        if function == "count_distinct":
            return len(set(values))
        if not values:
            return None
        if function == "avg":
            return sum(sorted(values)) / len(values)
        return {"sum": lambda: sum(sorted(values)), "min": lambda: min(values), "max": lambda: max(values)}[
            function
        ]()
