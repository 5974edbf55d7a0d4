"""Values that an expression compares, by PostgreSQL's types. Pure.

An expression goes to Spark as it is written. So where Spark would compare a column otherwise than PostgreSQL
(`gold.language.comparing`), the comparison is refused, with what to write instead. A cast, and a function
that makes a text or a number of the value, ends that: from there on Spark's own types are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gold.expressions.functions import compared_in, given_by
from gold.expressions.instants import check_exact, check_floating, way_of_any
from gold.language import types
from gold.language.pairs import padded, unlike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gold.expressions.instants import Operand
    from gold.language.comparing import Comparison


@dataclass(frozen=True, slots=True)
class Known:
    """What an expression has to know of a column.

    Attributes:
        ddl: its Spark type.
        way: how PostgreSQL compares its values, where Spark's operators do not simply do the same.
        may_lose: whether silver may have NULL for a value.
    """

    ddl: str
    way: Comparison | None = None
    may_lose: bool = False


ORDERING: Final = frozenset(("<", "<=", ">", ">=", "between", "greatest", "least"))
"""Operators and functions by which one value is less than another."""

_OF_ELEMENTS: Final = {
    **dict.fromkeys(
        ("array_contains", "array_position", "array_remove", "array_distinct", "array_except",
         "array_intersect", "array_union", "arrays_overlap", "find_in_set", "map_contains_key"), "="
    ),
    **dict.fromkeys(("array_max", "array_min", "array_sort", "sort_array"), "<"),
}  # fmt: skip
"""Functions that compare elements, and whether by equality or by order."""

_ARITHMETIC: Final = frozenset(("+", "-", "*", "/", "%", "div"))
_WHOLE_DIVISION: Final = (
    "PostgreSQL leaves out the fraction, and Spark does not",
    "write div for whole numbers, or cast one of both as double",
)
_DIVISION: Final = ("Spark rounds to other digits than PostgreSQL", "cast one of both as double")
_QUOTIENT: Final = (
    "Spark makes a BIGINT of it, and a number of more digits becomes another one",
    "cast the first to fewer digits, e.g. cast(… as decimal(18,0)), and the second to a whole number",
)
_PRODUCT: Final = (
    "a product of so many digits does not fit into the 38 that Spark has",
    "cast both to the digits that the values need, e.g. cast(… as decimal(18,4)), or set silver.types",
)
_COMPARING: Final = frozenset(("nullif", "equal_null", "decode", *ORDERING))
_KEEPING: Final = frozenset(
    """array array_append array_compact array_insert array_prepend array_repeat arrays_zip coalesce decode
    greatest if ifnull least named_struct nullif nvl nvl2 slice struct array_distinct
    array_except array_intersect array_remove
    array_sort array_union sort_array""".split()  # noqa: SIM905
)
_KEEPING_ARRAYS: Final = frozenset(("concat", "flatten", "reverse"))
"""Functions that give an array of arrays, and make a text of everything else."""
_AS_TEXTS: Final = "cast both as string to compare their texts"
_TAKING: Final = frozenset(("element_at", "get", "try_element_at", "array_max", "array_min"))


def check_compared(how: str, operands: Sequence[Operand]) -> None:
    """Check values that an operator, or a function, compares.

    Raises:
        ValueError: Spark would compare them otherwise than PostgreSQL.
    """
    for operand in operands:
        if operand.way is not None:
            _check(how, operand, operand.way, [other for other in operands if other is not operand])


def check_called(name: str, operands: Sequence[Operand]) -> None:
    """Check the arguments of a function that compares them, or their elements.

    Raises:
        ValueError: as `check_compared`.
    """
    if name in _COMPARING:
        compared = [operands[place] for place in compared_in(name, len(operands))]
        check_exact(compared)
        check_compared(name, compared)
    elif name in _OF_ELEMENTS:
        for operand in operands[:2]:
            way = operand.way if operand.way is None or operand.way.element is None else operand.way.element
            if way is not None:
                literals = [other for other in operands if other.text is not None]
                _check(f"{name} {_OF_ELEMENTS[name]}", operand, way, literals)


def check_matched(operand: Operand) -> None:
    """Check a value that is held against a pattern.

    Raises:
        ValueError: PostgreSQL would do so without regard to case.
    """
    if operand.way is not None and operand.way.family == "citext":
        raise ValueError(f"{operand.name!r} is citext, which PostgreSQL matches in any case: write lower(…)")


def way_of(name: str, operands: Sequence[Operand]) -> tuple[Comparison | None, str]:
    """Return how the result of a function is compared, and the name of the column that it is made of."""
    way, column = way_of_any([operands[place] for place in given_by(name, len(operands))])
    if way is None or name not in _KEEPING | _KEEPING_ARRAYS | _TAKING:
        return None, ""
    if name in _KEEPING_ARRAYS and way.element is None:
        return None, ""
    return (way.element if name in _TAKING else way), column


def calculated(operator: str, one: Operand, other: Operand) -> str:
    """Return Spark's type of the number that an operator makes of two values; empty where it is not known.

    Raises:
        ValueError: PostgreSQL would make another number of the values.
    """
    check_floating(one, other, digits=0)
    if operator == "^":
        raise ValueError("'^' is the power in PostgreSQL and no power in Spark: write power(a, b)")
    if not (one.number and other.number) or operator not in _ARITHMETIC:
        return ""
    # Spark counts the digits of a whole number that is written beside a decimal, and else has its own type.
    left, right = (
        _whole(mine) if types.is_integer(theirs.number) or theirs.constant else mine.number
        for mine, theirs in ((one, other), (other, one))
    )
    wrong = wrong_number(operator, left, right)
    if wrong is not None:
        raise ValueError(f"{one.name or left} {operator} {other.name or right}: {'; '.join(wrong)}")
    return types.calculated(operator, left, right)


def check_whole(operand: Operand, ddl: str) -> None:
    """Check a number that a cast makes whole.

    Raises:
        ValueError: Spark would leave out a fraction by which PostgreSQL rounds.
    """
    found = types.digits(operand.number) or (0, 1)
    if types.is_integer(ddl) and operand.number and found[1]:
        raise ValueError(
            f"{operand.name or 'a number'} is {operand.number}: to make it whole Spark leaves out the "
            "fraction, and PostgreSQL rounds; write cast(floor(…)) or cast(round(…, 0)) as the type"
        )


def wrong_number(operator: str, one: str, other: str) -> tuple[str, str] | None:
    """Return why an operator gives another number in PostgreSQL, and the remedy; None where it does not."""
    if operator == "/" and not (types.is_floating(one) or types.is_floating(other)):
        whole = types.is_integer(one) and types.is_integer(other)
        return _WHOLE_DIVISION if whole else _DIVISION
    if operator == "/" and types.base(one) == types.base(other) == "FLOAT":
        return _DIVISION
    if operator == "*" and types.overflows(one, other):
        return _PRODUCT
    return _QUOTIENT if operator == "div" and types.wraps(one, other) else None


def _whole(operand: Operand) -> str:
    """Return the type of a whole number as Spark has it beside other whole numbers."""
    found = types.digits(operand.number)
    if not operand.constant or types.is_integer(operand.number) or found is None or found[1]:
        return operand.number
    return "INT" if found[0] < 10 else "BIGINT" if found[0] < 19 else operand.number


def _check(how: str, operand: Operand, way: Comparison, others: Sequence[Operand]) -> None:
    ordered = how in ORDERING or how.endswith("<")
    said = f"{operand.name!r} is {way.name}"
    for other in others:
        if other.way is not None and unlike(way, other.way):
            raise ValueError(f"{said}: {unlike(way, other.way)}; {_AS_TEXTS}")
        if other.way is not None and padded(way, other.way):
            raise ValueError(f"{said}: blanks at its end do not count beside {other.way.name}; {_AS_TEXTS}")
        if way.family == "oid" and not _like_oid(other):
            raise ValueError(f"{said}: PostgreSQL compares it with whole numbers alone; cast both as bigint")
        if other.way is None and other.kind == "text" and not other.constant:
            if way.family == "citext":
                return  # with text PostgreSQL compares it as text
            if way.family != "text":
                raise ValueError(
                    f"{said}: PostgreSQL does not compare it with text; write cast({operand.name} as string)"
                )
    rule = way.order if ordered else way.equality
    if rule.refused or rule.key is not None:
        why = rule.refused or "Spark would compare it otherwise than PostgreSQL"
        raise ValueError(f"{said}: {why}; {way.remedy}")
    wrong = next((o.text for o in others if o.text is not None and not way.accepts(o.text)), None)
    if wrong is not None:
        raise ValueError(f"{said}: {wrong!r} is not the text that silver has of such a value; {way.remedy}")


def _like_oid(other: Operand) -> bool:
    """Check whether a value beside an oid is compared as a BIGINT: a smaller type would lose its sign."""
    if not other.number or other.way is not None:
        return True
    digits = types.digits(other.number)
    return digits is not None and digits[1] == 0 and (other.constant or types.base(other.number) == "BIGINT")
