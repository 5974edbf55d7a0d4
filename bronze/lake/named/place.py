"""Locations of a catalog's tables: ``catalog://main/silver/orders`` is the table ``main.silver.orders``.

All that opens a table does so by a location. One of these says that the catalog alone knows where the files
lie, so nobody takes it for a folder or a bucket.
"""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote

from bronze.lake.spark_text import quoted

SCHEME: Final = "catalog://"
SCRATCH: Final = "deltasmelt_scratch"
"""Schema of the tables that are there for a while."""


def location_of(catalog: str, layer: str, name: str) -> str:
    """The location that stands for a name."""
    return "/".join((root_of(catalog), *(quote(part, safe="") for part in (layer, name))))


def root_of(catalog: str) -> str:
    """The location below which all tables of a catalog stand."""
    return SCHEME + quote(catalog, safe="")


def is_named(location: str) -> bool:
    """Whether a location is a name in a catalog."""
    return location.startswith(SCHEME)


def parts_of(location: str) -> tuple[str, str, str]:
    """Catalog, schema and name of a table.

    Raises:
        ValueError: the location is of another kind.
    """
    catalog, layer, name = map(unquote, location.removeprefix(SCHEME).split("/"))
    return catalog, layer, name


def scratch_name(purpose: str, layer: str, name: str) -> tuple[str, str]:
    """Schema and name of a table that is there for a while (`bronze.lake.scratch`)."""
    return SCRATCH, f"{purpose}_{layer}_{name}"


def layer_of(location: str) -> str:
    """The layer whose table it is, for a while or for good."""
    _, schema, name = parts_of(location)
    return name.split("_")[1] if schema == SCRATCH else schema


def address_of(location: str) -> str:
    """The table as Spark SQL, quoted."""
    return ".".join(map(quoted, parts_of(location)))
