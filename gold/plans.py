"""What gold's tables and statements share: plans for little data, the mark of a commit, own columns.

The mark of a gold table is one commit with its data (`silver.sessions.mark`), for MERGE and for CREATE OR
REPLACE TABLE alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from gold.affected import JSON_OPTIONS
from silver.sql import quote

if TYPE_CHECKING:
    from collections.abc import Sequence

GOLD_APP: Final = "deltasmelt.gold"
"""Application transaction on every gold table: it holds the state of the silver cut of this LSN."""

HASH: Final = "_content_hash"
LSN: Final = "_commit_lsn"
"""Columns of every gold table after the document's own."""

INTERPRETED: Final = {
    # Generating and compiling code for each operator costs more than some thousand rows.
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    # What the optimiser infers (IS NOT NULL of join keys, mostly) makes Delta ask its statistics, one job for
    # each scan, and skips no file.
    "spark.sql.constraintPropagation.enabled": "false",
}

SMALL_PLAN: Final = {
    **INTERPRETED,
    # Joins in place need no broadcast, which would be a job of its own; one partition needs no second task.
    "spark.sql.autoBroadcastJoinThreshold": "-1",
    "spark.sql.shuffle.partitions": "1",
}


def content_hash(columns: Sequence[str]) -> str:
    """SHA-256 of a document's columns, as an expression over them."""
    fields = ", ".join(quote(name) for name in columns)
    return f"sha2(to_json(struct({fields}), {JSON_OPTIONS}), 256)"
