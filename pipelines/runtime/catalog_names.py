"""Names for the tables of a lake in a catalog of the Spark session: external tables at their locations.

With ``lake: {path: …, catalog: main}`` a table of silver or gold is ``main.silver.orders`` as soon as a cut
names the table. The pipeline continues to work by path, so an absent catalog costs names, and no data. The
module never changes an existing name: a name with another location is reported.

Delta reads the columns from the table's own log, so names need no update. A table dropped at the source keeps
its name and its rows.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake.place import Location
from deltasmelt.silver.sql import literal, quote

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.location import Lake, Layer

_LOGGER: Final = logging.getLogger("deltasmelt.run")
_LINES: Final = 300
"""Length of a logged reason."""


class CatalogNames:
    """Makes the names of one lake's tables in one catalog, in a session with access to the catalog."""

    def __init__(self, spark: SparkSession, lake: Lake, catalog: str) -> None:
        self._spark = spark
        self._lake = lake
        self._catalog = catalog
        self._known: set[tuple[Layer, str]] = set()
        self._schemas: set[Layer] = set()

    def make(self, cut: Cut) -> None:
        """Make the missing names of a cut's tables; log the reason of an impossible name once."""
        from deltasmelt.gold.builder.failures import SPARK_ERRORS  # noqa: PLC0415 - loads Spark

        for name in sorted(cut.tables):
            if (cut.layer, name) in self._known:
                continue
            self._known.add((cut.layer, name))
            try:
                self._make_schema(cut.layer)
                self._make_table(cut.layer, name)
            except ConfigurationError as error:
                _LOGGER.warning("%s", error)
            # A catalog accepts fewer names than PostgreSQL: the Hive metastore accepts small letters, digits
            # and `_` alone.
            except SPARK_ERRORS as error:
                reason = " ".join(str(error).split())[:_LINES]
                _LOGGER.warning(
                    "%s.%s cannot be registered in %s: %s", cut.layer, name, self._catalog, reason
                )

    def address(self, layer: Layer, name: str) -> str:
        """Return the table's name as quoted Spark SQL."""
        return ".".join(map(quote, (self._catalog, layer, name)))

    def _make_schema(self, layer: Layer) -> None:
        if layer not in self._schemas:
            self._spark.sql(f"CREATE SCHEMA IF NOT EXISTS {quote(self._catalog)}.{quote(layer)}")
            self._schemas.add(layer)

    def _make_table(self, layer: Layer, name: str) -> None:
        address, uri = self.address(layer, name), self._lake.uri(layer, name)
        self._spark.sql(f"CREATE TABLE IF NOT EXISTS {address} USING DELTA LOCATION {literal(uri)}")
        row = self._spark.sql(f"DESCRIBE DETAIL {address}").select("location").first()
        existing = None if row is None else str(row[0])
        if existing is None or _place(existing) != _place(uri):
            raise ConfigurationError(
                f"{self._catalog}.{layer}.{name} is another table, at {existing}",
                code="catalog-name-taken",
                where=uri,
                remedy=f"drop or rename this table, or choose another lake.catalog for {uri}",
            )


def _place(location: str) -> Path | str:
    """Return a location in one form, however Spark writes it."""
    return Location(location).folder or location.rstrip("/")
