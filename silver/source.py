"""What a cycle reads of bronze: where it lies, or, where it is little, read once and kept until the next.

Each statement that reads a Delta table has Delta replay its log and go through the statistics of its files:
two jobs and a plan for each. A window of some thousand changes is read in less time than that, so a cycle
over several tables reads it once, and, where it may, right from the files that the log names. Kept rows are
those of one pinned version and never change, so it does not matter which of both a statement reads.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from bronze.tables import CHANGES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.lake import Lake
    from bronze.lsn import Lsn

_ROWS: Final = 100_000
_BYTES: Final = 32 * 2**20
"""What is kept at most, by the files that may hold it; their bytes are some five times as many in memory."""

_FILES: Final = 32
"""Files that Spark looks for by itself; of more it makes a job."""

_SCHEMA: Final = (
    "relation_id BIGINT, commit_lsn BIGINT, seq BIGINT, commit_ts TIMESTAMP, op STRING, "
    "columns ARRAY<STRING>, new ARRAY<STRING>, old ARRAY<STRING>, old_is_key BOOLEAN, unchanged ARRAY<STRING>"
)
"""Columns of `bronze.changes` that silver reads."""

_PATTERNS: Final = frozenset("*?[]{}\\%")
"""Characters that Spark takes for a pattern in a path, or the log has encoded."""


class Source:
    """The rows of `bronze.changes` for one cycle after the other."""

    def __init__(self, lake: Lake) -> None:
        self._lake = lake
        self._view = f"smelt_window_{uuid.uuid4().hex}"
        self._session: SparkSession | None = None

    def whole(self, bronze: DeltaTable) -> str:
        """All of the version that is at hand, as Spark SQL."""
        return f"{self._lake.sql('bronze', CHANGES)} VERSION AS OF {bronze.version()}"

    def keep(
        self,
        session: SparkSession,
        bronze: DeltaTable,
        relations: Iterable[int],
        low: Lsn,
        end: Lsn,
        *,
        one: bool,
    ) -> str:
        """Keep the rows of ``low < commit_lsn <= end``; they are read when they are first asked for.

        Args:
            session: every session beside it can read them too.
            bronze: `bronze.changes` at the version to read.
            relations: ids of relations whose rows count.
            low: LSN up to which all of them are done.
            end: LSN of the last change that counts.
            one: they are few enough for one task.

        Returns:
            The rows as Spark SQL.
        """
        self._session = session
        files = self._plain_files(bronze, low)
        rows = (
            session.read.schema(_SCHEMA).parquet(*files)
            if files
            else session.sql(f"SELECT * FROM {self.whole(bronze)}")
        )
        ids = ", ".join(str(relation) for relation in relations)
        rows = rows.where(f"commit_lsn > {int(low)} AND commit_lsn <= {int(end)} AND relation_id IN ({ids})")
        rows = rows.select(*(column.split()[0] for column in _SCHEMA.split(", ")))
        kept = (rows.coalesce(1) if one else rows).localCheckpoint(eager=False)
        kept.createOrReplaceGlobalTempView(self._view)
        return f"global_temp.{self._view}"

    def _plain_files(self, bronze: DeltaTable, low: Lsn) -> list[str]:
        """Files that hold the rows after an LSN; none where a file alone does not say which rows count.

        Of a table that every reader can read (version 1 of the protocol: no deletion vectors, no column
        mapping) and that is not partitioned, the rows are those of the files in its log.
        """
        if self._lake.path is None or bronze.protocol().min_reader_version > 1:
            return []
        folder = self._lake.uri("bronze", CHANGES)
        files = [f"{folder}/{path}" for path in _files_after(bronze, low)["path"].to_pylist()]
        plain = not bronze.metadata().partition_columns and len(files) <= _FILES
        return files if plain and not any(_PATTERNS & set(path) for path in files) else []

    def close(self) -> None:
        """Forget what is kept."""
        if self._session is not None:
            self._session.catalog.dropGlobalTempView(self._view)
            self._session = None


def rows_after(bronze: DeltaTable, lsn: Lsn) -> tuple[int, int]:
    """Rows and bytes of the files that may hold a later row; an idle stream moves its place without rows."""
    files = _files_after(bronze, lsn)
    rows = pc.sum(pc.fill_null(files["num_records"], _ROWS)).as_py() or 0
    return int(rows), int(pc.sum(files["size_bytes"]).as_py() or 0)


def _files_after(bronze: DeltaTable, lsn: Lsn) -> pa.Table:
    files = pa.table(bronze.get_add_actions(flatten=True))
    if "max.commit_lsn" not in files.column_names:
        return files
    return files.filter(pc.fill_null(pc.greater(files["max.commit_lsn"], int(lsn)), True))


def is_little(rows: int, size: int) -> bool:
    """Whether these files' rows are worth keeping."""
    return rows <= _ROWS and size <= _BYTES
