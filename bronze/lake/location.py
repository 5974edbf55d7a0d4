"""Where the Delta tables lie: ``<layer>.<name>``, under a path or in a catalog of the Spark session.

Everything that names a table of ours does it through `Lake`, so that both kinds of lake differ in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bronze.lake.folders import folder_name, local_folder

Layer: TypeAlias = Literal["bronze", "silver", "gold", "control", "quality"]


@dataclass(frozen=True, slots=True)
class Lake:
    """The lake of one pipeline. Exactly one of `path` and `catalog` is set.

    Attributes:
        path: absolute local path or object-store URL, without a trailing slash.
        catalog: a catalog of the Spark session.
    """

    path: str | None = None
    catalog: str | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.catalog is None):
            raise ValueError("a lake has either a path or a catalog")

    @property
    def in_store(self) -> bool:
        """Whether the lake lies in an object store."""
        return self.path is not None and local_folder(self.path) is None

    def uri(self, layer: Layer, name: str) -> str:
        """Location of a table, for `deltalake`; the folder bears its name as `bronze.lake.folders` writes it.

        Raises:
            ValueError: the lake is a catalog, which alone knows its locations.
        """
        if self.path is None:
            raise ValueError("tables of a catalog have no location of their own")
        return f"{self.path}/{layer}/{folder_name(name)}"

    def sql(self, layer: Layer, name: str) -> str:
        """The table as Spark SQL, quoted."""
        if self.catalog is not None:
            return ".".join(_backticks(part) for part in (self.catalog, layer, name))
        return f"delta.{_backticks(self.uri(layer, name))}"


def _backticks(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
