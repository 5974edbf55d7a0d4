"""A table is carried on from the LSN in the table's actual state, not from an expected state.

A table's rows follow from the mark: the LSN of the newest window, in the commit of the window's rows. A cut
states the version and mark that the cycle found. Three changes may follow.

* **Windows without changes** leave no commit. The newest cut with the table's present mark states how far the
  rows are valid.
* **The table was rolled back**: by a restored backup, or by a power cut that tore the newest entry
  (`bronze.lake.torn_log`). The version or the mark is then older than the cut states, whatever versions
  foreign writers added since. The table continues from its own mark: the rows are the source's as of the
  mark.
* **Foreign commits changed rows** under the mark: RESTORE, DELETE, UPDATE, INSERT by hand
  (`bronze.lake.foreign_commits`). No log states reliably which rows changed. The table stops with an error,
  and is in no cut until a snapshot replaces all its rows or `smelt rebuild` derives the table again. No
  snapshot contains a history or kept deleted rows. For these rows the rebuild helps, and copies ended rows
  from the version before (`silver.rebuild`). If a rebuild would lose something (`silver.plan.derivable`), the
  cycle accepts a newer snapshot. The snapshot corrects current rows; ended rows stay as the foreign commit
  left them.

A cycle finds foreign commits of its own time before the cut is recorded (`Position.require_own`); otherwise
the next cycle finds the commits. In a catalog, only RESTORE is recognised.
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
    from collections.abc import Iterable, Sequence

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
    """The LSN up to which a table holds its source, and whether a cut states the LSN."""

    lsn: Lsn
    is_in_cut: bool


class Position:
    """The positions of one lake's tables.

    Args:
        corrects: remove lost versions from cuts; otherwise only read.

    Attributes:
        disowned: whether a table was removed from cuts, so that a new cut must be recorded.
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
        """Return the LSN up to which a table with a mark holds its source.

        `last` is silver's newest cut, `snapshot` the newest snapshot of the source's table within the cycle.

        Raises:
            TableError: ``table-written-by-others``: a foreign commit changed rows.
        """
        mark = stored.mark or ZERO
        named = self._named(table.name, last)
        if named is not None and is_put_back(stored.version, stored.mark, named):
            if not self._corrects:
                return Held(mark, is_in_cut=False)
            _LOGGER.warning(
                "silver.%s was rolled back from version %d to %d: silver applies the changes again from %s",
                table.name, named.version, stored.version, mark,
            )  # fmt: skip
            # Remove the lost versions from all cuts before the table grows again: equal version numbers will
            # return with different rows. After a kill in between, the next cycle finds an equal or a later
            # state.
            self._control.disown("silver", table.name, stored.version, stored.mark)
            self.disowned = True
            named = self._control.last_named("silver", table.name)
        stated = named is not None and named.mark in {None, mark}
        held = max(mark, named.commit_lsn) if named is not None and stated else mark
        # The search for foreign commits reaches back to the version in the cut.
        self._own[table.name] = -1 if named is None else named.version
        # A cut without the table's mark is of an earlier version, which signed no commits
        # (`silver.run.unsigned`).
        unsigned = named is not None and named.mark is None
        commit = self._foreign(table, stored, unsigned=unsigned)
        if commit is not None:
            self._require_healed(table, stored, commit, snapshot, held=held, relations=relations)
            self._log.trust(table.name, stored.version)
        if commit is not None or unsigned:
            self._own[table.name] = stored.version
        return Held(held, is_in_cut=stated and named is not None and named.commit_lsn >= mark)

    def _require_healed(
        self,
        table: SilverTable,
        stored: Stored,
        commit: ForeignCommit,
        snapshot: Lsn | None,
        *,
        held: Lsn,
        relations: Sequence[Relation],
    ) -> None:
        """Check that a newer snapshot corrects the foreign commit, or has already corrected the rows.

        Raises:
            TableError: ``table-written-by-others``: a foreign commit changed rows.
        """
        if not table.versioned:
            if snapshot is None or snapshot <= held:
                raise written_by_others(table, commit)
            return
        versions = [one for one in relations if one.relation_id == table.relation.relation_id]
        why = None
        if snapshot is not None:
            why = obstacle(table, stored.fields, versions or [table.relation], snapshot, ended=False)
        if snapshot is None or why is None or not self._is_older(table, stored, commit, snapshot, held):
            raise written_by_others(table, commit, derivable=why is None)
        if self._corrects:
            _LOGGER.warning(
                "another program made %s of silver.%s, and the table %s. The snapshot at %s corrects its "
                "current rows; rows that ended earlier stay as the other program left them",
                commit, table.name, why, snapshot,
            )  # fmt: skip

    def _is_older(
        self, table: SilverTable, stored: Stored, commit: ForeignCommit, snapshot: Lsn, held: Lsn
    ) -> bool:
        """Check whether all foreign commits precede the window of a snapshot: the mark was lower then."""
        if snapshot > held:
            return True
        # The accepted snapshot is a MERGE. The mark in the foreign version proves that the MERGE came later,
        # so a process killed before the cut does not stop the table again.
        last: ForeignCommit | None = commit
        while last is not None:
            try:
                then = self._log.read_at(table.name, last.version)
            except DeltaError:
                return False
            if then is None or (then.mark or ZERO) >= snapshot:
                return False
            last = self._log.foreign(table.name, stored.version, last.version, table=table)
        return stored.mark is not None and stored.mark >= snapshot

    def forget(self, names: Iterable[str]) -> None:
        """Forget tables that the source no longer has."""
        for name in names:
            self._own.pop(name, None)

    def begin_anew(self, name: str, stored: Stored | None, last: Cut | None) -> None:
        """Remove a missing or empty table from all cuts: its version numbers will return with different rows.

        `stored` is the table's present state, without a mark.
        """
        self._own.pop(name, None)
        if self._corrects and self._named(name, last) is not None:
            _LOGGER.warning(
                "silver.%s was removed: silver recreates the table from its newest snapshot", name
            )
            self._control.disown("silver", name, -1 if stored is None else stored.version, None)
            self.disowned = True

    def require_own(self, table: SilverTable, stored: Stored) -> None:
        """Check that no foreign commit changed rows since the cycle read or wrote the table.

        Raises:
            TableError: ``table-written-by-others``: a foreign commit changed rows.
        """
        commit = self._foreign(table, stored)
        if commit is not None:
            raise written_by_others(table, commit)

    def _foreign(self, table: SilverTable, stored: Stored, *, unsigned: bool = False) -> ForeignCommit | None:
        own = self._own.get(table.name, -1)
        return self._log.foreign(table.name, stored.version, own, table=table, unsigned=unsigned)

    def _named(self, name: str, last: Cut | None) -> Named | None:
        """Return a table's entry in the newest cut with the table, mostly the newest cut of all."""
        known = None if last is None else last.named(name)
        return known or self._control.last_named("silver", name)


def written_by_others(table: SilverTable, commit: ForeignCommit, *, derivable: bool = True) -> TableError:
    """Return the error for a table whose rows a foreign commit changed.

    `derivable` states whether a rebuild keeps everything that only the table holds.
    """
    remedy = f"stop silver and gold, then: smelt rebuild FILE silver {table.table}"
    if not derivable:
        remedy = resnapshot_remedy(
            table.table,
            "a rebuild would lose columns; to correct only the current rows, resnapshot the table",
        )
    elif not table.versioned:
        remedy = f"{resnapshot_remedy(table.table)}; or {remedy}"
    return TableError(
        table.table,
        f"another program made {commit} of silver.{table.name} and changed its rows",
        code=WRITTEN_BY_OTHERS,
        remedy=remedy,
    )
