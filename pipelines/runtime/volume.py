"""How much a job can have to carry, at most: for little of it the JVM compiles quickly and does not optimise.

Most of what a short job costs is compiling code that runs a few times. A JVM with its quick compiler alone
needs a fifth less CPU for it (`docs/performance.md`). Over some million rows its code would be slower.
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

LITTLE: Final = 128 * 2**20
"""Bytes of a database, and of a lake."""


def is_little(pipeline: Pipeline, layers: Collection[Layer]) -> bool:
    """Whether neither the lake nor, where it is read, the source holds more than `LITTLE`.

    Of a lake in an object store, and of a server that does not answer, that is not known: then not.
    """
    path = pipeline.lake_address().path
    folder = None if path is None else local_folder(path)
    if folder is None or _exceeds(folder):
        return False
    return "bronze" not in layers or _database_bytes(pipeline.source) <= LITTLE


def _exceeds(folder: Path) -> bool:
    """Whether the files of a folder are more than `LITTLE`; the rest is not looked at."""
    total = 0
    for size in _sizes(folder):
        total += size
        if total > LITTLE:
            return True
    return False


def _sizes(folder: Path) -> Iterator[int]:
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                yield os.stat(os.path.join(place, name)).st_size  # noqa: PTH116, PTH118 - of thousands of files
            except FileNotFoundError:  # the reader renames and removes files meanwhile
                continue


def _database_bytes(source: SourceSettings) -> float:
    """Bytes of the source's database; infinity where it does not say, which the reader will report."""
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
            row = connection.execute("SELECT pg_database_size(current_database())").fetchone()
    except SmeltError:
        return float("inf")
    return float("inf") if row is None else float(row[0])
