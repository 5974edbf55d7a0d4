"""The decision which changes of bronze may go (`bronze.retention`), and which snapshots are taken again.

`bronze.store.retention` has the rule and its argument. This module states what only the pipeline knows: the
positions of silver's tables. Maintenance decides once an hour beside silver, and in `smelt maintain`; without
silver nothing is decided, and bronze keeps everything. The decision writes marks only. The lake's reader
removes the files, and takes the snapshots.

**A position is never too high.** Silver's cycles may run meanwhile. A position that was read a moment ago is
at or before the present position, so a late decision removes less. A table that lacks rows of its last window
needs the whole window again (`SilverLog.lacks_rows`).

**Renewed snapshots** (`bronze.renew`). A table with a snapshot older than the retention holds the boundary
back. The decision requests a new snapshot, at the LSN of the old snapshot: any later snapshot satisfies the
request, so no server is asked. As after `smelt snapshot`, silver leaves the table out of its cuts until the
copy is complete. The copies of a day stay within the stated bytes. A killed decision leaves marks or none;
the next decision counts open requests as load.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.lake.control import is_put_back
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.lsn import Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_left_out, request_snapshots
from deltasmelt.bronze.store.marks import kept_from
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.bronze.store.retention import (
    Boundary,
    Need,
    boundary,
    due_at,
    files_of,
    keep_from,
    renewable,
    snapshot_needs,
)
from deltasmelt.pipelines.terminal.output import bytes_text
from deltasmelt.silver.run.table_log import SilverLog
from deltasmelt.silver.schema.catalog import histories, silver_catalog

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.pipelines.settings import Pipeline

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
        held = {holder.name for holder in decided.holders if holder.kind == "snapshot"}
        tables = [table for table in {relation.table for relation in relations} if str(table) in held]
        budget = self._pipeline.bronze.renew
        if budget is not None and tables:
            for table, lsn in renewable(changes, files_of(changes), tables, budget, now).items():
                request_snapshots(changes.table_uri, [table], lsn)
                _LOGGER.info("requested a new snapshot of %s: the snapshot at %s is old", table, lsn)
        return decided

    def _silver_needs(self, changes: Table, relations: Sequence[Relation]) -> Iterator[Need]:
        last, settings = self._control.latest_cut("silver"), self._pipeline.silver
        for table in silver_catalog(list(relations), settings).values():
            if is_left_out(changes, table.table):
                continue
            for each in (table, *histories([table], settings)):
                stored = self._log.read(each.name)
                # An absent table begins with the newest snapshot.
                if stored is None or stored.mark is None:
                    continue
                named = last.named(each.name) if last is not None else None
                named = named or self._control.last_named("silver", each.name)
                position = self._log.lacks_rows(each.name) or stored.mark
                # A table without changes has no later mark; the cut states how far its rows are valid.
                if (
                    named is not None
                    and named.mark == stored.mark
                    and named.commit_lsn >= stored.mark
                    and not is_put_back(stored.version, stored.mark, named)
                ):
                    position = named.commit_lsn
                yield Need(f"silver.{each.name}", Lsn(position + 1), "silver")


def boundary_lines(boundary: Boundary) -> Iterator[str]:
    """Yield the state of the boundary as lines of text."""
    kept = (
        f"keeps the changes from {boundary.kept_from} on"
        if boundary.kept_from
        else "keeps all changes so far"
    )
    if not boundary.holders:
        yield f"{kept}; nothing holds older changes"
        return
    yield f"{kept}; {bytes_text(boundary.held_bytes)} are older than bronze.retention, and still needed:"
    for holder in boundary.holders[:_SHOWN]:
        why = (
            f"its newest snapshot is at {holder.lsn}; smelt snapshot FILE {holder.name}"
            if holder.kind == "snapshot"
            else f"it needs the changes from {holder.lsn} on"
        )
        yield f"  {holder.name} holds {bytes_text(holder.bytes)}: {why}"
    if len(boundary.holders) > _SHOWN:
        yield f"  and {len(boundary.holders) - _SHOWN} more tables"


_SHOWN: Final = 10
