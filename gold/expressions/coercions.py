"""Find texts that Spark would read as moments, by the types of the values that Spark coerces.

A text with only a time, ``12:30:00``, becomes a moment of *today* as a TIMESTAMP: the document would depend
on the day of its build. Spark makes a TIMESTAMP wherever a text and a TIMESTAMP are coerced to one type, deep
inside arrays, maps and structs too, and mostly implicitly. (A text as DATE or TIMESTAMP_NTZ is no problem: a
text without a date fails, or gives NULL.)

The parser of expressions records each coercion (`gold.expressions.clock_texts.Coercion`), and has already
checked literals. Spark finds the types without any data.

Numbers need such a check too: only Spark knows the type of an element, a field and a function's result. Spark
may round a number to coerce two numbers to one type, or divide differently from PostgreSQL
(`gold.expressions.compared`).
"""

from __future__ import annotations

from itertools import permutations
from typing import TYPE_CHECKING, Final, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    AtomicType,
    BinaryType,
    BooleanType,
    CharType,
    DataType,
    DateType,
    DayTimeIntervalType,
    FloatType,
    IntegralType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VarcharType,
    VariantType,
    YearMonthIntervalType,
)

from deltasmelt.gold.expressions.clock_texts import EXPONENT, ROUNDED, SINGLE, TEXT_BESIDE_NUMBER
from deltasmelt.gold.expressions.compared import wrong_cast, wrong_number
from deltasmelt.gold.expressions.scanner import ColumnReference
from deltasmelt.gold.language.types import DIGITS_OF_DOUBLE, digits, map_key, rounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from deltasmelt.gold.expressions.clock_texts import Coercion

_Known: TypeAlias = tuple[DataType, bool]
"""A value's type, and whether the value consists of literals alone."""

_Check: TypeAlias = "Callable[[Sequence[DataType]], tuple[str, str] | None]"

_TEXT: Final = (StringType, CharType, VarcharType)
_JOINED: Final = (*_TEXT, IntegralType, BooleanType, TimestampNTZType, NullType)
"""Types whose text by ``||`` equals PostgreSQL's text."""
_STEPS: Final = (DayTimeIntervalType, YearMonthIntervalType)
_TODAY: Final = (
    "the text becomes a TIMESTAMP here, and a text with only a time would get today's date",
    "write to_timestamp(text, 'yyyy-MM-dd HH:mm:ss') or try_to_timestamp, or cast the timestamp as string",
)
_ARRAYS: Final = (
    "for ||, an array that is NULL has no elements in PostgreSQL, but Spark returns NULL",
    "write concat(a, b), with coalesce(a, array()) if NULL means no elements",
)
_PLAIN: Final = (
    "|| converts a value to text here, and PostgreSQL's text or result is different",
    "write cast(… as string) for Spark's text, or date_format or format_number for another format",
)
_WRITTEN: Final = (f"a number that is written with an exponent is {EXPONENT[0]}", EXPONENT[1])
_KEYS: Final = (
    "a map whose keys cannot be JSON names becomes JSON here",
    "convert the keys to text, for example by hex(…)",
)
_PRINTED: Final = (
    "a value without a text form is printed here",
    "convert the value to text, for example by hex(…), to_json(…) or cast(… as string)",
)


def objection(meeting: Coercion, kinds: Sequence[DataType]) -> tuple[str, str] | None:
    """Return the fault of a coercion of values of these types, and a remedy; None without a fault."""
    typed = list(zip(kinds, meeting.literal, strict=True))
    coercion = meeting.how
    if coercion in _ALONE:
        return _ALONE[coercion](kinds)
    if coercion == "||":
        columns = [len(value) == 1 and isinstance(value[0], ColumnReference) for value in meeting.values]
        return _joined(kinds, columns)
    if coercion == "moved":
        return _TODAY if _is_moved(typed) else None
    if coercion == "result":
        reasons = [_other_cast(kind, kinds[-1]) for kind in kinds[:-1]]
    else:
        reasons = [
            _other_number(left, right, coercion)
            for left, right in _pairs(coercion, typed)
            if coercion in _ONE_NUMBER
        ]
    fault = next((reason for reason in reasons if reason is not None), None)
    pairs = [(left, right) for (left, literal), (right, _) in _pairs(coercion, typed) if not literal]
    return _TODAY if fault is None and any(_reads_moment(left, right) for left, right in pairs) else fault


def _pairs(how: str, known: Sequence[_Known]) -> Iterable[tuple[_Known, _Known]]:
    """Return pairs of values: the first may be coerced to the type of the second."""
    if how == "moment":
        return [(known[0], (TimestampType(), True))]
    if how == "result":
        return [(kind, known[-1]) for kind in known[:-1]]
    if how == "arrays":  # also `concat` of texts
        known = [kind for kind in known if isinstance(kind[0], ArrayType | MapType)]
    elif how in {"element", "index"}:
        known = [*_held(known[0]), *known[1:]]
    return permutations(known, 2)


def _held(known: _Known) -> list[_Known]:
    """Return the type that Spark compares with an element of an array, or with a key of a map."""
    container, literal = known
    if isinstance(container, ArrayType):
        return [(container.elementType, literal)]
    return [(container.keyType, literal)] if isinstance(container, MapType) else []


