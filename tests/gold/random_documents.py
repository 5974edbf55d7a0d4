"""Random tables and documents over them: every verb and option, joins by any columns that can be equal.

Documents do not only join by keys. Values are so close together that most columns match several rows, some
columns match none, and self joins form cycles.
"""

from __future__ import annotations

import json
import operator
import re
from decimal import Decimal, localcontext
from typing import TYPE_CHECKING, Any, ClassVar, Final

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping, Sequence

    from tests.gold.random_expressions import Expressions
    from tests.gold.shop import Shapes

INTEGERS: Final = ("int2", "int4", "int8")
_OTHERS: Final = ("text", "text", "numeric", "float8", "timestamptz", "bool", "date")

TEXTS: Final = ("text", "varchar(5)", "char(4)", "short", "citext", "name")
_LOST: Final = re.compile(r"\\|infinity|BC|294276")
"""Texts without a value in silver, and bytes."""
_HOLE: Final = re.compile(r"\{(\w)\}")
_OPERATIONS: Final[dict[str, Callable[[Decimal, Decimal], Decimal]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "%": operator.mod,
}  # fmt: skip
_LITERALS: Final = {
    "n": ("1", "2", "9", "1.5", "0.1", "100.000000000000000001", "-3"),
    "s": ("2", "-3", "0.1"),
    "w": ("1", "2", "-2"),
    "t": ("'a'", "'B'", "''", "'a '", "'b'"),
}
_FORMS: Final = (
    "{n} + {n} > {n}", "{n} - {n} <= {n}", "{n} * {s} = {n}", "{n} % 3 = {w}", "{w} % -3 = {w}",
    "{w} div 2 = {w}", "-{n} < {n}", "{n} / 2 > {n}", "{n} between {n} and {n}",
    "{n} in ({n}, {n}, 1.5)", "{n} not in ({n}, 1)",
    "{n} in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 0.1, 11)", "({n} + {n}) * {s} >= {n} - {n}",
    "case when {n} > {n} then {n} else {n} end = {n}", "case {n} when {n} then {n} when 2 then 3 end < {n}",
    "coalesce({n}, {n}) >= {n}", "nullif({n}, {n}) is null", "greatest({n}, {n}) > least({n}, {n})",
    "not ({n} = {n} or {n} > {n})", "{t} || {t} = {t}", "{t} || {w} = 'a1'", "coalesce({t}, {t}) = {t}",
    "case when {n} > 1 then {t} else {t} end = {t}", "nullif({t}, {t}) = {t}", "{t} in ({t}, {t})",
    "{t} between {t} and {t}", "{t} < {t}", "case {t} when {t} then 1 else 2 end = {w}",
    "{t} || {t} in ({t}, 'ab')",
)  # fmt: skip
"""Conditions over computed values; a letter in braces stands for a column or a literal (`_operand`)."""

AGGREGATES: Final = (
    "count", "sum", "avg", "min", "max", "count_distinct", "collect", "first", "last",
)  # fmt: skip


def random_shapes(source: random.Random, tables: int = 4) -> Shapes:
    """Return tables with one or two key columns, two or three columns for joins, and some of other types."""
    shapes: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {}
    for number in range(tables):
        key = ("id",) if source.random() < 0.7 else ("a", "b")
        columns = {name: source.choice(INTEGERS) for name in key}
        columns |= {f"j{i}": source.choice(INTEGERS) for i in range(source.randint(2, 3))}
        columns |= {f"v{i}": source.choice(_OTHERS) for i in range(3)}
        schema = "public" if source.random() < 0.7 else "other"
        shapes[f"{schema}.t{number}"] = (columns, key)
    return shapes


class Writer:
    """Writer of one document; collects the meaning of its conditions in Python."""

    NUMBERS: ClassVar[tuple[str, ...]] = (*INTEGERS, "float8", "numeric")

    def __init__(
        self,
        source: random.Random,
        shapes: Shapes,
        snippets: dict[str, Any],
        expressions: Mapping[str, Expressions] | None = None,
    ) -> None:
        """With `expressions`, a writer of expressions for each table, documents contain SQL of every kind."""
        self._source = source
        self._shapes = shapes
        self._snippets = snippets
        self._expressions = expressions
        self._names = 0

    def document(self, name: str, aggregates: Sequence[str] = ()) -> str:
        """Return the text of a document file with these aggregates among its fields. (JSON is YAML.)"""
        root = self._source.choice(list(self._shapes))
        definition: dict[str, Any] = {
            "document": name,
            "root": root,
            "fields": self._fields(root, 3, top=True),
        }
        definition["fields"] += [
            {self._name(): self._aggregate(self._source.choice(list(self._shapes)), root, {}, function)}
            for function in aggregates
        ]
        if self._source.random() < 0.4:
            definition["where"] = self._where(root)
        return json.dumps(definition)

    def _name(self) -> str:
        self._names += 1
        return f"f{self._names}"

    def _of(self, table: str, *kinds: str) -> list[str]:
        columns = self._shapes[table][0]
        return [name for name, kind in columns.items() if not kinds or kind in kinds]

    def _fields(self, table: str, depth: int, *, top: bool = False) -> list[Any]:
        columns = self._source.sample(self._of(table), self._source.randint(1, 3))
        fields: list[Any] = [{self._name(): {"column": name}} for name in columns]
        if self._source.random() < 0.3:
            fields.append({self._name(): {"object": self._fields(table, 0)}})
        if self._expressions is not None:
            fields.append({self._name(): {"sql": self._expressions[table].any()}})
        count = (self._source.randint(1, 3) if top else self._source.randint(0, 2)) if depth else 0
        return fields + [{self._name(): self._join(table, depth - 1)} for _ in range(count)]

    def _on(self, table: str, other: str) -> dict[str, str]:
        """Return column pairs of two tables; mostly one pair, at times the key of the second table."""
        count = 2 if self._source.random() < 0.2 else 1
        mine = self._source.sample(self._of(table, *INTEGERS), count)
        key = [name for name in self._shapes[other][1] if self._source.random() < 0.6]
        theirs = key + self._source.sample(self._of(other, *INTEGERS), count)
        return dict(zip(mine, theirs, strict=False))

    def _where(self, table: str) -> str:
        if self._expressions is not None:
            return self._expressions[table].truth()
        name, kind = self._source.choice(list(self._shapes[table][0].items()))
        meaning: Callable[[dict[str, Any]], Any]
        if kind in INTEGERS:
            limit = self._source.randint(1, 5)
            text, meaning = f"{name} > {limit}", lambda row: row[name] is not None and row[name] > limit
        elif kind == "text":
            text, meaning = f"{name} <> 'paid'", lambda row: row[name] is not None and row[name] != "paid"
        else:
            text, meaning = f"{name} is not null", lambda row: row[name] is not None
        # Columns of several tables share a name with different types, so the text names the table.
        text = f"{text} or false and '{table}' = ''"
        self._snippets[text] = meaning
        return text

    def _join(self, parent: str, depth: int) -> dict[str, Any]:
        table = parent if self._source.random() < 0.25 else self._source.choice(list(self._shapes))
        verb = self._source.choice(["one", "one", "many", "many", "many", "aggregate"])
        options: dict[str, Any] = {}
        if self._source.random() < 0.3:
            options["where"] = self._where(table)
        if verb == "aggregate":
            return self._aggregate(table, parent, options)
        if self._source.random() < 0.5:
            options["order_by"] = self._order(table)
        if verb == "one":
            options |= {"one": table, "on": self._on(table, parent), "fields": self._fields(table, depth)}
            if self._source.random() < 0.3:
                options["flatten"] = f"{self._name()}_"
            elif self._source.random() < 0.2:
                options["recurse"] = {"on": self._on(table, table), "max_depth": 2}
            return options
        return self._many(table, parent, depth, options)

    def _many(self, table: str, parent: str, depth: int, options: dict[str, Any]) -> dict[str, Any]:
        options["many"] = table
        values = self._source.random() < 0.3
        if self._source.random() < 0.3:
            options["through"] = self._through(table, parent, fields=not values)
        else:
            options["on"] = self._on(table, parent)
            if not values and self._source.random() < 0.25:
                options["recurse"] = {"on": self._on(table, table), "max_depth": self._source.randint(2, 3)}
        options |= (
            {"values": self._source.choice(self._of(table))}
            if values
            else {"fields": self._fields(table, depth)}
        )
        kind = self._source.choice(["", "", "limit", "cap", "key_by"])
        if kind in {"limit", "cap"}:
            options[kind] = self._source.randint(1, 3)
        elif kind == "key_by":
            options["key_by"] = self._source.choice(self._names_of_elements(table))
        return options

    def _names_of_elements(self, table: str) -> list[str]:
        return self._of(table, *INTEGERS, "text")

    def _through(self, table: str, parent: str, *, fields: bool) -> Any:
        steps: list[dict[str, Any]] = []
        before = parent
        for _ in range(1 if self._source.random() < 0.7 else 2):
            link = self._source.choice(list(self._shapes))
            step: dict[str, Any] = {"table": link, "on": self._on(link, before)}
            if self._source.random() < 0.3:
                step["where"] = self._where(link)
            if fields and self._source.random() < 0.5:
                step["fields"] = self._fields(link, 0)
            steps.append(step)
            before = link
        steps[-1]["to"] = self._on(before, table)
        return steps if len(steps) > 1 or self._source.random() < 0.5 else steps[0]

    def _order(self, table: str) -> list[str]:
        """Return an order by up to two columns that have an order."""
        columns = self._source.sample(self._of(table), self._source.randint(1, 2))
        ends = ["", " desc", " asc", " nulls first", " desc nulls last"]
        return [name + self._source.choice(ends) for name in columns]

    def _aggregate(
        self, table: str, parent: str, options: dict[str, Any], function: str | None = None
    ) -> dict[str, Any]:
        function = function or self._source.choice([*AGGREGATES, "count", "sum"])
        of = self._source.choice(self._of(table, *(self.NUMBERS if function in {"sum", "avg"} else ())))
        options[function] = table if function == "count" and self._source.random() < 0.5 else f"{table}.{of}"
        if self._source.random() < 0.3:
            options["through"] = self._through(table, parent, fields=False)
        else:
            options["on"] = self._on(table, parent)
        if function in {"collect", "first", "last"} and self._source.random() < 0.5:
            options["order_by"] = self._order(table)
        if function == "collect" and self._source.random() < 0.5:
            options[self._source.choice(["limit", "cap"])] = 2
        return options


class EveryType(Writer):
    """Writer of documents that order, compare and join by columns of every type."""

    NUMBERS = (
        *INTEGERS, "float4", "float8", "numeric", "numeric(8,2)", "numeric(50,2)", "positive", "any_number",
    )  # fmt: skip
    ALIKE: ClassVar = (
        frozenset(NUMBERS),
        frozenset((*TEXTS, '"char"', "text COLLATE loose", "varchar(5) COLLATE loose")),
        frozenset(("date", "timestamp", "timestamptz", "any_day", "any_time", "any_moment")),
        frozenset(("mood", "feeling")),
    )
    """Types that PostgreSQL compares with each other."""

    def __init__(self, source: random.Random, shapes: Shapes, values: Mapping[str, Sequence[str]]) -> None:
        """`values` has some texts of each type, for conditions."""
        super().__init__(source, shapes, {})
        self._values = values

    def field(self, root: str) -> Any:
        """Return a field over rows of `root` worth a test: most fields have rows of other tables."""
        if self._source.random() < 0.15:
            return {self._name(): {"object": self._fields(root, 0)}}
        return {self._name(): self._join(root, self._source.choice([0, 0, 1]))}

    def condition(self, table: str) -> str:
        """Return a condition over rows of a table."""
        return self._where(table)

    def over(self, name: str, root: str, fields: Sequence[Any]) -> str:
        """Return the text of a document with these fields, at times with a filter."""
        definition: dict[str, Any] = {"document": name, "root": root, "fields": list(fields)}
        if self._source.random() < 0.2:
            definition["where"] = self._where(root)
        return json.dumps(definition)

    def _on(self, table: str, other: str) -> dict[str, str]:
        """Return a pair of columns of one type, or of two comparable types; mostly of plain whole numbers."""
        chance = self._source.random()
        if chance < 0.5:
            return {self._source.choice(("j1", "j2")): self._source.choice(("j1", "j2"))}
        mine, theirs = self._shapes[table][0], self._shapes[other][0]
        pairs = [(a, b) for a, kind in mine.items() for b, two in theirs.items() if self._alike(kind, two)]
        if self._source.random() < 0.8:
            pairs = [(a, b) for a, b in pairs if a not in {"j1", "j2"} and b not in {"j1", "j2"}] or pairs
        return dict([self._source.choice(pairs)])

    def _alike(self, one: str, two: str) -> bool:
        return one == two or any({one, two} <= kinds for kinds in self.ALIKE)

    def _where(self, table: str) -> str:
        if self._source.random() < 0.5:
            return self._computed(table)
        name, kind = self._source.choice(list(self._shapes[table][0].items()))
        texts = [value.replace("'", "''") for value in self._values[kind] if not _LOST.search(value)]
        whole = kind.endswith(("range", "[]")) or kind in {"pair", "vector", "json", "point", "bytea"}
        if self._source.random() < 0.3 or not texts or whole:
            return f"{name} is {self._source.choice(('', 'not '))}null"
        first, second = self._source.choice(texts), self._source.choice(texts)
        if kind == "bool":
            return f"{name} or j1 = 1"
        if kind in self.NUMBERS and kind != "money":
            first, second = (
                self._source.choice(("1", "2", "9", "10")),
                self._source.choice(("1.5", "3", "10")),
            )
        else:
            first, second = f"'{first}'", f"'{second}'"
        form = self._source.choice(
            ("= {0}", "<> {0}", "< {0}", ">= {0}", "in ({0}, {1})", "between {0} and {1}")
        )
        return f"{name} {form.format(first, second)}"

    def _names_of_elements(self, table: str) -> list[str]:
        return self._of(table)

    def _computed(self, table: str) -> str:
        """Return a condition over a computed value: at a threshold that a row has exactly, or of any form."""
        exact = self._of(table, "numeric", "numeric(8,2)", "numeric(50,2)", "positive")
        if exact and self._source.random() < 0.4:
            name = self._source.choice(exact)
            values = [Decimal(number) for number in self._values[self._shapes[table][0][name]]]
            value, how = self._source.choice(values), self._source.choice("+-*%")
            operand = self._source.choice(("3", "0.1", "7.25", "100"))
            with localcontext(prec=200):
                result = _OPERATIONS[how](value, Decimal(operand))
            sign = self._source.choice(("=", ">", "<=", "in"))
            return f"{name} {how} {operand} {sign} {f'(1, {result:f})' if sign == 'in' else f'{result:f}'}"
        text = self._source.choice(_FORMS)
        return _HOLE.sub(lambda hole: self._operand(table, hole[1]), text)

    def _operand(self, table: str, kind: str) -> str:
        """Return a column or a literal: n a number, s a factor, w a whole number, t a text."""
        kinds = {"n": self.NUMBERS, "s": ("int2", "int4", "numeric(8,2)"), "w": ("int2", "int4"), "t": TEXTS}
        columns = self._of(table, *kinds[kind])
        if columns and self._source.random() < 0.65:
            return self._source.choice(columns)
        return self._source.choice(_LITERALS[kind])
