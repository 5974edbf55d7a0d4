"""Translate filters of documents from Spark SQL to PostgreSQL's SQL, as far as both agree. Pure.

The grammar: AND, OR, NOT, IS [NOT] NULL/TRUE/FALSE, comparisons, BETWEEN, IN, LIKE, CASE, arithmetic, texts
joined by ||, coalesce, nullif, greatest, least, columns and literals, if both systems compare values of these
types alike. Everything else raises `UntranslatableError` with its name: after a guess, a fault of the
reference would appear as a fault of gold.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.identifiers import quote_literal
from deltasmelt.gold.expressions.scanner import ColumnReference
from deltasmelt.gold.expressions.tokens import END, Token, tokens_of
from deltasmelt.gold.reference.values import C, column_type, compared_value, is_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.expressions.expressions import Expression
    from deltasmelt.gold.expressions.scanner import Parts
    from deltasmelt.silver.schema.catalog import SilverTable

_NUMBERS: Final = frozenset(("int2", "int4", "int8", "oid", "numeric", "float4", "float8"))
_WHOLE: Final = frozenset(("int2", "int4", "int8"))
_MOMENTS: Final = {
    "date": re.compile(r"\d{4}-\d\d-\d\d"),
    "timestamp": re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?)?"),
    "timestamptz": re.compile(r"\d{4}-\d\d-\d\d( \d\d:\d\d:\d\d(\.\d{1,6})?([+-]\d\d(:\d\d)?)?)?"),
}
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_OF_ONE_TEXT: Final = frozenset(("bit", "varbit", "cidr", "inet", "macaddr", "macaddr8", "pg_lsn", "time"))
"""Types for which gold accepts a literal only in PostgreSQL's output form."""
_COMPARISONS: Final = {
    "=": "=",
    "==": "=",
    "<>": "<>",
    "!=": "<>",
    "<": "<",
    "<=": "<=",
    ">": ">",
    ">=": ">=",
}
_CALLS: Final = ("coalesce", "ifnull", "nvl", "nullif", "greatest", "least")
_NUMBER: Final = re.compile(r"\d+|\d+\.\d+|\d+[lL]")


class UntranslatableError(ValueError):
    """A filter without a certain translation."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A translated value.

    Attributes:
        sql: in PostgreSQL's SQL, in parentheses if the SQL has operators.
        kind: ``text`` ``number`` ``bool`` ``null``, the name of another type, or ``literal`` for a text
            literal, whose type follows from the value beside the literal.
        labels: for an enum: its labels, in order.
        whole, floating: whether a number is whole, and whether it has a floating point.
    """

    sql: str
    kind: str
    labels: tuple[str, ...] = ()
    literal: str = ""
    whole: bool = False
    floating: bool = False


def condition(expression: Expression, table: SilverTable, alias: str) -> str:
    """Return a filter in Spark's SQL as PostgreSQL's SQL, over a row with an alias.

    Raises:
        UntranslatableError: the filter has no certain translation.
    """
    part = _Translation(expression, table, alias).whole()
    if part.kind not in {"bool", "null"}:
        raise UntranslatableError("the expression is not a condition")
    return part.sql


