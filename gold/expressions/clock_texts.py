"""Refuse texts by which Spark would read the clock. Pure.

If Spark converts a constant text to a date or a moment, ``now``, ``today``, ``tomorrow`` and ``yesterday``
mean the clock. Spark does so in ``timestamp 'now'``, in a cast, in ``to_date('today')``, and implicitly in
``placed_at > 'today'``. A text with only a time gets today's date. So an expression may contain such a text
only if the text surely stays a text.

The types of columns do not decide this for elements of arrays, fields, and results of functions. The parser
records such a case as a `Coercion`, and the types that Spark finds decide (`gold.expressions.coercions`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.language import types
from deltasmelt.gold.language.comparing import Rule
from deltasmelt.gold.language.pairs import way_of_chosen

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from deltasmelt.gold.expressions.scanner import Parts
    from deltasmelt.gold.language.comparing import Comparison

_FLAGS: Final = re.IGNORECASE | re.DOTALL
# Spark trims control characters too.
_SPECIAL: Final = re.compile(
    r"[\s\x00-\x1f\x7f-\x9f]*(?:(?:now|today|tomorrow|yesterday)(?![a-z]).*|[+-]?(?:T\d|\d{1,2}:).*)", _FLAGS
)
_DATED: Final = re.compile(r"\s*(?:epoch|[+-]?\d{4,7}(?:-\d{1,2}(?:-\d{1,2}(?:[T\s].*)?)?)?)\s*", _FLAGS)
_OF_TEXTS: Final = re.compile(r"\s*(?:ARRAY\s*<\s*STRING\s*>|MAP\s*<\s*STRING\s*,.*>)\s*", _FLAGS)
_MOMENTS: Final = frozenset(("TIMESTAMP", "TIMESTAMP_LTZ"))
_TEXTS: Final = frozenset(("STRING", "VARCHAR", "CHAR", "CHARACTER"))
_MOST_OF_SINGLE: Final = 7
"""Number of digits of whole numbers that a float4 holds exactly."""


@dataclass(frozen=True, slots=True)
class Operand:
    """The known properties of a part of an expression.

    Attributes:
        kind: ``text``, ``texts`` (an array of texts, or a map with texts as keys), ``bytes`` (a literal),
            ``null``, ``moment`` (a timestamp), or empty for any other or an unknown kind.
        constant: the part contains no column.
        clock: a text in the part that means the clock as soon as the text becomes a date or a moment.
        literal: the part consists of literals without a clock text, and contains no other text.
        start, end: the positions of the first token, and after the last token.
        way: PostgreSQL's comparison, if Spark's operators do not do the same.
        name: name of the column that `way` belongs to.
        lost: whether the part is a column in which silver may have NULL for a value.
        number: for a number of known type: Spark's type.
        operator: the operator that made the part, unless parentheses enclose the part.
        exponent: for an exact number that is floating to Spark: the constant with an exponent.
        whole: whether a function has rounded the part to a whole number.
    """

    kind: str = ""
    constant: bool = False
    clock: str | None = None
    literal: bool = False
    start: int = field(default=0, compare=False)
    end: int = field(default=0, compare=False)
    way: Comparison | None = field(default=None, compare=False)
    name: str = field(default="", compare=False)
    text: str | None = field(default=None, compare=False)
    lost: bool = field(default=False, compare=False)
    number: str = field(default="", compare=False)
    operator: str = field(default="", compare=False)
    exponent: str = field(default="", compare=False)
    whole: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class Coercion:
    """Values coerced by Spark to a common type, or read as a different type. Only Spark knows their types.

    Attributes:
        how: name of a rule of `gold.expressions.coercions`.
        values: SQL of the values; for rules about a result, the result comes last.
        literal: for each value, whether it consists of literals alone, which the parser has checked.
    """

    how: str
    values: tuple[Parts, ...]
    literal: tuple[bool, ...]


ROUNDED: Final = (
    "Spark would round the numbers before comparing them",
    "cast both to one type that holds both, or set fewer digits for the column in silver.types",
)
SINGLE: Final = (
    "in a list or a choice of values, PostgreSQL converts the exact number to float4",
    "cast the float4 as double",
)
TEXT_BESIDE_NUMBER: Final = (
    "Spark would convert the text next to a number to a floating-point number",
    "write the number without quotes, or cast the text",
)
EXPONENT: Final = (
    "a floating-point number in Spark, and an exact number in PostgreSQL",
    "write the number without an exponent, or cast both as double",
)
NULL: Final = Operand("null", constant=True, literal=True)


def of_text(value: str) -> Operand:
    """Return the operand of a text."""
    clock = value if _SPECIAL.fullmatch(value) else None
    return Operand("text", constant=True, clock=clock, literal=clock is None, text=value)


def of_type(ddl: str, *, constant: bool = False) -> Operand:
    """Return the operand of a value of a Spark type."""
    word = types.base(ddl)
    kind = "text" if word in _TEXTS else "moment" if word in _MOMENTS else ""
    if _OF_TEXTS.fullmatch(ddl):
        kind = "texts"
    return Operand(kind, constant, number=ddl if types.is_numeric(ddl) else "")


def check_typed(word: str, value: str) -> None:
    """Check a typed literal, ``date '2026-01-31'``; raise a ValueError if it does not begin with a date."""
    if not _DATED.fullmatch(value):
        raise ValueError(
            f"{word} {value!r} is not allowed here: the value depends on the clock, or is not a date; write "
            f"{word} '2026-01-31', the year first"
        )


def check_clock(operands: Sequence[Operand]) -> None:
    """Check values that Spark coerces to a common type, for a comparison or as possible results.

    Raises:
        ValueError: a text among the values would depend on the clock, or Spark would round a number.
    """
    check_exact(operands)
    typed = [operand for operand in operands if operand.kind != "null"]
    if all(operand.kind == "text" for operand in typed):
        return
    refuse(typed)
    if any(operand.kind == "moment" for operand in typed):
        check_read(*typed, ddl="timestamp")


def check_exact(operands: Sequence[Operand]) -> None:
    """Check numbers that Spark coerces to a common type with 38 digits at most.

    Raises:
        ValueError: Spark would round a number, or convert a number to floating point.
    """
    for lhs, rhs in combinations(operands, 2):
        check_floating(lhs, rhs)
        if types.rounded(lhs.number, rhs.number):
            raise ValueError(
                f"{lhs.name or 'a number'} is {lhs.number} and {rhs.name or 'a number'} is {rhs.number}: "
                f"{'; '.join(ROUNDED)}"
            )


def check_chosen(operands: Sequence[Operand]) -> None:
    """Check numbers in a list or a choice: PostgreSQL gives all of the numbers a common type.

    Raises:
        ValueError: PostgreSQL's type would be float4, and Spark's is not.
    """
    for operand in operands:
        if types.base(operand.number) == "FLOAT" and any(types.digits(beside.number) for beside in operands):
            raise ValueError(f"{operand.name or 'a number'} is {operand.number}: {'; '.join(SINGLE)}")


def check_floating(left: Operand, right: Operand, *, digits: int = types.DIGITS_OF_DOUBLE) -> None:
    """Raise a ValueError if Spark would convert a value to floating point that is exact in PostgreSQL.

    `digits` is the number of digits of an exact number that a floating-point number still holds.
    """
    for written, number in ((left, right), (right, left)):
        if written.kind == "text" and number.number:
            text = written.name or repr(written.text or "a text")
            raise ValueError(
                f"{text} next to {number.name or number.number}: {'; '.join(TEXT_BESIDE_NUMBER)}"
            )
        exact = types.digits(number.number)
        if written.exponent and not number.constant and exact is not None and sum(exact) > digits:
            check_written([written])


def check_written(operands: Sequence[Operand], *, of_one_type: bool = False) -> None:
    """Raise a ValueError if an argument, unlike the function's result, is exact only in PostgreSQL."""
    written = next((operand.exponent for operand in operands if operand.exponent), "")
    # With one double, PostgreSQL too converts all of the arguments to double.
    if of_one_type:
        written = exponent_of(operands)
    if written:
        raise ValueError(f"{written} is {'; '.join(EXPONENT)}")


