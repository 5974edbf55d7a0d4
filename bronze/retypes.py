"""Whether a value of one type reads the same after its column got another type."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bronze.builtin_types import numeric_digits, numeric_modifier

if TYPE_CHECKING:
    from bronze.shapes import PgType

SAME_TEXT = frozenset({"varchar", "text"})


_DIGITS = 38
"""Digits up to which a numeric is more to silver than its text."""


def same_text(before: PgType, now: PgType, *, inside: bool = False) -> bool:
    """Whether a value that was not rewritten prints the same text under both types, which reads as the same.

    A numeric that loses its precision keeps its text, but not what silver reads it as. Nor does one with more
    digits inside of an array or a composite, or a composite whose attribute has another name.

    Args:
        before: the type of then.
        now: the type of now.
        inside: they are of an element, an attribute or a bound.
    """
    if before.oid != now.oid:
        return {before.name, now.name} <= SAME_TEXT
    if before.labels and not set(before.labels) <= set(now.labels):
        return False  # a label was renamed
    if (
        before.name == "numeric"
        and before.typmod != now.typmod
        and (inside or not _holds(before.typmod, now.typmod))
    ):
        return False
    if (before.element is None) != (now.element is None):
        return False
    if [name for name, _ in before.fields] != [name for name, _ in now.fields]:
        return False
    inside = inside or before.kind != "domain"
    parts = [(old, new) for (_, old), (_, new) in zip(before.fields, now.fields, strict=True)]
    if before.element is not None and now.element is not None:
        parts.append((before.element, now.element))
    return all(same_text(old, new, inside=inside) for old, new in parts)


def _holds(before: int, now: int) -> bool:
    """Whether a numeric's typmod became only wider, by digits before the point, and is a number to silver."""
    fewer, more = numeric_digits(before), numeric_digits(now)
    return (
        fewer is not None
        and more is not None
        and numeric_modifier(before)[1] == numeric_modifier(now)[1]
        and fewer[0] <= more[0] <= _DIGITS
    )
