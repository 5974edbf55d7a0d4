"""The files of a Delta table's folder: data files, log entries, and the commit times of versions.

Delta has no call for these. This module removes log entries instead of Delta, which removes them by age alone
(`pipelines.runtime.maintenance`).

The module also sets the retention of removed files in a table's properties. Every VACUUM uses this retention,
also a VACUUM by hand or by a nightly job, which reads no cuts. While gold is stopped, the needed retention
grows by the hour. So the property exceeds the need by a day (`_AHEAD`), and is renewed after half of the day.
Any VACUUM within a day of maintenance finds a sufficient retention.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSelector

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from collections.abc import Callable

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table

_FILE_RETENTION: Final = "delta.deletedFileRetentionDuration"
_LOG_RETENTION: Final = "delta.logRetentionDuration"  # Delta wants it to be no less
_CLEANUP: Final = "delta.enableExpiredLogCleanup"
_HOURS: Final = re.compile(r"interval (\d+) hours")
_AHEAD: Final = 24
"""Hours by which the property exceeds the present need."""
# A renewal is a commit, so a need growing by the hour is not written each hour. Only maintenance less often
# than twice a day renews the property each time.
_LEFT: Final = 12
"""Hours of `_AHEAD` left before the property is renewed."""
# In a catalog, Delta removes entries by their age, at any commit. After a long time without maintenance, cuts
# due for removal still name old versions.
_LOG_AHEAD: Final = 30 * 24
"""Additional hours of a catalog's log."""
_ROUGHLY: Final = 24
"""Hours by which the property may exceed this time."""


def positions(lake: Lake, control: ControlTables) -> set[Lsn]:
    """Return the LSNs at which documents may continue: of the newest gold cut, and of the table's mark."""
    lsns = set[Lsn]()
    for name in control.names("gold"):
        cut, table = control.last_named("gold", name), delta.open_table(lake.uri("gold", name))
        mark = None if table is None else table.transaction_version(GOLD_APP)
        lsns |= ({cut.commit_lsn} if cut else set()) | ({Lsn(mark)} if mark is not None else set())
    return lsns


def hours_to_state(needed: float, stated: int | None) -> int:
    """Return the hours of retention for a table's property; while roughly right, the property as `stated`.

    `needed` are the seconds of retention needed by a VACUUM now.
    """
    hours = math.ceil(needed / 3600) + _AHEAD
    return stated if stated is not None and hours - _LEFT <= stated <= hours + _ROUGHLY else hours


def state_retention(table: Table, address: str, seconds: float, run: Callable[[str], object]) -> None:
    """Set the retention of a table's removed files, of which a VACUUM now needs `seconds`.

    The table's log is read up to the newest version; `address` is the table as SQL names it.
    """
    current = table.metadata().configuration
    retention = _HOURS.fullmatch(current.get(_FILE_RETENTION, ""))
    before = None if retention is None else int(retention[1])
    hours = hours_to_state(seconds, before)
    in_catalog = not table.shows_files
    target = {
        _FILE_RETENTION: f"interval {hours} hours",
        _LOG_RETENTION: f"interval {hours + (_LOG_AHEAD if in_catalog else 0)} hours",
        # Nothing else removes old entries of a catalog's log.
        _CLEANUP: "true" if in_catalog else "false",
    }
    if hours == before and all(current.get(name) == value for name, value in target.items()):
        return
    properties = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in target.items())
    # Newer VACUUMs ignore RETAIN, so the property alone counts.
    run(f"ALTER TABLE {address} SET TBLPROPERTIES ({properties})")


_VERSION: Final = re.compile(
    r"\.?(\d{20})\.(?:json|crc|checkpoint.*\.parquet|\d{20}\.compacted\.json)(?:\.crc)?"
)
"""Names of log entries, and of Hadoop's checksum files beside them on a local disk."""
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


def cut_log(table: Table, oldest: int) -> int:
    """Remove the log before the last checkpoint that still serves version `oldest`; return the number."""
    # Delta itself removes entries past the retention from a catalog's table.
    if not table.shows_files:
        return 0
    system = file_system(table.table_uri)
    names = [info.base_name for info in system.get_file_info(FileSelector("_delta_log"))]
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    first = max((version for version in checkpoints if version <= oldest), default=0)
    past = sorted(name for name in names if (match := _VERSION.fullmatch(name)) and int(match[1]) < first)
    for name in past:
        system.delete_file(f"_delta_log/{name}")
    return len(past)


def data_files(table: Table) -> int:
    """Return the files in the table's folder, without its log and checksums."""
    entries = file_system(table.table_uri).get_file_info(FileSelector("", recursive=True))
    return sum(
        info.is_file and not info.path.startswith("_delta_log") and not info.base_name.startswith(".")
        for info in entries
    )
