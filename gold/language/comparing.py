"""Decide how PostgreSQL compares the values of a column, in any Spark type: the one gate. Pure.

Silver holds many of PostgreSQL's types as their text, and Spark compares text by code points. For each type
this module decides whether equality and order of the held value are PostgreSQL's:

* *unchanged*: numbers, dates, timestamps, booleans, bytea; also text whose form gives the type's own order:
  uuid, time, macaddr, bit strings.
* *by an expression* over the value, if the expression is short and certain: citext without case, enums by
  their labels, pg_lsn, arrays and composites.
* *refused* with a remedy for every other type.

Text has the order of its code points, as ``COLLATE "C"`` in PostgreSQL. Equality of text is equality of bytes
under each deterministic collation; gold refuses columns of any other collation.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.gold.language import types
from deltasmelt.silver.schema.types import reading
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.shapes import PgType
    from deltasmelt.silver.schema.catalog import SilverColumn

_Key: TypeAlias = "Callable[[str], str]"


@dataclass(frozen=True, slots=True)
class Rule:
    """The rule for one kind of comparison.

    Attributes:
        key: from SQL of a value to SQL that Spark compares as PostgreSQL compares the value; None: the value.
        ddl: Spark type of the key.
        refused: the reason against such a comparison; empty if gold compares.
        tag: distinguishes the rule from other rules for the same column.
        merges: whether different values may have the same key.
    """

    key: _Key | None = None
    ddl: str = ""
    refused: str = ""
    tag: str = ""
    merges: bool = False

    @property
    def native(self) -> bool:
        """Check whether Spark's own comparison of the value is right."""
        return self.key is None and not self.refused


@dataclass(frozen=True, slots=True)
class Comparison:
    """PostgreSQL's comparison of the values of a type.

    Attributes:
        name: of the type, for messages.
        family: PostgreSQL has operators between types of one family alone.
        equality, order: whether two values are equal, and whether a value is less than another.
        written: form of a literal that is exactly the text of its value; None: any text.
        element, fields: the comparison of an array's elements, and of each field of a composite or a range.
        remedy: the user's alternative to a refused comparison.
    """

    name: str
    family: str
    equality: Rule
    order: Rule
    written: re.Pattern[str] | None = None
    element: Comparison | None = None
    fields: tuple[tuple[str, Comparison], ...] = ()
    remedy: str = ""

    @property
    def plain(self) -> bool:
        """Check whether Spark's own operators, also with literals, are PostgreSQL's."""
        return self.equality.native and self.order.native and self.written is None

    def field(self, name: str) -> Comparison | None:
        """Return the comparison of a field; None if Spark's operators are right."""
        inner = next((way for field_name, way in self.fields if field_name.lower() == name.lower()), None)
        return None if inner is None or inner.plain else inner

    def accepts(self, text: str) -> bool:
        """Check whether a literal is silver's text of the literal's value."""
        return self.written is None or self.written.fullmatch(text) is not None


PREFIX: Final = "_deltasmelt"
"""Prefix of the names of columns that a document's query derives from source columns."""

_NATIVE: Final = Rule()
_WHOLE: Final = frozenset(("int2", "int4", "int8", "oid"))
_FRACTIONS: Final = frozenset(("numeric", "float4", "float8"))
_ALWAYS_HELD: Final = frozenset((*_WHOLE, "float4", "float8", "bool", "bytea"))
_ARRAY: Final = re.compile(r"\s*ARRAY\s*<(.+)>\s*", re.IGNORECASE | re.DOTALL)
_NEVER: Final = re.compile(r"(?!)")
_ANY: Final = re.compile(r"(?s:.*)")
_UUID: Final = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{2}:\d{2}:\d{2}(?:[.]\d{0,5}[1-9])?")
_INET: Final = re.compile(r"(?:\d{1,3}[.]){3}\d{1,3}(?:/(?!32)\d{1,2})?")
_CIDR: Final = re.compile(r"(?:\d{1,3}[.]){3}\d{1,3}/\d{1,2}")
_NUMBER_REMEDY: Final = "set the type of a number in silver.types: decimal(p,s), or remove the override"
_ANOTHER: Final = "use another column, or cast the column at the source (a generated column)"


