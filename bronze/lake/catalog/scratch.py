"""Temporary tables of a catalog.

* Temporary tables have a separate schema. No user mistakes a temporary table for the pipeline's, and a grant
  on the schema suffices.
* A table's name begins with the purpose and a number unique to the process: no lock of a catalog separates
  two processes of equal purpose.
* A process drops its tables at the end. After a kill, the next process of equal purpose drops tables older
  than a day (`remove_left`).
"""

from __future__ import annotations

import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.catalog.sql import failures, run
from deltasmelt.bronze.lake.client import TableNotFoundError
from deltasmelt.bronze.lake.location import quoted
from deltasmelt.bronze.lake.place import SCRATCH, catalog_of

if TYPE_CHECKING:
    from deltasmelt.bronze.lake.location import Lake

# Hexadecimal digits of the number after a purpose.
NUMBERED: Final = 8
_LEFT_SECONDS: Final = 86_400.0


def remove(scratch: Lake) -> None:
    """Drop all tables of a purpose; the schema stays, with all grants on the schema."""
    _drop(scratch, re.compile(rf"{scratch.scratch}_"), older=0.0)


def remove_left(lake: Lake, purpose: str) -> None:
    """Drop tables that killed processes of a purpose left, as `remove` does."""
    _drop(lake, re.compile(rf"{purpose}[0-9a-f]{{{NUMBERED}}}_"), older=_LEFT_SECONDS)


def _drop(lake: Lake, ours: re.Pattern[str], *, older: float) -> None:
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
    with failures(uri):
        row = run(uri, "DESCRIBE DETAIL {}").selectExpr("unix_millis(createdAt)").first()
    return 0.0 if row is None or row[0] is None else time.time() - row[0] / 1000
