"""Hints about large tables whose rows are read together and stored apart.

The hints come from the statistics of the table's files. A file may hold a value between the file's smallest
and largest value. If the average value may be in most of the files, a join on a few values reads most of the
table. In a clustered table, the value is in one or two files.

Only large tables count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.parquet import file_system

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.pipelines.settings import Pipeline

_LEAST_BYTES: Final = 64 * 2**20
_LEAST_FILES: Final = 8
_SPREAD: Final = 0.5
"""Smallest share of files with the average value at which clustering helps."""


@dataclass(frozen=True, slots=True)
class ClusteringHint:
    """A table that `smelt maintain` would write in another order."""

    # name within silver
    table: str
    # the column by which documents read the rows
    column: str
    # number of files of the table
    files: int
    # average number of files that may hold a given value
    files_read: float
    # size of the single rewrite
    bytes: int


def clustering_hints(
    pipeline: Pipeline, relations: Sequence[Relation], versions: Mapping[str, int]
) -> tuple[ClusteringHint, ...]:
    """Return the tables of silver, at the given versions, that clustering would help.

    Args:
        pipeline: its documents and settings name the columns that are read together.
    """
    lake = pipeline.lake_address()
    if lake.is_remote:  # in a store each read is a request
        return ()
    # The checksum file of a version holds the size of the table, at the cost of one read.
    large = [name for name, version in versions.items() if _bytes_of(lake, name, version) >= _LEAST_BYTES]
    if not large:
        return ()
    from deltasmelt.gold.language.document import load_documents  # noqa: PLC0415 - where some table is large, alone
    from deltasmelt.pipelines.runtime.clustering import by_name, clustered  # noqa: PLC0415
    from deltasmelt.silver.schema.clustering import clustering_columns  # noqa: PLC0415

    try:
        documents = load_documents(pipeline.document_files())
    except ConfigurationError:  # `smelt check` reports the error; `smelt maintain` changes no table
        return ()
    tables = by_name(relations, clustered(pipeline.silver, documents))
    hints = []
    for name in large:
        columns = clustering_columns(tables[name]) if name in tables else []
        hint = _hint(lake, name, versions[name], columns[0]) if columns else None
        hints += [] if hint is None else [hint]
    return tuple(hints)


def files_per_value(files: pa.Table, column: str) -> float | None:
    """Return the average number of files that may hold a value; None without statistics. Pure.

    Args:
        files: the table's files with their flat statistics.
    """
    smallest, largest = f"min.{column}", f"max.{column}"
    if not {smallest, largest} <= set(files.column_names):
        return None
    if files[smallest].null_count or files[largest].null_count:
        return None
    starts, ends = (np.sort(files[name].to_numpy(zero_copy_only=False)) for name in (smallest, largest))
    values = np.concatenate([starts, ends])
    started = np.searchsorted(starts, values, side="right")
    ended = np.searchsorted(ends, values, side="left")
    return float(np.mean(started - ended))


def _hint(lake: Lake, name: str, version: int, column: str) -> ClusteringHint | None:
    try:
        table = delta.open_at(lake.uri("silver", name), version)
        files = pa.table(table.get_add_actions(flatten=True))
        fields = json.loads(table.schema().to_json())["fields"]
    except (DeltaError, OSError):
        return None
    field = next((candidate for candidate in fields if candidate["name"] == column), None)
    if field is None or files.num_rows < _LEAST_FILES:
        return None
    read = files_per_value(files, field["metadata"].get("delta.columnMapping.physicalName", column))
    if read is None or read < _SPREAD * files.num_rows:
        return None
    return ClusteringHint(name, column, files.num_rows, read, sum(files["size_bytes"].to_pylist()))


def _bytes_of(lake: Lake, name: str, version: int) -> int:
    """Return the bytes of a version's files from the checksum file; 0 without such a file."""
    try:
        with file_system(lake.uri("silver", name)).open_input_file(f"_delta_log/{version:020}.crc") as file:
            return int(json.loads(file.read())["tableSizeBytes"])
    except (OSError, ValueError, LookupError, TypeError):
        return 0
