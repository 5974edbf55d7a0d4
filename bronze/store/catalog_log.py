"""A table of `control` that keeps what looks at the catalog saw of each table; the newest record counts.

Each record is a file. The writer joins many files to one file, and leaves out records that nobody asks for:
older ones of a table (`Kind.history`), and all of a table that is forgotten (`CatalogLog.forget`). So the
size follows the tables that there are, and not the time or the tables that there were.

A record that fails may be in the table all the same; it is not known here then and is recorded again, which
says the same twice. A process that dies before the files are joined leaves the records of a forgotten table;
the next process reads them and forgets the table again.

`control.storage`: what looks at the catalog saw of each table's storage (`bronze.drift.observed_storage`).

The order of the writers makes it right. A copy records first what was seen *before* it took its locks, then
commits its rows; a crash in between leaves a table that still needs its copy. A look that finds a reason for
a new snapshot makes the resnapshot mark durable and records nothing, so that the reason stays until the copy.
A look that finds a harmless difference records it. So what is recorded is never newer than the rows.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final, Generic, TypeVar

import pyarrow as pa

from deltasmelt.bronze.drift.observed_storage import ObservedStorage
from deltasmelt.bronze.identifiers import TableName
from deltasmelt.bronze.lake import delta, durability
from deltasmelt.bronze.lake.compaction import COMPACT_ABOVE, RETENTION, compact, rewrite, tidy
from deltasmelt.bronze.lake.location import is_named
from deltasmelt.bronze.lake.torn_log import set_torn_aside

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from deltalake import DeltaTable

    from deltasmelt.bronze.lsn import Lsn

_Seen = TypeVar("_Seen")
_TICK: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Kind(Generic[_Seen]):
    """What is kept.

    Attributes:
        column: that holds it as JSON.
        description: of the table.
        read: what the JSON says.
        text: the inverse; equal values give equal text.
        history: readers ask for older records of a table, too.
    """

    column: str
    description: str
    read: Callable[[str], _Seen]
    text: Callable[[_Seen], str]
    history: bool = False

    @property
    def schema(self) -> pa.Schema:
        """The table's columns."""
        return pa.schema(
            [
                pa.field("table_schema", pa.string()),
                pa.field("table_name", pa.string()),
                pa.field("recorded_at", pa.timestamp("us", tz="UTC")),
                pa.field(self.column, pa.string()),
            ]
        )


class CatalogLog(Generic[_Seen]):
    """What is known of each table. Safe to share between threads of one process.

    Threads: the copies' threads and the reader's record and forget, they and the session ask (`known`), the
    session's writer runs `tidy`. `_lock` is held around `_table`, `_forgotten` and every change of `_known`.
    `known` takes no lock, so that the stream does not wait for a record: one look into a dict cannot be torn.

    Args:
        uri: location of the table, which is made when something is recorded first.
        kind: what is kept.

    Attributes:
        recorded_at: of the newest record; None before the first. No two commits have the same.
    """

    def __init__(self, uri: str, kind: Kind[_Seen]) -> None:
        self._uri = uri
        self._kind = kind
        self._lock = threading.Lock()
        set_torn_aside(uri)
        self._table: DeltaTable | None = delta.open_table(uri)
        self._known: dict[TableName, _Seen] = {}
        self._forgotten: dict[TableName, datetime] = {}
        self.recorded_at: datetime | None = None
        if self._table is not None:
            durability.flush_log(uri, self._table.version())
            for table, recorded_at, seen in records(self._table, kind):
                self._known[table], self.recorded_at = seen, recorded_at

    def known(self, table: TableName) -> _Seen | None:
        """What was recorded last; None where nothing was."""
        return self._known.get(table)

    def all_known(self) -> list[_Seen]:
        """What was recorded last of each table."""
        return list(self._known.values())

    def record(self, seen: Mapping[TableName, _Seen]) -> None:
        """Make durable what was seen, where it says something new."""
        with self._lock:
            new = {table: one for table, one in seen.items() if self._known.get(table) != one}
            if not new:
                return
            schema = self._kind.schema
            if self._table is None:
                self._table = delta.open_or_create(
                    self._uri,
                    schema,
                    description=self._kind.description,
                    properties={
                        "delta.checkpointInterval": str(delta.checkpoint_interval(self._uri)),
                        **RETENTION,
                    },
                )
            now = datetime.now(UTC)
            if self.recorded_at is not None:  # a clock that was put back must not hide the newer record
                now = max(now, self.recorded_at + _TICK)
            rows = [
                {
                    "table_schema": table.schema,
                    "table_name": table.name,
                    "recorded_at": now,
                    self._kind.column: self._kind.text(one),
                }
                for table, one in new.items()
            ]
            delta.append(self._table, pa.Table.from_pylist(rows, schema=schema))
            self._known.update(new)
            self.recorded_at = now
            if len(self._table.file_uris()) > COMPACT_ABOVE:
                self._join(self._table)

    def forget(self, tables: Iterable[TableName]) -> None:
        """Know nothing of tables any more; their records go when the files are joined the next time.

        Of a record that comes later nothing is left out, even where another process makes the record.
        """
        with self._lock:
            for table in tables:
                if self._known.pop(table, None) is not None and self.recorded_at is not None:
                    self._forgotten[table] = self.recorded_at

    def _join(self, table: DeltaTable) -> None:
        """Write all files as one file, without the records that nobody asks for.

        Where another process joins or removes files at the same moment, the next record tries again.
        """
        schema = self._kind.schema
        if self._kind.history:
            compact(table, schema, many=COMPACT_ABOVE // 2)
            return
        version = delta.refresh(table)
        if is_named(table.table_uri):  # OPTIMIZE joins files there
            return
        files = {path: delta.read_file(table, path) for path in delta.paths_of(table)}
        newest = {
            TableName(row["table_schema"], row["table_name"]): row
            for row in delta.sorted_by(pa.concat_tables(files.values()), "recorded_at").to_pylist()
        }
        staying = [
            row
            for name, row in newest.items()
            if name not in self._forgotten or row["recorded_at"] > self._forgotten[name]
        ]
        changed = dict.fromkeys(files, schema.empty_table())
        changed[next(iter(files))] = pa.Table.from_pylist(staying, schema=schema)
        if rewrite(table, changed, schema, as_of=version, before=files):
            self._forgotten.clear()

    def tidy(self) -> None:
        """Remove log entries and joined files that are past their time."""
        with self._lock:
            if self._table is not None:
                tidy(self._table)


def records(table: DeltaTable, kind: Kind[_Seen]) -> list[tuple[TableName, datetime, _Seen]]:
    """Everything that an open table holds, oldest first."""
    files = [delta.read_file(table, path) for path in delta.paths_of(table)]
    rows = pa.concat_tables([kind.schema.empty_table(), *files])
    return [
        (TableName(row["table_schema"], row["table_name"]), row["recorded_at"], kind.read(row[kind.column]))
        for row in delta.sorted_by(rows, "recorded_at").to_pylist()
    ]


STORAGE: Final = "storage"
_KIND: Final = Kind(
    STORAGE,
    "What the catalog said of each table's storage",
    ObservedStorage.from_json,
    ObservedStorage.to_json,
)


class StorageLog(CatalogLog[ObservedStorage]):
    """What is known of each table; see `CatalogLog`.

    Args:
        uri: location of the table, which is made when something is recorded first.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(uri, _KIND)

    def settles(self, before: Lsn, frontier: Lsn) -> bool:
        """Whether a look is worth while, since the stream came from one place to another."""
        return any(looked.settles(before, frontier) for looked in self.all_known())
