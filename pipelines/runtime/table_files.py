"""The files of a table, and whether a rewrite pays; also the tables outside every cut in a catalog.

At a path their writers compact bronze's, control's and quality's tables (`bronze.lake.compaction`). In a
catalog this is Spark's work, and would occupy a reader's session. OPTIMIZE changes no row, so it can run
beside any append; Delta refuses a concurrent change of a control table, and the change is retried.
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
from deltasmelt.silver.sql import quote

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.bronze.lake.table import Table

_LOGGER: Final = logging.getLogger("deltasmelt.maintenance")
_HOURS: Final = re.compile(r"interval (\d+) (hour|day)s?")
_A_WEEK: Final = 7 * 24
"""Default hours for which a table keeps removed files."""
OTHERS: Final[tuple[Layer, ...]] = ("bronze", "control", "quality")


def others_of(spark: SparkSession, lake: Lake, logged: set[str]) -> list[tuple[Layer, str]]:
    """Return layer and name of each such table made by the pipeline.

    Locations in `logged`, which grows, are not logged again.

    Raises:
        DefiniteError: ``spark-died``.
    """
    tables: list[tuple[Layer, str]] = []
    for layer in lake.place.tended_by_spark:
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
                    tables.append((layer, name))
                continue
            # An unreadable name, such as somebody's view in the schema, is skipped and logged once.
            except OSError as error:
                reason = str(error)
            except DefiniteError as error:
                if error.code != TAKEN:
                    raise
                reason = error.message
            if uri not in logged:
                logged.add(uri)
                _LOGGER.warning("%s.%s is not maintained: %s", layer, name, reason)
    return tables


def is_young(table: Table) -> bool:
    """Check whether a table is too new for VACUUM, which takes a while, to find a file."""
    metadata = table.metadata()
    retention = _HOURS.fullmatch(metadata.configuration.get("delta.deletedFileRetentionDuration", ""))
    hours = _A_WEEK if retention is None else int(retention[1]) * (24 if retention[2] == "day" else 1)
    return metadata.created_time is not None and time.time() - metadata.created_time / 1000 < hours * 3600


FILE_BYTES: Final = 64 * 2**20
"""Size of compacted files. A MERGE of neighbouring keys reads whole files: less than Delta's 1 GiB."""
SMALL: Final = FILE_BYTES // 2
_MANY: Final = 24
"""Number of a table's small files at which compaction pays."""
_DELETED_SHARE: Final = 0.2
"""Share of deleted rows at which a rewrite of the other rows pays."""


@dataclass(frozen=True, slots=True)
class Files:
    """The files of a table at one version.

    Attributes:
        count: number of all files.
        small: number of files below half of the target size.
        size: bytes of all files.
        rows: number of rows, including deleted rows.
        deleted_rows: number of rows deleted by deletion vectors.
    """

    count: int = 0
    small: int = 0
    size: int = 0
    rows: int = 0
    deleted_rows: int = 0

    @property
    def many_small(self) -> bool:
        """True if compaction of the small files pays."""
        return self.small >= _MANY

    @property
    def many_deleted_rows(self) -> bool:
        """True if a rewrite of the remaining rows pays."""
        return self.deleted_rows > _DELETED_SHARE * self.rows


def files_of(spark: SparkSession, table: Table, address: str) -> Files:
    """Return the present files of a table, after a refresh of its log; `address` is its name in SQL."""
    table.refresh()
    actions: Any = pa.table(table.get_add_actions())
    if not actions.num_rows:
        return Files()
    if not table.shows_files:  # all files are one row there; about each its mean is known
        count, size = len(table.file_uris()), int(pc.sum(actions["size_bytes"]).as_py() or 0)
        rows = int(pc.sum(actions["num_records"]).as_py() or 0)
        return Files(count=count, small=count if size < count * SMALL else 0, size=size, rows=rows)
    sizes, rows = actions["size_bytes"], int(pc.sum(actions["num_records"]).as_py() or 0)
    # Delta answers the count from statistics, without reading the files.
    live = spark.sql(f"SELECT count(*) FROM {address}").collect()[0][0]
    return Files(
        count=actions.num_rows,
        small=int(pc.sum(pc.less(sizes, SMALL)).as_py() or 0),
        size=int(pc.sum(sizes).as_py()),
        rows=rows,
        deleted_rows=max(0, rows - live),
    )
