"""Parts of a cycle for callers that only read the lake (`silver.fresh`); the parts record nothing."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltasmelt.bronze.errors import SmeltError, TableError
from deltasmelt.silver.errors import definite, failure
from deltasmelt.silver.run.failed_tables import FailedTables
from deltasmelt.silver.run.stored import Stored
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import HISTORY_SUFFIX
from deltasmelt.silver.spark.failure_scope import is_everyones, is_general

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from pyspark.sql import SparkSession

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.foreign_commits import ForeignCommit
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lsn import Lsn
    from deltasmelt.silver.schema.catalog import SilverTable


class PinnedLog(SilverLog):
    """The logs of silver's tables, pinned at one moment.

    With `accept_foreign` rows that foreign commits changed are no error.
    """

    def __init__(self, lake: Lake, *, accept_foreign: bool = False) -> None:
        super().__init__(lake)
        self._accept_foreign = accept_foreign
        self._pinned: dict[str, Stored | Exception | None] = {}
        self._lacking: dict[str, Lsn | None] = {}

    def pin(self, names: Iterable[str]) -> None:
        """Read the state of tables now; until the next call, every read returns this state."""
        tables = {name.removesuffix(HISTORY_SUFFIX) for name in names}
        tables |= {table + HISTORY_SUFFIX for table in tables}  # a cycle reads both
        self._pinned, self._lacking = {}, {}
        for name in sorted({*names, *tables}):
            try:
                self._pinned[name], self._lacking[name] = self._read_both(name)
            except Exception as error:  # noqa: BLE001 - `read` raises the error in the table's part
                self._pinned[name] = error

    def torn(self, tables: Mapping[str, TableName]) -> dict[TableName, str]:
        """Return the reason for each table with a torn log entry, in the table's log or the history's.

        `tables` has the source's table, by name of silver's table.
        """
        found = {}
        for name, why in self._pinned.items():
            table = tables.get(name) or tables.get(name.removesuffix(HISTORY_SUFFIX))
            if table is not None and isinstance(why, SmeltError) and why.code == "log-entry-torn":
                found[table] = f"{why.where}: {why.message}; {why.remedy}"
        return found

    def go_back(self, versions: Mapping[str, int], lsn: Lsn) -> None:
        """Pin older versions of tables with changes after an LSN, at which the caller wants the tables.

        `versions` has, by table, the version in the newest cut at or before the LSN with the table.
        """
        for name in list(self._pinned):
            if self.is_past(name, lsn) and name in versions:
                try:
                    self._pinned[name], self._lacking[name] = self.read_at(name, versions[name]), None
                except Exception as error:  # noqa: BLE001 - as in `pin`
                    self._pinned[name] = error

    def _read_both(self, name: str) -> tuple[Stored | None, Lsn | None]:
        """Return a table's state and its missing rows (`lacks_rows`), both of one version."""
        while True:  # another process may commit between the two reads
            stored = super().read(name)
            lacking = super().lacks_rows(name)
            if super().read(name) == stored:
                return stored, lacking

    def read(self, name: str) -> Stored | None:
        """Return the table's pinned state."""
        found = self._pinned[name]
        if isinstance(found, Exception):
            raise found
        return found

    def is_past(self, name: str, lsn: Lsn) -> bool:
        """Check whether the table holds changes after an LSN; false where the table cannot be read."""
        found = self._pinned[name]
        return isinstance(found, Stored) and found.mark is not None and found.mark > lsn

    def foreign(
        self,
        name: str,
        version: int,
        since: int = -1,
        *,
        table: SilverTable | None = None,
        unsigned: bool = False,
    ) -> ForeignCommit | None:
        """Return the result of `SilverLog.foreign`; None if the caller accepts rows as found."""
        if self._accept_foreign:
            return None
        return super().foreign(name, version, since, table=table, unsigned=unsigned)

    def lacks_rows(self, name: str) -> Lsn | None:
        """Return the pinned answer of `SilverLog.lacks_rows`."""
        return self._lacking.get(name)


class UnavailableTables(FailedTables):
    """Collects the reasons why tables cannot be shown, and records nothing in the lake."""

    def __init__(self, spark: SparkSession, lake: Lake, control: ControlTables) -> None:
        super().__init__(spark, lake, control)
        self.reasons: dict[TableName, str] = {}

    def forget(self, table: TableName) -> None:
        """Note that no cycle carries a table."""
        self.reasons[table] = "the source no longer has the table, or the pipeline does not select the table"

    def record(self, error: TableError) -> None:
        """Note that an error stops a table."""
        self.reasons[error.table] = error.message

    @contextmanager
    def isolated(
        self,
        table: TableName,
        undecided: dict[TableName, Exception],  # noqa: ARG002 - its interface
        snapshot: Lsn | None = None,  # noqa: ARG002 - its interface
    ) -> Iterator[None]:
        """Run a table's part: an error of the table ends the part; a general error is raised."""
        try:
            yield
        except Exception as error:
            known = isinstance(error, SmeltError) or definite(table, error) is not None
            if is_everyones(error, self._spark) or (not known and is_general(error, self._spark)):
                raise
            self.record(failure(table, error))
