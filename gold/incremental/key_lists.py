"""Finding the rows of a few roots in large tables: their keys as literals, which Parquet looks up by page.

A join finds rows only after they are read. A list of literals is given to the reader of a file, and that
reads nothing but the pages whose smallest and largest value let one of the list be there (`column index`_).
So the rows of a hundred roots among a million are found in some hundred pages. Two things make pages few:
rows in the order of the key, or of the foreign key, and short pages (`FINE_PAGES`).

A list is text that Spark parses and analyses value by value, so it is only worth it for a few. For more roots
a MERGE filters rows by `gold.incremental.key_lists`, which skips no page.

A list restricts nothing: a join on the same keys stands beside it. So it changes no row that is found.

.. _column index: https://parquet.apache.org/docs/file-format/pageindex/

Finding the documents of some keys in a large gold table: a condition on the target of a MERGE alone.

A MERGE that may insert joins outwards from its source. For that Spark shuffles and sorts the whole target,
three times. A condition on the target alone drops most of its rows where they are read. A list of the keys
would be such a condition, but it is text that Spark analyses value by value.

Instead the keys' hashes set bits in a bitmap, and a row of the target is read on if its own bit is set. By
chance, so is one in thirty others, which the join then drops. (It is a Bloom filter of one hash.) The bitmap
is one literal of the statement and no part of the code that Spark generates. So that code is the same for
every window, and compiled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_BITS_PER_KEY: Final = 32
_WORD: Final = 64
MOST_KEYS: Final = 50_000
"""Keys up to which a bitmap is made: its text has some ten bytes for each."""


def bitmap(columns: Sequence[str], relation: str, keys: int) -> str:
    """A query for the bitmap of the keys of a relation, as text in one row: made by Spark, not by the driver.

    Args:
        columns: the key's.
        relation: has every key once.
        keys: how many there are.
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
    """The condition that a row may have one of the keys of a bitmap.

    Args:
        columns: the key's, of the target.
        marked: the bitmap, as text.
        keys: how many it was made for.
    """
    words = f"CAST(split({literal(marked)}, ',') AS ARRAY<BIGINT>)"
    bit = _bit(columns, _size(keys))
    return f"getbit(element_at({words}, 1 + int({bit} DIV {_WORD})), int({bit} % {_WORD})) = 1"


def _size(keys: int) -> int:
    """Bits of a bitmap: a power of two, at least a word."""
    return max(_WORD, 1 << (keys * _BITS_PER_KEY - 1).bit_length())


def _bit(columns: Sequence[str], size: int) -> str:
    return f"pmod(xxhash64({', '.join(columns)}), {size}L)"


MOST_LISTED: Final = 500
"""Roots up to which their keys are listed.

Spark gives a list to Parquet as that many conditions within one another, which Java serializes by recursion.
Twice as many pass on a thread's stack of a megabyte.
"""
_NUMBERS: Final = {"SMALLINT": "S", "INT": "", "BIGINT": "L"}
"""Types of numbers, with the letter that makes a literal one of them."""
LOOKED_UP: Final = {
    # Parquet gets the list itself, and not just its smallest and largest value.
    "spark.sql.parquet.pushdown.inFilterThreshold": str(MOST_LISTED),
    # The values are no part of the code that Spark generates: it is the same for every list.
    "spark.sql.optimizer.inSetSwitchThreshold": "0",
    # For each value of a list, Parquet would decode the dictionary of each row group once more.
    "parquet.filter.dictionary.enabled": "false",
}
"""Settings for a statement with lists."""


def lists_query(types: Sequence[str], relation: str) -> str | None:
    """A query for one row: for each column of a key that can be listed, its values as text.

    Args:
        types: the Spark types of the key, whose columns are ``k0, k1 …`` in the relation.
        relation: the keys.

    Returns:
        None where no column can be.
    """
    found = [
        f"array_sort(collect_set(CAST(k{i} AS STRING))) AS k{i}"
        for i, type_ in enumerate(types)
        if type_ in _NUMBERS or type_ == "STRING"
    ]
    return f"SELECT {', '.join(found)} FROM {relation}" if found else None


def lists_of(types: Sequence[str], row: Mapping[str, Any]) -> dict[str, str]:
    """The values of each listed column as literals: by ``k0, k1 …`` what stands within ``IN (…)``.

    Args:
        types: as for the query.
        row: what the query gave.
    """
    return {
        f"k{i}": ", ".join(_literal(value, type_) for value in row[f"k{i}"])
        for i, type_ in enumerate(types)
        if f"k{i}" in row
    }


def _literal(value: str, type_: str) -> str:
    return literal(value) if type_ == "STRING" else f"{value}{_NUMBERS[type_]}"
