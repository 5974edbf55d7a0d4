"""Decide which comparisons of columns a document may make, and derive columns for the comparisons. Pure.

`gold.tree.resolve` calls this module wherever equality or order matters: for join pairs, orders, measures and
the values that expressions compare. `gold.language.comparing` has the rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from deltasmelt.gold.expressions.compared import Known
from deltasmelt.gold.language import types
from deltasmelt.gold.language.comparing import comparison, lost_name, may_lose
from deltasmelt.gold.language.pairs import equality_rule, unlike
from deltasmelt.gold.tree.derived import extended, key_of, lost_of, presence_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.language.comparing import Comparison, Rule
    from deltasmelt.gold.tree.derived import Derived
    from deltasmelt.gold.tree.nodes import Scope
    from deltasmelt.silver.schema.catalog import SilverColumn, SilverTable


class Comparisons:
    """The comparisons of one document; collects the derived columns of the document's tables."""

    def __init__(self) -> None:
        self._derived: dict[TableName, dict[str, Derived]] = {}

    def extend(self, scopes: Iterable[Scope]) -> None:
        """Give the tables of all scopes their derived columns, once the tree is complete."""
        for scope in scopes:
            scope.table = extended(scope.table, self._derived.get(scope.table.table, {}).values())

    def columns(self, scope: Scope) -> dict[str, Known]:
        """Return the columns of a scope with all properties needed by an expression."""
        columns = {}
        for column in scope.table.columns:
            way = comparison(column)
            columns[column.name] = Known(column.spark_type, None if way.plain else way, may_lose(column))
        return columns

    def read(self, scope: Scope, expression: Expression) -> None:
        """Add the columns of an expression to the columns that a scope reads."""
        scope.reads.update(expression.columns)
        for column in scope.table.columns:
            if lost_name(column.name) in expression.columns:
                self._add(scope, lost_of(column))

    def origin(self, scope: Scope, name: str) -> str:
        """Return the source column behind a column of a join pair, or else the given column."""
        derived = self._derived.get(scope.table.table, {}).get(name)
        return name if derived is None or derived.merges else derived.origin

    def pair(
        self, scope: Scope, mine: SilverColumn, other_scope: Scope, theirs: SilverColumn
    ) -> tuple[str, str]:
        """Return the columns by which Spark joins two columns like PostgreSQL; without any, a ValueError."""
        fault = unjoined((scope.table.table, mine), (other_scope.table.table, theirs))
        if fault is not None:
            raise ValueError(fault)
        rules = equality_rule(mine, theirs), equality_rule(theirs, mine)
        return self._equal(scope, mine, rules[0]), self._equal(other_scope, theirs, rules[1])

    def ordering(self, scope: Scope, name: str) -> str:
        """Return the column by which Spark orders rows as PostgreSQL does by `name`."""
        column = scope.table.column(name)
        rule = comparison(column).order
        return name if rule.key is None else self._add(scope, key_of(column, rule, "order"))

    def measured(self, function: str, scope: Scope, of: str) -> tuple[str, str | None]:
        """Return the column that an aggregate reads, and a second column if that column orders the values."""
        column = scope.table.column(of)
        way = comparison(column)
        if function == "count" and may_lose(column):
            return self._add(scope, presence_of(column)), None
        if function == "count_distinct" and way.equality.key is not None:
            return self._add(scope, key_of(column, way.equality, "equal")), None
        if function in {"min", "max"} and way.order.key is not None:
            return of, self._add(scope, key_of(column, way.order, "order"))
        return of, None

    def _equal(self, scope: Scope, column: SilverColumn, rule: Rule) -> str:
        return column.name if rule.key is None else self._add(scope, key_of(column, rule, "equal"))

    def _add(self, scope: Scope, derived: Derived) -> str:
        self._derived.setdefault(scope.table.table, {})[derived.name] = derived
        scope.reads.add(derived.name)
        return derived.name


def unjoined(first: tuple[TableName, SilverColumn], second: tuple[TableName, SilverColumn]) -> str | None:
    """Return why Spark cannot join two columns like PostgreSQL; None if Spark can."""
    (table, mine), (other_table, theirs) = first, second
    if not types.comparable(mine.spark_type, theirs.spark_type):
        kinds, fault = (mine.spark_type, theirs.spark_type), "these types cannot be equal"
    else:
        left, right = comparison(mine), comparison(theirs)
        kinds = _held(mine, left), _held(theirs, right)
        fault = (
            unlike(left, right) or equality_rule(mine, theirs).refused or equality_rule(theirs, mine).refused
        )
        remedy = next(
            (way.remedy for way in (left, right) if way.equality.refused), ("give both columns one type")
        )
        fault = fault and f"{fault}; {remedy}"
    message = f"{table}.{mine.name} is {kinds[0]} and {other_table}.{theirs.name} is {kinds[1]}: {fault}"
    return message if fault else None


def undecided(table: SilverTable, named: Container[str]) -> str | None:
    """Return why a table's key cannot decide which rows gold takes; None if the key can."""
    # An order may already sort by columns of the key.
    faults = (unordered(table.column(name)) for name in table.key if name not in named)
    fault = next(filter(None, faults), None)
    return None if fault is None else f"the key decides which rows are selected, and {fault}"


def unordered(column: SilverColumn) -> str | None:
    """Return why Spark cannot order rows by a column like PostgreSQL; None if Spark can."""
    if not types.orderable(column.spark_type):
        return f"{column.name!r} is {column.spark_type}, which has no order"
    way = comparison(column)
    if not way.order.refused:
        return None
    return f"{column.name!r} is {_held(column, way)}: {way.order.refused}; {way.remedy}"


def unmeasured(function: str, scope: Scope, of: str) -> str | None:
    """Return why gold cannot aggregate a column like PostgreSQL; None if gold can."""
    column = scope.table.column(of)
    way, fault = comparison(column), types.unfit(function, column.spark_type)
    stored_as = column.spark_type
    rule = {"min": way.order, "max": way.order, "count_distinct": way.equality}.get(function)
    if function in {"sum", "avg"} and way.family == "oid":
        fault = "PostgreSQL cannot add values of this type; set silver.types to decimal(10,0)"
    if fault is None and rule is not None and rule.refused:
        fault, stored_as = f"{rule.refused}; {way.remedy}", _held(column, way)
    return None if fault is None else f"{function} of {scope.table.table}.{of}, which is {stored_as}: {fault}"


def _held(column: SilverColumn, way: Comparison) -> str:
    """Return a column's type for a message: PostgreSQL's, with Spark's if the pipeline file chose it."""
    return f"{way.name} ({column.spark_type} by silver.types)" if column.overridden else way.name
