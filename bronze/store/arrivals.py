"""Arrivals in `bronze.changes`, for a process that only reads: rows in commit order, copies, gaps.

**Each change once, in whole transactions.** A commit of the stream has whole transactions and follows all
earlier commits. So the changes of the log's next entry are the rows of the entry's new files. A compaction
names its files with ``dataChange = false``, and a removal of old changes names no new file: neither shows a
row again. Besides, rows at or before the last place are dropped, whichever file has them.

**By position.** From an earlier LSN on, or if the log's next entry was removed meanwhile (a process that
slept for a day), the rows after the last place come from all files of the newest version (`in_order`).
Copies count by their LSNs then: a copy that was committed after later changes may go without a line.

**A copy** of a table is one commit whose files have rows of this copy alone. The statistics of the files name
the table and count the rows, so nothing is read unless the caller wants the rows themselves.

**If a read fails**, the place behind the last delivered row is known. The caller repeats the call, and the
reading continues there. A file that a newer version has replaced and a vacuum has removed leads to a reading
by position. Nothing is written, so a kill leaves nothing.

**A lake that was exchanged** has another id in the table's metadata; the reading ends then.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from urllib.parse import unquote

from deltasmelt.bronze.errors import DefiniteError
from deltasmelt.bronze.figures import moment_text
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake.cached_table import CachedTable
from deltasmelt.bronze.lake.failures import vanished
from deltasmelt.bronze.lsn import LAST, Lsn
from deltasmelt.bronze.store.contract import CHANGES
from deltasmelt.bronze.store.gaps import gap_of, is_open
from deltasmelt.bronze.store.in_order import BEGINNING, file_rows, in_order, place_of, rows_before
from deltasmelt.bronze.store.marks import STREAM_APP, gap_app, kept_from, snapshot_of
from deltasmelt.bronze.store.ownership import refuse_foreign
from deltasmelt.bronze.store.relations import RelationsWatch
from deltasmelt.bronze.store.retention import ChangesFile, changes_file, due_at, files_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import pyarrow as pa

    from deltasmelt.bronze.lake.location import Lake
    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation
    from deltasmelt.bronze.store.in_order import Place

COLUMNS: Final = (
    "commit_lsn", "seq", "lsn", "xid", "commit_ts", "op", "table_schema", "table_name", "relation_id",
    "columns", "new", "old", "old_is_key", "unchanged", "end_of_tx",
)  # fmt: skip
"""Columns of the delivered rows."""

# Prefix of the mark of a gap, before the table's name.
_GAP: Final = gap_app(TableName("", "")).removesuffix(TableName("", "").quoted)
# Seconds for which a store is not asked again.
_STORE_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Copied:
    """A complete copy of a table, at one LSN."""

    table: TableName
    lsn: Lsn
    # None without statistics
    rows: int | None
    # time at which the copy's newest file was written
    at: datetime


@dataclass(frozen=True, slots=True)
class Gap:
    """A table whose changes up to an LSN may be missing in bronze, until the next copy."""

    table: TableName
    lsn: Lsn


Arrival: TypeAlias = "pa.RecordBatch | Copied | Gap"


def content_of(entry: bytes) -> tuple[list[ChangesFile], dict[str, int]]:
    """Return the files with new rows, and the marks, of a log entry. Pure.

    Raises:
        ValueError: a line of the entry is not JSON.
    """
    files, marks = [], {}
    for line in entry.splitlines():
        action = json.loads(line) if line.strip() else {}
        if (add := action.get("add")) is not None and add.get("dataChange", True):
            files.append(_file(add))
        if (mark := action.get("txn")) is not None:
            marks[mark["appId"]] = int(mark["version"])
    return files, marks


def _file(add: Mapping[str, Any]) -> ChangesFile:
    stats = json.loads(add.get("stats") or "{}")
    ends = {"min": stats.get("minValues") or {}, "max": stats.get("maxValues") or {}}
    return changes_file(
        {
            "path": unquote(add["path"]),
            "size_bytes": add["size"],
            "modification_time": add["modificationTime"],
            "num_records": stats.get("numRecords"),
            **{f"{end}.{name}": value for end, values in ends.items() for name, value in values.items()},
        }
    )


def copies_of(files: Iterable[ChangesFile], after: int) -> list[tuple[Copied, list[ChangesFile]]]:
    """Return the copies after an LSN with their files, in the order of their LSNs. Pure."""
    # The last row of a copy only closes the copy.
    placed = [
        (file.last, file.table, file)
        for file in sorted(files, key=lambda file: file.path)
        if not file.is_streamed and file.table is not None and file.last is not None and file.last > after
    ]
    copies = []
    for (lsn, table), group in groupby(sorted(placed, key=lambda each: each[:2]), key=lambda each: each[:2]):
        own = [file for _, _, file in group]
        counts = [file.rows for file in own if file.rows is not None]
        rows = sum(counts) - 1 if len(counts) == len(own) else None
        copies.append((Copied(table, lsn, rows, max(file.written for file in own)), own))
    return copies


class Arrivals:
    """Reader of what arrives in one lake; one thread at a time.

    Args:
        pipeline: name of the pipeline, to which the lake must belong.
        learn: called with all shapes, whenever the rows that follow may need other shapes than before.
        rows_of_copies: whether the rows of copies are delivered, too.
    """

    def __init__(
        self,
        lake: Lake,
        pipeline: str,
        *,
        learn: Callable[[Sequence[Relation]], None],
        rows_of_copies: bool = False,
    ) -> None:
        self._lake = lake
        self._pipeline = pipeline
        self._rows_of_copies = rows_of_copies
        self._cached = CachedTable(lake.uri("bronze", CHANGES))
        self._learn = learn
        self._relations = RelationsWatch(lake)
        self._learned: list[Relation] = []
        self._id: str | None = None
        # last version of the log that was read; None: read by position
        self._version: int | None = None
        self._place: Place = BEGINNING
        # rows before the first change at or after this time are dropped
        self._since: datetime | None = None
        # delivered: the copies behind the place, and the batches of a copy whose reading failed
        self._copied: set[tuple[TableName, Lsn]] = set()
        self._delivered: Counter[tuple[TableName, Lsn]] = Counter()

    def exists(self) -> bool:
        """Check whether bronze exists.

        Raises:
            DeltaError, OSError: the lake cannot be read.
            DefiniteError: the lake has another format or pipeline.
        """
        return self._table() is not None

    def relations(self) -> list[Relation]:
        """Return all shapes that bronze has; raises as `exists`."""
        return self._relations.read()

    def begin(self, moment: Lsn | datetime | None) -> Lsn:
        """Set the place after which an existing bronze is read; return the LSN of this place.

        Args:
            moment: first LSN, or time of the first change; None: what arrives from now on.

        Raises:
            DeltaError, OSError: the lake cannot be read.
            DefiniteError: ``changes-removed``.
        """
        table = self._table()
        assert table is not None  # noqa: S101 - the caller has asked
        if moment is None:
            self._version = table.version()
            self._place = table.transaction_version(STREAM_APP) or 0, int(LAST)
        elif isinstance(moment, datetime):
            start = max(due_at(table, files_of(table), moment, "commit_ts"), kept_from(table))
            self._since, self._place = moment, (start - 1, int(LAST))
        else:
            self._place = moment - 1, int(LAST)
            self._require_kept(table)
        return Lsn(max(self._place[0], 0))

    def poll(self) -> Iterator[Arrival]:
        """Yield what has arrived since the last call.

        Raises:
            DeltaError, OSError, ArrowException: the lake cannot be read; the next call continues.
            DefiniteError: ``changes-removed``.
            TransientError: ``lake-unreachable``: the lake was removed or exchanged.
        """
        table = self._table()
        if table is None:
            return
        newest = table.version()
        if self._version != newest:
            # The reader commits a shape before the first row with this shape.
            relations = self.relations()
            if relations != self._learned:
                self._learn(relations)
                self._learned = relations
        while self._version is not None and self._version < newest:
            try:
                yield from self._entry(table, self._version + 1)
            except FileNotFoundError:  # the entry, or a file of the entry, was removed meanwhile
                self._version = None
            else:
                self._version += 1
        if self._version is None:
            self._require_kept(table)
            names = {relation.table for relation in self._learned}
            gaps = {gap_app(name): gap_of(table, name) or 0 for name in names}
            yield from self._arrived(
                table, files_of(table), {app: lsn for app, lsn in gaps.items() if lsn > self._place[0]}
            )
            self._version = newest
            self._advance(table.transaction_version(STREAM_APP) or 0)

    def _entry(self, table: Table, version: int) -> Iterator[Arrival]:
        """Yield what a log entry added."""
        entry = table.entry(version)
        if entry is None:
            raise FileNotFoundError(version)
        files, marks = content_of(entry)
        yield from self._arrived(table, files, marks)
        self._advance(marks.get(STREAM_APP, 0))

    def _advance(self, lsn: int) -> None:
        self._place = max(self._place, (lsn, int(LAST)))
        # A reading by position shows a copy behind the place, which its entry may have shown already.
        self._copied = {copy for copy in self._copied if copy[1] > self._place[0]}
        self._delivered.clear()

    def _table(self) -> Table | None:
        table = self._cached.newest(within=_STORE_SECONDS)
        if table is None:
            if self._id is not None:
                raise vanished(self._lake.label)
            return None
        known = str(table.metadata().id)
        if self._id is None:
            refuse_foreign(table, self._pipeline)
            self._id = known
        elif self._id != known or table.version() < (self._version or 0):
            raise vanished(self._lake.label)
        return table

    def _require_kept(self, table: Table) -> None:
        kept = kept_from(table)
        if self._place[0] + 1 < kept:
            raise _removed(Lsn(self._place[0] + 1), kept, self._lake.label)

    def _arrived(
        self, table: Table, files: Sequence[ChangesFile], marks: Mapping[str, int]
    ) -> Iterator[Arrival]:
        """Yield rows and copies of files in their order, then gaps; note the place behind each row."""
        gaps = [gap for app, lsn in marks.items() if (gap := _open_gap(table, app, lsn)) is not None]
        copies = copies_of(files, self._place[0] if self._version is None else -1)
        streamed = [file for file in files if file.is_streamed]
        for batch in in_order(table.table_uri, streamed, COLUMNS, after=self._place):
            rest = batch
            while copies and rest.num_rows and copies[0][0].lsn < place_of(rest, -1)[0]:
                before = rows_before(rest, (copies[0][0].lsn, int(LAST)))
                yield from self._rows(table, rest.slice(0, before))
                yield from self._copy(table, *copies.pop(0))
                rest = rest.slice(before)
            yield from self._rows(table, rest)
        for copy, own in copies:
            yield from self._copy(table, copy, own)
        yield from gaps

    def _rows(self, table: Table, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        if not batch.num_rows:
            return
        place = place_of(batch, -1)
        if self._since is not None:
            times = batch["commit_ts"].to_pylist()
            first = next((at for at, time in enumerate(times) if time and time >= self._since), len(times))
            kept = kept_from(table)
            # No older change is left that shows that nothing is missing.
            if kept and first == 0 and self._place[0] < kept:
                raise _removed(self._since, kept, self._lake.label, times[0])
            batch = batch.slice(first)
            if batch.num_rows:
                self._since = None
        self._place = place
        if batch.num_rows:
            yield batch

    def _copy(self, table: Table, copy: Copied, files: Sequence[ChangesFile]) -> Iterator[Arrival]:
        key = copy.table, copy.lsn
        is_old = self._since is not None and copy.at < self._since
        if is_old or key in self._copied:
            return
        if self._rows_of_copies:
            batches = (batch for file in files for batch in file_rows(table.table_uri, file, COLUMNS))
            for number, batch in enumerate(batches, 1):
                if number > self._delivered[key]:
                    self._delivered[key] = number
                    yield batch
        self._copied.add(key)
        yield copy


def _open_gap(table: Table, app: str, lsn: int) -> Gap | None:
    """Return the gap that a mark of an open `bronze.changes` states, unless a copy has healed it."""
    if not app.startswith(_GAP):
        return None
    name = TableName.parse(app.removeprefix(_GAP))
    # The first rules of a table open a gap before the first copy: nothing is missing yet.
    is_gap = snapshot_of(table, name) is not None and is_open(table, name)
    return Gap(name, Lsn(lsn)) if is_gap else None


def _removed(start: Lsn | datetime, kept: Lsn, where: str, first: datetime | None = None) -> DefiniteError:
    oldest = "" if first is None else f"; the oldest change is of {moment_text(first)}"
    begin = moment_text(start) if isinstance(start, datetime) else start
    return DefiniteError(
        f"bronze no longer has all changes from {begin} on: it has removed those before {kept} "
        f"(bronze.retention){oldest}",
        code="changes-removed",
        where=where,
        remedy=f"begin later: --from {kept}",
    )
