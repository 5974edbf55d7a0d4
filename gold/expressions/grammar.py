"""Parse SQL in documents: the scalar part of Spark's own grammar, read strictly. Pure.

A word may be a column, a function, a field, an alias, a type, a unit or a part of an operator. As in Spark's
grammar, only the position of a word decides. The parser refuses a doubtful word. Three rules keep this
reading and Spark's reading the same:

* The parser writes every column with the row's alias and in backticks, and every field and every alias in
  backticks. So no other word remains at a position where Spark could read a column.
* The rest of the text reaches Spark unchanged, token by token. So functions and operators have Spark's
  meaning.
* Before a build of a document, Spark analyses the document over tables with only the columns read
  (`gold.compile.column_types`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.config.suggestions import nearest, suggestion
from deltasmelt.gold.expressions import clock_texts
from deltasmelt.gold.expressions.clock_texts import NULL, Operand
from deltasmelt.gold.expressions.compared import Known, check_called, check_cast, is_whole, way_of
from deltasmelt.gold.expressions.functions import (
    CASTS,
    CHOOSERS,
    CONTAINERS,
    ELEMENTS,
    FUNCTIONS,
    MOMENT_ARGUMENTS,
    READ_AS_MOMENT,
    REFUSED,
    RESULT_TYPES,
    TEXT_MAKERS,
    coercions_in,
    result_places,
)
from deltasmelt.gold.expressions.operators import Operators, both, constant, made
from deltasmelt.gold.expressions.scanner import ColumnReference
from deltasmelt.gold.expressions.tokens import END
from deltasmelt.gold.language import types

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from deltasmelt.gold.expressions.tokens import Token

_KEYWORDS: Final = frozenset(
    """all and any as between both case distinct div else end escape false for from ilike in is leading like
    not null or placing regexp rlike some then to trailing true unknown when""".split()  # noqa: SIM905
)
"""Words of the grammar."""

_UNITS: Final = frozenset(
    """year years quarter quarters month months week weeks day days hour hours minute minutes second seconds
    millisecond milliseconds microsecond microseconds dow doy epoch isodow dayofweek dayofyear""".split()  # noqa: SIM905
)
_WHOLE_UNITS: Final = frozenset(
    "year quarter month week day dayofyear hour minute second millisecond microsecond".split()  # noqa: SIM905
)
"""Units of `_WITH_UNIT`; Spark knows only their singular."""

_TYPED: Final = frozenset(("date", "timestamp", "timestamp_ntz", "timestamp_ltz"))
_OF_ONE_TYPE: Final = frozenset(("array", "pow", "power"))
"""Functions that convert all arguments to double if an argument is a double."""
_WITH_UNIT: Final = frozenset(
    ("timestampadd", "dateadd", "date_add", "timestampdiff", "datediff", "date_diff")
)


# A general SQL parser does not help. sqlglot silently accepts forbidden parts (aliases, hints, lambdas).
# sqlglot also writes some of Spark's functions as functions with another result for NULL or times:
# ``array_size`` as ``size``, ``datediff`` as a difference of days of clock time.
class ExpressionParser(Operators):
    """Parser of one expression."""

    def __init__(self, text: str, columns: Mapping[str, str | Known], table: str) -> None:
        super().__init__(text)
        self._columns = {
            name.lower(): (name, column if isinstance(column, Known) else Known(column))
            for name, column in columns.items()
        }
        self._table = table
        self._call_arguments: Sequence[Operand] = []
        self._special: dict[str, Callable[[str], Operand]] = {
            "cast": self._cast, "try_cast": self._cast, "extract": self._extract, "trim": self._trim,
            "substring": self._substring, "substr": self._substring, "position": self._position,
            "overlay": self._overlay, "struct": self._struct,
        }  # fmt: skip

    def whole(self) -> None:
        """Parse the expression to its end; raise a ValueError for a forbidden part."""
        self._expression()
        token = self._next
        if token is END:
            return
        if token.lower == ",":
            raise ValueError("',' is not allowed here: write only one expression")
        if token.lower == "as":
            raise ValueError("'as' belongs in cast(… as type) and struct(… as name)")
        raise self._unexpected()

    def _primary(self) -> Operand:
        token = self._next
        if token.kind == "text":
            self._take()
            if self._next.kind == "text":
                raise self._unexpected()
            return clock_texts.of_text(token.value)
        if token.kind in {"number", "bytes"}:
            self._take()
            if token.kind == "bytes":
                return Operand("bytes", constant=True, literal=True)
            number = types.of_number(token.text)
            exponent = token.text if types.is_scientific(token.text) else ""
            return Operand(constant=True, literal=True, name=token.text, number=number, exponent=exponent)
        if token.kind == "quoted":
            return self._column()
        if token.lower == "(":
            self._take()
            operand = self._expression()
            if self._is(","):
                raise ValueError("',' is not allowed here: parentheses contain one value; write struct(…)")
            self._must(")")
            return replace(operand, operator="")
        if token.kind == "word":
            return self._word(token)
        raise self._unexpected()

    def _word(self, token: Token) -> Operand:
        word, following = token.lower, self._after()
        if word == "case":
            return self._case()
        if following.lower == "(":
            return self._call(token)
        if word in {"null", "true", "false"}:
            self._take()
            return NULL if word == "null" else Operand(constant=True, literal=True)
        if word == "interval" and self._is_interval():
            return self._interval()
        if word in _TYPED and following.kind == "text":
            clock_texts.check_typed(word, following.value)
            self._take()
            self._take()
            return replace(clock_texts.of_type(word, constant=True), literal=True)
        if word in REFUSED and word not in self._columns:
            raise self._refused(token)
        # Spark reads most of these words as columns if no further reading fits. Documents must write such a
        # column in backticks, so that a typing error does not become a column.
        if word in _KEYWORDS:
            if word in self._columns:
                raise ValueError(f"{token.text!r} is a word of SQL: write the column in backticks, `{word}`")
            raise self._unexpected()
        return self._column()

    def _column(self) -> Operand:
        token = self._next
        column_of_name = self._columns.get(token.name.lower())
        if column_of_name is None:
            hint = suggestion(token.name, [name for name, _ in self._columns.values()])
            raise ValueError(f"{self._table} has no column {token.name!r}{hint}")
        name, column = column_of_name
        self._take(ColumnReference(name))
        return replace(clock_texts.of_type(column.ddl), way=column.way, name=name, lost=column.may_lose)

    def _case(self) -> Operand:
        self._take()
        compares = not self._is("when")
        conditions = [self._expression()] if compares else []
        results = []
        if not self._is("when"):
            raise self._unexpected("when")
        while self._may("when"):
            conditions.append(self._expression())
            self._must("then")
            results.append(self._expression())
        if self._may("else"):
            results.append(self._expression())
        self._must("end")
        if compares:
            self._compared("=", *conditions)
        self._meet("one type", results)
        return self._chosen(results, constant=constant([*conditions, *results]))

    def _is_interval(self) -> bool:
        """Check whether ``interval`` begins a literal: a value follows, and after a sign also a unit."""
        signed = self._after().lower in {"-", "+"}
        value, unit = self._after(1 + signed), self._after(2 + signed)
        if value.kind == "text" and not signed:
            return True
        return value.kind in {"text", "number"} and unit.lower in _UNITS

    def _interval(self) -> Operand:
        """Parse ``INTERVAL '1' day``, ``INTERVAL '1-2' year to month``, ``INTERVAL 1 day 2 hours``."""
        self._take()
        self._may("-", "+")
        while True:
            self._take()
            if self._may(*_UNITS) and self._is("to") and self._after().lower in _UNITS:
                self._take()
                self._take()
            if self._next.kind not in {"text", "number"} or self._after().lower not in _UNITS:
                return Operand(constant=True, literal=True)

    def _call(self, token: Token) -> Operand:
        name = token.lower
        if name not in FUNCTIONS:
            if name in REFUSED:
                raise self._refused(token)
            if name in _KEYWORDS:
                raise self._unexpected()
            near = nearest(name, FUNCTIONS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"{token.text!r} is not a known deterministic function of one row{hint}")
        start = self._place
        self._take()
        self._take()
        operand = self._special.get(name, self._arguments)(name)
        self._must(")")
        if (
            name in {"isnull", "isnotnull"}
            and len(self._call_arguments) == 1
            and self._call_arguments[0].lost
        ):
            self._seen_as_null(start, self._call_arguments[0].name, negated=name == "isnotnull")
        by_form = name in READ_AS_MOMENT and len(self._call_arguments) > 1
        if (
            name in RESULT_TYPES
            and not by_form
            and not any(argument.whole for argument in self._call_arguments)
        ):
            self._meet("result", [*self._call_arguments, self._since(start, replace(operand, literal=False))])
        self._call_arguments = []
        return operand

    def _arguments(self, name: str) -> Operand:
        """Parse the arguments of a function, up to its closing parenthesis."""
        if (
            name in _WITH_UNIT
            and self._after().lower == ","
            and self._next.lower in _WHOLE_UNITS
            and self._commas() == 2
        ):
            self._take()
            self._take()
            operands = [self._expression(), *self._rest()]
            self._as_moments(operands)
            return clock_texts.of_type(
                "timestamp" if "add" in name else "bigint", constant=constant(operands)
            )
        return self._called(name, [] if self._is(")") else [self._expression(), *self._rest()])

    def _commas(self) -> int:
        """Return the number of commas between the following arguments."""
        depth = commas = 0
        for token in self._tokens[self._place :]:
            if token.lower in {"(", "["}:
                depth += 1
            elif token.lower in {")", "]"}:
                if depth == 0:
                    break
                depth -= 1
            elif token.lower == "," and depth == 0:
                commas += 1
        return commas

    def _as_moments(self, operands: Sequence[Operand]) -> None:
        """Check values that Spark converts to timestamps."""
        clock_texts.check_read(*operands, ddl="timestamp")
        for operand in operands:
            self._meet("moment", [operand])

    def _called(self, name: str, operands: Sequence[Operand]) -> Operand:
        """Return the operand of a function's result for these arguments."""
        of_literals, self._call_arguments = constant(operands), operands
        if name not in CHOOSERS | CASTS | {"if", "nvl2"}:
            clock_texts.check_written(operands, of_one_type=name in _OF_ONE_TYPE)
        check_called(name, operands)
        way, column = way_of(name, operands)
        return replace(self._result(name, operands, of_literals=of_literals), way=way, name=column)

    def _result(self, name: str, operands: Sequence[Operand], *, of_literals: bool) -> Operand:
        for place in MOMENT_ARGUMENTS.get(name, ()):
            self._as_moments(operands[place : place + 1])
        for coercion, places in coercions_in(name, len(operands)):
            self._meet(coercion, [operands[place] for place in places])
        if name == "typeof":
            return Operand("text", constant=True)  # for Spark typeof is a constant, whatever its columns
        if name in TEXT_MAKERS:
            return made(name, operands)
        if name in CHOOSERS:
            results = [operands[place] for place in result_places(name, len(operands))]
            return self._chosen(operands, constant=of_literals, results=results)
        if name in {"if", "nvl2"}:
            return self._chosen(operands[1:], constant=of_literals)
        if len(operands) == 1 and (name in CASTS or name in READ_AS_MOMENT):
            ddl = name if name in CASTS else "timestamp"
            clock_texts.check_read(*operands, ddl=ddl)
            check_cast(operands[0], ddl)
            return clock_texts.of_type(ddl, constant=of_literals)
        return self._plain(name, operands)

    @staticmethod
    def _plain(name: str, operands: Sequence[Operand]) -> Operand:
        """Return the operand of the result of a function without special rules."""
        in_texts = name in ELEMENTS and operands and operands[0].kind == "texts"
        clock_texts.refuse([operand for operand in operands if not (in_texts and operand.kind == "text")])
        literal = name in CONTAINERS and all(operand.literal for operand in operands)
        if name == "array" and operands and all(operand.kind == "text" for operand in operands):
            return Operand("texts", constant(operands), literal=literal)
        result = clock_texts.of_type(READ_AS_MOMENT.get(name, ""), constant=constant(operands))
        return replace(result, literal=literal, whole=is_whole(name, operands))

    # Calls with a special grammar; each method stops before the closing parenthesis.

    def _cast(self, _name: str) -> Operand:
        operand = self._expression()
        self._must("as")
        ddl = self._type()
        clock_texts.check_read(operand, ddl=ddl)
        check_cast(operand, ddl)
        self._call_arguments = [operand]
        return replace(clock_texts.of_type(ddl, constant=operand.constant), clock=operand.clock)

    def _extract(self, _name: str) -> Operand:
        if not self._is(*_UNITS):
            raise self._unexpected("year")
        self._take()
        self._must("from")
        operand = self._value()
        self._as_moments([operand])
        return Operand(constant=operand.constant)

    def _trim(self, name: str) -> Operand:
        operands = []
        side = self._may("both", "leading", "trailing")
        if not self._is("from"):
            operands.append(self._expression())
        if self._may("from"):
            operands.append(self._expression())
        elif side:
            raise self._unexpected("from")
        return self._called(name, [*operands, *self._rest()])

    def _substring(self, name: str) -> Operand:
        operands = [self._value()]
        if self._may("from"):
            operands.append(self._value())
            if self._may("for"):
                operands.append(self._value())
        return self._called(name, [*operands, *self._rest()])

    def _position(self, _name: str) -> Operand:
        operands = [self._value()]
        if self._may("in"):
            operands.append(self._value())
        operands += self._rest()
        return both(*operands)

    def _overlay(self, name: str) -> Operand:
        operands = [self._value()]
        if self._may("placing"):
            operands.append(self._value())
            self._must("from")
            operands.append(self._value())
            if self._may("for"):
                operands.append(self._value())
        return self._called(name, [*operands, *self._rest()])

    def _struct(self, _name: str) -> Operand:
        operands: list[Operand] = []
        while not self._is(")") or operands:
            operands.append(self._expression())
            if self._may("as"):
                self._name()
            if not self._may(","):
                break
        clock_texts.refuse(operands)
        clock_texts.check_written(operands)
        return replace(both(*operands), literal=all(operand.literal for operand in operands))
