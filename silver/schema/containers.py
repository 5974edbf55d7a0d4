"""Convert arrays, composites, ranges, hstore and vectors from PostgreSQL's text, as Spark SQL.

One regular expression cuts each text into pieces: a separator and the following value, quoted or not. The
pieces must join to exactly the original text. Multi-dimensional arrays, custom lower bounds and any
unforeseen form fail this check and give NULL.

Formats: PostgreSQL docs, "Array Input and Output Syntax", "Composite Type Input and Output Syntax", "Range
Input/Output".
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, TypeAlias

from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Value: TypeAlias = Callable[[str, int], str]

# The quantifiers are possessive: Java then repeats a group in a loop instead of by recursion. So a quoted
# value of any length, with any number of escapes, neither overflows the stack nor backtracks.
# Inside quotes: arrays and hstore escape by a backslash; records and ranges double quotes and backslashes.
_ESCAPED: Final = r'"(?:[^"\\]++|\\.)*+"'
_DOUBLED: Final = r'"(?:[^"\\]++|""|\\\\)*+"'
_RECORD_PIECE: Final = rf'(?s),(?:{_DOUBLED}|[^,()"\\]*+)'
_HSTORE_PIECE: Final = rf"(?s), {_ESCAPED}=>(?:NULL|{_ESCAPED})"


def _let(expression: str, name: str, body: str) -> str:
    # Spark SQL's only "let", for a sub-expression that is needed twice.
    return f"transform(array({expression}), {name} -> {body})[0]"


def _inner(text: str, separator: str) -> str:
    """Return the text without its brackets, with a separator before the first piece."""
    return f"concat({literal(separator)}, substr({text}, 2, length({text}) - 2))"


def _pieces(subject: str, pattern: str) -> str:
    return f"regexp_extract_all({subject}, {literal(pattern)}, 0)"


def _unescape(piece: str, start: int) -> str:
    """Return the content of a quoted piece whose opening quote is at `start`, escapes resolved."""
    return (
        rf"regexp_replace(substr({piece}, {start + 1}, length({piece}) - {start + 1}), '(?s)\\\\(.)', '$1')"
    )


def array_value(text: str, depth: int, element: Value, *, delimiter: str, exact: bool) -> str:
    r"""Convert ``{1,NULL,"a\"b"}``: a one-dimensional array whose lower bound is 1."""
    pieces, piece, cell = f"p{depth}", f"e{depth}", f"t{depth}"
    pattern = rf'(?s){re.escape(delimiter)}(?:{_ESCAPED}|[^{re.escape(delimiter)}{{}}"\\]++)'
    unquoted = (
        f"CASE WHEN {piece} = {literal(delimiter + 'NULL')} THEN NULL "
        f"WHEN substr({piece}, 2, 1) = '\"' THEN {_unescape(piece, 2)} ELSE substr({piece}, 2) END"
    )
    texts = f"transform({pieces}, {piece} -> {unquoted})"
    if exact:
        value = element(cell, depth + 1)
        values = texts if value == cell else f"transform({texts}, {cell} -> {value})"
    else:
        pair = f"named_struct('t', {cell}, 'v', {element(cell, depth + 1)})"
        pairs = f"transform({texts}, {cell} -> {pair})"
        lost = f"exists(r{depth}, {cell} -> {cell}.t IS NOT NULL AND {cell}.v IS NULL)"
        values = _let(
            pairs, f"r{depth}", f"CASE WHEN NOT {lost} THEN transform(r{depth}, {cell} -> {cell}.v) END"
        )
    is_whole = f"concat('{{', substr(array_join({pieces}, ''), 2), '}}') = {text}"
    return _let(_pieces(_inner(text, delimiter), pattern), pieces, f"CASE WHEN {is_whole} THEN {values} END")


def _record(text: str, depth: int, count: int, body: Callable[[str], str], brackets: str) -> str:
    """Cut ``(a,"b c",)`` into `count` texts and build a value from the texts; NULL with other counts."""
    pieces, piece, cells = f"p{depth}", f"e{depth}", f"f{depth}"
    unquoted = (
        f"CASE WHEN {piece} = ',' THEN NULL WHEN substr({piece}, 2, 1) = '\"' "
        rf"THEN regexp_replace(substr({piece}, 3, length({piece}) - 3), '(?s)[\"\\\\](.)', '$1') "
        f"ELSE substr({piece}, 2) END"
    )
    is_whole = f"array_join({pieces}, '') = {_inner(text, ',')} AND size({pieces}) = {count} AND {brackets}"
    made = _let(f"transform({pieces}, {piece} -> {unquoted})", cells, body(cells))
    return _let(_pieces(_inner(text, ","), _RECORD_PIECE), pieces, f"CASE WHEN {is_whole} THEN {made} END")


def struct_value(text: str, depth: int, fields: Sequence[tuple[str, Value]]) -> str:
    """Convert ``(1,"a b",,"x""y")``: a composite. An empty field is NULL, ``""`` the empty string."""

    def body(cells: str) -> str:
        values = ", ".join(
            f"{literal(name)}, {value(f'{cells}[{position}]', depth + 1)}"
            for position, (name, value) in enumerate(fields)
        )
        struct = f"s{depth}"
        lost = " OR ".join(
            f"{cells}[{position}] IS NOT NULL AND {struct}.{quote(name)} IS NULL"
            for position, (name, _) in enumerate(fields)
        )
        return _let(f"named_struct({values})", struct, f"CASE WHEN NOT ({lost}) THEN {struct} END")

    return _record(text, depth, len(fields), body, f"{text} LIKE '(%)'")


def range_value(text: str, depth: int, bound: Value) -> str:
    """Convert ``[1,10)``, ``(,"a b"]``, ``empty``. An absent bound is NULL: the range is unbounded there."""

    def body(cells: str) -> str:
        lower, upper = bound(f"{cells}[0]", depth + 1), bound(f"{cells}[1]", depth + 1)
        struct = f"s{depth}"
        value = (
            f"named_struct('lower', {lower}, 'upper', {upper}, 'lower_inc', {text} LIKE '[%', "
            f"'upper_inc', {text} LIKE '%]', 'empty', false)"
        )
        lost = (
            f"{cells}[0] IS NOT NULL AND {struct}.lower IS NULL"
            f" OR {cells}[1] IS NOT NULL AND {struct}.upper IS NULL"
        )
        return _let(value, struct, f"CASE WHEN NOT ({lost}) THEN {struct} END")

    nothing = bound("CAST(NULL AS STRING)", depth + 1)
    empty = (
        f"named_struct('lower', {nothing}, 'upper', {nothing}, "
        f"'lower_inc', false, 'upper_inc', false, 'empty', true)"
    )
    brackets = f"{text} RLIKE '(?s)^[\\\\[(].*[\\\\])]$'"
    return f"CASE WHEN {text} = 'empty' THEN {empty} ELSE {_record(text, depth, 2, body, brackets)} END"


def hstore_value(text: str, depth: int) -> str:
    """Convert ``"a"=>"1", "b"=>NULL``: keys are unique."""
    pieces, piece = f"p{depth}", f"e{depth}"
    # A piece is `, "key"=>value`; the value starts after the key's closing quote and the arrow.
    key = f"regexp_extract({piece}, {literal(f'(?s)^, ({_ESCAPED})=>')}, 1)"
    value = f"substr({piece}, length(k{depth}) + 5)"
    entry = (
        f"named_struct('key', {_unescape(f'k{depth}', 1)}, "
        f"'value', CASE WHEN {value} = 'NULL' THEN NULL ELSE {_unescape(value, 1)} END)"
    )
    entries = f"transform({pieces}, {piece} -> {_let(key, f'k{depth}', entry)})"
    is_whole = f"substr(array_join({pieces}, ''), 3) = {text}"
    body = f"CASE WHEN {is_whole} THEN map_from_entries({entries}) END"
    return _let(_pieces(f"concat(', ', {text})", _HSTORE_PIECE), pieces, body)


def vector_value(text: str, depth: int) -> str:
    """Convert ``[1,2.5,3]``, the form of pgvector."""
    element, values = f"e{depth}", f"p{depth}"
    cells = f"split(substr({text}, 2, length({text}) - 2), ',')"
    lost = f"exists({values}, {element} -> {element} IS NULL)"
    return _let(
        f"transform({cells}, {element} -> try_cast({element} AS FLOAT))",
        values,
        f"CASE WHEN {text} LIKE '[%]' AND NOT {lost} THEN {values} END",
    )
