"""The decision which changes of bronze may go (`bronze.retention`), and which snapshots are taken again.

`bronze.store.retention` has the rule and its argument. This module states what only the pipeline knows: the
positions of silver's tables. Maintenance decides once an hour beside silver, and in `smelt maintain`; a run
until caught up decides at its end. Without silver nothing is decided, and bronze keeps everything. The
decision writes marks only. The lake's reader removes the files, and takes the snapshots.

**A position is never too high.** Silver's cycles may run meanwhile. A position that was read a moment ago is
at or before the present position, so a late decision removes less. A table that lacks rows of its last window
needs the whole window again (`SilverLog.lacks_rows`). A history counts as long as the pipeline file or a cut
names it.

**A clock that is ahead** removes too much, and the mark never moves back. So the present time is at most the
time at which bronze received its newest change, by the reader's clock.

**Renewed snapshots** (`bronze.renew`). A table with a snapshot older than the retention holds the boundary
back. The decision permits the reader to replace this snapshot (`bronze.store.retention`), so no server is
asked, and the table stays in all cuts. The copies of a day stay within the stated bytes. A killed decision
leaves all marks or none; the next decision counts open requests as load.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import SmeltError
from deltasmelt.bronze.figures import bytes_text
from deltasmelt.bronze.lake.control import is_put_back
from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.comments import DAMAGED
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import healed_at, is_left_out
from deltasmelt.bronze.store.marks import base_of, kept_from, snapshot_of
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.bronze.store.retention import (
    Boundary,
    Need,
    boundary,
    due_at,
    files_of,
    keep_from,
    newest_at,
    renewable,
    request_renewals,
    snapshot_needs,
)
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.run.worklist import resumes_at
from deltasmelt.silver.schema.catalog import histories, history_of, silver_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.pipelines.settings import Pipeline
    from deltasmelt.silver.schema.catalog import SilverTable

_LOGGER: Final = logging.getLogger("deltasmelt.maintenance")


class BronzeRetention:
    """Decides for one pipeline with `bronze.retention`; one thread at a time."""

    def __init__(self, pipeline: Pipeline, control: ControlTables) -> None:
        self._pipeline = pipeline
        self._control = control
        self._log = SilverLog(pipeline.lake_address())

    def boundary(self, changes: Table, relations: Sequence[Relation], now: datetime) -> Boundary:
        """Return the boundary of an open `bronze.changes` at a time, and change nothing."""
        files = files_of(changes)
        # The clock of the newest change bounds the clock of this machine, because the mark never moves back.
        now = min(now, newest_at(changes, files) or now)
        due = due_at(changes, files, now - timedelta(seconds=self._pipeline.bronze.retention or 0))
        needs = [*snapshot_needs(changes, relations), *self._silver_needs(changes, relations)]
        return boundary(files, due, needs, kept_from(changes))

    def decide(self, now: datetime | None = None) -> Boundary | None:
        """Record the boundary for the reader, and request snapshots again; None before the first change."""
        now = now or datetime.now(UTC)
        lake = self._pipeline.lake_address()
        changes = open_table(lake.uri("bronze", CHANGES))
        if changes is None:
            return None
        relations = read_relations(lake)
        decided = self.boundary(changes, relations, now)
        if decided.lsn > decided.kept_from:
            keep_from(changes.table_uri, decided.lsn)
            _LOGGER.info("the reader may remove bronze's changes before %s", decided.lsn)
        self._renew(changes, relations, decided, now)
        return decided

    def _renew(self, changes: Table, relations: Sequence[Relation], decided: Boundary, now: datetime) -> None:
        """Permit the reader to replace the old bases that hold the boundary back."""
        budget = self._pipeline.bronze.renew
        held = {holder.name for holder in decided.holders if holder.kind == "snapshot"}
        if budget is None or not held:
            return
        # The reader cannot copy a table with an error. Such a table uses no part of the budget.
        failed = {error.name for error in self._control.open_errors() if error.scope == "table"}
        tables = silver_catalog(list(relations), self._pipeline.silver).values()
        loads = {table.table: self._size(table.name) for table in tables if str(table.table) in held - failed}
        chosen = renewable(changes, files_of(changes), loads, budget, now)
        request_renewals(changes.table_uri, chosen)
        for table, lsn in chosen.items():
            _LOGGER.info("the reader may copy %s again: the snapshot at %s is old", table, lsn)

    def _size(self, name: str) -> int:
        """Return the bytes of a table of silver; 0 without the table."""
        table = open_table(self._pipeline.lake_address().uri("silver", name))
        return 0 if table is None else sum(file.size for file in files_of(table))

    def _silver_needs(self, changes: Table, relations: Sequence[Relation]) -> Iterator[Need]:
        last, settings = self._control.latest_cut("silver"), self._pipeline.silver
        kept = kept_from(changes)
        recorded = {*self._control.names("silver")}
        for table in silver_catalog(list(relations), settings).values():
            if is_left_out(changes, table.table):
                continue
            history = history_of(table)
            # Another pipeline file of the same lake may keep a history that this file does not name.
            wanted = history.name in recorded or histories([table], settings)
            for each in (table, history) if wanted else (table,):
                after = self._needs_after(each, last, snapshot_of(changes, table.table))
                if after is None:
                    continue
                first, base = Lsn(after + 1), base_of(changes, table.table)
                if first < kept:
                    first = resumes_at(each, base, kept, healed_at(changes, table.table)) or first
                yield Need(f"silver.{each.name}", first, "silver")

    def _needs_after(self, table: SilverTable, last: Cut | None, snapshot: Lsn | None) -> Lsn | None:
        """Return the LSN after which a table of silver needs all changes; None for an absent table.

        An absent table begins with the newest base. `snapshot` is the newest snapshot that the table loads.
        """
        stored = self._log.read(table.name)
        if stored is None or stored.mark is None:
            return None
        named = last.named(table.name) if last is not None else None
        named = named or self._control.last_named("silver", table.name)
        # A table without changes has no later mark; the cut states how far its rows are valid.
        if (
            named is not None
            and named.mark == stored.mark
            and named.commit_lsn >= stored.mark
            and not is_put_back(stored.version, stored.mark, named)
            # While a versioned table waits for a snapshot, its last cut may expire. Then the mark counts.
            and not (table.versioned and snapshot is not None and snapshot > named.commit_lsn)
        ):
            return named.commit_lsn
        # The history of commits answers; most tables need no such read.
        return self._log.lacks_rows(table.name) or stored.mark


def decide_at_end(pipeline: Pipeline) -> None:
    """Decide at the end of a run until caught up, if bronze has a retention; a failure ends no run."""
    if pipeline.bronze.retention is None:
        return
    try:
        BronzeRetention(pipeline, ControlTables(pipeline.lake_address())).decide()
    except (*DAMAGED, SmeltError) as error:
        _LOGGER.warning("deltasmelt could not decide which changes of bronze may be removed: %s", error)


def boundary_lines(boundary: Boundary) -> Iterator[str]:
    """Yield the state of the boundary as lines of text."""
    kept = (
        f"keeps the changes from {boundary.kept_from} on"
        if boundary.kept_from
        else "keeps all changes so far"
    )
    if boundary.unremoved_bytes:
        kept += f" (the reader has yet to remove {bytes_text(boundary.unremoved_bytes)})"
    behind = [
        f"  {need.name} needs the changes from {need.first} on, which bronze has removed; smelt "
        "explain-error changes-removed"
        for need in boundary.behind
    ]
    if not boundary.holders:
        yield f"{kept}; nothing holds older changes"
        yield from behind
        return
    yield f"{kept}; {bytes_text(boundary.held_bytes)} are older than bronze.retention, and still needed:"
    for holder in boundary.holders[:_SHOWN]:
        why = (
            f"its snapshot, or its first copy, begins at {holder.lsn}; smelt snapshot FILE {holder.name}"
            if holder.kind == "snapshot"
            else f"it needs the changes from {holder.lsn} on"
        )
        yield f"  {holder.name} holds {bytes_text(holder.bytes)}: {why}"
    if len(boundary.holders) > _SHOWN:
        yield f"  and {len(boundary.holders) - _SHOWN} more tables"
    yield from behind


_SHOWN: Final = 10
