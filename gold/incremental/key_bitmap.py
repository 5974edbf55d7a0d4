"""Finding the documents of some keys in a large gold table: a condition on the target of a MERGE alone.

A MERGE that may insert joins outwards from its source. For that Spark shuffles and sorts the whole target,
three times. A condition on the target alone drops most of its rows where they are read. A list of the keys
would be such a condition, but it is text that Spark analyses value by value.

Instead the keys' hashes set bits in a bitmap, and a row of the target is read on if its own bit is set. By
chance, so is one in thirty others, which the join then drops. (It is a Bloom filter of one hash.) The bitmap
is one literal of the statement and no part of the code that Spark generates. So that code is the same for
every window, and compiled once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Sequence

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
