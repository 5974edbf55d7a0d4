"""Delta tables through `deltalake`: made on first use by whoever comes first, appended to with retries.

Appends never conflict with each other in Delta; what can collide is the log entry's number, or an update of
another process that came between, and then the commit is tried again on the newer version. A table that two
processes create at the same moment is made by one of them; the other one sees "already there" (or a lost race
for version 0) and opens it. Both are safe to repeat: nothing is visible before the log entry exists.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError, TableNotFoundError
from tenacity import retry, retry_if_exception_type, stop_after_attempt, wait_random_exponential

from bronze.errors import ConfigurationError
from bronze.parts import file_system

if TYPE_CHECKING:
    from collections.abc import Mapping

    from bronze.lake import Lake, Layer

_ATTEMPTS: Final = 10

retry_conflict = retry(
    retry=retry_if_exception_type(CommitFailedError),
    wait=wait_random_exponential(multiplier=0.02, max=1.0),
    stop=stop_after_attempt(_ATTEMPTS),
    reraise=True,
)
"""Run again when another writer took the version that we wanted."""


def location(lake: Lake, layer: Layer, name: str) -> str:
    """Where `deltalake` finds a table.

    Raises:
        ConfigurationError: the lake is a catalog, whose tables only Spark can place.
    """
    try:
        return lake.uri(layer, name)
    except ValueError:
        raise ConfigurationError(
            f"{layer}.{name} lies in the catalog {lake.catalog!r}, which only a Spark session can write",
            code="catalog-lake",
            remedy="use lake.path; tables of a path can be registered in a catalog afterwards",
        ) from None


def open_table(uri: str) -> DeltaTable | None:
    """The table at its newest version, or None where there is none."""
    try:
        return DeltaTable(uri)
    except TableNotFoundError:
        return None


def open_existing(uri: str) -> DeltaTable:
    """The table at its newest version.

    Raises:
        TableNotFoundError: there is none.
    """
    return DeltaTable(uri)


def open_or_create(
    uri: str, schema: pa.Schema, *, description: str, properties: Mapping[str, str] | None = None
) -> DeltaTable:
    """The table, made first if it is not there; safe against another process doing the same."""
    table = open_table(uri)
    if table is not None:
        return table
    try:
        return DeltaTable.create(
            uri,
            schema=schema,
            mode="error",
            description=description,
            configuration=dict(properties or {}),
            raise_if_key_not_exists=False,  # properties of our own are not in Delta's list
        )
    except DeltaError:
        table = open_table(uri)
        if table is None:  # not a lost race
            raise
        return table


def paths_of(table: DeltaTable) -> list[str]:
    """The files of the handle's version, relative to the table."""
    return [str(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()]


def read_file(table: DeltaTable, path: str) -> pa.Table:
    """All rows of a file of a table that `deltalake` alone writes: every row of it counts.

    Arrow's datasets would do as well, but the reader needs them for nothing else, and loading them costs
    30 MiB.
    """
    with file_system(table.table_uri).open_input_file(path) as file, pq.ParquetFile(file) as parquet:
        return parquet.read()


def ordered(rows: pa.Table, column: str, order: Literal["ascending", "descending"] = "ascending") -> pa.Table:
    """Rows by a column; `Table.sort_by` would load Arrow's query engine for it, 30 MiB."""
    return rows.take(pc.sort_indices(rows, sort_keys=[(column, order)]))


@retry_conflict
def append(table: DeltaTable, rows: pa.Table, *, widen: bool = False) -> None:
    """Append rows in one commit, as of the newest version; the handle is at the version after it.

    Args:
        table: open.
        rows: to append.
        widen: the rows may have fields that the table, made by an earlier release, lacks; it gets them.
    """
    table.update_incremental()
    write_deltalake(table, rows, mode="append", schema_mode="merge" if widen else None)
