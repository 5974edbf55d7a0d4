"""List Spark's functions in the SQL of documents: allowed functions, forbidden words, functions of text.

The list names allowed functions. A new function of a newer Spark stays unknown until a developer has checked
that the function gives the same value for the same arguments, everywhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

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
    json_array_length json_object_keys last_day lcase least left len length levenshtein ln locate log
    log10 log1p log2 lower lpad ltrim luhn_check make_date make_dt_interval make_interval make_timestamp
    make_timestamp_ltz make_timestamp_ntz make_ym_interval map map_concat map_contains_key map_entries
    map_from_arrays map_keys map_values mask md5 minute mod month monthname months_between named_struct
    nanvl negative next_day nullif nullifzero nvl nvl2 octet_length overlay parse_url pi pmod position
    parse_json positive pow power printf quarter radians regexp_count regexp_extract regexp_extract_all
    regexp_instr regexp_like regexp_replace regexp_substr repeat replace reverse right rint round rpad
    rtrim sec second sequence sha sha1 sha2 shiftleft shiftright shiftrightunsigned sign signum sin sinh
    size slice smallint sort_array soundex space split split_part sqrt startswith str_to_map string struct
    substr substring substring_index tan tanh timestamp timestamp_micros timestamp_millis
    timestamp_seconds timestampadd timestampdiff tinyint to_binary to_char to_date to_json to_number
    to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp to_utc_timestamp to_varchar translate
    trim trunc try_add try_cast try_divide try_element_at try_mod try_multiply try_parse_json try_subtract
    try_to_binary try_to_number try_to_timestamp try_variant_get typeof ucase unbase64 unhex unix_date
    unix_micros unix_millis unix_seconds upper url_decode url_encode variant_get weekday weekofyear
    width_bucket xxhash64 year zeroifnull element_at try_to_date try_to_time
    """.split()  # noqa: SIM905 - a list of two hundred quoted words is not easier to read
)
"""Spark's scalar built-in functions that give the same value for the same arguments, everywhere."""

TEXT_FUNCTIONS: Final = frozenset(
    """
    array_join base64 bin btrim char chr concat_ws conv date_format dayname elt format_number format_string
    from_unixtime get_json_object hex initcap lcase left lower lpad ltrim mask md5 monthname overlay parse_url
    printf regexp_extract regexp_replace regexp_substr repeat replace right rpad rtrim sha sha1 sha2 soundex
    space split_part string substr substring substring_index to_char to_json to_varchar translate trim typeof
    ucase upper url_decode url_encode
    """.split()  # noqa: SIM905
)
"""Functions that convert arguments to text and return text (some return bytes for bytes)."""

TEXT_MAKERS: Final = TEXT_FUNCTIONS | frozenset(
    """concat decode reverse from_json json_object_keys parse_json regexp_extract_all slice split str_to_map
    try_parse_json try_variant_get unbase64 unhex to_binary try_to_binary flatten variant_get""".split()  # noqa: SIM905
)
"""Functions that can build or cut a text, so the expression does not show the resulting text."""

CHOOSERS: Final = frozenset(("coalesce", "greatest", "ifnull", "least", "nullif", "nvl"))
"""Functions that return an argument."""

CASTS: Final = frozenset(
    """bigint binary boolean date decimal double float int smallint string timestamp tinyint""".split()  # noqa: SIM905
)
"""Types with the syntax of a function."""

READ_AS_MOMENT: Final = dict.fromkeys(("to_timestamp", "to_timestamp_ltz", "try_to_timestamp"), "timestamp")
"""Functions that read a text as a timestamp: without a second argument, like a cast."""

MOMENT_ARGUMENTS: Final = {
    "date_format": (0,), "date_part": (1,), "date_trunc": (1,), "datepart": (1,), "from_utc_timestamp": (0,),
    "hour": (0,), "minute": (0,), "months_between": (0, 1), "second": (0,), "to_utc_timestamp": (0,),
    "unix_micros": (0,), "unix_millis": (0,), "unix_seconds": (0,),
}  # fmt: skip
"""Positions of arguments that Spark implicitly converts to timestamps."""

