"""The files of a table, and whether writing them again pays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bronze.lake import delta
from bronze.lake.named.place import is_named

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

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
