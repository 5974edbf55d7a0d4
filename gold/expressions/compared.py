"""Check the values that an expression compares, by PostgreSQL's types. Pure.

An expression reaches Spark as written in the document. So if Spark would compare a column differently from
PostgreSQL (`gold.language.comparing`), gold refuses the comparison and suggests another expression. A cast,
and a function that makes a text or a number of the value, end the refusal: afterwards Spark compares by its
own types.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.expressions.clock_texts import check_exact, check_floating, way_of_any
from deltasmelt.gold.expressions.functions import compared_in, result_places
from deltasmelt.gold.language import types
from deltasmelt.gold.language.pairs import padded, unlike

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.expressions.clock_texts import Operand
    from deltasmelt.gold.language.comparing import Comparison


@dataclass(frozen=True, slots=True)
class Known:
    """The properties of a column that an expression needs.

    Attributes:
        ddl: Spark type of the column, as DDL.
        way: PostgreSQL's comparison of the values, if Spark's operators do not do the same.
        may_lose: whether silver may have NULL for a value.
    """

    ddl: str
    way: Comparison | None = None
    may_lose: bool = False


ORDERING: Final = frozenset(("<", "<=", ">", ">=", "between", "greatest", "least"))
"""Operators and functions that depend on the order of values."""

_OF_ELEMENTS: Final = {
    **dict.fromkeys(
        ("array_contains", "array_position", "array_remove", "array_distinct", "array_except",
         "array_intersect", "array_union", "arrays_overlap", "find_in_set", "map_contains_key"), "="
    ),
    **dict.fromkeys(("array_max", "array_min", "array_sort", "sort_array"), "<"),
}  # fmt: skip
"""Functions that compare elements, by equality or by order."""

_ARITHMETIC: Final = frozenset(("+", "-", "*", "/", "%", "div"))
_WHOLE_DIVISION: Final = (
    "PostgreSQL drops the fraction, Spark does not",
    "write div for whole numbers, or cast one of both as double",
)
_DIVISION: Final = ("Spark rounds to other digits than PostgreSQL", "cast one of both as double")
_QUOTIENT: Final = (
    "Spark converts the result to BIGINT, and a number with more digits becomes a wrong number",
    "cast the first to fewer digits, e.g. cast(… as decimal(18,0)), and the second to a whole number",
)
_PRODUCT: Final = (
    "a product with so many digits exceeds Spark's limit of 38 digits",
    "cast both to the digits that the values need, e.g. cast(… as decimal(18,4)), or set silver.types",
)
_SHIFT: Final = (
    "PostgreSQL shifts a smallint in 16 bits, Spark in 32",
    "cast the smallint as int",
)
_WHOLE: Final = (
    "in a cast to a whole number Spark drops the fraction, and PostgreSQL rounds",
    "write cast(floor(…)) or cast(round(…, 0)) as the type",
)
_EXACT: Final = (
    "as a decimal, PostgreSQL keeps 6 digits of a float4 and 15 digits of a float8, Spark keeps more",
    "write cast(cast(… as double) as decimal(15,s)), or fewer digits than 15",
)
_ROUNDING: Final = frozenset(("round", "bround", "ceil", "ceiling", "floor"))
_CUT_TEXT: Final = re.compile(r"\b(?:VARCHAR|CHAR|CHARACTER)\s*\(", re.IGNORECASE)
_BARE: Final = re.compile(r"\b(?:DECIMAL|DEC|NUMERIC)\b(?!\s*[(:])", re.IGNORECASE)
_JOINED: Final = frozenset(
    """text citext uuid time timetz macaddr macaddr8 bits pg_lsn cidr xid oid number bytea""".split()  # noqa: SIM905
)
"""Families of types whose value silver holds, or whose text in silver is the text joined by PostgreSQL."""
_COMPARING: Final = frozenset(("nullif", "equal_null", "decode", *ORDERING))
_KEEPING: Final = frozenset(
    """array array_append array_compact array_insert array_prepend array_repeat arrays_zip coalesce decode
    greatest if ifnull least named_struct nullif nvl nvl2 slice struct array_distinct
    array_except array_intersect array_remove
    array_sort array_union sort_array""".split()  # noqa: SIM905
)
_KEEPING_ARRAYS: Final = frozenset(("concat", "flatten", "reverse"))
"""Functions that return an array for arrays, and a text for any further arguments."""
_AS_TEXTS: Final = "cast both as string to compare their texts"
_TAKING: Final = frozenset(("element_at", "get", "try_element_at", "array_max", "array_min"))


def check_compared(how: str, operands: Sequence[Operand]) -> None:
    """Raise a ValueError if Spark would compare the values differently from PostgreSQL."""
    for operand in operands:
        if operand.way is not None:
            _check(how, operand, operand.way, [other for other in operands if other is not operand])


def check_called(name: str, operands: Sequence[Operand]) -> None:
    """Check the arguments of a function if the function compares arguments, or their elements."""
    if name in _COMPARING:
        compared = [operands[place] for place in compared_in(name, len(operands))]
        check_exact(compared)
        check_compared(name, compared)
    elif name in _OF_ELEMENTS:
        for operand in operands[:2]:
            way = operand.way if operand.way is None or operand.way.element is None else operand.way.element
            if way is not None:
                literals = [literal for literal in operands if literal.text is not None]
                _check(f"{name} {_OF_ELEMENTS[name]}", operand, way, literals)


def check_matched(operand: Operand) -> None:
    """Raise a ValueError if PostgreSQL's pattern match ignores case, or counts blanks that silver lacks."""
    if operand.way is not None and operand.way.name == "char(n)":
        raise ValueError(
            f"{operand.name!r} is char(n): PostgreSQL counts trailing blanks here, and silver does not have "
            f"these blanks; write cast({operand.name} as string) for the text without them"
        )
    if operand.way is not None and operand.way.family == "citext":
        raise ValueError(
            f"{operand.name!r} is citext, which PostgreSQL matches without regard to case: write lower(…)"
        )


