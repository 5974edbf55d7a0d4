"""Describe the changes of a transaction before one of its messages, as far as the current slice shows them.

The decoder decodes a batch in slices, and a transaction may begin in an earlier slice. Earlier slices leave
only the LSN of their last change. The tables and old tuples of their changes are unknown.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from deltasmelt.bronze.pgoutput.framing import HEADER
from deltasmelt.bronze.pgoutput.rows import IS_CHANGE

if TYPE_CHECKING:
    from deltasmelt.bronze.pgoutput.framing import Frames, Positions
    from deltasmelt.bronze.pgoutput.transactions import Transactions


class EarlierChanges:
    """The changes of one transaction before one of its messages, computed on first use.

    Args:
        message: the message's index in `frames`; the number of all messages means the end of the slice.
        last_change: LSN of the last change of the transaction that was open when the slice began; 0 without
            an open transaction or a change.
    """

    def __init__(self, frames: Frames, transactions: Transactions, message: int, last_change: int) -> None:
        self._frames = frames
        self._number = transactions.number
        self._message = message
        self._last_change = last_change

    @cached_property
    def _first(self) -> int:
        """Index of the transaction's first message in the slice."""
        return int(np.searchsorted(self._number, self._number[min(self._message, len(self._frames) - 1)]))

    @cached_property
    def _changes(self) -> Positions:
        """Indexes of the changes in this slice, ascending."""
        return self._first + np.flatnonzero(IS_CHANGE[self._frames.types[self._first : self._message]])

    @property
    def _before_slice(self) -> int:
        """LSN of the transaction's last change in earlier slices; 0 without any."""
        return self._last_change if self._number[self._first] == 0 else 0

    @property
    def last(self) -> int:
        """LSN of the last earlier change; 0 without any."""
        changes = self._changes
        return int(self._frames.lsn[changes[-1]]) if len(changes) else self._before_slice

    def last_if_any_of(self, relation_id: int) -> int:
        """Return the LSN of the last earlier change; 0 if certainly no change belongs to this relation."""
        if self._before_slice:
            return self.last
        relations = self._frames.uint32(self._frames.at[self._changes] + HEADER + 1)
        return self.last if (relations == relation_id).any() else 0

    def may_hold_old_tuples(self, relation_id: int) -> bool:
        """Check whether the earlier changes of this relation hold old tuples or may hold some."""
        if self._before_slice:
            return True
        changes = self._frames.at[self._changes]
        own = changes[self._frames.uint32(changes + HEADER + 1) == relation_id]
        return bool((self._frames.data[own + HEADER + 5] != ord("N")).any())
