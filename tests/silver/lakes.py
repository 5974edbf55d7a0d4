"""Two lakes over one bronze: the first has current rows, the second soft deletes and history."""

from __future__ import annotations

import json
from collections import Counter
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.location import Lake
from deltasmelt.silver.cycle import Silver
from deltasmelt.silver.fresh import FreshTables
from deltasmelt.silver.settings import SilverSettings
from deltasmelt.silver.sql import literal, quote
from tests.fix_spark import rows_of
from tests.silver.histories import BronzeWriter
from tests.silver.stored import rows_at

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.fresh import Head


_AS_JSON: Final = "map('ignoreNullFields', 'false', 'timestampFormat', 'yyyy-MM-dd HH:mm:ss.SSSSSS')"


def seen_ahead(fresh: FreshTables, control: ControlTables, tables: set[str]) -> Head | None:
    """Return the tables at the log's head, before the cycle; None before the first cycle."""
    if control.latest_cut("silver") is None:
        return None
    head = fresh.read(tables)
    assert head.out == {}
    assert set(head.views) == tables
    return head


def check_ahead(spark: SparkSession, head: Head, cut: Cut, lake: Lake) -> None:
    """Check that the tables read ahead equal the result of the cycle: every row with every column."""
    assert head.lsn == cut.commit_lsn
    columns = {name: sorted(spark.table(view).columns) for name, view in head.views.items()}
    parts = []
    for name, view in head.views.items():
        cells = f"struct({', '.join(map(quote, columns[name]))})"
        parts.append(f"SELECT {literal(name)}, to_json({cells}, {_AS_JSON}) FROM {view}")
    ahead: dict[str, Counter[Any]] = {name: Counter() for name in head.views}
    for name, text in rows_of(spark, "\nUNION ALL ".join(parts)) if parts else ():
        ahead[name][_comparable(json.loads(text, parse_float=Decimal))] += 1
    for name, rows in ahead.items():
        version = cut.tables[name]
        fields = DeltaTable(lake.uri("silver", name), version=version).schema().fields
        assert columns[name] == sorted(field.name for field in fields), name
        folded = Counter(map(_comparable, rows_at(spark, lake, name, version)))
        assert rows == folded, f"{name} at {head.lsn}: {list((rows - folded) + (folded - rows))[:4]}"


def _comparable(value: Any) -> Any:
    """Return a value as read from JSON: moments as text, maps and rows as pairs."""
    if isinstance(value, dict):
        return tuple(sorted((key, _comparable(item)) for key, item in value.items()))
    if isinstance(value, list):
        return tuple(map(_comparable, value))
    return value.isoformat(" ", "microseconds") if isinstance(value, datetime) else value


class Lakes:
    """Silver over both lakes, or without `plain` or `kept` over one lake alone.

    With `looked`, `fresh` reads each table at the log's head before each cycle: equal to the cycle's result.
    """

    def __init__(
        self,
        spark: SparkSession,
        path: str,
        shapes: Sequence[Relation],
        *,
        plain: bool = True,
        kept: bool = True,
        looked: bool = False,
    ) -> None:
        self.spark = spark
        self.seen: set[str] | None = None
        """Names of the tables that `fresh` reads; None: all."""
        self.names = {shape.table.silver_name for shape in shapes}
        self.plain, self.kept = Lake(path=f"{path}/plain"), Lake(path=f"{path}/kept")
        self.bronze = BronzeWriter(self.plain)
        Path(f"{path}/kept").mkdir()
        Path(f"{path}/kept/bronze").symlink_to(f"{path}/plain/bronze")
        self.controls = [ControlTables(self.plain), ControlTables(self.kept)]
        full_settings = SilverSettings(deletes="soft", history=[str(shape.table) for shape in shapes])
        folded = ((self.plain, SilverSettings(), plain), (self.kept, full_settings, kept))
        self.silvers = [
            Silver(spark, lake, settings, control) if chosen else None
            for (lake, settings, chosen), control in zip(folded, self.controls, strict=True)
        ]

        self.fresh = [
            FreshTables(spark, lake, settings, control) if looked and chosen else None
            for (lake, settings, chosen), control in zip(folded, self.controls, strict=True)
        ]

    def cycle(self, lsn: int, *, look: bool = True, kept: bool = True) -> None:
        """Carry the lakes, or all but `kept`, to an LSN with every table.

        Args:
            lsn: the LSN of the newest change.
            look: read the log's head before.
            kept: carry the lake with soft deletes and history too.
        """
        expected = [self.names, self.names | {f"{name}__history" for name in self.names}]
        lakes = zip(self.silvers, self.fresh, self.controls, expected, strict=True)
        for silver, fresh, control, tables in lakes:
            if silver is None or not (kept or control is self.controls[0]):
                continue
            seen = tables if self.seen is None else self.seen
            ahead = None if fresh is None or not look else seen_ahead(fresh, control, seen)
            cut = silver.cycle()
            assert control.open_errors() == []
            assert cut is not None
            assert (cut.commit_lsn, set(cut.tables)) == (lsn, tables)
            if ahead is not None:
                check_ahead(self.spark, ahead, cut, silver._lake)

    def read(self, lake: Lake, name: str, columns: str, where: str = "true") -> list[tuple[Any, ...]]:
        """Return rows of a silver table, sorted."""
        rows = rows_of(self.spark, f"SELECT {columns} FROM {lake.sql('silver', name)} WHERE {where}")
        return sorted((tuple(row) for row in rows), key=repr)

    def held(self, lake: Lake, name: str) -> list[dict[str, Any]]:
        """Return rows of a silver table from its files."""
        return rows_at(self.spark, lake, name, DeltaTable(lake.uri("silver", name)).version())

    def as_of(self, name: str, lsn: int, columns: str) -> list[tuple[Any, ...]]:
        """Return the versions valid as of an LSN, sorted."""
        condition = f"_valid_from_lsn <= {lsn} AND (_valid_to_lsn IS NULL OR {lsn} < _valid_to_lsn)"
        return self.read(self.kept, f"{name}__history", columns, condition)
