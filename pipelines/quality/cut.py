"""The cut that a quality run looks at: one LSN, and the Delta version of every table at it, bronze's too.

`bronze.lake.consistent_cut` decides which LSN that is. Every table is then read at its version of it and
nothing else, whatever is written meanwhile. A foreign key checked across two moments would find orphans that
never were.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.consistent_cut import choose_cut
from deltasmelt.bronze.store.contract import CHANGES, RELATIONS
from deltasmelt.pipelines.quality.expectations import CutTable, LeftOut
from deltasmelt.silver.schema.catalog import HISTORY_SUFFIX
from deltasmelt.silver.spark.small_reads import table_at

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.silver.schema.catalog import SilverTable


BRONZE_TABLES: Final = {CHANGES: "commit_lsn", RELATIONS: "from_lsn"}
"""Tables of bronze, with the column that says since which LSN a row counts."""


@dataclass(frozen=True, slots=True)
class QualityCut:
    """One LSN and the versions of silver's and gold's tables at it."""

    commit_lsn: Lsn
    commit_ts: datetime | None
    tables: tuple[CutTable, ...]
    left_out: tuple[LeftOut, ...] = ()

    def frame(self, spark: SparkSession, lake: Lake, table: CutTable) -> DataFrame:
        """The table as it was at the cut; of bronze, what was committed at or before it."""
        frame = table_at(spark, lake, table.layer, table.name, table.version)
        if table.layer == "bronze":
            return frame.where(f"{BRONZE_TABLES[table.name]} <= {int(self.commit_lsn)}")
        return frame

    def sizes(self, lake: Lake) -> dict[str, int]:
        """Bytes of each table's files at the cut, as its log says; of a catalog's table those of now."""
        found = {}
        for table in self.tables:
            try:
                at_cut = delta.open_at(lake.uri(table.layer, table.name), table.version)
                found[table.qualified] = sum(at_cut.get_add_actions().column("size_bytes").to_pylist())
            except DeltaError:
                continue
        return found


def held_columns(lake: Lake, tables: Iterable[SilverTable]) -> dict[str, list[str]]:
    """Columns of silver's tables as they are now; of tables that are not there, none.

    Args:
        lake: the lake.
        tables: with their histories where there are any.
    """
    found: dict[str, list[str]] = {}
    for name in (name for table in tables for name in (table.name, f"{table.name}{HISTORY_SUFFIX}")):
        table = delta.open_table(delta.location(lake, "silver", name))
        if table is not None:
            fields = json.loads(table.schema().to_json())["fields"]
            found[f"silver.{name}"] = [field["name"] for field in fields]
    return found


def quality_cut(lake: Lake, control: ControlTables, *, with_gold: bool, where: str) -> QualityCut:
    """The newest cut that silver and, where there are documents, gold have in common.

    Bronze has no cuts: it is append-only, and its rows say since when they count.

    Args:
        lake: the lake.
        control: its control tables.
        with_gold: whether the pipeline has documents.
        where: the pipeline file, for the message.

    Raises:
        ConfigurationError: silver has no cut yet.
    """
    cut = choose_cut(control, with_gold=with_gold)
    if cut is None:
        raise ConfigurationError(
            "there is nothing to check yet: silver has no cut",
            code="no-cut",
            where=where,
            remedy="run the pipeline first: smelt run FILE --until-caught-up",
        )
    left_out: tuple[LeftOut, ...] = ()
    if with_gold and cut.gold is None:
        has_cuts = control.latest_cut("gold") is not None
        left_out = (LeftOut("gold", "no cut at an LSN of silver" if has_cuts else "no cut yet"),)
    opened = {name: delta.open_table(delta.location(lake, "bronze", name)) for name in BRONZE_TABLES}
    bronze = (CutTable("bronze", name, table.version()) for name, table in opened.items() if table)
    derived = (CutTable(layer, name, version) for (layer, name), version in cut.versions.items())
    return QualityCut(cut.commit_lsn, cut.commit_ts, (*bronze, *derived), left_out)
