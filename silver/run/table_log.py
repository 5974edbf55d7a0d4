"""Silver tables in the lake: where they are, which version, which mark, which columns. Reads logs, not rows.

A table's position in the stream is the transaction mark ``deltasmelt.silver`` on the table itself. It is part
of the very commit that holds the rows, so both cannot disagree (`silver.run.marks`).

A local log is looked at whenever it is asked for. In a store each look is a request, and in a catalog a
statement, so there a cycle looks once at a table, and once more after each statement of its own
(`SilverLog.begin`). That is enough: who writes
silver's tables holds their lease, and a cycle has it from its beginning to its end. Where nobody else had it
since the cycle before, what that one saw last still stands. What somebody commits without a lease is seen at
the next look; where it changed rows, the table stops (`SilverLog.foreign`). What takes commits away, as a
restored backup does, is asked for before each step (`SilverLog.confirm`): its window goes on from what the
table held. A local log is opened anew where the newest entry that is known is no longer the same file: a
folder that was put back may have as many versions.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError, TableNotFoundError
from deltasmelt.bronze.lake.foreign_commits import Commit, ForeignCommit, commits_of, first_foreign, history
from deltasmelt.bronze.lake.kept import LISTED_AFTER, SELDOM
from deltasmelt.bronze.lake.leases import commit_lost, put_back
from deltasmelt.bronze.lake.tail import Tail, advance, has_entry, tail_of
from deltasmelt.bronze.lake.torn_log import set_torn_aside
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.silver.run.commit_counts import lacking, rows_changed
from deltasmelt.silver.run.key_ranges import share_of
from deltasmelt.silver.run.stored import SILVER_APP, Stored, entry_file, loses, stored_of
from deltasmelt.silver.run.unsigned import may_be_own
from deltasmelt.silver.schema.catalog import UNREPRESENTABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from deltalake import DeltaTable

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.silver.schema.catalog import SilverTable

_FARTHEST: Final = 10_000
"""Commits to look back over."""

_LOOKED_AT: Final = (2, 200)
"""Newest commits among which the last one that wrote rows is looked for; mostly it is the newest."""


class SilverLog:
    """Looks into the Delta logs of one lake's silver tables.

    Args:
        lake: whose.
        writes: the caller writes the tables, under the layer's lock, and so sets torn entries aside.
    """

    def __init__(self, lake: Lake, *, writes: bool = False) -> None:
        self._lake = lake
        self._writes = writes
        self._tables: dict[str, DeltaTable] = {}
        self._stored: dict[str, Stored] = {}
        self._tails: dict[str, Tail] = {}
        self._listed: dict[str, float] = {}
        self._newest: dict[str, tuple[int, int, int] | None] = {}
        self._checked: dict[str, int] = {}
        self._seen: dict[str, float] | None = None

    def begin(self, *, alone: bool) -> None:
        """A cycle begins, under the lease of silver's tables if the lake has leases.

        From now on a table in a store or a catalog is looked at once, and again after `expect`.

        Args:
            alone: nobody else had the lease since this object's last cycle.
        """
        if self._seen is None or not alone:
            self._seen = {}

    def expect(self, name: str) -> None:
        """A statement that may commit to the table begins."""
        if self._seen is not None:
            self._seen.pop(name, None)

    def confirm(self, name: str, *, look: bool = False) -> None:
        """Ask whether what is known of the table is still there: a statement is about to build upon it.

        A local log is looked at all the time. In a store a look asks for what comes after the known version,
        and has the same answer where a table is as known, and where somebody put it back to an older one. So
        the known version's own entry is asked for, by one request. A look that is older than half a minute is
        done again. In a catalog a look names the newest version, and a step begins with one anyway. A table
        that was made anew with as many versions is not told from the one that it was.

        Args:
            name: of the table; nothing is asked of one that nobody has read.
            look: what came since must be known, however young the last look is.

        Raises:
            SmeltError: ``table-put-back``: an older version, or none, is there.
        """
        known, tail, table = self._stored.get(name), self._tails.get(name), self._tables.get(name)
        if known is None or table is None or (tail is None and not self._lake.place.needs_session):
            return
        if self._seen is not None and (look or _is_past(self._seen.get(name, 0.0), LISTED_AFTER)):
            self.expect(name)
        if tail is not None and not has_entry(tail, table.table_uri):
            self.forget((name,))  # a handle would say nothing where its table is gone
        stored = self._read(name)
        if stored is None or stored.version < known.version:
            self.forget((name,))
            raise put_back(f"silver.{name}", self._lake.label, known.version)

    def read(self, name: str) -> Stored | None:
        """The table at its newest version; None where there is none.

        Raises:
            DefiniteError: ``catalog-name-taken``: it is none of this pipeline's.
        """
        return self._read(name)

    def _read(self, name: str, until: Lsn | None = None) -> Stored | None:
        table = self._open(name, until)
        if table is None:
            return None
        known, tail = self._stored.get(name), self._tails.get(name)
        version = table.version() if tail is None else tail.version
        if known is None or known.version != version:
            known = stored_of(table)
            if tail is not None and version > known.version:
                mark = tail.marks.get(SILVER_APP, known.mark)
                mark = None if mark is None else Lsn(mark)
                known = replace(known, version=version, mark=mark, files=len(tail.files))
            self._stored[name] = known
        return known

    def read_at(self, name: str, version: int) -> Stored | None:
        """The table at a version; None where there is none.

        Raises:
            DeltaError: the version is no longer readable.
        """
        try:
            return stored_of(delta.open_at(self._lake.uri("silver", name), version))
        except TableNotFoundError:
            return None

    def forget(self, names: Iterable[str]) -> None:
        """Open tables anew at the next look: what is known of them may be of tables that were removed.

        A handle that reads on says nothing where its table is gone, and stays at the version it had.
        """
        for name in names:
            self._tables.pop(name, None)
            self._stored.pop(name, None)
            self._tails.pop(name, None)
            self._checked.pop(name, None)
            self.expect(name)

    def foreign(
        self,
        name: str,
        version: int,
        since: int = -1,
        *,
        table: SilverTable | None = None,
        unsigned: bool = False,
    ) -> ForeignCommit | None:
        """Return the first commit by others that changed rows, up to a version; None where there is none.

        What was read once is not read again: mostly nothing, or the commits of the cycle.

        Args:
            name: of the table.
            version: that was read last.
            since: a version that is known to be right, as a cut names it.
            table: its wanted shape, which may lose what it does not need; None: each column counts.
            unsigned: commits may be of a version that did not sign (`silver.run.unsigned`).
        """
        handle, since = self._tables.get(name), max(since, self._checked.get(name, -1))
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
        """Check whether a version lacks a needed column of the version before; yes where the log is cut."""
        try:
            before, after = (self.read_at(table.name, at) for at in (version - 1, version))
        except DeltaError:
            return True
        return before is None or after is None or loses(table, before, after)

    def trust(self, name: str, version: int) -> None:
        """Take a version's rows for right, or for irrelevant: the next step replaces all of them."""
        self._checked[name] = version

    def _commits(self, table: DeltaTable, name: str, since: int) -> Callable[[int], Commit | None]:
        """Give the commit of a version, from where it costs least."""
        tail = self._tails.get(name)
        known = {} if tail is None else tail.commits
        others = commits_of(table.table_uri, lambda: table, max(table.version() - since, 1))
        return lambda version: known[version] if version in known else others(version)

    def state_marks(self, name: str) -> None:
        """Have a catalog's table say its mark again where that is due (`bronze.lake.delta.state_marks`)."""
        table = self._open(name)
        if table is not None:
            delta.state_marks(table)  # the handle is at the version after it

    def written(self, name: str, until: Lsn | None = None) -> Stored:
        """The table, which was just written.

        Args:
            name: of the table.
            until: mark of the last commit to it; nothing after that is looked for in a store.
        """
        stored = self._read(name, until)
        if stored is None:
            raise RuntimeError(f"silver.{name} was written but is not there")
        return stored

    def committed(self, name: str, before: Stored, until: Lsn, again: str) -> Stored:
        """Return the table after a statement that carries it to an LSN; `again` is done where that was lost.

        Raises:
            SmeltError: ``lake-commit-lost``: the log does not have what Spark committed.
                ``table-put-back``: the table was put back since it was as `before`.
        """
        written = self.written(name, until)
        if written.version < before.version:
            raise put_back(f"silver.{name}", self._lake.label, before.version)
        if written.version == before.version:  # without effect; or onto an older version than is known
            self.confirm(name)
        elif written.mark is None or written.mark < until:
            raise commit_lost(f"silver.{name}", self._lake.label, again)
        return written

    def size(self, name: str) -> tuple[int, int]:
        """About how many rows the table's files hold, and their bytes; 0 where there is no table."""
        table = self._open(name)
        if table is None:
            return 0, 0
        if name in self._tails:
            return self._tails[name].size()
        files = pa.table(table.get_add_actions())
        return pc.sum(files["num_records"]).as_py() or 0, pc.sum(files["size_bytes"]).as_py() or 0

    def unrepresentable(self, name: str) -> int | None:
        """Return how many rows at most have values that their types do not hold, as statistics say.

        Delta takes no map among the columns of which a table's property demands statistics
        (`silver.schema.clustering`). So they are there only where the column is one of the first.

        Returns:
            None where a file has no statistics of the column: nothing was counted.
        """
        table = self._open(name)
        if table is None:
            return 0
        tail = self._tails.get(name)
        return (_tail_of(table) if tail is None else tail).total()

    def share(self, name: str, column: str, low: str, high: str) -> float:
        """Share of the table's rows in files that may hold values of this range; 0 where that is not known.

        Args:
            name: of the table.
            column: its name; only of integers and text it is known.
            low: smallest value, as text.
            high: largest value.
        """
        table = self._handle(name)
        if table is None:
            return 0.0
        return share_of(pa.table(table.get_add_actions(flatten=True)), _stored_as(table, column), low, high)

    def committed_at(self, name: str, version: int) -> datetime | None:
        """When a version was committed, by the clock of who did; None where the log no longer says."""
        table = self._handle(name)
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
        entry = None if table is None else self._said(name, version)
        if entry is None and table is not None:
            newest = history(table, 2)
            entry = next((one for one in newest if one.get("version") == version), None)
        if entry is None:
            return {}
        return rows_changed(entry)

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
        tail = self._tails.get(name)
        for entry in [] if tail is None else [tail.said[one] for one in sorted(tail.said, reverse=True)]:
            if entry.get("operation") in {"MERGE", "WRITE"}:
                return lacking(entry)
        for limit in _LOOKED_AT:
            for entry in history(table, limit):
                if entry.get("operation") in {"MERGE", "WRITE"}:
                    return lacking(entry)
        return None

    def _said(self, name: str, version: int) -> dict[str, Any] | None:
        """What a version says of itself, where it was followed since the handle was brought up."""
        tail = self._tails.get(name)
        return None if tail is None else tail.said.get(version)

    def _handle(self, name: str) -> DeltaTable | None:
        """A handle that is at the newest version itself."""
        table, tail = self._open(name), self._tails.get(name)
        if table is not None and tail is not None and tail.version > table.version():
            self._bring_up(name, table)
        return table

    def _open(self, name: str, until: Lsn | None = None) -> DeltaTable | None:
        """A handle; its table's newest version is that of the table's tail, where it has one."""
        table = self._tables.get(name)
        if table is not None and self._newest.get(name) != entry_file(table):
            self.forget((name,))
            table = None
        if table is not None:
            try:
                self._look(name, table, until)
            except DeltaError:  # its log ends before the known version: the table was put back, or made anew
                self.forget((name,))
            else:
                return table
        uri = self._lake.uri("silver", name)
        set_torn_aside(uri, thorough=False, writes=self._writes)
        table = delta.open_table(uri)
        if table is None:
            return None
        self._tables[name] = table
        self._followed(name, table)
        return table

    def _look(self, name: str, table: DeltaTable, until: Lsn | None) -> None:
        """See what is new; in a store where that may be, and by one request for each commit."""
        now, tail = time.time(), self._tails.get(name)
        if tail is None:
            if not (self._lake.place.needs_session and self._seen is not None and name in self._seen):
                self._bring_up(name, table)
            return
        if self._seen is not None and not _is_past(self._seen.get(name, 0.0), SELDOM):
            return

        def enough(tail: Tail) -> bool:
            return until is not None and tail.marks.get(SILVER_APP, -1) >= until

        lists = _is_past(self._listed[name], SELDOM)
        if lists or not advance(tail, table.table_uri, enough):
            self._bring_up(name, table)
        if self._seen is not None:
            self._seen[name] = now

    def _bring_up(self, name: str, table: DeltaTable) -> None:
        delta.refresh(table)
        self._followed(name, table)

    def _followed(self, name: str, table: DeltaTable) -> None:
        """The handle is at the newest version; in a store what comes after it is followed."""
        self._newest[name] = entry_file(table)
        if not self._lake.is_remote:
            return
        now = time.time()
        if self._lake.in_store:
            self._tails[name], self._listed[name] = _tail_of(table), now
        if self._seen is not None:
            self._seen[name] = now


def _tail_of(table: DeltaTable) -> Tail:
    return tail_of(table, _stored_as(table, UNREPRESENTABLE))


def _stored_as(table: DeltaTable, column: str) -> str:
    """Return the name that a column has within files."""
    fields = json.loads(table.schema().to_json())["fields"]
    stated: dict[str, Any] = next((one["metadata"] for one in fields if one["name"] == column), {})
    return str(stated.get("delta.columnMapping.physicalName", column))


def _is_past(then: float, seconds: float) -> bool:
    """Whether it is so long ago, by the clock that goes on while a machine sleeps; or the clock was put."""
    return abs(time.time() - then) >= seconds
