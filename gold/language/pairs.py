"""How PostgreSQL compares values of two columns for equality, whose types may differ. Pure.

PostgreSQL picks the operator by both types, so one column may be compared by other rules beside another one:

* ``varchar`` beside ``char(n)`` becomes ``char(n)``: blanks at its end do not count. Beside ``text`` and
  ``name`` both are texts, and a ``char(n)`` has no blanks at its end.
* ``citext`` beside ``text`` becomes ``text``.
* ``int2`` and ``int4`` beside ``oid`` become ``oid``, which has no sign: -1 is 4294967295. There is no
  equality of ``oid`` and other numbers than whole ones.
* Numbers are compared exactly. Spark has 38 digits for both: beside DECIMAL(38,0) it rounds each fraction. So
  both become the type that holds what can be equal at all (`gold.language.types.shared`); a number that the
  type does not hold equals no value of the other column, and has NULL as its key.
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
    "char(n)": "count the blanks at its end, or not",
    "name": "cut each to the bytes of a name",
}
"""Types of texts, and what PostgreSQL does to other texts that become such a type."""
_SMALL: Final = ("int2", "int4")
_AS_OID: Final = Rule(lambda value: f"CAST({value} AS BIGINT) & 4294967295", "BIGINT", tag="oid")
_UNPADDED: Final = Rule(lambda value: f"rtrim({value})", "STRING", tag="unpadded", merges=True)


def unlike(one: Comparison, other: Comparison) -> str:
    """Return why PostgreSQL would not compare values of two types; empty where it would."""
    if one.family == other.family or {one.family, other.family} == {"citext", "text"}:
        return ""
    if {one.family, other.family} == {"oid", "number"} and {one.name, other.name} & {*_SMALL, "int8"}:
        return ""
    return f"PostgreSQL has no equality of {one.name} and {other.name}, or Spark has another"


def padded(one: Comparison, other: Comparison) -> bool:
    """Check whether blanks at the end of one value do not count beside the other: varchar beside char(n)."""
    return (one.name, other.name) == ("varchar", "char(n)")


def way_of_chosen(ways: Sequence[Comparison], *, beside_text: bool) -> Comparison | None:
    """Return how PostgreSQL compares one of several values, as ``coalesce`` gives; None: as Spark does.

    PostgreSQL gives all values the first one's type, in CASE that of ELSE; but ``name`` comes before other
    texts, and these before ``citext``. So ``varchar`` beside ``text`` may become either, which matters beside
    a ``char(n)`` alone. A choice among texts of which one is a ``char(n)`` or a ``name`` is refused.

    Args:
        ways: how each value is compared that is not compared as Spark does.
        beside_text: whether one of the values is ``text``.
    """
    names = {*(way.name for way in ways), *(["text"] if beside_text else [])}
    if len(names) < 2 or not {way.family for way in ways} <= {"text", "citext"}:
        return next(iter(ways), None)
    changed = next((way for way in ways if way.name in _CHANGED), None)
    if changed is None:
        return next((way for way in ways if way.name == "varchar"), None if beside_text else ways[0])
    rule = Rule(refused=f"beside other texts PostgreSQL may {_CHANGED[changed.name]}")
    return replace(changed, equality=rule, order=rule, remedy="cast each as string to compare their texts")


def rule_beside(mine: SilverColumn, theirs: SilverColumn) -> Rule:
    """Return how a column is compared for equality with another one of a like type."""
    one, other = comparison(mine), comparison(theirs)
    if one.equality.refused:
        return one.equality
    if other.family == "oid" and one.name in _SMALL:
        return _AS_OID
    if one.family != other.family or padded(other, one):
        return _NATIVE
    if padded(one, other):
        return _UNPADDED
    if types.rounded(mine.spark_type, theirs.spark_type):
        return _exact(types.shared(mine.spark_type, theirs.spark_type))
    # Of two rules for one type, one may come from a shape that was recorded with less.
    return max(one.equality, other.equality, key=lambda rule: (rule.refused, rule.tag))


def _exact(ddl: str) -> Rule:
    precision, scale = re.findall(r"\d+", ddl)
    return Rule(lambda value: f"try_cast({value} AS {ddl})", ddl, tag=f"{precision}_{scale}")
