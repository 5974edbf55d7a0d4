"""Where the Delta tables lie: ``<layer>.<name>``, under a path or in a catalog of the Spark session.

Everything that names a table of ours does it through `Lake`, so that both kinds of lake differ in one place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from bronze.lake.folders import folder_name, local_folder
from bronze.lake.named.place import location_of, root_of, scratch_name
from bronze.lake.spark_text import quoted

Layer: TypeAlias = Literal["bronze", "silver", "gold", "control", "quality"]


@dataclass(frozen=True, slots=True)
class Lake:
    """The lake of one pipeline. Exactly one of `path` and `catalog` is set.

    Attributes:
        path: absolute local path or object-store URL, without a trailing slash.
        catalog: a catalog of the Spark session.
        scratch: in a catalog, what the tables are for a while and no part of the pipeline
            (`bronze.lake.scratch`); None: its own.
    """

    path: str | None = None
    catalog: str | None = None
    scratch: str | None = None

    def __post_init__(self) -> None:
        if (self.path is None) == (self.catalog is None):
            raise ValueError("a lake has either a path or a catalog")

    @property
    def in_store(self) -> bool:
        """Whether the lake lies in an object store."""
        return self.path is not None and local_folder(self.path) is None

    @property
    def is_remote(self) -> bool:
        """Whether each look at the lake costs a request to a store, or a statement of Spark."""
        return self.path is None or self.in_store

    @property
    def place(self) -> str:
        """What a person knows the lake by: its path, or the catalog's name."""
        return str(self.catalog) if self.path is None else self.path

    @property
    def root(self) -> str:
        """The location below which the tables lie; in a catalog it stands for the name."""
        return root_of(str(self.catalog)) if self.path is None else self.path

    def uri(self, layer: Layer, name: str) -> str:
        """Location of a table; the folder bears its name as `bronze.lake.folders` writes it.

        Of a catalog's table it stands for the name (`bronze.lake.named.place`).
        """
        if self.path is None:
            return location_of(str(self.catalog), *self._placed(layer, name))
        return f"{self.path}/{layer}/{folder_name(name)}"

    def sql(self, layer: Layer, name: str) -> str:
        """The table as Spark SQL, quoted."""
        if self.catalog is not None:
            return ".".join(map(quoted, (self.catalog, *self._placed(layer, name))))
        return f"delta.{quoted(self.uri(layer, name))}"

    def _placed(self, layer: Layer, name: str) -> tuple[str, str]:
        """Schema and name of a table in the catalog."""
        return (layer, name) if self.scratch is None else scratch_name(self.scratch, layer, name)
