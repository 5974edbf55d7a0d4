"""The files of a table, and whether writing them again pays.

Tables of a lake without a path that no cut names: bronze's, the control tables, those of quality.

At a path their writers join small files and remove old ones by themselves (`bronze.lake.compaction`,
`bronze.lake.compaction`). In a catalog that is Spark's work, and a reader's session should not be kept by it.
OPTIMIZE changes no row, so it goes beside whatever is appended; a control table's change that meets it is
refused, and tried again.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.catalog.sql import TAKEN, is_made_by_us
from deltasmelt.bronze.lake.location import is_named
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake, Layer

_LOGGER: Final = logging.getLogger("deltasmelt.maintenance")
_HOURS: Final = re.compile(r"interval (\d+) (hour|day)s?")
_A_WEEK: Final = 7 * 24
"""Hours that a table keeps files which left it, unless it says another time."""
OTHERS: Final[tuple[Layer, ...]] = ("bronze", "control", "quality")


def others_of(spark: SparkSession, lake: Lake, told: set[str]) -> list[tuple[Layer, str]]:
    """Layer and name of each such table that the pipeline made.

    What cannot be opened, as somebody's view in our schema, is passed over, and logged once.

    Args:
        spark: a session.
        lake: in a catalog.
        told: locations of what was logged; it grows.

    Raises:
        DefiniteError: ``spark-died``.
    """
    found: list[tuple[Layer, str]] = []
    for layer in OTHERS:
        schema = f"{quote(str(lake.catalog))}.{quote(layer)}"
        if not spark.catalog.databaseExists(schema):
            continue
        rows = spark.sql(f"SHOW TABLES IN {schema}").collect()
        names = sorted(row["tableName"] for row in rows if not row["isTemporary"])
        for name in names:
            uri = lake.uri(layer, name)
            try:
                table = delta.open_table(uri)
                if table is not None and is_made_by_us(table.metadata().configuration):
                    found.append((layer, name))
                continue
            except OSError as error:
                why = str(error)
            except DefiniteError as error:
                if error.code != TAKEN:
                    raise
                why = error.message
            if uri not in told:
                told.add(uri)
                _LOGGER.warning("%s.%s is not maintained: %s", layer, name, why)
    return found


def is_young(table: DeltaTable) -> bool:
    """Whether a table was made so short a time ago that VACUUM, which takes a while, would find nothing."""
    said = table.metadata()
    kept = _HOURS.fullmatch(said.configuration.get("delta.deletedFileRetentionDuration", ""))
    hours = _A_WEEK if kept is None else int(kept[1]) * (24 if kept[2] == "day" else 1)
    return said.created_time is not None and time.time() - said.created_time / 1000 < hours * 3600


FILE_BYTES: Final = 64 * 2**20
"""Size of compacted files. A MERGE of neighbouring keys reads whole files: less than Delta's 1 GiB."""
SMALL: Final = FILE_BYTES // 2
_MANY: Final = 24
"""Small files of one table from which compacting them pays."""
_DELETED_SHARE: Final = 0.2
"""Share of deleted rows from which writing the others again pays."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table at one version.

    Attributes:
        count: all of them.
        small: how many are less than half as large as they should be.
        size: bytes.
        rows: in them, deleted ones included.
        deleted_rows: rows that deletion vectors mark as deleted.
    """

    count: int = 0
    small: int = 0
    size: int = 0
    rows: int = 0
    deleted_rows: int = 0

    @property
    def many_small(self) -> bool:
        """Whether compacting the small ones pays."""
        return self.small >= _MANY

    @property
    def many_deleted_rows(self) -> bool:
        """Whether writing the other rows again pays."""
        return self.deleted_rows > _DELETED_SHARE * self.rows


def files_of(spark: SparkSession, table: DeltaTable, address: str) -> Files:
    """The files of a table now. Delta answers the count from statistics, without reading them.

    Args:
        spark: a session.
        table: its log, which is read on.
        address: the table as SQL names it.
    """
    delta.refresh(table)
    actions: Any = pa.table(table.get_add_actions())
    if not actions.num_rows:
        return Files()
    if is_named(table.table_uri):  # all files are one row there; about each its mean is known
        count, size = len(table.file_uris()), int(pc.sum(actions["size_bytes"]).as_py() or 0)
        rows = int(pc.sum(actions["num_records"]).as_py() or 0)
        return Files(count=count, small=count if size < count * SMALL else 0, size=size, rows=rows)
    sizes, rows = actions["size_bytes"], int(pc.sum(actions["num_records"]).as_py() or 0)
    live = spark.sql(f"SELECT count(*) FROM {address}").collect()[0][0]
    return Files(
        count=actions.num_rows,
        small=int(pc.sum(pc.less(sizes, SMALL)).as_py() or 0),
        size=int(pc.sum(sizes).as_py()),
        rows=rows,
        deleted_rows=max(0, rows - live),
    )
