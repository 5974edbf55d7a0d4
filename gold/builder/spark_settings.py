"""What gold's tables and statements share: plans for little data, the mark of a commit, own columns.

The mark of a gold table is one commit with its data (`silver.run.marks`), for MERGE and full builds alike.
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
"""Application transaction on every gold table: it holds the state of the silver cut of this LSN."""

HASH: Final = "_content_hash"
LSN: Final = "_commit_lsn"
"""Columns of every gold table after the document's own."""

LEAN: Final = {
    # What the optimiser infers (IS NOT NULL of join keys, mostly) makes Delta ask its statistics, one job for
    # each scan, and skips no file.
    "spark.sql.constraintPropagation.enabled": "false",
}

INTERPRETED: Final = {
    **LEAN,
    # Generating and compiling code for each operator costs more than some thousand rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

SINGLE_TASK: Final = {
    # Joins in place need no broadcast, which would be one more job; one partition needs no second task.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
    **NOT_ADAPTIVE,
}

SMALL_PLAN: Final = {**INTERPRETED, **SINGLE_TASK}

SORTED: Final = {
    # What is collected comes sorted by its group. Spark's default, a hash table of 128 groups, would give up
    # and sort it again, with all arrays in memory.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
}
"""Where not all that is collected may be in memory at once."""

_BOTH: Final = "_deltasmelt_both"
BYTES: Final = "_deltasmelt_bytes"
"""Column of documents that are made: their bytes as JSON."""


def partitions(plan: Plan) -> dict[str, str]:
    """Settings for the tasks of a plan."""
    return {} if plan.partitions is None else {"spark.sql.shuffle.partitions": str(plan.partitions)}


def read_by(plan: Plan) -> dict[str, str]:
    """Settings by which documents are read and written so many at once as a plan has room for."""
    if plan.batch >= WHOLE_BATCH:
        return {}
    return {
        "spark.sql.parquet.columnarReaderBatchSize": str(plan.batch),
        # The writer asks only then how much it holds.
        "parquet.block.size.row.check.min": str(min(plan.batch, 100)),
        "parquet.block.size.row.check.max": str(plan.batch),
    }


def hash_and_bytes(columns: Sequence[str], query: str) -> str:
    """Rows of a query with `HASH` and `BYTES`, for which the JSON is made once."""
    json = as_json(map(quote, columns))
    both = f"transform(array({json}), j -> struct(sha2(j, 256) AS h, octet_length(j) AS b))[0]"
    rows = f"SELECT *, {both} AS {_BOTH} FROM (\n{query}\n)"
    return f"SELECT * EXCEPT ({_BOTH}), {_BOTH}.h AS {HASH}, {_BOTH}.b AS {BYTES} FROM ({rows})"


def content_hash(columns: Sequence[str]) -> str:
    """SHA-256 of a document's columns, as an expression over them."""
    return f"sha2({as_json(map(quote, columns))}, 256)"
