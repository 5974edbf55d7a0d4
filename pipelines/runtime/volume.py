"""Whether a job has little to carry: then the JVM compiles quickly and does not optimise.

Most of what a short job costs is compiling code that runs a few times. A JVM with its quick compiler alone
needs a fifth less CPU for it (`docs/performance.md`). Over some million rows its code would be slower. So
what counts is the size of all that could be read: the lake, the database, and the log that the slot holds
back. Where one of them cannot be had, the job counts as a large one.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from bronze.errors import SmeltError
from bronze.lake.folders import local_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator
    from pathlib import Path

    from bronze.config.sections import SourceSettings
    from bronze.lake.location import Layer
    from pipelines.settings import Pipeline

LITTLE: Final = 64 * 2**20
"""Bytes of a lake, and of a database with what its slot holds back."""

_FILES: Final = 5_000
"""Files of a lake that are looked at; more of them are a large lake."""


_BYTES: Final = """
SELECT pg_database_size(current_database()) + coalesce(max(pg_wal_lsn_diff(
  CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_lsn() END,
  confirmed_flush_lsn)), 0)
FROM pg_replication_slots WHERE slot_name = %s
"""


def is_little(pipeline: Pipeline, layers: Collection[Layer]) -> bool:
    """Whether neither the lake nor, where it is read, the source holds more than `LITTLE`.

    Of a lake in an object store, and of a server that does not answer, that is not known: then not.
    """
    path = pipeline.lake_address().path
    folder = None if path is None else local_folder(path)
    try:
        if folder is None or _exceeds(folder):
            return False
    except OSError:  # stages that read the lake report what is wrong with it
        return False
    return "bronze" not in layers or _to_read(pipeline.source) <= LITTLE


def _exceeds(folder: Path) -> bool:
    """Whether the files of a folder are more than `LITTLE`; the rest is not looked at."""
    total = 0
    for number, size in enumerate(_sizes(folder), start=1):
        total += size
        if total > LITTLE or number > _FILES:
            return True
    return False


def _sizes(folder: Path) -> Iterator[int]:
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(os.path.join(place, name)).st_size  # noqa: PTH116, PTH118 - of thousands of files
            except FileNotFoundError:  # the reader renames and removes files meanwhile
                continue


def _to_read(source: SourceSettings) -> float:
    """Bytes of the database and of the log after its slot; infinity where the server does not say.

    The reader will report why.
    """
    from bronze.postgres.connection import (  # noqa: PLC0415 - silver and gold need no server
        connect,
        translated,
        within,
    )

    try:
        with (
            connect(source) as connection,
            translated(source),
            within(source.timing.session_settings, connection),
        ):
            row = connection.execute(_BYTES, [source.slot]).fetchone()
    except SmeltError:
        return float("inf")
    return float("inf") if row is None else float(row[0])
