"""From which LSN a table is carried on: by what is found of the table, not by what was meant to be there.

A table's rows follow from its mark: the LSN of the newest window in it, which stands in the very commit of
the window's rows. A cut states the version and the mark that it found. Three things may have come between.

* **Windows without changes.** They leave no commit. The newest cut that states the table's very mark says how
  far the rows hold.
* **The table was put back**: a folder of a backup, an older one, a newest entry that a power cut tore
  (`bronze.lake.torn_log`). Its version is then older than a cut names, or its mark is, whatever versions
  somebody added since. The table is carried on from its own mark: the rows are the source's as of that LSN.
  Before a window is built upon it no cut names those versions any more (`ControlTables.disown`), as their
  numbers will come again with other rows. Killed in between, the next cycle finds the same, or is past it.
* **Others changed rows** under the mark: RESTORE, DELETE, UPDATE, INSERT by hand
  (`bronze.lake.foreign_commits`). Which rows, no log tells for sure. The table stops with an error and is in
  no cut, until a snapshot replaces all of its rows or `smelt rebuild` derives it again. A history, and
  deleted rows that are kept, are in no snapshot: there the rebuild helps, which copies the rows that ended
  from the version before (`silver.rebuild`). Where a rebuild would lose something (`silver.plan.derivable`),
  a newer snapshot is accepted instead: current rows are the source's again, and rows that ended stay as
  others left them, of which the log warns. Such a snapshot is a MERGE, and the mark as of the others' version
  shows that the MERGE came after. So a process killed before the cut does not stop the table again.

What others commit while a cycle runs is found before its cut is recorded (`Position.require_own`), or by the
next cycle. The search goes back to the version that a cut names. Where that cut states no mark of the table,
a version that did not sign its commits recorded it (`silver.run.unsigned`). In a lake in a catalog a RESTORE
alone is recognised.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from deltasmelt.bronze.errors import TableError, resnapshot_remedy
from deltasmelt.bronze.lake.client import DeltaError
from deltasmelt.bronze.lake.control import is_put_back
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.silver.plan.derivable import obstacle

if TYPE_CHECKING:
    from collections.abc import Sequence

    from deltasmelt.bronze.lake.control import Cut, Named
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.foreign_commits import ForeignCommit
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.silver.run.stored import Stored
    from deltasmelt.silver.run.table_log import SilverLog
    from deltasmelt.silver.schema.catalog import SilverTable

WRITTEN_BY_OTHERS: Final = "table-written-by-others"
_LOGGER: Final = logging.getLogger("deltasmelt.silver")


@dataclass(frozen=True, slots=True)
class Held:
    """Up to which LSN a table holds its source, and whether a cut states so."""

    lsn: Lsn
    is_in_cut: bool


class Position:
    """Where the tables of one lake stand.

    Args:
        control: the lake's control tables.
        log: the logs of silver's tables.
        corrects: have cuts no longer name what is gone; else only look.

    Attributes:
        disowned: cuts no longer name a table that was put back: so a new one must be recorded.
    """

    def __init__(self, control: ControlTables, log: SilverLog, *, corrects: bool = True) -> None:
        self._control = control
        self._log = log
        self._corrects = corrects
        self._own: dict[str, int] = {}
        self.disowned = False

    def held(
        self,
        table: SilverTable,
        stored: Stored,
        last: Cut | None,
        snapshot: Lsn | None,
        relations: Sequence[Relation] = (),
    ) -> Held:
        """Return up to which LSN a table that has a mark holds its source.

        Args:
            table: the table.
            stored: the table as it is found.
            last: the newest cut.
            snapshot: the newest snapshot of the source's table that the cycle sees.
            relations: all known shapes.

        Raises:
            TableError: ``table-written-by-others``.
        """
        mark = stored.mark or ZERO
        named = self._named(table.name, last)
        if named is not None and is_put_back(stored.version, stored.mark, named):
            if not self._corrects:
                return Held(mark, is_in_cut=False)
            _LOGGER.warning(
                "silver.%s was put back from version %d to %d: it is folded again from %s",
                table.name, named.version, stored.version, mark,
            )  # fmt: skip
            self._control.disown("silver", table.name, stored.version, stored.mark)
            self.disowned = True
            named = self._control.last_named("silver", table.name)
        stated = named is not None and named.mark in {None, mark}
        held = max(mark, named.commit_lsn) if named is not None and stated else mark
        self._own[table.name] = -1 if named is None else named.version
        unsigned = named is not None and named.mark is None
        found = self._foreign(table, stored, unsigned=unsigned)
        if found is not None:
            self._require_healed(table, stored, found, snapshot, held=held, relations=relations)
            self._log.trust(table.name, stored.version)
        if found is not None or unsigned:
            self._own[table.name] = stored.version
        return Held(held, is_in_cut=stated and named is not None and named.commit_lsn >= mark)

    def _require_healed(
        self,
        table: SilverTable,
        stored: Stored,
        found: ForeignCommit,
        snapshot: Lsn | None,
        *,
        held: Lsn,
        relations: Sequence[Relation],
    ) -> None:
        """Check that a newer snapshot corrects what others did, or has done so.

        Raises:
            TableError: ``table-written-by-others``.
        """
        if not table.versioned:
            if snapshot is None or snapshot <= held:
                raise written_by_others(table, found)
            return
        versions = [one for one in relations if one.relation_id == table.relation.relation_id]
        why = None
        if snapshot is not None:
            why = obstacle(table, stored.fields, versions or [table.relation], snapshot, ended=False)
        if snapshot is None or why is None or not self._is_older(table, stored, found, snapshot, held):
            raise written_by_others(table, found, derivable=why is None)
        if self._corrects:
            _LOGGER.warning(
                "%s of silver.%s is not deltasmelt's, and the table %s by a rebuild. The snapshot at %s "
                "corrects its current rows; rows that ended before stay as others left them",
                found, table.name, why, snapshot,
            )  # fmt: skip

    def _is_older(
        self, table: SilverTable, stored: Stored, found: ForeignCommit, snapshot: Lsn, held: Lsn
    ) -> bool:
        """Check whether all that others did came before the window of a snapshot: the mark then was lower."""
        if snapshot > held:
            return True
        last: ForeignCommit | None = found
        while last is not None:
            try:
                then = self._log.read_at(table.name, last.version)
            except DeltaError:
                return False
            if then is None or (then.mark or ZERO) >= snapshot:
                return False
            last = self._log.foreign(table.name, stored.version, last.version, table=table)
        return stored.mark is not None and stored.mark >= snapshot

    def begin_anew(self, name: str, stored: Stored | None, last: Cut | None) -> None:
        """Have no cut name a table that is not there, or empty: its versions will come again with other rows.

        Args:
            name: of the table.
            stored: the table as it is found, without a mark.
            last: the newest cut.
        """
        self._own.pop(name, None)
        if self._corrects and self._named(name, last) is not None:
            _LOGGER.warning("silver.%s was removed: it is made again from its newest snapshot", name)
            self._control.disown("silver", name, -1 if stored is None else stored.version, None)
            self.disowned = True

    def require_own(self, table: SilverTable, stored: Stored) -> None:
        """Check that nobody else changed rows of a table since it was looked at, or written.

        Args:
            table: the table.
            stored: the table after all that the cycle did to it.

        Raises:
            TableError: ``table-written-by-others``.
        """
        found = self._foreign(table, stored)
        if found is not None:
            raise written_by_others(table, found)

    def _foreign(self, table: SilverTable, stored: Stored, *, unsigned: bool = False) -> ForeignCommit | None:
        own = self._own.get(table.name, -1)
        return self._log.foreign(table.name, stored.version, own, table=table, unsigned=unsigned)

    def _named(self, name: str, last: Cut | None) -> Named | None:
        """Return what the newest cut that names a table states of it; mostly that is the newest of all."""
        known = None if last is None else last.named(name)
        return known or self._control.last_named("silver", name)


def written_by_others(table: SilverTable, found: ForeignCommit, *, derivable: bool = True) -> TableError:
    """Return the error of a table in which somebody else changed rows.

    Args:
        table: the table.
        found: what that was.
        derivable: whether a rebuild keeps all that only the table has.
    """
    remedy = f"stop silver and gold, then: smelt rebuild FILE silver {table.table}"
    if not derivable:
        remedy = resnapshot_remedy(
            table.table, "a rebuild would lose columns; to correct current rows alone, resnapshot the table"
        )
    elif not table.versioned:
        remedy = f"{resnapshot_remedy(table.table)}; or {remedy}"
    return TableError(
        table.table,
        f"{found} of silver.{table.name} is not deltasmelt's and changed its rows",
        code=WRITTEN_BY_OTHERS,
        remedy=remedy,
    )
