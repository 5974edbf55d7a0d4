"""Whose a catalog's table is, where the pipeline has a name in mind that somebody else has taken.

``CREATE TABLE IF NOT EXISTS`` passes over any table. So a table that is there, or is there after that, counts
as the pipeline's where it has a property that only our own CREATE gives it. Any other is left as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.errors import DefiniteError
from bronze.lake.named.place import address_of, is_named

if TYPE_CHECKING:
    from collections.abc import Mapping

MADE_PROPERTY: Final = "deltasmelt.made"
"""Table property of what has no other one that tells."""

TAKEN: Final = "catalog-name-taken"
"""Code of the error where a name is somebody else's."""


def is_made_by_us(properties: Mapping[str, str]) -> bool:
    """Whether a table that has no other property that tells is the pipeline's."""
    return MADE_PROPERTY in properties


def taken(uri: str) -> DefiniteError:
    """The error where a name that the pipeline has in mind is somebody else's: ``catalog-name-taken``."""
    return DefiniteError(
        f"{address_of(uri)} is there already, and not a table of this pipeline",
        code=TAKEN,
        where=uri,
        remedy="drop or rename that table, or choose another lake.catalog",
    )


def require_ours(uri: str, properties: Mapping[str, str], told_by: str = MADE_PROPERTY) -> None:
    """Refuse a table of a catalog that this pipeline did not make; nothing of others.

    Args:
        uri: location of the table.
        properties: that it has.
        told_by: name of the property that our own CREATE gives it.

    Raises:
        DefiniteError: ``catalog-name-taken``.
    """
    if is_named(uri) and told_by not in properties:
        raise taken(uri)
