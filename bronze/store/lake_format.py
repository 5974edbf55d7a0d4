"""The format of a lake: one number for all that is on disk besides the tables' own columns.

It counts the meaning of marks (`bronze.store.marks`), of table properties, of control tables and of folders'
names. A release that gives one of them another meaning raises it. The number is a property of
`bronze.changes`, set when that table is made. A lake with another number is refused before a row of it is
read or written, for a mark that is misread loses changes silently.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.errors import DefiniteError

if TYPE_CHECKING:
    from deltalake import DeltaTable

FORMAT: Final = "1"
"""What this release reads and writes."""

FORMAT_PROPERTY: Final = "deltasmelt.format"
"""Property of `bronze.changes` that holds it."""


def require_format(changes: DeltaTable) -> None:
    """Refuse a lake of another format.

    Args:
        changes: an open `bronze.changes`.

    Raises:
        DefiniteError: ``lake-format``.
    """
    found = changes.metadata().configuration.get(FORMAT_PROPERTY)
    if found != FORMAT:
        has = "no format number, as before the first release" if found is None else f"format {found}"
        raise DefiniteError(
            f"this lake has {has}; this deltasmelt reads and writes format {FORMAT}",
            code="lake-format",
            where=changes.table_uri,
            remedy="use the release that made it; or give another lake.path and another source.slot, where "
            "every table gets a new snapshot",
        )