ELEMENTS: Final = frozenset(
    """array_append array_contains array_position array_prepend array_remove element_at get
    map_contains_key try_element_at""".split()  # noqa: SIM905
)
"""Functions of an array and an element, or of a map and a key."""

INDEXED: Final = frozenset(("element_at", "get", "try_element_at"))
"""Functions in `ELEMENTS` with the position of an element, or a key, as second argument."""

CONTAINERS: Final = frozenset(("array", "map", "named_struct"))
"""Functions that only combine arguments."""

RESULT_TYPES: Final = (
    CASTS | READ_AS_MOMENT.keys() | {"cast", "try_cast", "from_json", "try_variant_get", "variant_get"}
)
"""Functions that read texts as the type of the result."""

_COERCIONS: Final = {
    "one type": (CHOOSERS - {"nullif"}) | {"array", "sequence", "try_add", "try_subtract"},
    "compared": frozenset(("nullif", "equal_null")),
    "moved": frozenset(("sequence", "try_add", "try_subtract")),
    "arrays": frozenset(
        "array_except array_intersect array_union arrays_overlap concat map_concat".split()  # noqa: SIM905
    ),
    "element": ELEMENTS - INDEXED,
    "index": INDEXED,
}
_ONE_TYPE: Final = "one type"


def compared_in(name: str, count: int) -> Sequence[int]:
    """Return the positions of the arguments that a comparing function of `count` arguments compares."""
    indexes = range(count)
    if name != "decode":
        return indexes
    # Arguments of decode: the value, then pairs of a compared value and a result, then the default.
    return [0, *indexes[1 : count - 1 : 2]] if count > 2 else []


def result_places(name: str, count: int) -> Sequence[int]:
    """Return the positions of the arguments that a function may return whole or in part."""
    indexes = range(count)
    if name == "decode":
        return [place for place in indexes if place not in compared_in(name, count)] if count > 2 else []
    return indexes[1:] if name in {"if", "nvl2"} else indexes[:1] if name == "nullif" else indexes


def coercions_in(name: str, count: int) -> list[tuple[str, Sequence[int]]]:
    """Return the positions of coerced arguments of a function, with rules of `gold.expressions.coercions`."""
    indexes = range(count)
    meetings: list[tuple[str, Sequence[int]]] = [
        (coercion, indexes) for coercion, functions in _COERCIONS.items() if name in functions
    ]
    if name in {"if", "nvl2"}:
        meetings.append((_ONE_TYPE, result_places(name, count)))
    elif name == "map":
        meetings += [(_ONE_TYPE, indexes[::2]), (_ONE_TYPE, indexes[1::2])]
    elif name == "decode" and count > 2:
        meetings += [(_ONE_TYPE, compared_in(name, count)), (_ONE_TYPE, result_places(name, count))]
    elif name == "array_insert":
        meetings.append(("element", [0, *indexes[2:]]))
    elif name == "to_json":
        meetings.append(("as JSON", indexes[:1]))
    elif name in {"format_string", "printf"}:
        meetings += [("printed", [place]) for place in indexes[1:]]
    return meetings


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
    "a function that returns several rows": "explode posexplode inline stack",
}
REFUSED: Final = {word: reason for reason, words in _REASONS.items() for word in words.split()}
"""For frequent forbidden words: what the word would bring into a document."""

INSTEAD: Final = {
    "the clock": "compare with the current time in the query that reads the document",
    "unix_timestamp": "write unix_seconds(timestamp), or to_unix_timestamp(text, 'yyyy-MM-dd HH:mm:ss')",
    "current_timezone": "write 'UTC', the time zone of document builds",
    "an aggregate": "write a separate field: {sum: schema.table.column, on: {…}}",
    "a subquery": "write a separate field: {one: schema.table, on: {…}, fields: […]}",
    "a function that returns several rows": "keep the array: the document contains it nested",
}
"""For a forbidden word, or for the reason: the alternative to write."""
