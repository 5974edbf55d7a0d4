"""Tables of a lake without a path that no cut names: bronze's, the control tables, those of quality.

At a path their writers join small files and remove old ones by themselves (`bronze.lake.compaction`,
`bronze.lake.retention`). In a catalog that is Spark's work, and a reader's session should not be kept by it.
OPTIMIZE changes no row, so it goes beside whatever is appended; a control table's change that meets it is
refused, and tried again.
"""

from __future__ import annotations

import logging
import re
import time
from typing import TYPE_CHECKING, Final

from bronze.errors import DefiniteError
from bronze.lake import delta
from bronze.lake.named.owned import TAKEN, is_made_by_us
from silver.sql import quote

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.lake.location import Lake, Layer

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
