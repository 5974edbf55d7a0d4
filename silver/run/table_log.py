"""Silver tables in the lake: where they are, which version, which mark, which columns. Reads logs, not rows.

A table's position in the stream is the transaction mark ``deltasmelt.silver`` on the table itself. It is part
of the very commit that holds the rows, so both cannot disagree. Delta skips a write whose mark is not newer
than the table's, so a window is never applied twice.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from deltalake.exceptions import DeltaError, TableNotFoundError

from bronze.lake import delta
from bronze.lake.history import history
from bronze.lake.transactions import transaction_version
from bronze.lsn import Lsn
from silver.run.key_ranges import share_of
from silver.run.lazy_session import lazily
from silver.schema.ddl import RELATION_PROPERTY
from silver.schema.fields import DeltaColumn, fields_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from deltalake import DeltaTable
    from pyspark.sql import SparkSession

    from bronze.lake.location import Lake
    from silver.run.lazy_session import LazySession

SILVER_APP: Final = "deltasmelt.silver"
"""Application id of the mark; its version is the LSN up to which the table is done."""

_FARTHEST: Final = 10_000
"""Commits to look back over."""

_LOOKED_AT: Final = (2, 200)
"""Newest commits among which the last one that wrote rows is looked for; mostly it is the newest."""

_KNOWN_FROM: Final = re.compile(r"deltasmelt: known rows after (\d+)")


@dataclass(frozen=True, slots=True)
class Stored:
    """A silver table as it is in the lake.

    Attributes:
        version: Delta version.
        mark: LSN of the newest window in it; None where none is.
        fields: its columns, own ones included.
        files: number of data files.
        relation: id of the relation whose rows it holds (`silver.schema.recreated`); None of a table that was
            made before that was kept.
        description: its own comment; empty where it has none.
    """

    version: int
    mark: Lsn | None
    fields: tuple[DeltaColumn, ...]
    files: int
    relation: str | None = None
    description: str = ""


class SilverLog:
    """Looks into the Delta logs of one lake's silver tables.

    Args:
        spark: is asked where a catalog's tables lie, and for nothing else.
        lake: whose.
    """

    def __init__(self, spark: SparkSession | LazySession, lake: Lake) -> None:
        self._spark = lazily(spark)
        self._lake = lake
        self._tables: dict[str, DeltaTable] = {}
        self._stored: dict[str, Stored] = {}
        self._locations: dict[str, str] = {}

    def read(self, name: str) -> Stored | None:
        """The table at its newest version; None where there is none."""
        table = self._open(name)
        if table is None:
            return None
        known = self._stored.get(name)
        if known is not None and known.version == table.version():
            return known
        self._stored[name] = _stored(table)
        return self._stored[name]

    def read_at(self, name: str, version: int) -> Stored | None:
        """The table at a version; None where there is none.

        Raises:
            DeltaError: the version is no longer readable.
        """
        location = self.place(name)
        try:
            return None if location is None else _stored(delta.open_at(location, version))
        except TableNotFoundError:
            return None

    def forget(self, names: Iterable[str]) -> None:
        """Open tables anew at the next look: what is known of them may be of tables that were removed.

        A handle that reads on says nothing where its table is gone, and stays at the version it had.
        """
        for name in names:
            self._tables.pop(name, None)
            self._stored.pop(name, None)
            self._locations.pop(name, None)

    def written(self, name: str) -> Stored:
        """The table, which was just written."""
        stored = self.read(name)
        if stored is None:
            raise RuntimeError(f"silver.{name} was written but is not there")
        return stored

    def size(self, name: str) -> tuple[int, int]:
        """About how many rows the table's files hold, and their bytes; 0 where there is no table."""
        table = self._open(name)
        if table is None:
            return 0, 0
        files = pa.table(table.get_add_actions())
        return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0

    def share(self, name: str, column: str, low: str, high: str) -> float:
        """Share of the table's rows in files that may hold values of this range; 0 where that is not known.

        Args:
            name: of the table.
            column: its name; only of integers and text it is known.
            low: smallest value, as text.
            high: largest value.
        """
        table = self._open(name)
        if table is None:
            return 0.0
        field = next(one for one in json.loads(table.schema().to_json())["fields"] if one["name"] == column)
        stored_as = field["metadata"].get("delta.columnMapping.physicalName", column)
        return share_of(pa.table(table.get_add_actions(flatten=True)), stored_as, low, high)

    def committed_at(self, name: str, version: int) -> datetime | None:
        """When a version was committed, by the clock of who did; None where the log no longer says."""
        table = self._open(name)
        back = -1 if table is None else table.version() - version
        if table is None or not 0 <= back < _FARTHEST:
            return None
        for entry in reversed(history(table, back + 1)):
            if entry.get("version") == version and "timestamp" in entry:
                return datetime.fromtimestamp(entry["timestamp"] / 1000, UTC)
        return None

    def counts(self, name: str, version: int) -> dict[str, int]:
        """Rows inserted, updated and deleted by a version, if it is one of the two newest commits."""
        table = self._open(name)
        entries = [] if table is None else history(table, 2)
        entry = next((one for one in entries if one.get("version") == version), None)
        if entry is None:
            return {}
        return _counted(
            entry, {"inserts": "numOutputRows"} if entry.get("operation") == "WRITE" else _MERGE_METRICS
        )

    def lacks_rows(self, name: str) -> Lsn | None:
        """Where the table's newest window began, if not all rows that it should have changed were there.

        A MERGE of known rows adds none (`silver.run.step_runner`). Where it does not find all of them, the
        one that does follows it, unless that failed or the process ended in between. Its commit says that it
        is one, and where its window began. So nobody else's MERGE is taken for one.

        Returns:
            None where the last commit that wrote rows by MERGE or INSERT is another one.
        """
        table = self._open(name)
        if table is None:
            return None
        for limit in _LOOKED_AT:
            for entry in history(table, limit):
                if entry.get("operation") in {"MERGE", "WRITE"}:
                    return _lacking(entry)
        return None

    def _open(self, name: str) -> DeltaTable | None:
        table = self._tables.get(name)
        if table is not None:
            try:
                delta.refresh(table)
            except DeltaError:  # its log ends before the known version: the table was put back, or made anew
                self.forget((name,))
            else:
                return table
        location = self.place(name)
        if location is None:
            return None
        try:
            table = delta.open_at(location, None)
        except TableNotFoundError:
            return None
        self._tables[name] = table
        return table

    def place(self, name: str) -> str | None:
        """The table's location; the catalog knows that of a catalog's table."""
        if self._lake.path is not None:
            return self._lake.uri("silver", name)
        if name not in self._locations:
            address = self._lake.sql("silver", name)
            spark = self._spark.get()
            if not spark.catalog.tableExists(address):
                return None
            row = spark.sql(f"DESCRIBE DETAIL {address}").select("location").collect()[0]
            self._locations[name] = row["location"]
        return self._locations[name]


