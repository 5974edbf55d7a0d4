"""`control.storage`: what looks at the catalog saw of each table's storage (`bronze.drift.looks`).

The order of the writers makes it right. A copy records first what was seen *before* it took its locks, then
commits its rows; a crash in between leaves a table that still needs its copy. A look that finds a reason for
a new snapshot makes the resnapshot mark durable and records nothing, so that the reason stays until the copy.
A look that finds a harmless difference records it. So what is recorded is never newer than the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.drift.looks import Looked
from bronze.store.catalog_log import CatalogLog, Kind

if TYPE_CHECKING:
    from bronze.lsn import Lsn

STORAGE: Final = "storage"

_KIND: Final = Kind(
    STORAGE, "What the catalog said of each table's storage", Looked.from_json, Looked.to_json
)


class StorageLog(CatalogLog[Looked]):
    """What is known of each table; see `CatalogLog`.

    Args:
        uri: location of the table, which is made when something is recorded first.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri, _KIND)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Whether a look is worth while, since the stream came from one place to another."""
        return any(looked.settles(before, frontier) for looked in self.all_known())
