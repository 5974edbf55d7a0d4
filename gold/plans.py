"""What gold's tables and statements share: plans for little data, the mark of a commit, own columns.

The mark of a gold table is one commit with its data (`silver.sessions.mark`), for MERGE and for CREATE OR
REPLACE TABLE alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gold.clauses import as_json
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

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

ONE_TASK: Final = {
    # Joins in place need no broadcast, which would be a job of its own; one partition needs no second task.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
}

SMALL_PLAN: Final = {**INTERPRETED, **ONE_TASK}

SORTED: Final = {
    # What is collected comes sorted by its group. Spark's default, a hash table of 128 groups, would give up
    # and sort it again, with all arrays in memory.
    "spark.sql.execution.useObjectHashAggregateExec": "false",
}
"""For a large build."""


def content_hash(columns: Sequence[str]) -> str:
    """SHA-256 of a document's columns, as an expression over them."""
    return f"sha2({as_json(map(quote, columns))}, 256)"
