"""Find the rows of few keys in large tables: by lists of literals, or by a bitmap in a MERGE's condition.

A list (`lists_query`) is text that Spark parses and analyses value by value, so a list only pays for few
roots. For more roots, a MERGE filters rows by a `bitmap`, which skips no page. Neither changes a result: the
query also has a join on the keys.

Measured: a MERGE of 10,000 among a million documents shuffles 6 MB with the bitmap, and 205 MB without. A
cycle with 20 of 300,000 changed roots takes 7.6 CPU s with the lists, and 10.4 without.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BITS_PER_KEY: Final = 32
_WORD: Final = 64
MOST_KEYS: Final = 50_000
"""Largest number of keys for a bitmap: the bitmap's text has some ten bytes per key."""


def bitmap(columns: Sequence[str], relation: str, keys: int) -> str:
    """Return a query for the bitmap of a relation's keys, each once, as text in one row; tasks compute it.

    A MERGE that may insert uses an outer join from its source, and Spark shuffles and sorts the whole target,
    three times. A condition on the target alone drops most of the target's rows while reading them. The keys'
    hashes set bits in the bitmap, and a row of the target passes if its own bit is set. By chance one in
    thirty further rows passes too, until the join drops the row. (A Bloom filter of one hash.)
    """
    size = _size(keys)
    return (
        f"SELECT array_join(transform(sequence(0, {size // _WORD - 1}),\n"
        "  word -> string(coalesce(element_at(words, word), 0L))), ',') AS bitmap\n"
        "FROM (SELECT map_from_entries(collect_list(struct(word, bits))) AS words FROM (\n"
        f"  SELECT int(bit DIV {_WORD}) AS word, bit_or(shiftleft(1L, int(bit % {_WORD}))) AS bits\n"
        f"  FROM (SELECT {_bit(columns, size)} AS bit FROM {relation}) GROUP BY word))"
    )


def in_bitmap(columns: Sequence[str], marked: str, keys: int) -> str:
    """Return the condition that a row may have a key of a bitmap (`marked`, in its text form)."""
    # A literal of the statement, and no part of Spark's generated code: Spark compiles the code once, for all
    # windows.
    words = f"CAST(split({literal(marked)}, ',') AS ARRAY<BIGINT>)"
    bit = _bit(columns, _size(keys))
    return f"getbit(element_at({words}, 1 + int({bit} DIV {_WORD})), int({bit} % {_WORD})) = 1"


def _size(keys: int) -> int:
    """Return the number of bits of a bitmap: a power of two, at least one word."""
    return max(_WORD, 1 << (keys * _BITS_PER_KEY - 1).bit_length())


def _bit(columns: Sequence[str], size: int) -> str:
    return f"pmod(xxhash64({', '.join(columns)}), {size}L)"


# Spark passes a list to Parquet as nested conditions, one per value, and Java serializes them by recursion.
MOST_LISTED: Final = 500
"""Largest number of roots whose keys gold lists: half of the values that fit a thread's stack of a megabyte.
"""
_NUMBERS: Final = {"SMALLINT": "S", "INT": "", "BIGINT": "L"}
"""Types of numbers, with the suffix of a literal of the type."""
LOOKED_UP: Final = {
    # Spark passes the list itself to Parquet, not just the smallest and largest value.
    "spark.sql.parquet.pushdown.inFilterThreshold": str(MOST_LISTED),
    # The values are no part of Spark's generated code, so the code is the same for every list.
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
    # With this filter, Parquet would decode the dictionary of each row group once per value of a list.
    "parquet.filter.dictionary.enabled": "false",
}
"""Settings for a statement with lists."""


def lists_query(types: Sequence[str], relation: str) -> str | None:
    """Return a query for one row: for each listable column of a key, its values as text; None without any.

    A join finds rows only after reading them. The reader of a Parquet file instead skips pages by a list of
    literals (`column index`_): it reads only pages whose smallest and largest value allow a listed value. So
    gold finds the rows of a hundred roots among a million in some hundred pages. Two properties keep the
    number of pages low: rows in the order of the key, or of the foreign key, and short pages (`FINE_PAGES`).

    `types` are the Spark types of the key, whose columns are ``k0, k1 …`` in the relation.

    .. _column index: https://parquet.apache.org/docs/file-format/pageindex/
    """
    lists = [
        f"array_sort(collect_set(CAST(k{i} AS STRING))) AS k{i}"
        for i, type_ in enumerate(types)
        if type_ in _NUMBERS or type_ == "STRING"
    ]
    return f"SELECT {', '.join(lists)} FROM {relation}" if lists else None


def lists_of(types: Sequence[str], row: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of each listed column as literals: by ``k0, k1 …`` the content of ``IN (…)``."""
    return {
        f"k{i}": ", ".join(_literal(value, type_) for value in row[f"k{i}"])
        for i, type_ in enumerate(types)
        if f"k{i}" in row
    }


def _literal(value: str, type_: str) -> str:
    return literal(value) if type_ == "STRING" else f"{value}{_NUMBERS[type_]}"
