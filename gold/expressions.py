"""The SQL that document files may hold: one scalar, deterministic expression over the columns of one row.

A document must be a function of silver's rows, or rebuilding it twice would give two results. So an
expression may use operators, literals, the row's columns and the functions named in `FUNCTIONS`; no
subquery, aggregate, window, clock, random number or session state can be written. The reader is a
tokenizer, not a parser: it knows which words are columns and which functions, and rewrites each column with
the row's alias, so that no name can mean another table's column. Whether the expression is well-formed
beyond that, Spark says when the document is compiled.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from gold.yaml_source import nearest, suggestion
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

FUNCTIONS: Final = frozenset(
    """
    abs acos acosh add_months array array_append array_compact array_contains array_distinct array_except
    array_insert array_intersect array_join array_max array_min array_position array_prepend array_remove
    array_repeat array_size array_sort array_union arrays_overlap arrays_zip ascii asin asinh atan atan2
    atanh base64 bigint bin binary bit_count bit_get bit_length boolean bround btrim cardinality cast cbrt
    ceil ceiling char char_length character_length chr coalesce concat concat_ws contains conv
    convert_timezone cos cosh cot crc32 csc date date_add date_diff date_format date_from_unix_date
    date_part date_sub date_trunc dateadd datediff datepart day dayname dayofmonth dayofweek dayofyear
    decimal decode degrees double elt encode endswith equal_null exp expm1 extract factorial find_in_set
    flatten float floor format_number format_string from_json from_unixtime from_utc_timestamp get
    get_json_object getbit greatest hash hex hour hypot if ifnull initcap instr int isnan isnotnull isnull
    json_array_length json_object_keys last_day lcase least left len length levenshtein ln locate log log10
    log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval make_timestamp
    make_timestamp_ltz make_timestamp_ntz make_ym_interval map map_concat map_contains_key map_entries
    map_from_arrays map_keys map_values mask md5 minute mod month monthname months_between named_struct
    nanvl negative next_day nullif nullifzero nvl nvl2 octet_length overlay parse_url pi pmod position
    positive pow power printf quarter radians regexp_count regexp_extract regexp_extract_all regexp_instr
    regexp_like regexp_replace regexp_substr repeat replace reverse right rint round rpad rtrim sec second
    sequence sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh size slice smallint
    sort_array soundex space split split_part sqrt startswith str_to_map string struct substr substring
    substring_index tan tanh timestamp timestamp_micros timestamp_millis timestamp_seconds timestampadd
    timestampdiff tinyint to_binary to_char to_date to_json to_number to_timestamp to_timestamp_ltz
    to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar translate trim trunc try_add try_cast
    try_divide try_element_at try_mod try_multiply try_parse_json try_subtract try_to_binary try_to_number
    try_to_timestamp typeof ucase unbase64 unhex unix_date unix_micros unix_millis unix_seconds upper
    url_decode url_encode weekday weekofyear width_bucket xxhash64 year zeroifnull element_at try_to_date
    try_to_time
    """.split()  # noqa: SIM905 - a list of two hundred quoted words is not easier to read
)
"""Spark's scalar built-in functions that give the same value for the same arguments, everywhere."""

_KEYWORDS: Final = frozenset(
    """all and any as between both case cast distinct div else end escape false for from ilike in is leading
    like not null or regexp rlike similar some then to trailing true when""".split()  # noqa: SIM905
)
_REASONS: Final = {
    "a subquery": "select with",
    "a subquery or a lambda": "exists",
    "a lambda": "transform aggregate reduce forall zip_with map_filter transform_keys transform_values",
    "an aggregate or a lambda": "filter",
    "an aggregate": "sum count avg min max collect_list collect_set first last any_value array_agg",
    "a window function": "over row_number rank dense_rank lag lead ntile",
    "the clock": """now current_date current_timestamp current_time localtimestamp curdate unix_timestamp
        current_timezone""",
    "chance": "rand random randn uuid shuffle randstr uniform monotonically_increasing_id",
    "the session": """current_user user session_user current_database current_schema current_catalog version
        input_file_name spark_partition_id""",
    "a function that gives several rows": "explode posexplode inline stack",
}
_REFUSED: Final = {word: reason for reason, words in _REASONS.items() for word in words.split()}
_UNITS: Final = frozenset(
    """year years quarter quarters month months week weeks day days hour hours minute minutes second seconds
    millisecond milliseconds microsecond microseconds dow doy epoch isodow dayofweek dayofyear""".split()  # noqa: SIM905
)

