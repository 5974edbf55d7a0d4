"""The end of old changes: which files of `bronze.changes` may go, and their removal (`bronze.retention`).

**The boundary.** A decision reads the lake and chooses an LSN B: no reader of bronze needs a change before B.
B is the least of these LSNs:

* the first change that is younger than the retention, by the time at which bronze received the change. The
  newest file of the stream always stays: the next start compares the file with the server's log;
* the newest complete snapshot of each table that the pipeline carries. A rebuild, the first fold of a table,
  and the first fold of a new history begin with this snapshot. So **the base of a rebuild is a snapshot in
  bronze**. Silver's rows as of a cut would be a second base: a rebuild must also correct wrong rows of
  silver, and the copy of a base would cost as much as the table. A snapshot exists already, and the reader
  can take the next snapshot at any time;
* the position of each table of silver and of each history, also of a table that an error has stopped, but
  not of a table that was rolled back behind the removed changes: no boundary brings these back. The pipeline
  states these positions (`Need`), because bronze does not know silver. A fresh read begins at the
  same positions. Gold reads silver's change feed, and `smelt verify` reads the source: neither holds bronze.

Until a requested snapshot is complete, the last complete snapshot counts; and until silver has loaded the new
snapshot, silver's position. A table without a complete snapshot needs all changes from its first shape on: a
copy makes the shape durable, at the LSN of the copy, before the copy reads a row. Until then the first
snapshot is still to come, and the newest file of the stream is before it. If the boundary passes a running
copy all the same, `TableMarks.commit_snapshot` refuses the copy, and the reader repeats it. No removal takes
a table's newest snapshot. A table that the source no longer has is never folded or rebuilt again, so its rows
go by age. The shapes in `bronze.relations` stay, because old rows that share a file with needed rows can be
read only by their shapes, and because rules hold for former names by these shapes. A table has one shape for
each ALTER TABLE and for each snapshot, so the shapes grow slowly.

**A renewed base** (`bronze.renew`). The mark `renew_app` permits the reader to copy a healthy table again,
while nothing else is to be copied, one table at a time. The present snapshot stays valid. The new snapshot S
is only a later base: the mark `renewed_app` ends no gap and settles no request, and the copy records no
storage. So bronze judges the table as if the copy did not exist, and silver leaves the table in all cuts. If
silver is past S on arrival, silver's windows never meet the snapshot; otherwise the window with S replaces
the rows by equal rows. A copy that is impossible changes nothing: the mark waits.

**One writer.** `keep_from` records B as the mark `KEPT_APP`, alone in a commit, in parallel with a reader,
like a request for a snapshot (`bronze.store.gaps`). Only the lake's reader removes files
(`bronze.store.sink`): the next commit of the stream sees the mark, and `remove_old` removes whole files by
their statistics. So the mark is durable before any file goes, and every reader of bronze can compare its own
position with the mark (`kept_from`). The mark only grows, as snapshots and positions do.

**The removal is honest.** Delta refuses a removal of rows from a table with ``delta.appendOnly``, and permits
a removal with ``dataChange = false`` only for rows that the same commit adds again. So the first removal
unsets the property, and the removal states ``dataChange = true``. The property stays unset: with a change of
metadata every parallel commit conflicts, so to set it again would cost such a conflict at each removal. The
same commit raises the lake's format (`bronze.store.contract`), before any change is gone. A
streaming query of another program that follows `bronze.changes` therefore stops with Delta's own message,
unless the query has ``ignoreDeletes``.

**At each point of failure:**

* *killed before the mark*: nothing has changed; the next maintenance decides again.
* *killed after the mark*: all files are still there. Each reader that starts removes the files at its first
  commit with the mark.
* *killed between property and removal*: the table permits removals, and nothing is removed.
* *killed after the removal*: the files are in no version, and stay on disk for a day (`Table.tidy`), for
  readers of older versions.
* *a lost answer, a late commit*: the next removal reads the table again, and names only present files. Delta
  refuses a late commit, because the number of its log entry is taken.
* *a compaction in parallel*: a removal carries the mark of a compaction and of the reader, so only one of
  both succeeds (`bronze.lake.compaction`); the other reads the table again.
* *a snapshot, a gap or a request in parallel*: each needs only changes after a snapshot that B respects.

A file stays whole while one row may be needed. So rows before the mark may remain for a while, also parts of
a transaction whose other rows are gone: whoever reads bronze from the start reads from the mark.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from deltasmelt.bronze.effects import Effect, perform
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.client import Transaction
from deltasmelt.bronze.lake.compaction import remove_files
from deltasmelt.bronze.lake.parquet import file_system
from deltasmelt.bronze.lake.table import retry_conflict
from deltasmelt.bronze.lsn import ZERO, Lsn
from deltasmelt.bronze.store.changes_table import PREFIXES, commit_marks
from deltasmelt.bronze.store.contract import CHANGES_SCHEMA, FORMAT_OF_REMOVALS, FORMAT_PROPERTY
from deltasmelt.bronze.store.gaps import is_left_out
from deltasmelt.bronze.store.marks import KEPT_APP, base_of, fingerprint_app, kept_from, renew_app
from deltasmelt.bronze.store.row_groups import outer_group

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from deltasmelt.bronze.lake.table import Table
    from deltasmelt.bronze.shapes import Relation

_STREAM: Final = PREFIXES[0]
_DAY: Final = timedelta(days=1)
_YEAR: Final = 365.25


@dataclass(frozen=True, slots=True)
class ChangesFile:
    """A file of `bronze.changes`; first and last LSN are None without statistics."""

    path: str
    size: int
    first: Lsn | None
    last: Lsn | None
    written: datetime
    # the table, if all rows belong to one table
    table: TableName | None = None
    # None without statistics
    rows: int | None = None
    # least and greatest `seq`; None without statistics
    seqs: tuple[int, int] | None = None

    @property
    def is_streamed(self) -> bool:
        """Whether the rows came from the stream, and not from a snapshot."""
        return self.path.startswith(_STREAM)


@dataclass(frozen=True, slots=True)
class Need:
    """A table that needs all changes from an LSN on: a table of the source, or a table of silver."""

    name: str
    first: Lsn
    # `snapshot`: a table of the source, with its newest snapshot; `silver`: a table of silver, behind bronze
    kind: Literal["snapshot", "silver"] = "snapshot"


@dataclass(frozen=True, slots=True)
class Holder:
    """A table that needs changes older than the retention, and the bytes of their files."""

    name: str
    # as in `Need`
    kind: Literal["snapshot", "silver"]
    # the first change that the table needs
    lsn: Lsn
    bytes: int


@dataclass(frozen=True, slots=True)
class Boundary:
    """The boundary of bronze at one moment."""

    # bronze has all changes from this LSN on; 0 before the first removal
    kept_from: Lsn
    # all changes before this LSN are older than the retention
    due: Lsn
    # changes before this LSN may be removed; never after `due`
    lsn: Lsn
    # tables that need changes before `due`, oldest first
    holders: tuple[Holder, ...]
    # bytes of all files with only changes from `lsn` up to `due`
    held_bytes: int
    # bytes of files before `kept_from`, which the reader has yet to remove
    unremoved_bytes: int
    # tables of silver that need changes before `kept_from`, which no boundary brings back
    behind: tuple[Need, ...] = ()


@dataclass(frozen=True, slots=True)
class Growth:
    """The measured growth of `bronze.changes`."""

    # bytes of all files
    size: int
    # bytes of the stream's files for each day between the oldest and the newest row
    bytes_per_day: float
    days: float

    @property
    def after_a_year(self) -> int:
        """Bytes of all files after another year."""
        return int(self.size + self.bytes_per_day * _YEAR)


# -- the mark, and the removal


@retry_conflict
def keep_from(uri: str, lsn: Lsn) -> None:
    """Record that no reader needs a change before an LSN; durable on return. The mark only grows.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    if lsn > kept_from(changes):
        commit_marks(changes, [Transaction(KEPT_APP, int(lsn))])


