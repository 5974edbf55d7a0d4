"""The files of a Delta table's folder: its data files, its log entries, and when versions were committed.

Delta has no call for this. Log entries are removed here and not by Delta, which goes by their age alone
(`pipelines.runtime.maintenance`).
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileSelector, FileType

from bronze.lake.named.place import is_named
from bronze.lake.parquet import file_system

if TYPE_CHECKING:
    from deltalake import DeltaTable

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

    Of a catalog's table Delta removes what is past its retention (`pipelines.runtime.stated_retention`).
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