_TOKEN: Final = re.compile(
    r"""(?P<space>\s+)
      | (?P<text>[rR]?'(?:[^'\\]|\\.|'')*'|\b[xX]'[0-9a-fA-F]*')
      | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?:BD|[LSYDF](?![A-Za-z0-9_]))?)
      | (?P<quoted>`(?:[^`]|``)+`)
      | (?P<word>[^\W\d]\w*)
      | (?P<comment>--|/\*)
      | (?P<operator><=>|->|=>|::|<>|!=|<=|>=|\|\||==|<<|>>|[-+*/%=<>(),.\[\]&|^~!])
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class ColumnReference:
    """A column of the row that an expression speaks of."""

    name: str


@dataclass(frozen=True, slots=True)
class Expression:
    """A scalar expression with its columns found.

    Attributes:
        parts: SQL text and column references, in order.
    """

    parts: tuple[str | ColumnReference, ...]

    @property
    def columns(self) -> frozenset[str]:
        """Columns that it reads."""
        return frozenset(part.name for part in self.parts if isinstance(part, ColumnReference))

    def __str__(self) -> str:
        """The expression as the document file has it, but for white space and the case of column names."""
        return "".join(part if isinstance(part, str) else part.name for part in self.parts)

    def sql(self, alias: str) -> str:
        """The expression with every column taken from `alias`."""
        return "".join(part if isinstance(part, str) else quote(alias, part.name) for part in self.parts)


def column(name: str) -> Expression:
    """A column alone."""
    return Expression((ColumnReference(name),))


def parse_expression(text: str, columns: Sequence[str], table: str) -> Expression:
    """Read an expression over a row of `table`. Column names are found whatever their case, as SQL does.

    Raises:
        ValueError: what it may not hold, or a word that is no column of the table.
    """
    tokens = _tokens(text)
    by_lower = {name.lower(): name for name in columns}
    parts: list[str | ColumnReference] = []
    index = 0
    while index < len(tokens):
        kind, token = tokens[index]
        lower = token.lower()
        following = _next(tokens, index)
        if kind == "word" and lower == "interval" and _next_kind(tokens, index) in {"text", "number"}:
            end = _interval_end(tokens, index)
        elif kind == "word" and lower == "as":
            end = _type_end(tokens, index)
        elif kind == "word" and following == "from" and _previous(tokens, index) == "(" and lower in _UNITS:
            end = index + 1  # extract(year FROM …)
        else:
            end = index
        if end > index:
            parts.append("".join(token for _, token in tokens[index:end]))
            index = end
            continue
        around = (_previous(tokens, index), following)
        parts.append(_part(kind, token, around, by_lower, table))
        index += 1
    _balanced(tokens)
    return Expression(_joined(parts))


def _tokens(text: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            character = text[position]
            hints = {
                '"': "write columns as they are or in `backticks`, text in 'single quotes'",
                "'": "a text that does not end",
                "`": "a name that does not end",
                ";": "one expression only",
            }
            raise ValueError(
                f"{character!r} cannot stand here" + (f": {hints[character]}" if character in hints else "")
            )
        kind = match.lastgroup or ""
        if kind == "comment":
            raise ValueError("comments cannot stand in an expression; write them as YAML comments")
        if match[0] in {"->", "=>"}:
            raise ValueError(f"{match[0]!r}: lambdas and named arguments cannot be used")
        if match[0] == "::":
            raise ValueError("'::' cannot be used; write cast(… as …)")
        tokens.append((kind, match[0]))
        position = match.end()
    return tokens


def _part(
    kind: str, token: str, around: tuple[str, str], by_lower: dict[str, str], table: str
) -> str | ColumnReference:
    """One token, between its neighbours `around`.

    Raises:
        ValueError: a word that may not stand here.
    """
    previous, following = around
    if kind not in {"word", "quoted"}:
        return token
    name = token[1:-1].replace("``", "`") if kind == "quoted" else token
    lower = name.lower()
    if previous == ".":
        return quote(name)  # a field of a struct column
    if kind == "word":
        if following == "(" and lower in FUNCTIONS:
            return token
        if lower in _REFUSED and (following == "(" or lower not in by_lower):
            raise ValueError(
                f"{name!r} is not possible here: {_REFUSED[lower]} (a field is a function of its row)"
            )
        if lower in _KEYWORDS:
            return token
        if following == "(":
            near = nearest(lower, FUNCTIONS)
            hint = f"; did you mean {near!r}?" if near else ""
            raise ValueError(f"{name!r} is not a known deterministic function of one row{hint}")
        if following[:1] == "'" and lower in {"date", "timestamp", "timestamp_ntz", "timestamp_ltz"}:
            return token  # a typed literal: date '2024-01-01'
    if lower not in by_lower:
        raise ValueError(f"{table} has no column {name!r}{suggestion(name, by_lower.values())}")
    return ColumnReference(by_lower[lower])


def _next(tokens: list[tuple[str, str]], index: int) -> str:
    return next((token.lower() for kind, token in tokens[index + 1 :] if kind != "space"), "")


def _next_kind(tokens: list[tuple[str, str]], index: int) -> str:
    return next((kind for kind, _ in tokens[index + 1 :] if kind != "space"), "")


def _previous(tokens: list[tuple[str, str]], index: int) -> str:
    return next((token.lower() for kind, token in reversed(tokens[:index]) if kind != "space"), "")


def _interval_end(tokens: list[tuple[str, str]], start: int) -> int:
    """Index after ``INTERVAL '1' day``, ``INTERVAL '1-2' year to month``, ``INTERVAL 1 day 2 hours``."""
    end = start + 1
    for index in range(start + 1, len(tokens)):
        kind, token = tokens[index]
        if kind in {"text", "number"} or (kind == "word" and token.lower() in {*_UNITS, "to"}):
            end = index + 1
        elif kind != "space":
            break
    return end


def _type_end(tokens: list[tuple[str, str]], start: int) -> int:
    """Index after ``AS`` and a type, up to the parenthesis that closes the cast."""
    depth = 0
    for index in range(start + 1, len(tokens)):
        kind, piece = tokens[index]
        if piece == "(":
            depth += 1
        elif piece == ")":
            depth -= 1
            if depth < 0:
                return index
        elif kind not in {"space", "word", "number"} and piece not in {"<", ">", ",", ">>"}:
            break
    raise ValueError("'as' belongs into cast(… as type)")


def _balanced(tokens: list[tuple[str, str]]) -> None:
    pairs = {")": "(", "]": "["}
    opened: list[str] = []
    for kind, piece in tokens:
        if kind != "operator":
            continue
        if piece in pairs.values():
            opened.append(piece)
        elif piece in pairs and (not opened or opened.pop() != pairs[piece]):
            raise ValueError(f"{piece!r} closes nothing")
        elif piece == "," and not opened:
            raise ValueError("',' cannot stand here: one expression only")
    if opened:
        raise ValueError(f"{opened[-1]!r} is never closed")


def _joined(parts: list[str | ColumnReference]) -> tuple[str | ColumnReference, ...]:
    """Neighbouring texts as one, runs of white space as one space."""
    joined: list[str | ColumnReference] = []
    for part in parts:
        text = " " if isinstance(part, str) and part.isspace() else part
        if isinstance(text, str) and joined and isinstance(joined[-1], str):
            joined[-1] += text
        else:
            joined.append(text)
    return tuple(joined)
