"""Tables that are there for a while: what a rebuild derives, what a comparison copies.

Where tables lie at a path, a folder beside the layers holds them (`workspace`). In a catalog it is otherwise.

They lie in a schema of their own, so nobody takes them for the pipeline's, and so a grant on that schema is
enough. Their names begin with what they are for, and a number that no other process has: in a catalog no lock
keeps two of one purpose apart. Who is done drops them. What a killed process left, the next one of the same
purpose drops once it is a day old (`remove_left`).
"""

from __future__ import annotations

import re
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

from pyarrow.fs import FileType

from deltasmelt.bronze.lake import objects
from deltasmelt.bronze.lake.catalog.sql import failures, run
from deltasmelt.bronze.lake.client import TableNotFoundError
from deltasmelt.bronze.lake.location import quoted
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lake.place import SCRATCH, catalog_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from deltasmelt.bronze.lake.location import Lake

NUMBERED: Final = 8
"""Hexadecimal digits of the number after a purpose."""
_LEFT_SECONDS: Final = 86_400.0


@contextmanager
def workspace(lake: Lake, folder: str, purpose: str) -> Iterator[Lake]:
    """Return a lake beside a lake's layers, under a new name each time: Spark remembers what was at a path.

    What lies in a folder or a store stays there until `remove_workspaces`.

    Args:
        lake: the pipeline's.
        folder: of the lake, for all that is derived.
        purpose: of a catalog's tables.
    """
    if not lake.place.needs_session:
        yield lake.below(f"{folder}/{uuid.uuid4().hex}")
        return
    scratch = lake.scratch_for(purpose + uuid.uuid4().hex[:NUMBERED])
    try:
        yield scratch
    finally:
        with suppress(OSError):  # a later start removes it
            remove(scratch)


def remove_workspaces(lake: Lake, folder: str, purpose: str) -> None:
    """Remove the workspaces of killed processes too; in a catalog after a day, as another process may run."""
    if lake.place.needs_session:
        remove_left(lake, purpose)
        return
    if lake.in_store:
        objects.discard(lake.root / folder)
        return
    system = file_system(lake.root)
    if system.get_file_info(folder).type != FileType.NotFound:
        system.delete_dir(folder)


def remove(scratch: Lake) -> None:
    """Drop all tables of a purpose; the schema stays, with what others were granted on it.

    Raises:
        OSError: the catalog refuses.
    """
    _drop(scratch, re.compile(rf"{scratch.scratch}_"), older=0.0)


def remove_left(lake: Lake, purpose: str) -> None:
    """Drop what killed processes left of a purpose with a number, as `remove`."""
    _drop(lake, re.compile(rf"{purpose}[0-9a-f]{{{NUMBERED}}}_"), older=_LEFT_SECONDS)


def _drop(lake: Lake, ours: re.Pattern[str], *, older: float) -> None:
    """Drop tables whose name begins so, and which were made so many seconds ago."""
    catalog = catalog_of(lake.root)
    uri, schema = catalog.table(SCRATCH, "tables"), f"{quoted(catalog.name)}.{quoted(SCRATCH)}"
    spark = catalog.session()
    with failures(uri):
        if not spark.catalog.databaseExists(schema):
            return
        names = [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema}").collect()]
        for name in filter(ours.match, names):
            each = catalog.table(SCRATCH, name)
            with suppress(TableNotFoundError):  # somebody dropped it just now
                if not older or _age(each) > older:
                    run(each, "DROP TABLE IF EXISTS {}")


def _age(uri: str) -> float:
    """Seconds since a table was made."""
    with failures(uri):
        row = run(uri, "DESCRIBE DETAIL {}").selectExpr("unix_millis(createdAt)").first()
    return 0.0 if row is None or row[0] is None else time.time() - row[0] / 1000
