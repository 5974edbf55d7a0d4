"""A table of `control` with the results of catalog polls for each source table; the newest record counts.

Each record is a file. The writer joins many files into one, and leaves out records that no reader needs:
records of a table before its newest (`Kind.kept`), and all records of a forgotten table
(`CatalogLog.forget`). The size therefore depends on the existing tables, and not on time or on former tables.

A record that fails may still be in the table. The process then does not know the record and repeats the
record, which is harmless. A process that is killed before the join leaves the records of a forgotten table;
the next process reads them and forgets the table again.

`control.storage` has the results of polls of each table's storage (`bronze.drift.observed_storage`). The
order of the writes makes this log correct:

* A copy first records the poll from *before* it took its locks, then commits its rows. A crash in between
  leaves a table that still needs its copy.
* A poll with a reason for a new snapshot makes the resnapshot mark durable and records nothing. The reason
  therefore remains until the copy.
* A poll that finds a harmless difference records the difference.

So a record is never newer than the rows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import pyarrow as pa

from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta
from deltasmelt.bronze.lake.compaction import COMPACT_ABOVE, remove_unnamed, rewrite
from deltasmelt.bronze.lake.table import Table, sorted_by
from deltasmelt.bronze.lake.torn_log import set_torn_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from deltasmelt.bronze.lsn import Lsn

_Content = TypeVar("_Content")
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Kind(Generic[_Content]):
    """The kind of a catalog log."""

    # the column that holds the record as JSON
    column: str
    # description of the Delta table
    description: str
    # parses the JSON of a record
    read: Callable[[str], _Content]
    # the inverse of `read`; equal values give equal text
    text: Callable[[_Content], str]
    # number of a table's newest records that readers need
    kept: int = 1

    @property
    def schema(self) -> pa.Schema:
        """The schema of the Delta table."""
        return pa.schema(
            [
                pa.field("table_schema", pa.string()),
                pa.field("table_name", pa.string()),
                pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
                pa.field(self.column, pa.string()),
            ]
        )


class CatalogLog(Generic[_Content]):
    """The newest record of each table. Safe to share between threads of one process.

    Threads: the reader's thread and the copies' threads record and forget, both and the session call `known`,
    and the session's writer runs `tidy`. `_lock` guards `_table`, `_forgotten` and every change of `_known`.

    Args:
        uri: location of the table; the first record creates the table.
    """

    def __init__(self, uri: str, kind: Kind[_Content]) -> None:
        self._uri = uri
        self._kind = kind
        self._lock = threading.Lock()
        set_torn_aside(uri)
        self._table: Table | None = delta.open_table(uri)
        self._known: dict[TableName, _Content] = {}
        self._forgotten: dict[TableName, datetime] = {}
        # time of the newest record; None before the first; no two commits have equal times
        self.recorded_at: datetime | None = None
        if self._table is not None:
            self._table.flush_log()
            for table, recorded_at, content in records(self._table, kind):
                self._known[table], self.recorded_at = content, recorded_at

    def known(self, table: TableName) -> _Content | None:
        """Return the newest record of a table; None without a record."""
        # No lock, so that the stream does not wait for a record: a single read of a dict is atomic.
        return self._known.get(table)

    def all_known(self) -> list[_Content]:
        """Return the newest record of every table."""
        return list(self._known.values())

    def record(self, contents: Mapping[TableName, _Content]) -> None:
        """Make records durable, except records equal to the known ones."""
        with self._lock:
            new = {table: content for table, content in contents.items() if self._known.get(table) != content}
            if not new:
                return
            schema = self._kind.schema
            if self._table is None:
                self._table = delta.open_or_create(self._uri, schema, description=self._kind.description)
            now = datetime.now(UTC)
            if self.recorded_at is not None:  # a clock set back must not hide the newer record
                now = max(now, self.recorded_at + _TICK)
            rows = [
                {
                    "table_schema": table.schema,
                    "table_name": table.name,
                    "recorded_at": now,
                    self._kind.column: self._kind.text(content),
                }
                for table, content in new.items()
            ]
            self._table.append(pa.Table.from_pylist(rows, schema=schema))
            self._known.update(new)
            self.recorded_at = now
            if len(self._table.file_uris()) > COMPACT_ABOVE:
                self._join(self._table)

    def forget(self, tables: Iterable[TableName]) -> None:
        """Forget tables; the next join of files removes the records."""
        with self._lock:
            for table in tables:
                if self._known.pop(table, None) is not None and self.recorded_at is not None:
                    self._forgotten[table] = self.recorded_at

    def _join(self, table: Table) -> None:
        """Write all files as one file, without the records that no reader needs."""
        schema = self._kind.schema
        version = table.refresh()
        if not table.shows_files:
            return
        files = {path: table.read_file(path) for path in table.paths()}
        of_tables: dict[TableName, list[dict[str, Any]]] = {}
        for row in sorted_by(pa.concat_tables(files.values()), "recorded_at").to_pylist():
            of_tables.setdefault(TableName(row["table_schema"], row["table_name"]), []).append(row)
        staying = [
            row
            for name, rows in of_tables.items()
            for row in rows[-self._kind.kept :]
            # A later record is never left out, even if another process writes the record.
            if name not in self._forgotten or row["recorded_at"] > self._forgotten[name]
        ]
        changed = dict.fromkeys(files, schema.empty_table())
        changed[next(iter(files))] = pa.Table.from_pylist(staying, schema=schema)
        # If another process joins or removes files concurrently, the next record retries.
        if rewrite(table, changed, schema, as_of=version, before=files):
            self._forgotten.clear()

    def tidy(self) -> None:
        """Remove log entries and joined files whose retention is over."""
        with self._lock:
            if self._table is not None:
                self._table.tidy()
                remove_unnamed(self._table)


def records(table: Table, kind: Kind[_Content]) -> list[tuple[TableName, datetime, _Content]]:
    """Return all records of an open table, oldest first."""
    files = [table.read_file(path) for path in table.paths()]
    rows = pa.concat_tables([kind.schema.empty_table(), *files])
    return [
        (TableName(row["table_schema"], row["table_name"]), row["recorded_at"], kind.read(row[kind.column]))
        for row in sorted_by(rows, "recorded_at").to_pylist()
    ]


STORAGE: Final = "storage"
_KIND: Final = Kind(
    STORAGE,
    "The storage of each table, as read from the catalog",
    ObservedStorage.from_json,
    ObservedStorage.to_json,
)


def recorded_storages(uri: str) -> dict[TableName, ObservedStorage]:
    """Return the newest record of each table's storage; empty before the first record."""
    table = delta.open_table(uri)
    return {} if table is None else {name: storage for name, _, storage in records(table, _KIND)}


class StorageLog(CatalogLog[ObservedStorage]):
    """The storage of each table; see `CatalogLog`."""

    def __init__(self, uri: str) -> None:
        super().__init__(uri, _KIND)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Check whether a poll is useful, now that the stream went from `before` to `frontier`."""
        return any(storage.settles(before, frontier) for storage in self.all_known())
