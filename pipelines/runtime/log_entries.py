"""The files of a Delta table's folder: its data files, its log entries, and when versions were committed.

Delta has no call for this. Log entries are removed here and not by Delta, which goes by their age alone
(`pipelines.runtime.maintenance`).

How long a table's properties say that removed files are kept.

Every VACUUM uses that, also one by hand or of a nightly job, which does not look at the cuts. If gold has
stopped, the time that is needed grows by the hour. So a day more is stated than is needed (`_AHEAD`), and
stated again when more than half of it is used up. Any VACUUM within a day of maintenance, also one by hand,
finds enough.
"""

from __future__ import annotations

import json
import math
import re
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSelector, FileType

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.location import is_named
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lake.transactions import transaction_version
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.gold.builder.spark_settings import GOLD_APP
from deltasmelt.silver.sql import literal

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake

_KEPT: Final = "delta.deletedFileRetentionDuration"
_LOG_KEPT: Final = "delta.logRetentionDuration"  # Delta wants it to be no less
_CLEANUP: Final = "delta.enableExpiredLogCleanup"
_HOURS: Final = re.compile(r"interval (\d+) hours")
_AHEAD: Final = 24
"""Hours that a table says more than is needed now: what is needed grows with the age of the oldest version
that is named, and a VACUUM by hand, or of a nightly job, uses what was stated last."""
_LEFT: Final = 12
"""Hours of these that may be used up before the property is written again. Writing it is a commit, and a need
that grows by the hour is not written each hour. Only maintenance that comes less often than twice a day
writes it each time."""
_LOG_AHEAD: Final = 30 * 24
"""Hours more that a catalog's log is kept. There Delta removes entries by their age, at any commit. Where
maintenance has not come for long, cuts that it would have removed still name old versions."""
_ROUGHLY: Final = 24
"""Hours that a table may say more than that."""


def positions(lake: Lake, control: ControlTables) -> set[Lsn]:
    """Return the LSNs from which documents may go on (`gold.builder.build_start`).

    These are the newest gold cut that names a document, and its table's mark.
    """
    found = set[Lsn]()
    for name in control.names("gold"):
        named, table = control.last_named("gold", name), delta.open_table(delta.location(lake, "gold", name))
        mark = None if table is None else transaction_version(table, GOLD_APP)
        found |= ({named.commit_lsn} if named else set()) | ({Lsn(mark)} if mark is not None else set())
    return found


def hours_to_state(needed: float, stated: int | None) -> int:
    """How many hours a table should say that files which left it stay; `stated` while that is about right.

    Args:
        needed: seconds that they have to stay if VACUUM ran now.
        stated: what it says.
    """
    hours = math.ceil(needed / 3600) + _AHEAD
    return stated if stated is not None and hours - _LEFT <= stated <= hours + _ROUGHLY else hours


def state_retention(spark: SparkSession, table: DeltaTable, address: str, seconds: float) -> None:
    """Have a table say how long files that left it stay. RETAIN is ignored by newer VACUUMs.

    Args:
        spark: a session.
        table: its log, read up to the newest version.
        address: the table as SQL names it.
        seconds: that they have to stay if VACUUM ran now.
    """
    known = table.metadata().configuration
    stated = _HOURS.fullmatch(known.get(_KEPT, ""))
    before = None if stated is None else int(stated[1])
    hours = hours_to_state(seconds, before)
    named = is_named(table.table_uri)
    wanted = {
        _KEPT: f"interval {hours} hours",
        _LOG_KEPT: f"interval {hours + (_LOG_AHEAD if named else 0)} hours",
        # What else would remove old entries of a catalog's log?
        _CLEANUP: "true" if named else "false",
    }
    if hours == before and all(known.get(name) == value for name, value in wanted.items()):
        return
    properties = ", ".join(f"{literal(name)} = {literal(value)}" for name, value in wanted.items())
    spark.sql(f"ALTER TABLE {address} SET TBLPROPERTIES ({properties})")


_VERSION: Final = re.compile(
    r"\.?(\d{20})\.(?:json|crc|checkpoint.*\.parquet|\d{20}\.compacted\.json)(?:\.crc)?"
)
"""Names of log entries, and of the checksums that Hadoop lays beside them on a local disk."""
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint\.parquet")


def committed_at(table: DeltaTable, version: int) -> float | None:
    """When a version was committed, in seconds since 1970; None where its log entry is gone."""
    if is_named(table.table_uri):
        told = table.history(table.version() - version + 1)
        times = [one["timestamp"] for one in told if one["version"] == version]
        return times[0] / 1000 if times else None
    system, path = file_system(table.table_uri), f"_delta_log/{version:020}.json"
    if system.get_file_info(path).type == FileType.NotFound:
        return None
    with system.open_input_file(path) as file:
        entries = [json.loads(line) for line in file.read().splitlines()]
    times = [float(entry["commitInfo"]["timestamp"]) / 1000 for entry in entries if "commitInfo" in entry]
    return times[0] if times else None


def cut_log(table: DeltaTable, oldest: int) -> int:
    """Remove the log before the last checkpoint from which version `oldest` can be read; returns how much.

    Of a catalog's table Delta removes what is past its retention (`pipelines.runtime.log_entries`).
    """
    if is_named(table.table_uri):
        return 0
    system = file_system(table.table_uri)
    names = [info.base_name for info in system.get_file_info(FileSelector("_delta_log"))]
    checkpoints = [int(match[1]) for name in names if (match := _CHECKPOINT.fullmatch(name))]
    first = max((version for version in checkpoints if version <= oldest), default=0)
    past = sorted(name for name in names if (match := _VERSION.fullmatch(name)) and int(match[1]) < first)
    for name in past:
        system.delete_file(f"_delta_log/{name}")
    return len(past)


def data_files(table: DeltaTable) -> int:
    """Files in the table's folder, its log and checksums apart."""
    found = file_system(table.table_uri).get_file_info(FileSelector("", recursive=True))
    return sum(
        info.is_file and not info.path.startswith("_delta_log") and not info.base_name.startswith(".")
        for info in found
    )
