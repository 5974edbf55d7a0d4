"""Settings of a Spark session for one statement: plans for little data, and the mark of a commit.

Delta writes the application transaction that a session names into whatever the session commits next. So the
mark of a gold table is one commit with its data, for MERGE and for CREATE OR REPLACE TABLE alike.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

    from bronze.lsn import Lsn

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


def mark(lsn: Lsn, position: Lsn | None) -> dict[str, str]:
    """Settings by which a commit also sets the mark.

    Delta skips a write whose mark is not above the table's, so a build at the LSN that the table already
    holds (its definition changed) carries none.
    """
    if position is not None and lsn <= position:
        return {}
    return {
        "spark.databricks.delta.write.txnAppId": GOLD_APP,
        "spark.databricks.delta.write.txnVersion": str(int(lsn)),
    }


@contextmanager
def settings(spark: SparkSession, wanted: Mapping[str, str]) -> Iterator[None]:
    """Settings of a session for a while."""
    before = {name: spark.conf.get(name, None) for name in wanted}
    for name, value in wanted.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)