def _reads_moment(source: DataType, target: DataType) -> bool:
    """Check whether a coercion to the other type reads a text as a TIMESTAMP."""
    if isinstance(target, TimestampType):
        return isinstance(source, (*_TEXT, VariantType))
    if isinstance(source, VariantType):
        return _holds_moments(target)
    if isinstance(source, ArrayType) and isinstance(target, ArrayType):
        return _reads_moment(source.elementType, target.elementType)
    if isinstance(source, MapType) and isinstance(target, MapType):
        return _reads_moment(source.keyType, target.keyType) or _reads_moment(
            source.valueType, target.valueType
        )
    if isinstance(source, StructType) and isinstance(target, StructType):
        return any(_reads_moment(a.dataType, b.dataType) for a, b in zip(source, target, strict=False))
    # Only `from_json` returns a value of another shape than its argument.
    return isinstance(source, _TEXT) and _holds_moments(target)


def _operated(operator: str) -> _Check:
    """Return a check whether an operator gives another number of two types than in PostgreSQL."""

    def check(kinds: Sequence[DataType]) -> tuple[str, str] | None:
        left, right = (kind.simpleString() for kind in kinds)
        return wrong_number(operator, left, right) if _numbers(kinds) else None

    return check


def _joined(kinds: Sequence[DataType], columns: Sequence[bool]) -> tuple[str, str] | None:
    """Return the fault of values with ``||``; None without a fault."""
    if any(isinstance(kind, ArrayType) for kind in kinds):
        return _ARRAYS
    if all(isinstance(kind, BinaryType) for kind in kinds):
        return None
    # In PostgreSQL a computed date may be a timestamp.
    plain = all(
        isinstance(kind, _JOINED) or (isinstance(kind, DateType) and column)
        for kind, column in zip(kinds, columns, strict=True)
    )
    return None if plain else _PLAIN


def _numbers(kinds: Sequence[DataType]) -> bool:
    return all(isinstance(kind, NumericType) for kind in kinds)


def _other_number(first: _Known, second: _Known, how: str) -> tuple[str, str] | None:
    """Return the fault if Spark converts a value to another number type and PostgreSQL does not."""
    (left, literal), (right, _) = first, second
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return _other_number((left.elementType, literal), (right.elementType, literal), how)
    if isinstance(left, NumericType) and isinstance(right, _TEXT):
        return TEXT_BESIDE_NUMBER
    # In a mere comparison Spark counts the digits of a whole-number literal.
    written = [kind for kind, constant in (first, second) if constant and isinstance(kind, IntegralType)]
    if written and how == "compared":
        return None
    if how == "one type" and isinstance(left, FloatType) and digits(right.simpleString()):
        return SINGLE
    if _numbers((left, right)) and rounded(left.simpleString(), right.simpleString()):
        return ROUNDED
    return None


def _other_cast(source: DataType, result: DataType) -> tuple[str, str] | None:
    """Return the fault of a cast if the resulting number differs from PostgreSQL's."""
    if isinstance(source, ArrayType) and isinstance(result, ArrayType):
        return _other_cast(source.elementType, result.elementType)
    if isinstance(source, MapType) and isinstance(result, MapType):
        key = _other_cast(source.keyType, result.keyType)
        return key or _other_cast(source.valueType, result.valueType)
    if isinstance(source, StructType) and isinstance(result, StructType):
        pairs = zip(source, result, strict=False)
        reasons = (_other_cast(mine.dataType, theirs.dataType) for mine, theirs in pairs)
        return next((reason for reason in reasons if reason is not None), None)
    return wrong_cast(source.simpleString(), result.simpleString()) if _numbers((source, result)) else None


def _is_finer(kind: DataType) -> bool:
    """Check whether a number has more digits than a floating-point number holds exactly."""
    return sum(digits(kind.simpleString()) or ()) > DIGITS_OF_DOUBLE


def _holds_moments(kind: DataType) -> bool:
    if isinstance(kind, ArrayType):
        return _holds_moments(kind.elementType)
    if isinstance(kind, MapType):
        return _holds_moments(kind.keyType) or _holds_moments(kind.valueType)
    if isinstance(kind, StructType):
        return any(_holds_moments(inner.dataType) for inner in kind)
    return isinstance(kind, TimestampType)


def _is_moved(known: Sequence[_Known]) -> bool:
    texts = any(isinstance(kind, (*_TEXT, VariantType)) and not literal for kind, literal in known)
    moments = (*_STEPS, DateType, TimestampType, TimestampNTZType)
    plain = (AtomicType, NullType)
    return texts and any(isinstance(kind, moments) or not isinstance(kind, plain) for kind, _ in known)


def _has_names(kind: DataType) -> bool:
    """Check whether the keys of all maps inside are names in JSON."""
    if isinstance(kind, ArrayType):
        return _has_names(kind.elementType)
    if isinstance(kind, MapType):
        return map_key(kind.keyType.simpleString()) and _has_names(kind.valueType)
    if isinstance(kind, StructType):
        return all(_has_names(inner.dataType) for inner in kind)
    return True


def _has_text(kind: DataType) -> bool:
    return isinstance(kind, AtomicType | NullType) and not isinstance(kind, BinaryType | VariantType)


_ONE_NUMBER: Final = frozenset(("one type", "arrays", "element", "compared"))
"""Rules for conversions of numbers to a common type."""
_ALONE: Final[dict[str, _Check]] = {
    # For a key of a map in JSON, and for a value in a format string, without a text Java writes the value's
    # memory address.
    "as JSON": lambda kinds: None if _has_names(kinds[0]) else _KEYS,
    "printed": lambda kinds: None if _has_text(kinds[0]) else _PRINTED,
    "exponent": lambda kinds: _WRITTEN if digits(kinds[0].simpleString()) else None,
    "exponent compared": lambda kinds: _WRITTEN if _is_finer(kinds[0]) else None,
    **{operator: _operated(operator) for operator in ("/", "*", "div", "<<")},
}
"""Rules under which no text becomes a moment."""
