"""Settings, marks and columns that gold's tables and statements share.

The mark of a gold table is in the commit of the data (`silver.run.marks`), for MERGE and full builds alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from deltasmelt.gold.builder.memory import WHOLE_BATCH
from deltasmelt.silver.spark.tuning import NOT_ADAPTIVE
from deltasmelt.silver.sql import as_json, quote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.gold.builder.memory import Plan

GOLD_APP: Final = "deltasmelt.gold"
"""Application id of the mark on every gold table: the table holds the state of the silver cut of this LSN."""

HASH: Final = "_content_hash"
LSN: Final = "_commit_lsn"
"""Columns of every gold table after the document's own columns."""

LEAN: Final = {
    # For filters that the optimiser infers (mostly IS NOT NULL of join keys), Delta would read statistics, in
    # one job for each scan, and skip no file.
    "spark.sql.constraintPropagation.enabled": "false",
}

INTERPRETED: Final = {
    **LEAN,
    # Generating and compiling code for each operator costs more than some thousand rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

SINGLE_TASK: Final = {
    # A broadcast would be one more job; one partition needs no second task.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
    **NOT_ADAPTIVE,
}

SMALL_PLAN: Final = {**INTERPRETED, **SINGLE_TASK}

SORTED: Final = {
    # Spark then collects rows sorted by their group. Spark's default, a hash table of 128 groups, would give
    # up and sort the rows again, with all arrays in memory.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
}
"""Settings for builds whose collected rows do not fit into memory at once."""

_BOTH: Final = "_deltasmelt_both"
BYTES: Final = "_deltasmelt_bytes"
"""Column of assembled documents: the document's bytes as JSON."""


def partitions(plan: Plan) -> dict[str, str]:
    """Return settings for the number of tasks of a plan."""
    return {} if plan.partitions is None else {"spark.sql.shuffle.partitions": str(plan.partitions)}


def read_by(plan: Plan) -> dict[str, str]:
    """Return settings that limit the documents read and written at once to a plan's room."""
    if plan.batch >= WHOLE_BATCH:
        return {}
    return {
        "spark.sql.parquet.columnarReaderBatchSize": str(plan.batch),
        # The Parquet writer measures its memory only after so many rows.
        "parquet.block.size.row.check.min": str(min(plan.batch, 100)),
        "parquet.block.size.row.check.max": str(plan.batch),
    }


def hash_and_bytes(columns: Sequence[str], query: str) -> str:
    """Return a query for a query's rows with `HASH` and `BYTES`; Spark makes the JSON once for both."""
    json = as_json(map(quote, columns))
    both = f"transform(array({json}), j -> struct(sha2(j, 256) AS h, octet_length(j) AS b))[0]"
    rows = f"SELECT *, {both} AS {_BOTH} FROM (\n{query}\n)"
    return f"SELECT * EXCEPT ({_BOTH}), {_BOTH}.h AS {HASH}, {_BOTH}.b AS {BYTES} FROM ({rows})"


def content_hash(columns: Sequence[str]) -> str:
    """Return an expression for the SHA-256 of a document's columns."""
    return f"sha2({as_json(map(quote, columns))}, 256)"
