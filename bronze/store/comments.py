"""`control.comments`: the comments of tables and columns at the source (COMMENT ON).

**Why comments are not part of `bronze.relations`.** A shape's version begins at a position in the log. The
position decides which rows have the shape. A comment has no position: the log does not carry comments, and a
poll may see a comment hours before or after the reader reads the surrounding changes. As part of a shape, a
comment would create versions at positions where no shape began. This table therefore stores comments by
relation and attnum alone, and the newest record counts. A renamed column keeps its comment, and a table that
is dropped and recreated inherits none. A lake of an earlier release gets the table with the reader's first
poll; before this poll no comments are known.

**How silver detects a change.** A mark on `bronze.changes` (`COMMENTS_APP`) has the time of the newest
record. Silver already has these marks in each cycle. Silver therefore reads this table only if the mark has
changed, and the mark's commit wakes a silver that waits for bronze.

**What stays.** Silver replaces a comment of its own table only if the source once had this comment. So the
newest hundred records of each table stay, and none of a table that is gone (`CatalogLog.forget`). Silver that
is further behind takes the comment of its table for a person's, and leaves the comment alone.

**Where the reader may be killed.** Before the record: the next poll, or the first poll of the next start,
sees the comments again. Between record and mark: each start compares both and then sets the mark. Silver
never reads comments older than the mark that silver knows, and silver's own tables have the comments that
silver has applied (`silver.schema.comments`).
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
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.client import DeltaError, Transaction
from deltasmelt.bronze.lake.table import retry_conflict
from deltasmelt.bronze.store.catalog_log import CatalogLog, Kind, records
from deltasmelt.bronze.store.changes_table import commit_marks
from deltasmelt.bronze.store.marks import COMMENTS_APP

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltasmelt.bronze.identifiers import TableName
    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation

COMMENTS: Final = "comments"

_KIND: Final = Kind(
    COMMENTS,
    "Comments of the source's tables and columns",
    Comments.from_json,
    Comments.to_json,
    kept=100,  # `_newest` gathers what a table's comment once was
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LOGGER = logging.getLogger("deltasmelt.silver")

DAMAGED: Final = (DeltaError, OSError, pa.ArrowException, LookupError, TypeError, ValueError)
"""Errors of a table that cannot be read or written, or has unexpected contents."""


class CommentLog(CatalogLog[Comments]):
    """The comments of each table; see `CatalogLog`."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, _KIND)

    def note(self, polled: Mapping[TableName, Comments]) -> None:
        """Make the comments of a poll durable; skip tables that never had a comment."""
        # A renamed table is recognised by its relation alone.
        commented = {comments.relation_id for comments in self.all_known() if comments}
        self.record(
            {
                table: comments
                for table, comments in polled.items()
                # A source without comments has neither the table nor the mark.
                if comments or self.known(table) is not None or comments.relation_id in commented
            }
        )

    @property
    def mark(self) -> int | None:
        """Time of the newest record, in microseconds since 1970; None before the first."""
        if self.recorded_at is None:
            return None
        return (self.recorded_at - _EPOCH) // timedelta(microseconds=1)


class RecordedComments:
    """A `CommentLog` that is opened on first use, so that a damaged log stops no reader.

    Threads: the rules of `CatalogLog`.
    """

    def __init__(self, uri: str) -> None:
        self._uri = uri
        self._lock = threading.Lock()
        self._log: CommentLog | None = None

    def record(self, polled: Mapping[TableName, Comments]) -> int | None:
        """Make the comments of a poll durable (`CommentLog.note`); return the mark afterwards.

        Raises:
            DAMAGED: the table cannot be read or written.
        """
        with self._lock:
            if self._log is None:
                self._log = CommentLog(self._uri)
        self._log.note(polled)
        return self._log.mark

    def known(self, table: TableName) -> Comments | None:
        """Return the newest record of a table; None without a record, or before the first poll."""
        return None if self._log is None else self._log.known(table)

    def forget(self, tables: Iterable[TableName]) -> None:
        """Forget tables (`CatalogLog.forget`)."""
        if self._log is not None:
            self._log.forget(tables)

    def tidy(self) -> None:
        """Tidy an open log (`CatalogLog.tidy`); do nothing if the log is not open or fails."""
        if self._log is not None:
            try:
                self._log.tidy()
            except DAMAGED as error:
                _LOGGER.debug("%s is not tidied: %s", self._uri, error)


def comments_mark(changes: Table) -> int | None:
    """Return the mark of an open `bronze.changes`; None without a mark."""
    return changes.transaction_version(COMMENTS_APP)


@retry_conflict
def set_mark(uri: str, mark: int) -> None:
    """Set the mark of the newest comments (`CommentLog.mark`) on `bronze.changes`; durable on return.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    if comments_mark(changes) != mark:
        commit_marks(changes, [Transaction(COMMENTS_APP, mark)])


class CommentsWatch:
    """Reader of a lake's comments, for one thread at a time; reads again if the mark has changed."""

    def __init__(self, lake: Lake) -> None:
        self._cached = CachedTable(lake.uri("control", COMMENTS))
        self._mark: int | None = None
        self._comments: dict[int, Comments] = {}

    def read(self, changes: Table) -> dict[int, Comments]:
        """Return the newest comments by relation; a relation without a record is missing.

        `changes` is an open `bronze.changes`.
        """
        mark = comments_mark(changes)
        if mark is not None and mark != self._mark:
            try:
                table = self._cached.newest()
                comments = {} if table is None else _newest(table)
            except DAMAGED:
                # Unreadable comments stop no rows: the former comments stay, and the next call retries.
                _LOGGER.warning("the comments of the source's tables cannot be read", exc_info=True)
            else:
                self._mark, self._comments = mark, comments
        return self._comments


def _newest(table: Table) -> dict[int, Comments]:
    newest: dict[int, Comments] = {}
    former: dict[TableName | int, set[str]] = defaultdict(set)
    names: dict[int, TableName] = {}
    for name, _, record in records(table, _KIND):
        newest[record.relation_id], names[record.relation_id] = record, name
        if record.table is not None:
            former[name].add(record.table)
            former[record.relation_id].add(record.table)
    return {
        relation: replace(newest_record, former=frozenset(former[names[relation]] | former[relation]))
        for relation, newest_record in newest.items()
    }


def commented(relations: Sequence[Relation], comments: Mapping[int, Comments]) -> list[Relation]:
    """Return shapes with the present comments of their tables, whatever the version of the shape."""
    pairs = ((shape, comments.get(shape.relation_id)) for shape in relations)
    return [shape if shape.comments == now else replace(shape, comments=now) for shape, now in pairs]
