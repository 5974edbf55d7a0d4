"""Tables and documents that have stopped although a run is caught up: the newest cuts do not name them.

A run that must catch up carries a position and no list of tables. An error stops a table, or bronze lacks
changes of the table: the cuts then leave the table out, and the other tables reach the end. So the end of a
run compares the newest cut of each layer that ran:

* silver's cut must name every table that bronze has at the position and that the source still has. A missing
  table with an open error, from any process, is stopped; a missing table without an error waits for a
  snapshot;
* gold's cut must name every defined document;
* an open error also counts if the error's own layer ran: only this layer records and closes the error.

An error of maintenance (`upkeep-failed`) stops nothing and does not count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from deltasmelt.bronze.lake.control_tables import ControlTables
from deltasmelt.bronze.lake.delta import open_table
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import is_left_out
from deltasmelt.bronze.store.marks import fingerprint_app, snapshot_of
from deltasmelt.bronze.store.relations import read_relations
from deltasmelt.pipelines.runtime.maintenance import stops
from deltasmelt.silver.schema.catalog import silver_catalog

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from deltasmelt.bronze.lake.control import Cut, OpenError
    from deltasmelt.bronze.lake.location import Lake, Layer
    from deltasmelt.silver.schema.catalog import SilverTable
    from deltasmelt.silver.settings import SilverSettings


@dataclass(frozen=True, slots=True)
class Stalled:
    """Names of tables and documents that have stopped."""

    # tables and documents with an open error
    stopped: tuple[str, ...]
    # tables and documents without an error that still lack changes
    waiting: tuple[str, ...]
    # the open errors of `stopped`
    errors: tuple[OpenError, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.stopped or self.waiting)


def standing_still(
    lake: Lake, settings: SilverSettings, layers: Collection[Layer], documents: Collection[str]
) -> Stalled:
    """Return tables and documents that the layers' newest cuts lack, or that an error has stopped."""
    control = ControlTables(lake)
    errors = control.open_errors()
    stopped = set(stopped_names(errors, layers, documents))
    waiting: set[str] = set()
    names: dict[str, str] = {}
    if "silver" in layers:
        carried, missing = _tables(lake, settings, control.latest_cut("silver"))
        carried_names = {name for table in carried for name in (str(table.table), table.name)}
        # An error may name a table by the table's name in silver.
        names = {table.name: str(table.table) for table in missing}
        stopped |= {
            names.get(error.name, error.name)
            for error in errors
            if error.scope == "table" and stops(error) and error.name not in carried_names
        }
        waiting |= set(names.values()) - stopped
    if "gold" in layers:
        built = control.latest_cut("gold")
        waiting |= set(documents) - (set() if built is None else set(built.tables)) - stopped
    of_stopped = (error for error in errors if stops(error) and names.get(error.name, error.name) in stopped)
    return Stalled(tuple(sorted(stopped)), tuple(sorted(waiting)), tuple(of_stopped))


def stopped_names(
    errors: Sequence[OpenError], layers: Collection[Layer], documents: Collection[str] = ()
) -> list[str]:
    """Return tables and documents with an error that one of the layers records and closes.

    Args:
        documents: names of the defined documents; errors of removed documents stop nothing.
    """
    from deltasmelt.bronze.reader.table_errors import SOURCE_CODES  # noqa: PLC0415 - keeps the start of other commands quick
    from deltasmelt.silver.errors import CODES  # noqa: PLC0415

    stopped = set()
    for error in errors:
        if not stops(error):
            continue
        if error.scope == "document":
            concerned = "gold" in layers and error.name in documents
        else:  # a code of both layers, or of neither, concerns both
            concerned = error.scope == "table" and (
                ("bronze" in layers and (error.code in SOURCE_CODES or error.code not in CODES))
                or ("silver" in layers and (error.code in CODES or error.code not in SOURCE_CODES))
            )
        if concerned:
            stopped.add(error.name)
    return sorted(stopped)


def _tables(
    lake: Lake, settings: SilverSettings, cut: Cut | None
) -> tuple[list[SilverTable], list[SilverTable]]:
    """Return the tables that silver's newest cut names, and the source's tables that the cut lacks."""
    changes = open_table(lake.uri("bronze", CHANGES))
    cut_names = set() if cut is None else set(cut.tables)
    relations = [
        relation for relation in read_relations(lake) if cut is None or relation.from_lsn <= cut.commit_lsn
    ]
    tables = silver_catalog(relations, settings).values()
    carried = [table for table in tables if table.name in cut_names]
    if changes is None:
        return carried, []
    missing = [
        table
        for table in tables
        if table.name not in cut_names
        and not is_left_out(changes, table.table)
        and (
            # A table that no poll ever found at the source (created and dropped without a reader) does not
            # count.
            snapshot_of(changes, table.table) is not None
            or changes.transaction_version(fingerprint_app(table.table)) is not None
        )
    ]
    return carried, missing