def remove_old(changes: Table, owner: Transaction) -> bool:
    """Remove all files with only changes before the mark; return False if the caller must retry.

    `owner` is the mark of the lake's reader, who alone removes files.
    """
    changes.refresh()
    kept = kept_from(changes)
    paths = {file.path for file in files_of(changes) if _may_go(changes, file, kept)}
    stated = {FORMAT_PROPERTY: FORMAT_OF_REMOVALS}
    return not paths or remove_files(changes, paths, CHANGES_SCHEMA, properties=stated, owner=owner)


def _may_go(changes: Table, file: ChangesFile, kept: Lsn) -> bool:
    """Check whether a file has only changes before the mark, and no row of its table's newest snapshot."""
    if file.last is None or file.last >= kept:
        return False
    # The boundary respects the snapshot already. If the mark is wrong, this line still saves the base of a
    # rebuild.
    if file.is_streamed or file.table is None:
        return True
    base = base_of(changes, file.table)
    return base is None or file.last < base or is_left_out(changes, file.table)


# -- the decision


def files_of(changes: Table) -> list[ChangesFile]:
    """Return the files of an open `bronze.changes`."""
    return [changes_file(row) for row in pa.table(changes.get_add_actions(flatten=True)).to_pylist()]


def changes_file(row: Mapping[str, Any]) -> ChangesFile:
    """Return a file from its path, size, time and statistics, under the names of flat add actions. Pure."""
    return ChangesFile(
        row["path"],
        row["size_bytes"],
        _lsn(row.get("min.commit_lsn")),
        _lsn(row.get("max.commit_lsn")),
        _time(row["modification_time"]),
        _only_table(row),
        row.get("num_records"),
        None if row.get("min.seq") is None else (row["min.seq"], row["max.seq"]),
    )