def way_of(name: str, operands: Sequence[Operand]) -> tuple[Comparison | None, str]:
    """Return the comparison of a function's result, and the name of the column behind the result."""
    way, column = way_of_any([operands[place] for place in result_places(name, len(operands))])
    if way is None or name not in _KEEPING | _KEEPING_ARRAYS | _TAKING:
        return None, ""
    if name in _KEEPING_ARRAYS and way.element is None:
        return None, ""
    return (way.element if name in _TAKING else way), column


def calculated(operator: str, first: Operand, second: Operand) -> str:
    """Return Spark's type of the number that an operator gives for two values; empty if unknown.

    Raises:
        ValueError: PostgreSQL would give another number.
    """
    check_floating(first, second, digits=0)
    if operator == "^":
        raise ValueError("'^' is the power in PostgreSQL, but not in Spark: write power(a, b)")
    if operator == "<<":
        fault = wrong_number(operator, first.number, second.number)
        if fault is not None:
            raise ValueError(f"{first.name or first.number} {operator}: {'; '.join(fault)}")
    if not (first.number and second.number) or operator not in _ARITHMETIC:
        return ""
    # With a decimal Spark counts the digits of a whole-number literal; else the literal has a type of its
    # own.
    left, right = (
        _whole(mine) if types.is_integer(theirs.number) or theirs.constant else mine.number
        for mine, theirs in ((first, second), (second, first))
    )
    fault = wrong_number(operator, left, right)
    if fault is not None:
        raise ValueError(f"{first.name or left} {operator} {second.name or right}: {'; '.join(fault)}")
    return types.calculated(operator, left, right)


def check_cast(operand: Operand, ddl: str) -> None:
    """Check a cast of a value to another type, as far as the parser knows the value's type.

    Raises:
        ValueError: PostgreSQL's cast would give another value.
    """
    if _CUT_TEXT.search(ddl):
        raise ValueError(
            f"in PostgreSQL {ddl} keeps only the first characters, and Spark keeps the whole text; write "
            "left(cast(… as string), n), or cast(… as string) for the whole text"
        )
    if _BARE.search(ddl):
        raise ValueError(
            "in PostgreSQL a decimal without digits keeps every fraction, in Spark none; write decimal(p,s)"
        )
    fault = wrong_cast(operand.number, ddl) if operand.number and not operand.whole else None
    if fault is not None:
        raise ValueError(f"{operand.name or 'a number'} is {operand.number}: {'; '.join(fault)}")


