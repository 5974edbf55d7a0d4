"""What a column that got another type has of its old one: the text of its values, or their kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.builtin_types import decimal_of, numeric_modifier

if TYPE_CHECKING:
    from deltasmelt.bronze.shapes import PgType

SAME_TEXT = frozenset({"varchar", "text"})

_KINDS: Final = (
    frozenset({"text", "varchar", "bpchar", "citext", "xml"}),
    frozenset({"cidr", "inet"}),
    frozenset({"timestamp", "timestamptz"}),
    frozenset({"bit", "varbit"}),
    frozenset({"int4", "oid", "regclass", "regproc", "regprocedure", "regrole", "regtype", "regnamespace"}),
)
"""Types that ALTER COLUMN TYPE may put for each other without a rewrite.

Those of casts without a function, and timestamps under UTC:
https://www.postgresql.org/docs/current/sql-altertable.html (Notes) and
https://www.postgresql.org/docs/current/catalog-pg-cast.html.
"""


def same_text(before: PgType, now: PgType, *, inside: bool = False) -> bool:
    """Whether a value that was not rewritten prints the same text under both types, which reads as the same.

    The decimal that a numeric is read as may only become wider. Inside of an array or a composite the decimal
    must stay, and so must the names of a composite's attributes.

    A stored enum names its label by oid, and a stored composite its attributes by attnum. So a label must be
    the same text under the same oid, whatever labels came beside it, and attributes the same attnums. Where a
    shape was recorded without these numbers, names alone are compared.

    Args:
        before: the type of then.
        now: the type of now.
        inside: they are of an element, an attribute or a bound.
    """
    if before.oid != now.oid:
        return {before.name, now.name} <= SAME_TEXT
    if before.labels and not _labels(before, now) <= _labels(now, before):
        return False  # a label was renamed
    if (
        before.name == "numeric"
        and before.typmod != now.typmod
        and not _reads_on(before.typmod, now.typmod, inside=inside)
    ):
        return False
    if (before.element is None) != (now.element is None) or not _same_fields(before, now):
        return False
    inside = inside or before.kind != "domain"
    parts = [(old, new) for (_, old), (_, new) in zip(before.fields, now.fields, strict=True)]
    if before.element is not None and now.element is not None:
        parts.append((before.element, now.element))
    return all(same_text(old, new, inside=inside) for old, new in parts)


def kindred(one: PgType, other: PgType) -> bool:
    """Whether a column may have been of both types without a rewrite in between: the same, or of one kind.

    A domain is of its base type's kind, and an array of its elements'. Of three types of which one is kindred
    to both others, these are kindred too.
    """
    while one.kind == "domain" and one.element is not None:
        one = one.element
    while other.kind == "domain" and other.element is not None:
        other = other.element
    if one.kind == other.kind == "array" and one.element is not None and other.element is not None:
        return kindred(one.element, other.element)
    return one.oid == other.oid or any({one.name, other.name} <= kind for kind in _KINDS)


def _labels(one: PgType, other: PgType) -> set[tuple[int, str]]:
    """Return the labels of an enum with their oids; without them where one of both does not know them."""
    known = bool(one.numbers and other.numbers)
    return set(zip(one.numbers if known else [0] * len(one.labels), one.labels, strict=True))


def _same_fields(before: PgType, now: PgType) -> bool:
    """Check whether a composite has the same attributes; another one may have the name of a dropped one."""
    same = not (before.fields and before.numbers and now.numbers) or before.numbers == now.numbers
    return same and [name for name, _ in before.fields] == [name for name, _ in now.fields]


def _reads_on(before: int, now: int, *, inside: bool) -> bool:
    """Check whether PostgreSQL rewrote no value of a numeric, and its decimal stayed or is widened in place.

    PostgreSQL rewrites no value where the precision is gone, or grew while the scale stayed. A decimal is
    widened where it loses digits neither before nor after the point.
    """
    if before < 0:
        return False
    (precision, scale), (more, same) = numeric_modifier(before), numeric_modifier(now)
    if now >= 0 and (scale != same or precision > more):
        return False
    old, new = decimal_of(before), decimal_of(now)
    return old == new or (not inside and 0 <= new[1] - old[1] <= new[0] - old[0])
