"""Choice of a common LSN: silver and gold, read together, show one moment.

Silver alone is read at its newest cut. Gold follows silver, and a document reflects the rows from which gold
built the document. Both layers together are therefore read at the newest LSN with a cut in both; normally the
LSN of gold's newest cut. Without a common LSN, gold is omitted rather than shown together with rows of
another moment.

`smelt verify`, and gold when gold resumes, need a different record: the silver cut from which gold built one
document (`gold.incremental.starts`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from deltasmelt.bronze.lake.control import Cut
    from deltasmelt.bronze.lake.control_tables import ControlTables
    from deltasmelt.bronze.lake.location import Layer
    from deltasmelt.bronze.lsn import Lsn


@dataclass(frozen=True, slots=True)
class ConsistentCut:
    """An LSN with the Delta version of each table of silver and gold at this LSN."""

    silver: Cut
    # None if the caller omits gold, or without a common LSN
    gold: Cut | None = None

    @property
    def commit_lsn(self) -> Lsn:
        """LSN of the last commit that the cut includes."""
        return self.silver.commit_lsn

    @property
    def commit_ts(self) -> datetime | None:
        """Time of the last commit at the source."""
        return self.silver.commit_ts

    @property
    def versions(self) -> dict[tuple[Layer, str], int]:
        """Delta versions by layer and table: silver first, each layer sorted by name."""
        cuts = [self.silver] if self.gold is None else [self.silver, self.gold]
        return {(cut.layer, name): version for cut in cuts for name, version in sorted(cut.tables.items())}


def choose_cut(
    control: ControlTables, *, with_gold: bool, at: Lsn | datetime | None = None
) -> ConsistentCut | None:
    """Return the newest consistent cut, or the newest cut at or before an LSN or a commit time.

    The result is None if silver has no such cut.
    """
    gold = control.latest_cut("gold", at=at) if with_gold else None
    while gold is not None:  # ends: each step continues at an older LSN
        silver = control.latest_cut("silver", at=gold.commit_lsn)
        if silver is None:
            break
        if silver.commit_lsn == gold.commit_lsn:
            return ConsistentCut(silver, gold)
        # Silver's cut of this LSN has been removed: continue with an older common LSN.
        gold = control.latest_cut("gold", at=silver.commit_lsn)
    newest = control.latest_cut("silver", at=at)
    return None if newest is None else ConsistentCut(newest)
