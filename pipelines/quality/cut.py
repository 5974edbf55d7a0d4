"""The cut of a quality run: one LSN, and every table's Delta version at this LSN, bronze's too.

The run reads every table at its version of the cut and at no other, whatever is written meanwhile. A foreign
key checked across two moments would find false orphans.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import ConfigurationError
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.consistent_cut import choose_cut
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store.contract import CHANGES, RELATIONS
from deltasmelt.bronze.store.marks import kept_from
from deltasmelt.pipelines.quality.expectations import CutTable, LeftOut
from deltasmelt.silver.schema.catalog import HISTORY_SUFFIX
from deltasmelt.silver.spark.small_reads import table_at

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from pyspark.sql import DataFrame, SparkSession

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.silver.schema.catalog import SilverTable


BRONZE_TABLES: Final = {CHANGES: "commit_lsn", RELATIONS: "from_lsn"}
"""Tables of bronze, with the column of the LSN from which a row counts."""


@dataclass(frozen=True, slots=True)
class QualityCut:
    """One LSN and the versions of silver's and gold's tables at this LSN."""

    commit_lsn: Lsn
    commit_ts: datetime | None
    tables: tuple[CutTable, ...]
    left_out: tuple[LeftOut, ...] = ()
    # before this LSN, bronze may have lost parts of transactions (`bronze.retention`)
    kept_from: Lsn = ZERO

    def frame(self, spark: SparkSession, lake: Lake, table: CutTable) -> DataFrame:
        """Return the table at the cut; for bronze, the rows committed at or before the cut."""
        frame = table_at(spark, lake, table.layer, table.name, table.version)
        if table.layer == "bronze":
            frame = frame.where(f"{BRONZE_TABLES[table.name]} <= {int(self.commit_lsn)}")
        if table.qualified == f"bronze.{CHANGES}" and self.kept_from:
            frame = frame.where(f"commit_lsn >= {int(self.kept_from)}")
        return frame

    def sizes(self, lake: Lake) -> dict[str, int]:
        """Return the bytes of each table's files at the cut; for a catalog's table, the present bytes."""
        bytes_of_tables = {}
        for table in self.tables:
            try:
                at_cut = delta.open_at(lake.uri(table.layer, table.name), table.version)
                bytes_of_tables[table.qualified] = sum(
                    at_cut.get_add_actions().column("size_bytes").to_pylist()
                )
            except DeltaError:
                continue
        return bytes_of_tables


def held_columns(lake: Lake, tables: Iterable[SilverTable]) -> dict[str, list[str]]:
    """Return the present columns of silver's tables and their histories; missing tables have none."""
    columns: dict[str, list[str]] = {}
    for name in (name for table in tables for name in (table.name, f"{table.name}{HISTORY_SUFFIX}")):
        table = delta.open_table(lake.uri("silver", name))
        if table is not None:
            fields = json.loads(table.schema().to_json())["fields"]
            columns[f"silver.{name}"] = [field["name"] for field in fields]
    return columns


def quality_cut(lake: Lake, control: ControlTables, *, with_gold: bool, where: str) -> QualityCut:
    """Return the newest common cut of silver and, with documents, gold.

    Raises:
        ConfigurationError: silver has no cut yet.
    """
    cut = choose_cut(control, with_gold=with_gold)
    if cut is None:
        raise ConfigurationError(
            "nothing to check yet: silver has no cut",
            code="no-cut",
            where=where,
            remedy="run the pipeline first: smelt run FILE --until-caught-up",
        )
    left_out: tuple[LeftOut, ...] = ()
    if with_gold and cut.gold is None:
        has_cuts = control.latest_cut("gold") is not None
        left_out = (LeftOut("gold", "no cut at an LSN of silver" if has_cuts else "no cut yet"),)
    # Bronze has no cuts: no row of bronze ever changes, and its rows have the LSN from which they count.
    opened = {name: delta.open_table(lake.uri("bronze", name)) for name in BRONZE_TABLES}
    bronze = (CutTable("bronze", name, table.version()) for name, table in opened.items() if table)
    derived = (CutTable(layer, name, version) for (layer, name), version in cut.versions.items())
    changes = opened[CHANGES]
    kept = ZERO if changes is None else kept_from(changes)
    return QualityCut(cut.commit_lsn, cut.commit_ts, (*bronze, *derived), left_out, kept)
