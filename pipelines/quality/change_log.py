"""The promises of `bronze.changes`, checked over all its rows up to the cut.

Every later layer relies on these promises (`bronze.store.contract`): no change is duplicated, and every
transaction is whole. Two expectations, one pass: the check counts rows of the stream by (`commit_lsn`,
`seq`), and these places by `commit_lsn`. A transaction is whole if its places are 0, 1, 2, … without a gap
and its last place has the only `end_of_tx`. So the check finds a lost row, a lost end and a second end. A
transaction missing as a whole leaves no trace here (`smelt verify` finds the loss).

Every run checks all rows: the table is append-only, but rows appended twice by a fault have an old
`commit_lsn`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import OP_SNAPSHOT, OP_SNAPSHOT_END
from deltasmelt.pipelines.quality.expectations import LOG_SUITE, Expectation, Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame

CHANGES_ONCE: Final = "expect_each_change_once"
WHOLE_TRANSACTIONS: Final = "expect_whole_transactions"

# Rows of snapshots belong to no transaction and do not count.
_PLACES: Final = f"""
SELECT commit_lsn, seq, count(*) AS copies, count_if(end_of_tx) AS ends
FROM {{log}}
WHERE op NOT IN ('{OP_SNAPSHOT}', '{OP_SNAPSHOT_END}')
GROUP BY commit_lsn, seq
"""
_TRANSACTIONS: Final = f"""
SELECT commit_lsn, sum(copies) AS changes, count_if(copies > 1) AS repeated, max(seq) AS last_seq,
       count_if(ends > 0) AS ends,
       coalesce(
           min(seq) = 0 AND max(seq) = count(*) - 1 AND count_if(ends > 0) = 1
               AND max(CASE WHEN ends > 0 THEN seq END) = max(seq),
           false
       ) AS whole
FROM ({_PLACES})
GROUP BY commit_lsn
"""


def of_log() -> list[Expectation]:
    """Return the expectations of `bronze.changes`."""
    notes = {
        CHANGES_ONCE: "exactly once",
        WHOLE_TRANSACTIONS: "seq from 0 without gaps, one end_of_tx, on the last row",
    }
    return [
        Expectation("bronze", "changes", LOG_SUITE, kind, {}, note=note, where="contract of bronze.changes")
        for kind, note in notes.items()
    ]


def check_log(expectations: Sequence[Expectation], log: DataFrame, limit: int) -> list[Result]:
    """Return the results of the expectations of `of_log`, in their order, with up to `limit` examples."""
    spark = log.sparkSession
    (line,) = spark.sql(
        "SELECT count(*) AS transactions, coalesce(sum(changes), 0) AS changes, "
        "coalesce(sum(repeated), 0) AS repeated, count_if(NOT whole) AS broken "
        f"FROM ({_TRANSACTIONS})",
        log=log,
    ).collect()
    measures: dict[str, tuple[int, int, str, str]] = {
        CHANGES_ONCE: (
            line.repeated,
            line.changes,
            "changes",
            f"SELECT commit_lsn, seq, copies FROM ({_PLACES}) WHERE copies > 1",
        ),
        WHOLE_TRANSACTIONS: (
            line.broken,
            line.transactions,
            "transactions",
            f"SELECT commit_lsn, changes, last_seq, ends FROM ({_TRANSACTIONS}) WHERE NOT whole",
        ),
    }
    results = []
    for expectation in expectations:
        count, total, unit, query = measures[expectation.kind]
        rows = spark.sql(f"{query} ORDER BY commit_lsn LIMIT {limit}", log=log).collect() if count else []
        results.append(
            Result(
                expectation,
                success=count == 0,
                element_count=total,
                unexpected_count=count,
                unexpected_percent=100 * count / total if total else 0.0,
                values=tuple(_readable(row.asDict()) for row in rows),
                counted=unit,
            )
        )
    return results


def _readable(row: dict[str, Any]) -> dict[str, Any]:
    lsn = row["commit_lsn"]
    return {**row, "commit_lsn": None if lsn is None else str(Lsn(lsn))}
