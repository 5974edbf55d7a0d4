"""`control.comments`: the comments that tables and columns have at the source (COMMENT ON).

**Why they are not part of `bronze.relations`.** A version of a shape holds from a position in the log, which
is what tells how to read a row. A comment has none: the log does not carry it, and a look that sees it may
come hours before or after the changes around it are read. As a part of a shape it would make versions at
positions where no shape began. So it is kept by relation and attnum alone, and the newest record counts. A
column that is renamed keeps its comment, and a table that is dropped and recreated inherits none. A lake
of an earlier release gets the table with the reader's first look; without it nothing is known of comments.

**How silver learns of a change.** A mark on `bronze.changes` (`COMMENTS_APP`) says when the newest record was
made. Silver has those marks in hand in each cycle. So it reads this table only where the mark has moved, and
the mark's commit wakes up a silver that waits for bronze.

**Where the reader may die.** Before the record: the next look, or the next start's, sees the same comments.
Between record and mark: each start compares both and sets the mark then. What silver reads is never older
than the mark that it knows, and its own tables say what they have (`silver.schema.comments`).

A source without comments has neither the table nor the mark.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from deltasmelt.bronze.comments import Comments
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import DeltaError, Transaction
from deltasmelt.bronze.lake.kept import KeptTable
from deltasmelt.bronze.lake.transactions import transaction_version
from deltasmelt.bronze.store.catalog_log import CatalogLog, Kind, records
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.marks import COMMENTS_APP

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from deltalake import DeltaTable

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.shapes import Relation

COMMENTS: Final = "comments"

_KIND: Final = Kind(
    COMMENTS,
    "Comments of the source's tables and columns",
    Comments.from_json,
    Comments.to_json,
    history=True,  # `_newest` gathers what a table's comment once was
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER = logging.getLogger("deltasmelt.silver")

DAMAGED: Final = (DeltaError, OSError, pa.ArrowException, LookupError, TypeError, ValueError)
"""What a table raises that cannot be read or written, or does not hold what it should."""


class CommentLog(CatalogLog[Comments]):
    """What is known of each table's comments; see `CatalogLog`.

    Args:
        uri: location of the table, which is made when something is recorded first.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri, _KIND)

    def note(self, seen: Mapping[TableName, Comments]) -> None:
        """Make durable what a look saw; of a table that never had a comment there is nothing to say.

        A table that was renamed is known by its relation alone.
        """
        commented = {one.relation_id for one in self.all_known() if one}
        self.record(
            {
                table: one
                for table, one in seen.items()
                if one or self.known(table) is not None or one.relation_id in commented
            }
        )

    @property
    def mark(self) -> int | None:
        """When the newest record was made, in microseconds since 1970; None before the first."""
        if self.recorded_at is None:
            return None
        return (self.recorded_at - _EPOCH) // timedelta(microseconds=1)


class KeptComments:
    """A `CommentLog` that is opened when it is first needed, so that a damaged one stops no reader.

    Threads: as `CatalogLog`.

    Args:
        uri: location of the table.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._lock = threading.Lock()
        self._log: CommentLog | None = None

    def noted(self, seen: Mapping[TableName, Comments]) -> int | None:
        """Make durable what a look saw (`CommentLog.note`); returns the mark after it.

        Raises:
            DAMAGED: the table cannot be read or written.
        """
        with self._lock:
            if self._log is None:
                self._log = CommentLog(self._uri)
        self._log.note(seen)
        return self._log.mark

    def tidy(self) -> None:
        """As `CatalogLog.tidy`; nothing where it is not open, or does not let us."""
        if self._log is not None:
            try:
                self._log.tidy()
            except DAMAGED as error:
                _LOGGER.debug("%s is not tidied: %s", self._uri, error)


def comments_mark(changes: DeltaTable) -> int | None:
    """The mark of an open `bronze.changes`; None where it has none."""
    return transaction_version(changes, COMMENTS_APP)


@delta.retry_conflict
def set_mark(uri: str, mark: int) -> None:
    """Say on `bronze.changes` when comments were recorded last; durable when this returns.

    Args:
        uri: location of `bronze.changes`.
        mark: as `CommentLog.mark`.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    if comments_mark(changes) != mark:
        commit_marks(changes, uri, [Transaction(COMMENTS_APP, mark)])


class CommentsWatch:
    """Reads the comments of one lake, again where the mark has moved. One thread at a time uses it."""

    def __init__(self, lake: Lake) -> None:
        self._kept = KeptTable(lake, "control", COMMENTS)
        self._mark: int | None = None
        self._comments: dict[int, Comments] = {}

    def read(self, changes: DeltaTable) -> dict[int, Comments]:
        """The newest comments by relation; of one that is missing nothing is known.

        Comments that cannot be read stop no rows: what was known stays, and the next call tries again.

        Args:
            changes: `bronze.changes`, open.
        """
        mark = comments_mark(changes)
        if mark is not None and mark != self._mark:
            try:
                table = self._kept.newest()
                found = {} if table is None else _newest(table)
            except DAMAGED:
                _LOGGER.warning("the comments of the source's tables cannot be read", exc_info=True)
            else:
                self._mark, self._comments = mark, found
        return self._comments


def _newest(table: DeltaTable) -> dict[int, Comments]:
    newest: dict[int, Comments] = {}
    former: dict[TableName | int, set[str]] = defaultdict(set)
    names: dict[int, TableName] = {}
    for name, _, seen in records(table, _KIND):
        newest[seen.relation_id], names[seen.relation_id] = seen, name
        if seen.table is not None:
            former[name].add(seen.table)
            former[seen.relation_id].add(seen.table)
    return {
        relation: replace(seen, former=frozenset(former[names[relation]] | former[relation]))
        for relation, seen in newest.items()
    }


def commented(relations: Sequence[Relation], comments: Mapping[int, Comments]) -> list[Relation]:
    """Shapes with the comments that their tables have now, whichever version they are."""
    found = ((one, comments.get(one.relation_id)) for one in relations)
    return [one if one.comments == now else replace(one, comments=now) for one, now in found]
