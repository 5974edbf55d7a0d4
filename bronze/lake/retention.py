"""What keeps a table that is committed to twice a second fast to open after days.

Each commit leaves a log entry, 170,000 a day, and each compaction (`bronze.lake.compaction`) leaves the small
files that it joined. Entries before the newest checkpoint say nothing that the checkpoint does not, and the
joined files are named by older versions alone. After `KEPT` neither is needed: a process that reads bronze
reads one version to its end, and no cut names an older one. So they are removed.

Why it is safe:

* Rows are never removed, whoever has read them: a joined file's rows stand in the file that replaced it.
* Only files that the log says were removed are deleted (Delta calls that a *lite* vacuum). No version names
  those of a transaction that is still open or of a snapshot under way yet, so they stay, however old they
  are.
* Entries are removed only before a checkpoint, which holds the marks (`bronze.store.contract`) too. A crash
  in the middle leaves some for the next time.
* VACUUM commits two entries without rows. They are on disk when `tidy` returns, as any other commit: a torn
  entry that the next commit follows could not be set aside (`bronze.lake.torn_log`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from bronze.doors import Door, through
from bronze.lake.delta import nothing_besides
from bronze.lake.disk import flush_after
from bronze.lake.named.place import is_named

if TYPE_CHECKING:
    from deltalake import DeltaTable

KEPT: Final = "interval 1 day"
"""How long entries and joined files are kept at least."""

RETENTION: Final = {"delta.logRetentionDuration": KEPT, "delta.deletedFileRetentionDuration": KEPT}
"""Properties of a table that `tidy` goes by; Delta's own are 30 days and a week."""


def tidy(table: DeltaTable, *, retention_hours: int | None = None) -> None:
    """Remove log entries and joined files that are past their time.

    Args:
        table: its handle is at the newest version before the call; afterwards the log may have newer ones.
        retention_hours: for joined files, instead of the table's own.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    if is_named(table.table_uri):
        return  # the catalog's own affair, or `smelt maintain`'s

    def clean() -> None:
        table.cleanup_metadata()
        table.vacuum(
            retention_hours,
            dry_run=False,
            enforce_retention_duration=retention_hours is None,
            full=False,
            post_commithook_properties=nothing_besides(),
        )

    before = table.version()
    through(Door.CLEAN, table.table_uri, clean)
    flush_after(table.table_uri, before)
