"""Choice of a common LSN: silver and gold, read together, show one moment.

Silver alone is read at its newest cut. Gold follows silver, and a document reflects the rows from which gold
built the document. Both layers together are therefore read at the newest LSN with a cut in both; normally the
LSN of gold's newest cut. If silver's cut of this LSN has been removed, the search continues with an older
common LSN. If silver and gold have no common LSN, gold is omitted rather than shown together with rows of
another moment.

`smelt verify`, and gold when gold resumes, need a different record: the silver cut from which gold built one
document (`gold.incremental.starts`). Neither needs a consistent cut.
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
    """An LSN with the Delta version of each table of silver and gold at this LSN.

    Attributes:
        silver: cut of silver at the LSN.
        gold: gold's cut at the same LSN; None if the caller omits gold, or without a common LSN.
    """

    silver: Cut
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
    """Return the newest consistent cut, or the newest cut at or before a moment.

    Args:
        control: control tables of the lake to read.
        with_gold: whether the caller reads gold as well.
        at: an LSN or a commit time.

    Returns:
        The cut; None if silver has no cut at or before the moment.
    """
    gold = control.latest_cut("gold", at=at) if with_gold else None
    while gold is not None:  # ends: each step continues at an older LSN
        silver = control.latest_cut("silver", at=gold.commit_lsn)
        if silver is None:
            break
        if silver.commit_lsn == gold.commit_lsn:
            return ConsistentCut(silver, gold)
        gold = control.latest_cut("gold", at=silver.commit_lsn)
    newest = control.latest_cut("silver", at=at)
    return None if newest is None else ConsistentCut(newest)