def comparison(column: SilverColumn) -> Comparison:
    """Return PostgreSQL's comparison of the values of a column."""
    return _of(column.type, column.spark_type, overridden=column.overridden)


def may_lose(column: SilverColumn) -> bool:
    """Check whether a column's type at the source has values that silver's type cannot hold."""
    if column.reading.exact:
        return False
    base = _base(column.type)
    return column.overridden or base.kind != "base" or base.name not in _ALWAYS_HELD


def lost_name(name: str) -> str:
    """Return the name of the column that flags rows whose value silver could not hold."""
    return f"{PREFIX}_lost_{name}"


def _base(type_: PgType) -> PgType:
    while type_.kind == "domain" and type_.element is not None:
        type_ = type_.element
    return type_


def _of(type_: PgType, ddl: str, *, overridden: bool) -> Comparison:
    type_ = _base(type_)
    if overridden and types.base(ddl) not in {"STRING", "ARRAY"}:
        return _as_chosen(ddl)
    if type_.kind == "base":
        scalar = _scalar(type_.name, ddl)
        return _collated(scalar, type_.collation) if type_.collation else scalar
    return _compound(type_, ddl, overridden=overridden) or _refused(type_.name)


def _collated(original: Comparison, special: str) -> Comparison:
    """Return the comparison of values that have a special `PgType.collation`."""
    if original.family == "citext" and special in _SMALL_LETTERS:
        rule = Rule(_SMALL_LETTERS[special], "STRING", tag=special)
        return replace(original, equality=rule, order=rule)
    reason = f"its collation {special} is not deterministic: different texts can be equal"
    if original.family == "citext":
        reason = f"the database converts to lower case by the rules of {special}"
    rule = Rule(refused=reason)
    remedy = "give the column a deterministic collation, or use another column to join and order"
    return replace(original, equality=rule, order=rule, written=_NEVER, remedy=remedy)


def _compound(type_: PgType, ddl: str, *, overridden: bool) -> Comparison | None:
    if type_.kind == "array" and type_.element is not None:
        inner = _ARRAY.fullmatch(ddl)
        if inner is not None:
            return _array(_of(type_.element, inner[1], overridden=overridden))
        return _as_text(f"{type_.element.name}[]") if overridden else None
    if type_.kind == "range" and type_.element is not None:
        bound = _of(type_.element, reading(type_.element).ddl, overridden=False)
        return _range(type_.name, bound, ddl)
    if type_.kind == "composite":
        return _composite(type_, ddl)
    return _enum(type_) if type_.kind == "enum" else None


def _scalar(name: str, ddl: str) -> Comparison:
    # A text of a number is refused even by choice: `1` and `1.0` are equal numbers.
    as_text = types.base(ddl) == "STRING"
    if as_text and name in _FRACTIONS:
        rule = Rule(refused="silver stores the value as text, where 1 and 1.0 differ and 10 comes before 9")
        return Comparison(name, "number as text", rule, rule, _NEVER, remedy=_NUMBER_REMEDY)
    if as_text and name in {*_WHOLE, *_HELD}:
        return _as_text(name)
    if name == "oid":
        return _by_text(name, re.compile(r"0|[1-9]\d*"))
    if name in {*_WHOLE, *_FRACTIONS}:
        return Comparison(name, "number", _NATIVE, _NATIVE)
    return _HELD.get(name) or _KNOWN.get(name) or _refused(name)


def _as_chosen(ddl: str) -> Comparison:
    """Return the comparison of values of a chosen type (`silver.types`): PostgreSQL's after the same cast."""
    if not types.orderable(ddl):
        return _refused(ddl)
    base = types.base(ddl)
    family = "number" if types.is_numeric(ddl) else "timestamptz" if base == "TIMESTAMP" else base.lower()
    return Comparison(ddl, "timestamp" if base == "TIMESTAMP_NTZ" else family, _NATIVE, _NATIVE)


