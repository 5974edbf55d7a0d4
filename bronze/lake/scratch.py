"""Temporary tables: a rebuild's derived tables, and a comparison's copies.

If the lake lies at a path, a folder next to the layers contains the temporary tables (`workspace`). In a
catalog the rules are different:

* Temporary tables have a separate schema. No user mistakes a temporary table for the pipeline's, and a grant
  on the schema suffices.
* A table's name begins with the purpose and a number unique to the process: no lock of a catalog separates
  two processes of equal purpose.
* A process drops its tables at the end. A killed process leaves tables; the next process of equal purpose
  drops tables older than a day (`remove_left`).
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
    """Yield a lake next to a lake's layers, under a new name each time: Spark caches the content of a path.

    Tables in a folder or a store stay until `remove_workspaces`.

    Args:
        lake: lake of the pipeline's own tables.
        folder: folder of the lake for all derived tables.
        purpose: purpose of a catalog's temporary tables.
    """
    if not lake.place.needs_session:
        yield lake.below(f"{folder}/{uuid.uuid4().hex}")
        return
    scratch = lake.scratch_for(purpose + uuid.uuid4().hex[:NUMBERED])
    try:
        yield scratch
    finally:
        with suppress(OSError):  # a later start drops the tables
            remove(scratch)


def remove_workspaces(lake: Lake, folder: str, purpose: str) -> None:
    """Remove all workspaces; in a catalog only workspaces older than a day, as a second process may run."""
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
    """Drop all tables of a purpose; the schema stays, with all grants on the schema.

    Raises:
        OSError: the catalog refuses.
    """
    _drop(scratch, re.compile(rf"{scratch.scratch}_"), older=0.0)


def remove_left(lake: Lake, purpose: str) -> None:
    """Drop tables that killed processes of a purpose left, as `remove` does."""
    _drop(lake, re.compile(rf"{purpose}[0-9a-f]{{{NUMBERED}}}_"), older=_LEFT_SECONDS)


def _drop(lake: Lake, ours: re.Pattern[str], *, older: float) -> None:
    """Drop tables by name pattern and minimum age in seconds."""
    catalog = catalog_of(lake.root)
    uri, schema = catalog.table(SCRATCH, "tables"), f"{quoted(catalog.name)}.{quoted(SCRATCH)}"
    spark = catalog.session()
    with failures(uri):
        if not spark.catalog.databaseExists(schema):
            return
        names = [row["tableName"] for row in spark.sql(f"SHOW TABLES IN {schema}").collect()]
        for name in filter(ours.match, names):
            each = catalog.table(SCRATCH, name)
            with suppress(TableNotFoundError):  # dropped at this moment
                if not older or _age(each) > older:
                    run(each, "DROP TABLE IF EXISTS {}")


def _age(uri: str) -> float:
    """Return the seconds since a table's creation."""
    with failures(uri):
        row = run(uri, "DESCRIBE DETAIL {}").selectExpr("unix_millis(createdAt)").first()
    return 0.0 if row is None or row[0] is None else time.time() - row[0] / 1000
