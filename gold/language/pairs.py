"""Decide how PostgreSQL compares values of two columns for equality, whose types may differ. Pure.

PostgreSQL chooses the operator by both types, so the rule for a column depends on the type of the second
column:

* ``varchar`` with ``char(n)`` becomes ``char(n)``: trailing blanks do not count. With ``text`` and ``name``
  both are texts, and a ``char(n)`` has no trailing blanks.
* ``citext`` with ``text`` becomes ``text``.
* ``int2`` and ``int4`` with ``oid`` become ``oid``, which has no sign: -1 is 4294967295. PostgreSQL has no
  equality of ``oid`` and numbers other than whole numbers.
* PostgreSQL compares numbers exactly. Spark has 38 digits for both numbers: with DECIMAL(38,0) Spark rounds
  each fraction. So gold casts both to the type of all numbers that can be equal
  (`gold.language.types.shared`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from deltasmelt.gold.language import types
from deltasmelt.gold.language.comparing import Rule, comparison

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.language.comparing import Comparison
    from deltasmelt.silver.schema.catalog import SilverColumn

_NATIVE: Final = Rule()
_CHANGED: Final = {
    "char(n)": "ignore or count trailing blanks",
    "name": "cut each text to the length of a name",
}
"""Types of text, with PostgreSQL's change of a text on a cast to the type."""
_SMALL: Final = ("int2", "int4")
_AS_OID: Final = Rule(lambda value: f"CAST({value} AS BIGINT) & 4294967295", "BIGINT", tag="oid")
_UNPADDED: Final = Rule(lambda value: f"rtrim({value})", "STRING", tag="unpadded", merges=True)


def unlike(first: Comparison, second: Comparison) -> str:
    """Return why PostgreSQL would not compare values of two types; empty if PostgreSQL would."""
    if first.family == second.family or {first.family, second.family} == {"citext", "text"}:
        return ""
    if {first.family, second.family} == {"oid", "number"} and {first.name, second.name} & {*_SMALL, "int8"}:
        return ""
    return f"PostgreSQL has no equality of {first.name} and {second.name}, or Spark's equality differs"


def padded(first: Comparison, second: Comparison) -> bool:
    """Check whether trailing blanks of the first value do not count: varchar with char(n)."""
    return (first.name, second.name) == ("varchar", "char(n)")


def way_of_chosen(ways: Sequence[Comparison], *, with_text: bool) -> Comparison | None:
    """Return the comparison of a value chosen among several, as by ``coalesce``; None: Spark's own.

    `ways` are the comparisons of the values that Spark's own comparison does not fit; with `with_text` at
    least one value is ``text``.
    """
    names = {*(way.name for way in ways), *(["text"] if with_text else [])}
    if len(names) < 2 or not {way.family for way in ways} <= {"text", "citext"}:
        return next(iter(ways), None)
    # PostgreSQL casts all values to the type of the first value, in CASE to the type of ELSE. But `name`
    # precedes all texts, and all texts precede `citext`. So a choice of `varchar` and `text` may become
    # either type, which matters only in a comparison with a `char(n)`.
    changed = next((way for way in ways if way.name in _CHANGED), None)
    if changed is None:
        return next((way for way in ways if way.name == "varchar"), None if with_text else ways[0])
    rule = Rule(refused=f"with other texts PostgreSQL may {_CHANGED[changed.name]}")
    return replace(changed, equality=rule, order=rule, remedy="cast each as string to compare their texts")


def equality_rule(mine: SilverColumn, theirs: SilverColumn) -> Rule:
    """Return the rule for the equality of a column with a second column of a like type."""
    left, right = comparison(mine), comparison(theirs)
    if left.equality.refused:
        return left.equality
    if right.family == "oid" and left.name in _SMALL:
        return _AS_OID
    if left.family != right.family or padded(right, left):
        return _NATIVE
    if padded(left, right):
        return _UNPADDED
    if types.rounded(mine.spark_type, theirs.spark_type):
        return _exact(types.shared(mine.spark_type, theirs.spark_type))
    # The two rules may differ for one type, if an older shape was recorded with fewer properties.
    return max(left.equality, right.equality, key=lambda rule: (rule.refused, rule.tag))


def _exact(ddl: str) -> Rule:
    precision, scale = re.findall(r"\d+", ddl)
    # A number that this type does not hold equals no value of the second column, and its key is NULL.
    return Rule(lambda value: f"try_cast({value} AS {ddl})", ddl, tag=f"{precision}_{scale}")