def wrong_cast(number_type: str, ddl: str) -> tuple[str, str] | None:
    """Return why PostgreSQL casts a number to another result, and the remedy; None for the same result."""
    floating = types.is_floating(number_type)
    if types.is_integer(ddl):
        return _WHOLE if floating or (types.digits(number_type) or (0, 0))[1] else None
    digits = types.digits(ddl)
    many = digits is not None and (types.base(number_type) == "FLOAT" or sum(digits) > types.DIGITS_OF_DOUBLE)
    return _EXACT if floating and many else None


def is_whole(name: str, operands: Sequence[Operand]) -> bool:
    """Check whether a function rounds a number to a whole number."""
    if name == "rint" or (name in _ROUNDING and len(operands) == 1):
        return True
    return name in _ROUNDING and len(operands) == 2 and operands[1].literal and operands[1].name == "0"


def check_joined(operands: Sequence[Operand]) -> None:
    """Raise a ValueError if PostgreSQL may join a value by ``||`` as another text than silver's."""
    for operand in operands:
        way = operand.way
        if way is None or way.element is not None or way.family.startswith("enum "):
            continue
        if way.family not in _JOINED:
            raise ValueError(
                f"{operand.name!r} is {way.name}: for ||, PostgreSQL may use another text; write "
                f"cast({operand.name} as string) for the text that silver has"
            )


def wrong_number(operator: str, left: str, right: str) -> tuple[str, str] | None:
    """Return why an operator gives a different number in PostgreSQL, and the remedy; else None."""
    if operator == "/" and not (types.is_floating(left) or types.is_floating(right)):
        both_whole = types.is_integer(left) and types.is_integer(right)
        return _WHOLE_DIVISION if both_whole else _DIVISION
    if operator == "/" and types.base(left) == types.base(right) == "FLOAT":
        return _DIVISION
    if operator == "<<":
        return _SHIFT if types.base(left) in {"SMALLINT", "TINYINT"} else None
    if operator == "*" and types.overflows(left, right):
        return _PRODUCT
    return _QUOTIENT if operator == "div" and types.wraps(left, right) else None


def _whole(operand: Operand) -> str:
    """Return Spark's type of a whole number in an operation with whole numbers."""
    digits = types.digits(operand.number)
    if not operand.constant or types.is_integer(operand.number) or digits is None or digits[1]:
        return operand.number
    return "INT" if digits[0] < 10 else "BIGINT" if digits[0] < 19 else operand.number


def _check(how: str, operand: Operand, way: Comparison, others: Sequence[Operand]) -> None:
    ordered = how in ORDERING or how.endswith("<")
    value = f"{operand.name!r} is {way.name}"
    for other in others:
        if other.way is not None and unlike(way, other.way):
            raise ValueError(f"{value}: {unlike(way, other.way)}; {_AS_TEXTS}")
        if other.way is not None and padded(way, other.way):
            raise ValueError(
                f"{value}: its trailing blanks do not count in a comparison with {other.way.name}; "
                f"{_AS_TEXTS}"
            )
        if way.family == "oid" and not _like_oid(other):
            raise ValueError(
                f"{value}: PostgreSQL compares this type only with whole numbers; cast both as bigint"
            )
        if other.way is None and other.kind == "text" and not other.constant:
            if way.family == "citext":
                return  # PostgreSQL compares citext with text as text
            if way.family != "text":
                raise ValueError(
                    f"{value}: PostgreSQL does not compare this type with text; write cast({operand.name} "
                    "as string)"
                )
    rule = way.order if ordered else way.equality
    if rule.refused or rule.key is not None:
        reason = rule.refused or "Spark and PostgreSQL compare this type differently"
        raise ValueError(f"{value}: {reason}; {way.remedy}")
    text = next((o.text for o in others if o.text is not None and not way.accepts(o.text)), None)
    if text is not None:
        raise ValueError(f"{value}: silver never stores such a value as {text!r}; {way.remedy}")


def _like_oid(operand: Operand) -> bool:
    """Check whether Spark compares a value with an oid as a BIGINT."""
    if not operand.number or operand.way is not None:
        return True
    digits = types.digits(operand.number)
    written = operand.constant and operand.name[:1].isdigit()
    # A smaller type would lose its sign.
    return digits is not None and digits[1] == 0 and (written or types.base(operand.number) == "BIGINT")