def is_small(operand: Operand) -> bool:
    """Check whether a number is a whole number with few enough digits for an exact float4."""
    before, after = types.digits(operand.number) or (_MOST_OF_SINGLE, 1)
    return before <= _MOST_OF_SINGLE and after == 0


def exponent_of(operands: Sequence[Operand]) -> str:
    """Return the constant with an exponent from which an exact number is made; empty without any."""
    if any(types.is_floating(operand.number) and not operand.exponent for operand in operands):
        return ""
    return next((operand.exponent for operand in operands if operand.exponent), "")


def chosen(
    operands: Sequence[Operand], *, constant: bool, results: Sequence[Operand] | None = None
) -> Operand:
    """Return the operand of a value chosen among several values.

    `constant` states that the expression contains no column; `results` are the values that may be the result,
    if not all.

    Raises:
        ValueError: a text among the values would depend on the clock, or PostgreSQL would return another
            number.
    """
    check_clock(operands)
    results = operands if results is None else results
    check_chosen(results)
    for left, right in combinations(results, 2):
        check_floating(left, right, digits=0)
    kinds = {operand.kind for operand in operands} - {"null"}
    # For Spark a value that depends on a column is no constant, and so never the clock.
    clocks = [operand.clock for operand in operands if operand.clock is not None and constant]
    literal = all(operand.literal for operand in operands)
    way, name = way_of_any(operands)
    kind = kinds.pop() if len(kinds) == 1 else ""
    numbers = {operand.number for operand in operands if operand.kind != "null"}
    number = numbers.pop() if len(numbers) == 1 else ""
    return Operand(
        kind,
        constant,
        clocks[0] if clocks else None,
        literal,
        way=way,
        name=name,
        number=number,
        exponent=exponent_of(results),
    )


