"""Parse operators of the grammar, from the loosest to the tightest, in Spark's precedence. Pure."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.expressions import clock_texts
from deltasmelt.gold.expressions.clock_texts import Coercion, Operand
from deltasmelt.gold.expressions.compared import calculated, check_compared, check_joined, check_matched
from deltasmelt.gold.expressions.functions import TEXT_FUNCTIONS
from deltasmelt.gold.expressions.scanner import ColumnReference, Scanner
from deltasmelt.gold.language import types
from deltasmelt.gold.language.comparing import lost_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_COMPARISONS: Final = frozenset(("=", "==", "<=>", "<>", "!=", "<", "<=", ">", ">="))
_LEVELS: Final[tuple[frozenset[str], ...]] = (
    _COMPARISONS,
    frozenset("|"),
    frozenset("^"),
    frozenset("&"),
    frozenset(("<<", ">>", ">>>")),
    frozenset(("+", "-", "||")),
    frozenset(("*", "/", "%", "div")),
)
"""Binary operators, the loosest first."""
_BITS: Final = frozenset(("|", "&", "<<", ">>", ">>>"))
"""Operators of several levels in Spark that PostgreSQL applies from left to right."""
_TIGHTER: Final = frozenset(("+", "-", "*", "/", "%", "div"))
"""Operators that PostgreSQL applies before ``~``, and Spark after ``~``."""


class Operators(Scanner, ABC):
    """Parser of values joined by operators; `meetings` are coercions to check by Spark's types."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.meetings: list[Coercion] = []

    @abstractmethod
    def _primary(self) -> Operand:
        """Parse a value without operators around the value."""

    def _expression(self) -> Operand:
        start = self._place
        operand = self._conjunction()
        while self._may("or"):
            operand = both(operand, self._conjunction())
        return self._since(start, operand)

    def _since(self, start: int, operand: Operand) -> Operand:
        """Return an operand with its position."""
        return replace(operand, start=start, end=self._place)

    def _meet(self, how: str, operands: Sequence[Operand]) -> None:
        """Record a coercion to check once Spark has found the types, unless the parser knows them already."""
        is_text = {operand.kind for operand in operands} <= {"text", "null"}
        if is_text or all(operand.literal for operand in operands):
            return
        self.meetings.append(
            Coercion(
                how,
                tuple(self._parts_between(operand.start, operand.end) for operand in operands),
                tuple(operand.literal for operand in operands),
            )
        )

    def _conjunction(self) -> Operand:
        operand = self._negation()
        while self._may("and"):
            operand = both(operand, self._negation())
        return operand

    def _negation(self) -> Operand:
        if self._may("not", "!"):
            return replace(self._negation(), kind="", clock=None)
        start = self._place
        return self._predicate(start, self._value())

    def _predicate(self, start: int, left: Operand) -> Operand:
        """Parse an optional predicate after a value: at most one."""
        if self._may("is"):
            return self._is_predicate(start, left)
        negated = self._may("not")
        if left.operator in _COMPARISONS and self._is("between", "in", "like", "ilike"):
            raise _in_another_order(self._next.lower)
        if self._may("between"):
            low = self._value()
            self._must("and")
            return self._compared("between", left, low, self._value())
        if self._may("in"):
            return self._compared("in", left, *self._list())
        if self._is("like", "ilike", "rlike", "regexp"):
            return self._matched(left)
        if negated:
            raise self._unexpected("in")
        return left

    def _is_predicate(self, start: int, left: Operand) -> Operand:
        negated = self._may("not")
        if self._may("distinct"):
            self._must("from")
            return self._compared("=", left, self._value())
        if not self._is("null", "true", "false", "unknown"):
            raise self._unexpected("null")
        null = self._take().lower == "null"
        if null and left.lost:
            self._seen_as_null(start, left.name, negated=negated)
        return both(left)

    def _seen_as_null(self, start: int, name: str, *, negated: bool) -> None:
        """Extend a test for NULL by values that silver could not hold: they are not NULL at the source."""
        lost = ColumnReference(lost_name(name))
        self._around(start, ["("], [" OR " if negated else " AND NOT ", lost, ")"])

    def _matched(self, left: Operand) -> Operand:
        """Parse a pattern match: patterns and the matched values are texts."""
        check_matched(left)
        regular = self._take().lower in {"rlike", "regexp"}
        if not regular and self._may("any", "some", "all"):
            return both(left, *self._list())
        operand = both(left, self._value())
        if not regular and self._may("escape"):
            if self._next.kind != "text":
                raise self._unexpected("'/'")
            self._take()
        return operand

    def _compared(self, how: str, *operands: Operand) -> Operand:
        check_compared(how, operands)
        clock_texts.check_clock(list(operands))
        self._with_exponent("exponent compared", operands)
        meeting = operands
        if how == "in":
            exact = [operand for operand in operands if not clock_texts.is_small(operand)]
            clock_texts.check_chosen(exact)
            if types.base(operands[0].number) == "FLOAT":
                meeting = tuple(exact)  # with a float4 the type of a small whole number does not matter
        self._meet("one type" if how == "in" else "compared", meeting)
        return both(*operands)

    def _value(self, level: int = 0) -> Operand:
        if level == len(_LEVELS):
            return self._unary()
        start = self._place
        operand = self._value(level + 1)
        while self._is(*_LEVELS[level]):
            operator = self._take().lower
            right = self._value(level + 1)
            if {operator, right.operator} <= _BITS or (operand.operator == "||" and operator in {"+", "-"}):
                raise _in_another_order(operator)
            if operator in _TIGHTER and "~" in {operand.operator, right.operator}:
                raise _in_another_order("~")
            if operator in _COMPARISONS:
                operand = self._compared(operator, operand, right)
            elif operator == "||":
                check_joined([operand, right])
                self._meet("||", [operand, right])
                self._meet("arrays", [operand, right])
                operand = made(operator, [operand, right])
            else:
                operand = self._calculated(operator, operand, right)
            operand = replace(self._since(start, operand), operator=operator)
        return operand

    def _calculated(self, operator: str, left: Operand, right: Operand) -> Operand:
        clock_texts.refuse([left, right])
        number = calculated(operator, left, right)
        self._meet("moved", [left, right])
        if not number and operator in {"/", "*", "div", "<<"}:
            self._meet(operator, [left, right])
        kind = "moment" if "moment" in {left.kind, right.kind} else ""
        self._with_exponent("exponent", [left, right])
        exponent = clock_texts.exponent_of([left, right])
        return Operand(kind, constant([left, right]), number=number, exponent=exponent)

    def _chosen(
        self, operands: Sequence[Operand], *, constant: bool, results: Sequence[Operand] | None = None
    ) -> Operand:
        """Return the operand of a value chosen among several values."""
        self._with_exponent("exponent", operands if results is None else results)
        if results is not None:
            self._with_exponent("exponent compared", operands)
        return clock_texts.chosen(operands, constant=constant, results=results)

    def _with_exponent(self, how: str, operands: Sequence[Operand]) -> None:
        """Record values whose type only Spark knows, if a constant with an exponent is among the operands."""
        if any(operand.exponent for operand in operands):
            for operand in operands:
                if not (operand.exponent or operand.number):
                    self._meet(how, [operand])

    def _unary(self) -> Operand:
        start = self._place
        if self._is("-", "+", "~"):
            sign = self._take().lower
            operand = self._unary()
            clock_texts.refuse([operand])
            name = (
                f"{sign}{operand.name}"
                if operand.constant and operand.number and sign != "+"
                else operand.name
            )
            operator = "~" if sign == "~" else operand.operator
            return self._since(start, replace(operand, kind="", name=name, operator=operator))
        return self._parts_of(start, self._since(start, self._primary()))

    def _parts_of(self, start: int, operand: Operand) -> Operand:
        """Parse elements and fields of a value."""
        while True:
            way = operand.way
            if self._may("["):
                index = self._value()
                clock_texts.refuse(
                    [operand] if operand.kind == "texts" and index.kind == "text" else [operand, index]
                )
                self._meet("index", [operand, index])
                self._must("]")
                way = None if way is None else way.element
            elif self._may("."):
                field = self._name()
                way = None if way is None else way.field(field)
            else:
                return operand
            operand = self._since(start, Operand(constant=operand.constant, way=way, name=operand.name))

    def _list(self) -> list[Operand]:
        self._must("(")
        operands = [self._expression(), *self._rest()]
        self._must(")")
        return operands

    def _rest(self) -> list[Operand]:
        operands = []
        while self._may(","):
            operands.append(self._expression())
        return operands


def _in_another_order(operator: str) -> ValueError:
    return ValueError(
        f"PostgreSQL and Spark would compute {operator!r} and the operator before or after it in different "
        "orders; write parentheses around the operation that must be computed first"
    )


def constant(operands: Sequence[Operand]) -> bool:
    """Check whether no operand contains a column."""
    return all(operand.constant for operand in operands)


def both(*operands: Operand) -> Operand:
    """Return the operand of a value of a new type, computed from several values."""
    return Operand(constant=constant(operands))


def made(name: str, operands: Sequence[Operand]) -> Operand:
    """Return the operand of a text made from several values; raise a ValueError for literals alone."""
    # The expression does not show a text made from literals, so no check can read the text.
    if constant(operands):
        raise ValueError(f"{name!r} with only literals is not allowed here: write the text itself")
    joins = name in {"||", "concat"}
    if not joins and name not in TEXT_FUNCTIONS:
        clock_texts.refuse(operands)
        return Operand()
    texts = all(operand.kind in {"text", "null"} for operand in operands)
    return Operand("text" if texts or not joins else "")
