"""Two lakes over one bronze: current rows in the one; soft deletes and history in the other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bronze.lake.control_tables import ControlTables
from bronze.lake.location import Lake
from silver.cycle import Silver
from silver.settings import SilverSettings
from tests.fix_spark import rows_of
from tests.silver.histories import BronzeWriter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from bronze.shapes import Relation


class Lakes:
    """Folds the same changes both ways, or without `plain` or `kept` in one way alone."""

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        shapes: Sequence[Relation],
        *,
        plain: bool = True,
        kept: bool = True,
    ) -> None:
        self.spark = spark
        self.names = {shape.table.silver_name for shape in shapes}
        self.plain, self.kept = Lake(path=f"{path}/plain"), Lake(path=f"{path}/kept")
        self.bronze = BronzeWriter(self.plain)
        Path(f"{path}/kept").mkdir()
        Path(f"{path}/kept/bronze").symlink_to(f"{path}/plain/bronze")
        self.controls = [ControlTables(self.plain), ControlTables(self.kept)]
        both = SilverSettings(deletes="soft", history=[str(shape.table) for shape in shapes])
        folded = ((self.plain, SilverSettings(), plain), (self.kept, both, kept))
        self.silvers = [
            Silver(spark, lake, settings, control) if wanted else None
            for (lake, settings, wanted), control in zip(folded, self.controls, strict=True)
        ]

    def cycle(self, lsn: int) -> None:
        """Both lakes to an LSN, which they must reach with every table."""
        wanted = [self.names, self.names | {f"{name}__history" for name in self.names}]
        for silver, control, tables in zip(self.silvers, self.controls, wanted, strict=True):
            if silver is None:
                continue
            cut = silver.cycle()
            assert control.open_errors() == []
            assert cut is not None
            assert (cut.commit_lsn, set(cut.tables)) == (lsn, tables)

    def read(self, lake: Lake, name: str, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        """Rows of a silver table, sorted."""
        rows = rows_of(self.spark, f"SELECT {columns} FROM {lake.sql('silver', name)} WHERE {where}")
        return sorted((tuple(row) for row in rows), key=repr)

    def as_of(self, name: str, lsn: int, columns: str) -> list[tuple[Any, ...]]:
        """The versions that held as of an LSN, sorted."""
        where = f"_valid_from_lsn <= {lsn} AND (_valid_to_lsn IS NULL OR {lsn} < _valid_to_lsn)"
        return self.read(self.kept, f"{name}__history", columns, where)