def _stored(table: DeltaTable) -> Stored:
    mark = transaction_version(table, SILVER_APP)
    return Stored(
        table.version(),
        None if mark is None else Lsn(mark),
        tuple(fields_of(json.loads(table.schema().to_json()))),
        len(table.file_uris()),
        table.metadata().configuration.get(RELATION_PROPERTY),
        table.metadata().description or "",
    )


def known_rows(start: Lsn) -> dict[str, str]:
    """Settings by which a commit says that it is a MERGE of known rows; see `SilverLog.lacks_rows`.

    Args:
        start: where its window begins.
    """
    return {"spark.databricks.delta.commitInfo.userMetadata": f"deltasmelt: known rows after {int(start)}"}


def _lacking(entry: dict[str, Any]) -> Lsn | None:
    """Where the window of a MERGE of known rows began, if it did not find all of them."""
    said = _KNOWN_FROM.fullmatch(str(entry.get("userMetadata")))
    found = _counted(entry, _MERGE_METRICS | {"source": "numSourceRows"})
    lacks = said is not None and found["updates"] + found["deletes"] < found["source"]
    return Lsn(int(said[1])) if said is not None and lacks else None


def _counted(entry: dict[str, Any], wanted: dict[str, str]) -> dict[str, int]:
    metrics = entry.get("operationMetrics", {})
    return {kind: int(metrics.get(metric, 0)) for kind, metric in wanted.items()}


_MERGE_METRICS: Final = {
    "inserts": "numTargetRowsInserted",
    "updates": "numTargetRowsUpdated",
    "deletes": "numTargetRowsDeleted",
}
