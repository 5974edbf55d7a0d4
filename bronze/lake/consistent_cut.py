"""The one answer to "as of when": the LSN at which everything that is read together is shown.

Silver alone is shown at its newest cut. Gold follows silver, and a document stands for the rows that it was
built from. So both together are shown at the newest LSN at which both have a cut: gold's newest where nothing
is amiss. Where silver's record of that LSN is gone, an older common one is looked for. Where there is none,
gold is left out rather than shown beside rows of another moment.

`smelt verify`, and gold when it goes on, ask something else: from which record of silver one document was
built (`gold.incremental.starts`). They choose no cut.
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
    """One LSN, and the Delta version of each table of silver and gold at it.

    Attributes:
        silver: silver's cut.
        gold: gold's at the same LSN; None where gold is not asked for, or has none in common with silver.
    """

    silver: Cut
    gold: Cut | None = None

    @property
    def commit_lsn(self) -> Lsn:
        """The last commit that is shown."""
        return self.silver.commit_lsn

    @property
    def commit_ts(self) -> datetime | None:
        """When that was committed at the source."""
        return self.silver.commit_ts

    @property
    def versions(self) -> dict[tuple[Layer, str], int]:
        """Delta versions by layer and table: silver's first, each layer's by name."""
        cuts = [self.silver] if self.gold is None else [self.silver, self.gold]
        return {(cut.layer, name): version for cut in cuts for name, version in sorted(cut.tables.items())}


def choose_cut(
    control: ControlTables, *, with_gold: bool, at: Lsn | datetime | None = None
) -> ConsistentCut | None:
    """The newest consistent cut, or the newest at or before a moment.

    Args:
        control: the lake's control tables.
        with_gold: whether gold is read as well.
        at: an LSN or a commit time.

    Returns:
        None where silver has no cut that old.
    """
    gold = control.latest_cut("gold", at=at) if with_gold else None
    while gold is not None:  # each step goes back to the other layer's next older LSN, so it ends
        silver = control.latest_cut("silver", at=gold.commit_lsn)
        if silver is None:
            break
        if silver.commit_lsn == gold.commit_lsn:
            return ConsistentCut(silver, gold)
        gold = control.latest_cut("gold", at=silver.commit_lsn)
    newest = control.latest_cut("silver", at=at)
    return None if newest is None else ConsistentCut(newest)