def _as_text(name: str) -> Comparison:
    """Return the comparison of values for which the pipeline file chose text."""
    rule = Rule(refused="silver.types converts the value to text, which has another order")
    return Comparison(
        f"the text of {name}", "text", _NATIVE, rule, remedy="remove the override in silver.types"
    )


def _refused(name: str) -> Comparison:
    rule = Rule(refused="Spark's equality and order of this type differ from PostgreSQL's")
    return Comparison(name, name, rule, rule, _NEVER, remedy=_ANOTHER)


def _without_order(name: str, written: re.Pattern[str]) -> Comparison:
    """Return the comparison of a type whose text shows equality, but not the order of values."""
    rule = Rule(refused="silver stores the value as text, whose order differs from PostgreSQL's")
    return Comparison(name, name, _NATIVE, rule, written, remedy=_ANOTHER)


def _by_text(name: str, written: re.Pattern[str], family: str = "") -> Comparison:
    """Return the comparison of a type whose text has the type's equality and order."""
    remedy = "write the literal as PostgreSQL prints the value"
    return Comparison(name, family or name, _NATIVE, _NATIVE, written, remedy=remedy)


def _folded(value: str) -> str:
    """Return SQL of a text in small letters, each character by itself, like PostgreSQL's lower()."""
    # Spark's lower() also depends on the neighbouring letters: a sigma at the end of a word becomes another
    # letter.
    return f"lower(translate({value}, '\u03a3\u0130', '\u03c3i'))"


def _lsn(value: str) -> str:
    halves = (f"lpad(split_part({value}, '/', {half}), 8, '0')" for half in (1, 2))
    return f"concat({', '.join(halves)})"


_SMALL_LETTERS: Final[dict[str, _Key]] = {
    "ascii": lambda value: f"translate({value}, {literal(ascii_uppercase)}, {literal(ascii_lowercase)})",
    "full": lambda value: f"lower({value})",
}
"""Comparison of citext in databases that do not make small letters letter by letter."""

_CITEXT: Final = Comparison(
    "citext", "citext", Rule(_folded, "STRING"), Rule(_folded, "STRING"), _NEVER,
    remedy="compare lower(…) with a text in lower case",
)  # fmt: skip

_HELD: Final[dict[str, Comparison]] = {
    **{
        name: Comparison(name, name, _NATIVE, _NATIVE)
        for name in ("bool", "date", "timestamp", "timestamptz")
    },
    "bytea": Comparison("bytea", "bytea", _NATIVE, _NATIVE, _NEVER, remedy="write bytes as X'00FF'"),
}
"""Types whose value silver holds, unless an override makes the value text."""

_INTERVAL: Final = Rule(refused="silver stores the value as text, where P30D and P1M differ")
_KNOWN: Final[dict[str, Comparison]] = {
    "text": Comparison("text", "text", _NATIVE, _NATIVE),
    # Any literal is its own text; but PostgreSQL may cast other texts to the type (`gold.language.pairs`).
    "varchar": Comparison("varchar", "text", _NATIVE, _NATIVE, _ANY),
    "name": Comparison("name", "text", _NATIVE, _NATIVE, _ANY),
    # Silver's text has no trailing blanks, like PostgreSQL's own cast to text.
    "bpchar": Comparison(
        "char(n)", "text", _NATIVE, _NATIVE, re.compile(r"(?s:.*[^ ])?"),
        remedy="write the literal without trailing blanks",
    ),
    "citext": _CITEXT,
    "uuid": _by_text("uuid", _UUID),
    "time": _by_text("time", _TIME),
    "macaddr": _by_text("macaddr", re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){5}")),
    "macaddr8": _by_text("macaddr8", re.compile(r"[0-9a-f]{2}(?::[0-9a-f]{2}){7}")),
    "bit": _by_text("bit", re.compile("[01]*"), "bits"),
    "varbit": _by_text("varbit", re.compile("[01]*"), "bits"),
    "pg_lsn": Comparison(
        "pg_lsn", "pg_lsn", _NATIVE, Rule(_lsn, "STRING"), re.compile(r"(?:0|[1-9A-F][0-9A-F]{0,7})"
        r"/(?:0|[1-9A-F][0-9A-F]{0,7})"), remedy="use the column in order_by or max; compare it only by =",
    ),
    "inet": _without_order("inet", _INET),
    "cidr": _without_order("cidr", _CIDR),
    "timetz": _without_order("timetz", _NEVER),
    "money": _without_order("money", _NEVER),
    "char": _without_order('"char"', re.compile(r"[\x20-\x7e]")),
    "xid": _without_order("xid", re.compile(r"0|[1-9]\d*")),
    "interval": Comparison("interval", "interval", _INTERVAL, _INTERVAL, _NEVER, remedy=_ANOTHER),
    "vector": Comparison("vector", "vector", _NATIVE, _NATIVE),
}  # fmt: skip


