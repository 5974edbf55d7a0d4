"""The version, mark and columns of silver's tables, read from the tables' logs. Reads no rows.

A table's position in the stream is the transaction mark ``deltasmelt.silver`` on the table. The mark is in
the commit of the rows, so mark and rows cannot disagree (`silver.run.marks`).

A read of a local log always reads the newest entries. In a store a read costs a request, and in a catalog a
statement. There a cycle reads a table's log once, and again after each statement on the table. No commit of
silver is missed: a writer of silver's tables holds the lease, and a cycle holds the lease from its beginning
to its end. The next read finds a commit without the lease; if the commit changed rows, the table stops
(`SilverLog.foreign`). A restored backup removes commits: `SilverLog.confirm` checks for a rollback before
each step, because the step's window builds on the known rows.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.cached_table import LISTED_AFTER, SELDOM, CachedTable
from deltasmelt.bronze.lake.client import DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.foreign_commits import Commit, ForeignCommit, first_foreign
from deltasmelt.bronze.lake.leases import commit_lost, put_back
from deltasmelt.bronze.lake.tail import Tail, tail_of
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.run.commit_counts import lacking, rows_changed
from deltasmelt.silver.run.key_ranges import share_of
from deltasmelt.silver.run.stored import SILVER_APP, Stored, loses, stored_of
from deltasmelt.silver.run.unsigned import may_be_own
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.silver.schema.catalog import SilverTable

_FARTHEST: Final = 10_000  # limit on the commits that a search in the history reads

_SEARCHED_COMMITS: Final = (2, 200)
"""Numbers of newest commits in which to search for the last commit that wrote rows; mostly the newest."""


class SilverLog:
    """Reads the Delta logs of one lake's silver tables.

    With `writes` the caller writes the tables under the layer's lock, so the log removes torn entries.
    """

    def __init__(self, lake: Lake, *, writes: bool = False) -> None:
        self._lake = lake
        self._writes = writes
        self._cached: dict[str, CachedTable] = {}
        self._stored: dict[str, Stored] = {}
        self._checked: dict[str, int] = {}
        self._within = 0.0  # seconds for which a read is sufficient: in a cycle

    def begin(self, *, alone: bool) -> None:
        """Begin a cycle, under the lease of silver's tables if the lake has leases.

        With `alone` no other process held the lease since this object's last cycle.
        """
        # If no other process held the lease since the last cycle, the last state is still valid.
        if not self._within or not alone:
            self._within = SELDOM
            for cached in list(self._cached.values()):
                cached.expire()

    def expect(self, name: str) -> None:
        """Read the table again at the next call, because a statement that may commit begins."""
        if name in self._cached:
            self._cached[name].expire()

    def confirm(self, name: str, *, reread: bool = False) -> None:
        """Check that the known version of a table still exists, before a statement builds on the version.

        A table that no caller has read needs no check. With `reread`, later commits are read in any case. A
        table recreated with as many versions is not recognised.

        Raises:
            SmeltError: ``table-put-back``: the table is lost or has an older version.
        """
        known = self._stored.get(name)
        # A read of a local log already checks the version.
        if known is None or not self._lake.is_remote:
            return
        # In a store, a request for the later entries has an equal answer for an unchanged table and a rolled
        # back table. So `sure` requests the known version's own entry. A catalog returns the newest version.
        stored = self._read(name, within=0.0 if reread else LISTED_AFTER, sure=True)
        if stored is None or stored.version < known.version:
            self.forget((name,))
            raise put_back(f"silver.{name}", self._lake.label, known.version)

    def read(self, name: str) -> Stored | None:
        """Return the table at the newest version; None without a table.

        Raises:
            DefiniteError: ``catalog-name-taken``: another program created the table.
        """
        return self._read(name)

    def _read(
        self, name: str, until: Lsn | None = None, *, within: float = inf, sure: bool = False
    ) -> Stored | None:
        table = self._open(name, until, within=within, sure=sure)
        if table is None:
            return None
        known, tail, version = self._stored.get(name), self._tail(name), self._cached[name].version
        if known is None or known.version != version:
            known = stored_of(table)
            if tail is not None and version > known.version:
                mark = tail.marks.get(SILVER_APP, known.mark)
                mark = None if mark is None else Lsn(mark)
                known = replace(known, version=version, mark=mark, files=len(tail.files))
            self._stored[name] = known
        return known

    def read_at(self, name: str, version: int) -> Stored | None:
        """Return the table at a version; None without a table.

        Raises:
            DeltaError: the version is no longer readable.
        """
        try:
            return stored_of(delta.open_at(self._lake.uri("silver", name), version))
        except TableNotFoundError:
            return None

    def forget(self, names: Iterable[str]) -> None:
        """Open tables again at the next read, because the known state may belong to removed tables."""
        for name in names:
            # A cached handle reports no error for a removed table, and stays at the last version.
            self._cached.pop(name, None)
            self._stored.pop(name, None)
            self._checked.pop(name, None)

    def foreign(
        self,
        name: str,
        version: int,
        since: int = -1,
        *,
        table: SilverTable | None = None,
        unsigned: bool = False,
    ) -> ForeignCommit | None:
        """Return the first foreign commit that changed rows, up to a version; None without a foreign commit.

        Args:
            version: the last version that the caller read.
            since: a version known to be right, from a cut.
            table: the wanted shape, which allows the loss of unneeded columns; None: every column counts.
            unsigned: earlier versions of silver may have made unsigned commits (`silver.run.unsigned`).
        """
        cached, since = self._cached.get(name), max(since, self._checked.get(name, -1))
        handle = None if cached is None else cached.table
        # A commit is read once: mostly no commit is new, or only the cycle's own commits.
        if handle is None or since >= version:
            return None
        commits = self._commits(handle, name, since)

        def commit_at(at: int) -> Commit | None:
            commit = commits(at)
            if unsigned and commit is not None and may_be_own(commit):
                return replace(commit, ours=True)
            if commit is None or commit.ours or not commit.drops_columns or table is None:
                return commit
            return replace(commit, changes_rows=self._lost(table, at))

        found = first_foreign(range(version, since, -1), commit_at)
        if found is None:
            self._checked[name] = version
        return found

    def _lost(self, table: SilverTable, version: int) -> bool:
        """Check whether a version lacks a needed column of the version before; true where the log is cut."""
        try:
            before, after = (self.read_at(table.name, at) for at in (version - 1, version))
        except DeltaError:
            return True
        return before is None or after is None or loses(table, before, after)

    def trust(self, name: str, version: int) -> None:
        """Accept a version's rows as right, or as irrelevant because the next step corrects the rows."""
        self._checked[name] = version

    def _commits(self, table: Table, name: str, since: int) -> Callable[[int], Commit | None]:
        """Return a function from version to commit, with the cheapest source for each version."""
        tail = self._tail(name)
        known = {} if tail is None else tail.commits
        others = table.commits(max(table.version() - since, 1))
        return lambda version: known[version] if version in known else others(version)

    def state_marks(self, name: str) -> None:
        """Write a catalog table's mark again where a restatement is due (`Table.state_marks`)."""
        table = self._open(name)
        if table is not None:
            table.state_marks()  # the handle is at the new version afterwards

    def written(self, name: str, until: Lsn | None = None) -> Stored:
        """Return the state of a table that was just written; a search in a store ends at the mark `until`."""
        stored = self._read(name, until)
        if stored is None:
            raise RuntimeError(f"silver.{name} was written but does not exist")
        return stored

    def committed(self, name: str, before: Stored, until: Lsn, again: str) -> Stored:
        """Return the table after a statement up to an LSN; `again` names the work after a lost commit.

        Raises:
            SmeltError: ``lake-commit-lost``: the log lacks a commit that Spark reported.
                ``table-put-back``: the table was rolled back behind `before`.
        """
        written = self.written(name, until)
        if written.version < before.version:
            raise put_back(f"silver.{name}", self._lake.label, before.version)
        if written.version == before.version:  # no effect, or a rolled back table
            self.confirm(name)
        elif written.mark is None or written.mark < until:
            raise commit_lost(f"silver.{name}", self._lake.label, again)
        return written

    def size(self, name: str) -> tuple[int, int]:
        """Return about how many rows and bytes the table's files have; 0 without a table."""
        table = self._open(name)
        if table is None:
            return 0, 0
        if (tail := self._tail(name)) is not None:
            return tail.size()
        files = pa.table(table.get_add_actions())
        return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0

    def unrepresentable(self, name: str) -> int | None:
        """Return an upper limit of the rows with values outside their types' ranges, from statistics.

        None where a file has no statistics of the column: nothing was counted. If a table's property demands
        statistics of columns, Delta accepts no map among the columns (`silver.schema.clustering`). So the
        statistics exist only where the column is among the first columns.
        """
        table = self._open(name)
        if table is None:
            return 0
        tail = self._tail(name)
        if tail is None:
            tail = tail_of(
                table.version(), pa.table(table.get_add_actions()), stored_as(table, UNREPRESENTABLE)
            )
        return tail.total()

    def share(self, name: str, column: str, low: str, high: str) -> float:
        """Return the share of rows in files that may hold values of a range; 0 where unknown.

        Only columns of integers and text have a known share; `low` and `high` are their values as text.
        """
        table = self._handle(name)
        if table is None:
            return 0.0
        return share_of(pa.table(table.get_add_actions(flatten=True)), stored_as(table, column), low, high)

    def committed_at(self, name: str, version: int) -> datetime | None:
        """Return a version's commit time, by the writer's clock; None where the log lacks the commit."""
        table = self._handle(name)
        back = -1 if table is None else table.version() - version
        if table is None or not 0 <= back < _FARTHEST:
            return None
        time_of = table.committed_at(version)
        return None if time_of is None else datetime.fromtimestamp(time_of, UTC)

    def counts(self, name: str, version: int) -> dict[str, int]:
        """Return how many rows a version inserted, updated and deleted.

        Empty unless the version was followed since the last refresh or is among the two newest commits.
        """
        table = self._open(name)
        tail = self._tail(name)
        entry = None if tail is None else tail.said.get(version)
        if entry is None and table is not None:
            entry = next((one for one in table.history(2) if one.get("version") == version), None)
        return {} if entry is None else rows_changed(entry)

    def lacks_rows(self, name: str) -> Lsn | None:
        """Return the LSN at which the newest window began, if the window's MERGE missed rows; otherwise None.

        A MERGE of known rows adds no row (`silver.run.step_runner`). If the MERGE misses rows, a whole MERGE
        follows, unless the whole MERGE failed or the process ended in between. The commit states the kind of
        the MERGE and the begin of the window. So a foreign MERGE is never confused with a MERGE of known
        rows.
        """
        table = self._open(name)
        if table is None:
            return None
        tail = self._tail(name)
        for entry in [] if tail is None else [tail.said[one] for one in sorted(tail.said, reverse=True)]:
            if entry.get("operation") in {"MERGE", "WRITE"}:
                return lacking(entry)
        for limit in _SEARCHED_COMMITS:
            for entry in table.history(limit):
                if entry.get("operation") in {"MERGE", "WRITE"}:
                    return lacking(entry)
        return None

    def _tail(self, name: str) -> Tail | None:
        """Return the state of a store's table since its handle was refreshed; None elsewhere."""
        cached = self._cached.get(name)
        return None if cached is None else cached.tail

    def _handle(self, name: str) -> Table | None:
        """Return a handle at the newest version."""
        table = self._open(name)
        if table is not None and self._cached[name].version > table.version():
            self._cached[name].brought_up()
        return table

    def _open(
        self, name: str, until: Lsn | None = None, *, within: float = inf, sure: bool = False
    ) -> Table | None:
        """Return a handle; where the table has a tail, the tail holds the newest version."""
        cached = self._cached.get(name)
        if cached is None:
            uri = self._lake.uri("silver", name)
            cached = self._cached[name] = CachedTable(uri, follow=_tail_of, writes=self._writes)

        def enough(tail: Tail) -> bool:
            return until is not None and tail.marks.get(SILVER_APP, -1) >= until

        before = cached.table
        table = cached.newest(within=min(within, self._within), sure=sure, enough=enough)
        if table is not before:  # another table: restored, recreated or removed
            self._stored.pop(name, None)
            self._checked.pop(name, None)
        return table


def _tail_of(table: Table) -> Tail | None:
    return table.tail(lambda: stored_as(table, UNREPRESENTABLE))


def stored_as(table: Table, column: str) -> str:
    """Return the name of a column within the files and statistics of a table."""
    fields = json.loads(table.schema().to_json())["fields"]
    stated: dict[str, Any] = next((one["metadata"] for one in fields if one["name"] == column), {})
    return str(stated.get("delta.columnMapping.physicalName", column))