def _lsn(value: int | None) -> Lsn | None:
    return None if value is None else Lsn(value)


def _time(value: datetime | int) -> datetime:
    if isinstance(value, int):
        return datetime.fromtimestamp(value / 1000, UTC)
    return value.replace(tzinfo=UTC) if value.tzinfo is None else value


def _only_table(row: Mapping[str, Any]) -> TableName | None:
    names = [row.get(f"min.{column}") for column in ("table_schema", "table_name")]
    if None in names or names != [row.get(f"max.{column}") for column in ("table_schema", "table_name")]:
        return None
    return TableName(str(names[0]), str(names[1]))


def snapshot_needs(changes: Table, relations: Iterable[Relation]) -> list[Need]:
    """Return the need of each carried table: its newest complete snapshot, and all later changes.

    `relations` are all versions of shapes, read after `changes`.
    """
    begins: dict[TableName, Lsn] = {}
    for relation in relations:
        begins[relation.table] = min(begins.get(relation.table, relation.from_lsn), relation.from_lsn)
    needs = []
    for table, begin in sorted(begins.items()):
        snapshot = base_of(changes, table)
        # A poll records a fingerprint before the table's first copy begins. Without a fingerprint no copy has
        # begun, so the first snapshot will be later than all rows of this moment.
        polled = changes.transaction_version(fingerprint_app(table)) is not None
        if (snapshot is not None or polled) and not is_left_out(changes, table):
            needs.append(Need(str(table), begin if snapshot is None else snapshot))
    return needs


def newest_at(changes: Table, files: Sequence[ChangesFile]) -> datetime | None:
    """Return the time at which bronze received the newest change of the stream; None without a change."""
    streamed = [file for file in files if file.is_streamed and file.last is not None]
    newest = max(streamed, key=lambda file: file.last or ZERO, default=None)
    return None if newest is None else _received(changes.table_uri, newest.path, last=True)


def due_at(
    changes: Table, files: Sequence[ChangesFile], before: datetime, column: str = "ingested_at"
) -> Lsn:
    """Return an LSN before which bronze received every change before a time; ZERO if all are younger.

    The search reads the time of a few files, because the stream's files are in the order of their times. With
    `column` another time of the changes counts.
    """
    streamed = [file for file in files if file.is_streamed and file.first is not None]
    streamed.sort(key=lambda file: file.last or ZERO)
    older = streamed[:-1]

    def is_young(file: ChangesFile) -> bool:
        time = _received(changes.table_uri, file.path, last=True, column=column)
        return time is None or time >= before

    count = bisect_left(older, True, key=is_young)
    return min((file.first or ZERO for file in streamed[count:]), default=ZERO)