def _enum(type_: PgType) -> Comparison:
    labels = ", ".join(literal(label) for label in type_.labels)

    def place(value: str) -> str:
        # A label that the lake does not know yet has no position: the document fails instead of guessing.
        unknown = f"raise_error(concat({literal(f'unknown label of {type_.name}: ')}, {value}))"
        place_of_label = f"nullif(array_position(array({labels}), {value}), 0L)"
        return f"CASE WHEN {value} IS NOT NULL THEN coalesce({place_of_label}, {unknown}) END"

    order = Rule(place, "BIGINT") if labels else Rule(refused="its labels are not known")
    written = re.compile("|".join(re.escape(label) for label in type_.labels)) if labels else None
    family = f"enum {type_.schema}.{type_.name}"
    remedy = "compare the column by = or in with its labels"
    return Comparison(type_.name, family, _NATIVE, order, written, remedy=remedy)


def _array(element: Comparison) -> Comparison:
    """Return the comparison of arrays: by elements, NULL after all values, then by the number of elements."""
    name = f"{element.name}[]"
    equality, order = element.equality, element.order
    if equality.key is not None:
        equality = Rule(_of_elements(equality.key), f"ARRAY<{equality.ddl}>", tag=equality.tag)
    if not order.refused:
        inner = order.key or str
        # Spark alone places a NULL inside an array before all values.
        order = Rule(_of_elements(lambda value: f"struct({value} IS NULL, {inner(value)})"), "ARRAY<STRUCT>")
    written = None if element.written is None else _NEVER
    # PostgreSQL only compares arrays of one element type, not varchar[] with text[].
    family = f"{element.family} {element.name}[]"
    return Comparison(name, family, equality, order, written, element, remedy=element.remedy)


def _of_elements(key: _Key) -> _Key:
    return lambda value: f"transform({value}, e -> {key('e')})"


def _range(name: str, bound: Comparison, ddl: str) -> Comparison:
    equality = bound.equality
    if not equality.native or types.base(ddl) != "STRUCT":
        equality = Rule(refused="Spark's equality of the range's bounds differs from PostgreSQL's")
    order = Rule(refused="Spark and PostgreSQL order ranges differently")
    fields = (("lower", bound), ("upper", bound))
    return Comparison(name, name, equality, order, _NEVER, fields=fields, remedy=_ANOTHER)


def _composite(type_: PgType, ddl: str) -> Comparison:
    name = f"{type_.schema}.{type_.name}"
    fields = [(field, _of(inner, reading(inner).ddl, overridden=False)) for field, inner in type_.fields]
    if types.base(ddl) != "STRUCT" or not all(way.equality.native for _, way in fields):
        return replace(_refused(name), fields=tuple(fields))

    def placed(value: str) -> str:
        parts = []
        for field, way in fields:
            inner = f"{value}.{quote(field)}"
            parts += [f"{inner} IS NULL", (way.order.key or str)(inner)]
        return f"CASE WHEN {value} IS NOT NULL THEN struct({', '.join(parts)}) END"

    refused = next((way for _, way in fields if way.order.refused), None)
    order = Rule(placed, "STRUCT") if refused is None else refused.order
    return Comparison(name, f"composite {name}", _NATIVE, order, _NEVER, None, tuple(fields), _ANOTHER)