class _Translation:
    def __init__(self, expression: Expression, table: SilverTable, alias: str) -> None:
        self._table = table
        self._alias = alias
        self._tokens: list[Token | ColumnReference] = []
        for part in _as_written(expression):
            self._tokens += [part] if isinstance(part, ColumnReference) else tokens_of(part)
        self._place = 0

    def whole(self) -> _Part:
        part = self._or()
        if self._place < len(self._tokens):
            raise self._unknown()
        return part

    @property
    def _next(self) -> Token | ColumnReference:
        return self._tokens[self._place] if self._place < len(self._tokens) else END

    def _word(self) -> str:
        token = self._next
        return token.lower if isinstance(token, Token) else ""

    def _may(self, *words: str) -> str:
        word = self._word()
        if word and word in words:
            self._place += 1
            return word
        return ""

    def _must(self, word: str) -> None:
        if not self._may(word):
            raise self._unknown()

    def _unknown(self) -> UntranslatableError:
        token = self._next
        text = token.name if isinstance(token, ColumnReference) else token.text
        return UntranslatableError(f"{text or 'its end'!r} has no exact translation to PostgreSQL")

    def _or(self) -> _Part:
        part = self._and()
        while self._may("or"):
            part = _Part(f"({_truth(part)} OR {_truth(self._and())})", "bool")
        return part

    def _and(self) -> _Part:
        part = self._not()
        while self._may("and"):
            part = _Part(f"({_truth(part)} AND {_truth(self._not())})", "bool")
        return part

    def _not(self) -> _Part:
        if self._may("not", "!"):
            return _Part(f"(NOT {_truth(self._not())})", "bool")
        return self._predicate(self._comparison())

    def _predicate(self, left: _Part) -> _Part:
        if self._may("is"):
            negated = " NOT" if self._may("not") else ""
            word = self._may("null", "true", "false")
            if word == "null":
                # In silver a composite of NULLs is not NULL; PostgreSQL's IS NULL of such a row is true.
                distinct = "IS DISTINCT FROM" if negated else "IS NOT DISTINCT FROM"
                return _Part(f"({left.sql} {distinct} NULL)", "bool")
            if not word:
                raise self._unknown()
            return _Part(f"({_truth(left)} IS{negated} {word.upper()})", "bool")
        negated = "NOT " if self._may("not") else ""
        if self._may("between"):
            low = self._sum()
            self._must("and")
            high = self._sum()
            bounds = f"({_compared(left, '>=', low)} AND {_compared(left, '<=', high)})"
            return _Part(f"({negated}{bounds})", "bool")
        if self._may("in"):
            self._must("(")
            parts = [self._or()]
            while self._may(","):
                parts.append(self._or())
            self._must(")")
            for member in parts:
                _compared(left, "=", member)
            # PostgreSQL gives all values of a list one type; a chain of = would not.
            return _Part(f"({left.sql} {negated}IN ({', '.join(part.sql for part in parts)}))", "bool")
        if self._may("like"):
            return self._like(left, negated)
        if negated:
            raise self._unknown()
        return left

    def _like(self, left: _Part, negated: str) -> _Part:
        pattern = self._sum()
        # Spark refuses an escape before an ordinary character; PostgreSQL reads the character itself.
        plain = pattern.kind == "literal" and "\\" not in pattern.literal
        if left.kind != "text" or not plain or self._word() == "escape":
            raise UntranslatableError(
                "LIKE is translated only for a text column and a pattern without escapes"
            )
        return _Part(f"({left.sql} {negated}LIKE {pattern.sql})", "bool")

    def _comparison(self) -> _Part:
        part = self._sum()
        operator = self._word()
        if operator in _COMPARISONS:
            self._place += 1
            part = _Part(_compared(part, _COMPARISONS[operator], self._sum()), "bool")
            if self._word() in _COMPARISONS:
                raise self._unknown()
        return part

    def _sum(self) -> _Part:
        part = self._product()
        while operator := self._may("+", "-", "||"):
            right = self._product()
            part = _joined(part, right) if operator == "||" else _calculated(part, operator, right)
        return part

    def _product(self) -> _Part:
        part = self._primary()
        while operator := self._may("*", "/", "%", "div"):
            part = _calculated(part, operator, self._primary())
        return part

    def _primary(self) -> _Part:
        token = self._next
        if isinstance(token, ColumnReference):
            self._place += 1
            return self._column(token.name)
        if self._may("-"):
            part = self._primary()
            if part.kind != "number":
                raise self._unknown()
            return replace(part, sql=f"(-{part.sql})")
        if self._may("("):
            part = self._or()
            self._must(")")
            return part
        return self._literal(token) or self._named()

    def _literal(self, token: Token) -> _Part | None:
        if token.kind == "text":
            self._place += 1
            if "\x00" in token.value:
                raise UntranslatableError("a text in PostgreSQL cannot contain a NUL")
            return _Part(quote_literal(token.value), "literal", literal=token.value)
        if token.kind == "number" and _NUMBER.fullmatch(token.text):
            self._place += 1
            return _Part(token.text.rstrip("lL"), "number", whole="." not in token.text)
        return None

    def _named(self) -> _Part:
        word = self._may("true", "false", "null", "case", *_CALLS)
        if word == "null":
            return _Part("NULL", "null")
        if word in {"true", "false"}:
            return _Part(word, "bool")
        if word == "case":
            return self._case()
        if word and self._may("("):
            return self._call(word)
        raise self._unknown()

    def _case(self) -> _Part:
        compared = None if self._word() == "when" else self._or()
        conditions, results = [], []
        while self._may("when"):
            part = self._or()
            conditions.append(_truth(part) if compared is None else _compared(compared, "=", part))
            self._must("then")
            results.append(self._or())
        results.append(self._or() if self._may("else") else _Part("NULL", "null"))
        self._must("end")
        if not conditions:
            raise self._unknown()
        cases = " ".join(
            f"WHEN {case} THEN {then.sql}" for case, then in zip(conditions, results[:-1], strict=True)
        )
        return _chosen_of("case", f"(CASE {cases} ELSE {results[-1].sql} END)", results)

    def _call(self, name: str) -> _Part:
        parts = [self._or()]
        while self._may(","):
            parts.append(self._or())
        self._must(")")
        if name == "nullif" and {"bool"} & {part.kind for part in parts}:
            raise UntranslatableError("nullif of booleans is not translated")
        called = name if name in {"nullif", "greatest", "least"} else "coalesce"
        return _chosen_of(name, f"{called}({', '.join(part.sql for part in parts)})", parts)

    def _column(self, name: str) -> _Part:
        pg_type, sql = column_type(self._table, name), compared_value(self._table, name, self._alias)
        if self._table.column(name).reading.ddl == "STRING" and pg_type.name in _NUMBERS:
            return _Part(sql, f"{pg_type.name} as text")
        if pg_type.kind == "enum":
            return _Part(sql, "enum", labels=pg_type.labels)
        if pg_type.kind == "base" and is_text(pg_type):
            # A cast of char(n) would make trailing blanks count; without the cast a literal compared with
            # name is cut.
            return _Part(f"({sql}{'::text' if pg_type.name == 'name' else ''}{C})", "text")
        if pg_type.kind == "base" and pg_type.name in _NUMBERS:
            floating = pg_type.name in {"float4", "float8"}
            return _Part(sql, "number", whole=pg_type.name in _WHOLE, floating=floating)
        return _Part(sql, pg_type.name if pg_type.kind == "base" else pg_type.kind)


