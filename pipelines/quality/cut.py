"""The cut that a quality run looks at: one LSN, and the Delta version of every table at it.

Gold follows silver, so the newest LSN at which both layers have a cut is taken; every table is then read at
its version of that LSN and nothing else, whatever is written meanwhile. A foreign key checked across two
moments would find orphans that never were.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from bronze.errors import ConfigurationError
from pipelines.quality.expectations import LeftOut, Table

if TYPE_CHECKING:
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from bronze.lake.control import Cut
    from bronze.lake.control_tables import ControlTables
    from bronze.lake.location import Lake
    from bronze.lsn import Lsn


@dataclass(frozen=True, slots=True)
class QualityCut:
    """One LSN and the versions of silver's and gold's tables at it."""

    commit_lsn: Lsn
    commit_ts: datetime | None
    tables: tuple[Table, ...]
    left_out: tuple[LeftOut, ...] = ()

    def frame(self, spark: SparkSession, lake: Lake, table: Table) -> DataFrame:
        """The table as it was at the cut."""
        return spark.sql(f"SELECT * FROM {lake.sql(table.layer, table.name)} VERSION AS OF {table.version}")


def choose_cut(control: ControlTables, *, with_gold: bool, where: str) -> QualityCut:
    """The newest cut that silver and, where there are documents, gold have in common.

    Args:
        control: the lake's control tables.
        with_gold: whether the pipeline has documents.
        where: the pipeline file, for the message.

    Raises:
        ConfigurationError: silver has no cut yet.
    """
    silver = control.latest_cut("silver")
    if silver is None:
        raise ConfigurationError(
            "there is nothing to check yet: silver has no cut",
            code="no-cut",
            where=where,
            remedy="run the pipeline first: smelt run FILE --until-caught-up",
        )
    if not with_gold:
        return _cut(silver, None)
    gold = control.latest_cut("gold")
    if gold is not None:
        at_gold = control.latest_cut("silver", at=gold.commit_lsn)
        if at_gold is not None and at_gold.commit_lsn == gold.commit_lsn:
            return _cut(at_gold, gold)
        golds = {cut.commit_lsn: cut for cut in control.cuts("gold")}
        for cut in reversed(control.cuts("silver")):
            if cut.commit_lsn in golds:
                return _cut(cut, golds[cut.commit_lsn])
    why = "no cut yet" if gold is None else "no cut at an LSN of silver"
    return _cut(silver, None, LeftOut("gold", why))


def _cut(silver: Cut, gold: Cut | None, *left_out: LeftOut) -> QualityCut:
    tables = [Table("silver", name, version) for name, version in sorted(silver.tables.items())]
    if gold is not None:
        tables += [Table("gold", name, version) for name, version in sorted(gold.tables.items())]
    return QualityCut(silver.commit_lsn, silver.commit_ts, tuple(tables), left_out)
