"""Checks of a column's old and new type: whether old values keep their text, and types their kind."""

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
"""Types that ALTER COLUMN TYPE may exchange for each other without a rewrite of the table.

The exchanges are casts without a function, and timestamps under UTC:
https://www.postgresql.org/docs/current/sql-altertable.html (Notes) and
https://www.postgresql.org/docs/current/catalog-pg-cast.html.
"""


def same_text(before: PgType, now: PgType, *, inside: bool = False) -> bool:
    """Check whether a value that was not rewritten has equal text, with equal meaning, under both types.

    The decimal for a numeric may only become wider. Inside of an array or a composite the decimal must stay,
    and so must the names of a composite's attributes. `inside` means that both types belong to an element, an
    attribute or a bound.
    """
    if before.oid != now.oid:
        return {before.name, now.name} <= SAME_TEXT
    # PostgreSQL stores an enum's value as the label's OID and a composite's attributes by attnum. So each
    # label must keep text and OID, even if labels were added, and each attribute must keep name and attnum.
    # If a shape was recorded without these numbers, only the names are compared.
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


def kindred(old: PgType, new: PgType) -> bool:
    """Check whether a column may have had both types without a rewrite: equal types, or one kind.

    A domain has the kind of its base type, an array the kind of its elements. The relation is transitive: two
    types that are kindred to a third type are kindred to each other.
    """
    while old.kind == "domain" and old.element is not None:
        old = old.element
    while new.kind == "domain" and new.element is not None:
        new = new.element
    if old.kind == new.kind == "array" and old.element is not None and new.element is not None:
        return kindred(old.element, new.element)
    return old.oid == new.oid or any({old.name, new.name} <= kind for kind in _KINDS)


def _labels(old: PgType, new: PgType) -> set[tuple[int, str]]:
    """Return an enum's labels with their OIDs; without OIDs if either type lacks them."""
    is_numbered = bool(old.numbers and new.numbers)
    return set(zip(old.numbers if is_numbered else [0] * len(old.labels), old.labels, strict=True))


def _same_fields(before: PgType, now: PgType) -> bool:
    """Check whether a composite kept its attributes; a new attribute may reuse a dropped name."""
    is_same = not (before.fields and before.numbers and now.numbers) or before.numbers == now.numbers
    return is_same and [name for name, _ in before.fields] == [name for name, _ in now.fields]


def _reads_on(before: int, now: int, *, inside: bool) -> bool:
    """Check whether a numeric's values were not rewritten, and its decimal stayed or only widened."""
    if before < 0:
        return False
    (precision, scale), (new_precision, new_scale) = numeric_modifier(before), numeric_modifier(now)
    # PostgreSQL rewrites no value if the precision was removed, or grew while the scale stayed.
    if now >= 0 and (scale != new_scale or precision > new_precision):
        return False
    old, new = decimal_of(before), decimal_of(now)
    # A decimal is widened if it loses no digit before or after the point.
    return old == new or (not inside and 0 <= new[1] - old[1] <= new[0] - old[0])