def _as_written(expression: Expression) -> Parts:
    """Return an expression as in the document, without gold's additions for Spark."""
    read: Parts = getattr(expression, "read", ())
    return read or expression.parts


def _truth(part: _Part) -> str:
    if part.kind not in {"bool", "null"}:
        raise UntranslatableError(f"{part.sql} is not a boolean")
    return part.sql


def _chosen_of(name: str, sql: str, parts: Sequence[_Part]) -> _Part:
    """Return a value chosen among several values of one kind."""
    kinds = {part.kind for part in parts} - {"null"}
    if "text" in kinds:
        kinds -= {"literal"}
    if len(kinds) != 1 or not kinds <= {"text", "number", "bool"}:
        raise UntranslatableError(f"{name} is translated only for texts, numbers or booleans")
    is_whole = all(part.whole or part.kind == "null" for part in parts)
    return _Part(sql, kinds.pop(), whole=is_whole, floating=any(part.floating for part in parts))


def _calculated(left: _Part, operator: str, right: _Part) -> _Part:
    if not left.kind == right.kind == "number":
        raise UntranslatableError("only calculations with numbers are equal in Spark and PostgreSQL")
    if left.floating or right.floating:
        if operator in {"%", "div"}:
            raise UntranslatableError("PostgreSQL has no remainder of floating-point numbers")
        return _Part(f"({left.sql} {operator} {right.sql})", "number", floating=True)
    if operator == "/":
        raise UntranslatableError("PostgreSQL divides exact numbers differently")
    # A result beyond the type fails in both systems; numeric never fails, so the reference is the true value.
    dividend, divisor = f"{left.sql}::numeric", f"{right.sql}::numeric"
    sql = f"div({dividend}, {divisor})" if operator == "div" else f"({dividend} {operator} {divisor})"
    return _Part(sql, "number", whole=operator == "div" or (left.whole and right.whole))


def _joined(left: _Part, right: _Part) -> _Part:
    if not all(part.kind in {"text", "literal"} or part.whole for part in (left, right)):
        raise UntranslatableError("|| is equal in Spark and PostgreSQL only for texts and whole numbers")
    # The cast drops the blanks of char(n), like silver.
    return _Part(f"(({left.sql}::text || {right.sql}::text){C})", "text")


def _compared(left: _Part, operator: str, right: _Part) -> str:
    kinds = {left.kind, right.kind}
    if "null" in kinds:
        return "(NULL::boolean)"
    # Both compare text by code point (`C`), and numbers of all types as numbers.
    if kinds <= {"text", "literal"} and "text" in kinds:
        return f"({left.sql} {operator} {right.sql})"
    if kinds in ({"number"}, {"bool"}, {"date"}, {"timestamp"}, {"timestamptz"}):
        return f"({left.sql} {operator} {right.sql})"
    # A text literal compares with a date, a timestamp, an enum or a uuid only in the form of the type.
    if "literal" in kinds and len(kinds) == 2:
        column, literal = (left, right) if right.kind == "literal" else (right, left)
        if _has_form(column, literal.literal):
            return f"({left.sql} {operator} {right.sql})"
    raise UntranslatableError(
        f"comparisons of {' and '.join(sorted(kinds))} differ between Spark and PostgreSQL"
    )


def _has_form(column: _Part, literal: str) -> bool:
    """Check whether a literal has one meaning in a comparison with a column of this type."""
    form = _MOMENTS.get(column.kind)
    if form is not None:
        return form.fullmatch(literal) is not None
    if column.kind == "enum":
        return literal in column.labels
    return column.kind in _OF_ONE_TEXT or (column.kind == "uuid" and _UUID.fullmatch(literal) is not None)