def boundary(files: Sequence[ChangesFile], due: Lsn, needs: Iterable[Need], kept: Lsn) -> Boundary:
    """Return the boundary of bronze. Pure.

    A table of silver behind `kept` has stopped (``changes-removed``) and holds nothing.
    """
    ordered = sorted(needs, key=lambda need: (need.first, need.name))
    behind = tuple(need for need in ordered if need.kind == "silver" and need.first < kept)
    needing = [need for need in ordered if need.first < due and need not in behind]
    lsn = needing[0].first if needing else due

    def held(first: Lsn) -> int:
        return sum(file.size for file in files if file.last is not None and first <= file.last < due)

    holders = tuple(Holder(need.name, need.kind, need.first, held(need.first)) for need in needing)
    unremoved = sum(file.size for file in files if file.last is not None and file.last < kept)
    return Boundary(kept, due, max(lsn, kept), holders, held(lsn), unremoved, behind)


def renewable(
    changes: Table, files: Sequence[ChangesFile], loads: Mapping[TableName, int], budget: int, now: datetime
) -> dict[TableName, Lsn]:
    """Return the tables whose base may be renewed within a budget of bytes a day, with each old base's LSN.

    A table's load is the size of its snapshot in bronze, or of its rows in silver if these have grown. Open
    requests, and snapshots of the last day, have used a part of the budget already. The oldest base comes
    first; a table beyond the rest is skipped.

    Args:
        loads: bytes in silver of each table that holds the boundary back and that the reader can copy.
    """
    sizes: dict[tuple[TableName, Lsn], int] = {}
    used = 0
    for file in files:
        if not file.is_streamed and file.table is not None and file.last is not None:
            place = file.table, file.last
            sizes[place] = sizes.get(place, 0) + file.size
            used += file.size if file.written > now - _DAY else 0
    bases = {table: base_of(changes, table) for table in loads}
    places = {(table, base) for table, base in bases.items() if base is not None}
    load = {place: max(sizes.get(place, 0), loads[place[0]]) for place in places}
    requested = {place for place in places if wants_renewal(changes, place[0])}
    rest = budget - used - sum(load[place] for place in requested)
    chosen = {}
    for table, lsn in sorted(places - requested, key=lambda place: (place[1], place[0])):
        if load[table, lsn] <= rest:
            chosen[table] = lsn
            rest -= load[table, lsn]
    return chosen


def wants_renewal(changes: Table, table: TableName) -> bool:
    """Check whether an open `bronze.changes` has a base of this table that a newer snapshot may replace."""
    mark = changes.transaction_version(renew_app(table))
    base = None if mark is None else base_of(changes, table)
    return mark is not None and base is not None and mark >= base


@retry_conflict
def request_renewals(uri: str, bases: Mapping[TableName, Lsn]) -> None:
    """Permit the reader to replace old bases, given by table and LSN, in one commit; durable on return.

    Raises:
        DeltaError, OSError: the lake cannot be written.
    """
    changes = delta.open_existing(uri)
    old = {table: changes.transaction_version(renew_app(table)) or 0 for table in bases}
    marks = [Transaction(renew_app(table), int(lsn)) for table, lsn in bases.items() if lsn > old[table]]
    if marks:
        commit_marks(changes, marks)


def growth(changes: Table, now: datetime) -> Growth | None:
    """Return the growth of an open `bronze.changes`; None before a day of changes."""
    files = files_of(changes)
    streamed = [file for file in files if file.is_streamed and file.first is not None]
    if not streamed:
        return None
    oldest = min(streamed, key=lambda file: file.first or ZERO)
    begin = _received(changes.table_uri, oldest.path, last=False)
    if begin is None or now - begin < _DAY:
        return None
    days = (now - begin) / _DAY
    return Growth(sum(file.size for file in files), sum(file.size for file in streamed) / days, days)


@lru_cache(maxsize=4096)
def _received(uri: str, path: str, *, last: bool, column: str = "ingested_at") -> datetime | None:
    """Return the time at which bronze received the last or first rows of a file; no file ever changes.

    `column` is another time of the rows, if any.
    """

    def read() -> datetime | None:
        with file_system(uri).open_input_file(path) as file, pq.ParquetFile(file) as parquet:
            times = parquet.read_row_group(outer_group(parquet.metadata, last=last), [column])[column]
            newest: datetime | None = (pc.max if last else pc.min)(times).as_py()
            return newest

    return perform(Effect.READ_FILE, f"{uri}/{path}", read)