def way_of_any(operands: Sequence[Operand]) -> tuple[Comparison | None, str]:
    """Return the comparison of a value chosen among several values, and the name of its column."""
    ways = [(operand.way, operand.name) for operand in operands if operand.way is not None]
    as_text = any(
        operand.kind == "text" and operand.way is None and not operand.constant for operand in operands
    )
    way = way_of_chosen([read_as for read_as, _ in ways], with_text=as_text)
    if way is None:
        return None, ""
    unreadable = next(
        (operand.text for operand in operands if operand.text is not None and not way.accepts(operand.text)),
        None,
    )
    if unreadable is not None and way.equality.native:
        # PostgreSQL converts the literal to the type; Spark would compare the text as written.
        rule = Rule(refused=f"silver never stores such a value as {unreadable!r}")
        way = replace(way, equality=rule, order=rule)
    return way, ways[0][1]


def check_read(*operands: Operand, ddl: str) -> None:
    """Check values that Spark reads as a different type.

    Raises:
        ValueError: the result would depend on the clock, or hide a text.
    """
    for operand in operands:
        if types.base(ddl) in _TEXTS:
            if operand.kind == "bytes":
                raise ValueError("bytes as text are not allowed here: write the text itself")
            continue
        refuse([operand])
        if operand.kind == "text" and not operand.constant and types.base(ddl) in _MOMENTS:
            raise ValueError(
                "a text as a timestamp is not allowed here: a text with only a time gets today's date; "
                "write to_timestamp(text, 'yyyy-MM-dd HH:mm:ss') with the text's format, or cast(text as "
                "timestamp_ntz)"
            )


def refuse(operands: Iterable[Operand]) -> None:
    """Raise a ValueError if a value contains a text that may mean the clock."""
    for operand in operands:
        if operand.clock is not None:
            raise ValueError(
                f"{operand.clock!r} is not allowed here: as a date or time the text depends on the clock; "
                "write a date as date '2026-01-31'; to use the text itself, compare it with a text column "
                "or cast(… as string), or search for it in cast(… as array<string>)"
            )
